"""The simulator as native code: the same sources, compiled, found again by their digest."""
