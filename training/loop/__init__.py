"""The rounds of one trainer: inner steps, error feedback, merging, its transaction on the disk."""
