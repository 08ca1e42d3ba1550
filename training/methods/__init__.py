"""What presets stand for."""
