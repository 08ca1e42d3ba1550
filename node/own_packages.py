"""Whether our packages are ours: a user's project often has a file or folder of such a name.

In an installed wheel they lie within `barnraise`, where no other can take their place; in a clone
and its editable installation they are at the top.

Pythons from 3.7 on can read it, as `node` itself.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

BESIDE_US = ("protocol", "dht", "training")
ABOVE_US = __name__.rpartition("node.")[0]
"""What stands before the names of our packages: nothing, or `barnraise.` in a wheel."""


def require_own_packages() -> None:
    """Raise ImportError, in one line, naming what is loaded in place of a package of ours.

    A script's folder comes before installed packages: a `training.py` in it would be found first,
    and from the depths Python would say that `training.loop.diloco` is missing.
    """
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in BESIDE_US:
        place = _place(ABOVE_US + name)
        if os.path.realpath(place).startswith(os.path.join(home, name) + os.sep):
            continue
        whose = f"{place} is" if place else "nothing is"
        raise ImportError(
            f"{whose} loaded as {name!r}, which is a package of Barnraise: rename that file or "
            "folder, or start your program from another folder"
        )


def _place(name: str) -> str:
    """The file of the module that an import of the name gives; a folder's where it has none."""
    module = sys.modules.get(name)
    if module is None:
        spec = find_spec(name)
        file, folders = (spec.origin, spec.submodule_search_locations) if spec else (None, None)
    else:
        file, folders = getattr(module, "__file__", None), getattr(module, "__path__", None)
    return file or next(iter(folders or ()), "")
