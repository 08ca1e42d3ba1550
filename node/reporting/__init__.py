"""What a node tells of itself: log lines, events for people and programs, traces."""
