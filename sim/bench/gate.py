"""Trainers that hand over at one time: each says that it is ready, and waits for a file.

ready-B-7   B's contribution to round 7 is ready
go-7        everybody may hand over for round 7
"""

import time
from collections.abc import Iterable
from pathlib import Path

_LOOK_S = 0.002


def wait_at(folder: Path, name: str, round_index: int) -> None:
    """In the trainer: until the gate of a round opens."""
    (folder / f"ready-{name}-{round_index}").touch()
    while not (folder / f"go-{round_index}").exists():
        time.sleep(_LOOK_S)


def are_ready(folder: Path, names: Iterable[str], round_index: int) -> bool:
    """Whether all these wait at the gate of a round, or have passed it."""
    return all((folder / f"ready-{name}-{round_index}").exists() for name in names)


def let_go(folder: Path, round_index: int) -> None:
    """Let everybody hand over."""
    (folder / f"go-{round_index}").touch()
