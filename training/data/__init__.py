"""Texts, and who trains on which samples."""
