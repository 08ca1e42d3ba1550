"""Liars against rules: a small model trained by honest peers and by those who attack."""
