"""`cached_property` in compiled classes, of which mypyc makes a plain property."""

from functools import cached_property


def keep(kind: type, names: tuple[str, ...]) -> None:
    """Make the properties of an ordinary class keep what they first gave, as the source says."""
    for name in names:
        kept = cached_property(vars(kind)[name].fget)
        kept.__set_name__(kind, name)
        setattr(kind, name, kept)
