"""`barnraise compare`: the same model and data with one preset after the other."""
