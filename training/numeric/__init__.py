"""Arithmetic that gives the same bits everywhere, and where vectors lie."""
