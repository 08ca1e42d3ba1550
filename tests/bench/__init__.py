"""Measurements behind numbers in DECISIONS.md; run by hand, never by pytest."""
