"""What a user's program imports: `from barnraise import DiLoCo, Swarm`.

Importing this package loads nothing: each name does when it is first asked for. What type checkers
see is in `__init__.pyi`. In a wheel this is the one top-level package, and all others lie in it
(`hatch_build.py`); in the repository they lie beside it.
"""

__all__ = ["DiLoCo", "NodeConfig", "Swarm"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import node

    return getattr(node, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
