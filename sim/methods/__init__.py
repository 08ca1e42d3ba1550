"""Methods that no node runs, in one process: references that `barnraise compare` trains."""
