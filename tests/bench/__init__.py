"""Measurements behind numbers in `tests/bench/RESULTS.md`; run by hand, never by pytest."""
