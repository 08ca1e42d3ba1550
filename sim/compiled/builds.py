"""Where a compiled simulator lies, and whether it is one of the sources that there are now.

A build is a copy of the packages with extension modules beside, in a folder that is called by the
digest of what it was made from. It is used if its own digests still hold, and otherwise never.
"""

import json
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

import protocol

PACKAGES = ("dht", "node", "protocol", "sim", "training")
MARK = "complete.json"
"""Written last: the digest of each extension module by its path in the folder."""

_ROOT = Path(protocol.__path__[0]).resolve().parent


@dataclass(frozen=True, slots=True)
class Choice:
    """Where workers find our packages first (None: where we did), and a line that says so."""

    folder: Path | None
    text: str


def sources(root: Path = _ROOT) -> list[Path]:
    """Every file of the packages that a build is made from, in the order of their paths."""
    found = (path for package in PACKAGES for path in (root / package).rglob("*"))
    return sorted(path for path in found if path.suffix in (".py", ".toml", ".typed"))


def source_digest(root: Path = _ROOT) -> str:
    """A digest over the sources and the interpreter that they would be compiled for."""
    hasher = blake3(f"{sys.version} {sysconfig.get_config_var('EXT_SUFFIX')}\n".encode())
    for path in sources(root):
        data = path.read_bytes()
        hasher.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode())
        hasher.update(data)
    return hasher.hexdigest(16)


def build_folder(root: Path = _ROOT) -> Path:
    """Where the build of the present sources belongs, whether there is one or not."""
    return root / "build" / "compiled" / source_digest(root)


def mark_complete(folder: Path) -> None:
    """Say that a build is whole, and what it consists of."""
    found = {path.relative_to(folder).as_posix(): _digest(path) for path in _extensions(folder)}
    (folder / MARK).write_text(json.dumps(found, indent=0), encoding="utf-8")


def is_complete(folder: Path) -> bool:
    """Whether all extension modules of a build are there, as they were made, and no others."""
    try:
        marked = json.loads((folder / MARK).read_text(encoding="utf-8"))
        found = {path.relative_to(folder).as_posix(): _digest(path) for path in _extensions(folder)}
    except (OSError, ValueError):
        return False
    return bool(found) and marked == found


def choose(*, is_wanted: bool = True, root: Path = _ROOT) -> Choice:
    """The build of the present sources, if there is a whole one and it is wanted."""
    if not is_wanted:
        return Choice(None, "interpreted")
    if not (root / "Makefile").is_file():
        return Choice(None, "interpreted")  # Installed: nothing to compile it with, nor from.
    folder = build_folder(root)
    if is_complete(folder):
        return Choice(folder, "compiled")
    others = "the build is of other sources; " if _has_other(folder.parent) else ""
    return Choice(None, f"interpreted; {others}`make compiled` makes one that is faster")


def _has_other(parent: Path) -> bool:
    return any((folder / MARK).is_file() for folder in parent.glob("*"))


def _extensions(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"))


def _digest(path: Path) -> str:
    return blake3(path.read_bytes()).hexdigest()


def cores() -> int:
    """How many processes can work at once here."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
