"""The commands of `barnraise`, a module per purpose. Heavy imports wait inside the functions."""
