"""Models in use: validation against a yardstick, generation, measuring."""
