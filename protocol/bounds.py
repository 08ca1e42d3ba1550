"""What fields of wire types are annotated with: their bounds, and what may be left out."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Size:
    """Annotation: fewest and most bytes (of a text, its UTF-8 bytes) or items."""

    low: int
    high: int


@dataclass(frozen=True)
class Spelled:
    """Annotation of a text that is a name: made of these characters alone, and of so many.

    `characters` is what stands between the brackets of a regular expression, all of it ASCII. So a
    name that a stranger chose is one harmless word wherever it is shown.
    """

    characters: str
    low: int
    high: int

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What matches the whole name."""
        return re.compile(f"[{self.characters}]{{{self.low},{self.high}}}", re.ASCII)


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
