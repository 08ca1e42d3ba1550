"""Which Barnraise this is."""

from importlib import metadata

UNKNOWN = "unknown"
"""Run from its sources, without an installation that says it."""


def version() -> str:
    """The version of the installed package."""
    try:
        return metadata.version("barnraise")
    except metadata.PackageNotFoundError:
        return UNKNOWN
