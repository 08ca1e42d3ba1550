"""Measures the shape of the tree; `make structure` prints the figures."""
