"""What must survive a crash, and the way back from it (R12)."""
