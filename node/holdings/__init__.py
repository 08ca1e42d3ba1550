"""What a node holds of a model: store, journal, checkpoints, the way back from a crash (R12)."""
