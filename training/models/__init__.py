"""Models that a manifest names: how they are built, checked and given their first values."""
