"""`barnraise local`: real node processes on this machine, a network between them that is worse."""
