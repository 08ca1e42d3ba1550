"""`barnraise bench`: real nodes, and how fast and how exact they are."""
