"""The running node: its parts put together, its driver, its beginning and its end."""
