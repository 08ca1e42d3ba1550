"""Child processes and signals."""
