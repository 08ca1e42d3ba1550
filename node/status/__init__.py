"""What a node tells of itself: events, snapshots, the local server and who asks it."""
