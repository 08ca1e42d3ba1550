"""What fields of wire types are annotated with: their bounds, and what may be left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Size:
    """Annotation: fewest and most bytes (of a text, its UTF-8 bytes) or items."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Range:
    """Annotation: smallest and largest number."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotation: the closed set of strings or numbers."""

    values: tuple[str | int, ...]


LEFT_OUT: Mapping[str, bool] = MappingProxyType({"is_left_out": True})
"""Metadata of a last field that came later: it travels only where it differs from its default, so
that values from before have the bytes that they had."""
