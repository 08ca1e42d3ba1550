"""The state folder: key, lock, known peers, and the runs in it."""
