"""The daemon and the library; programs say `from barnraise import DiLoCo, Swarm` for the same.

Importing this package loads nothing: each name does when it is first asked for, and torch with
DiLoCo alone. What type checkers see is in `__init__.pyi`.
"""

from node.daemon.clock_check import require_clock
from node.own_packages import require_own_packages
from node.python_version import require_python

__all__ = ["DiLoCo", "NodeConfig", "Swarm"]

# Before anything else of ours is read: a Python that is too old would stumble over its syntax.
require_python()
require_clock()
require_own_packages()


def __getattr__(name: str) -> object:
    if name == "DiLoCo":
        from training.loop.diloco import DiLoCo

        return DiLoCo
    if name == "NodeConfig":
        from node.state.config import NodeConfig

        return NodeConfig
    if name == "Swarm":
        from node.swarm import Swarm

        return Swarm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
