"""Trainers that hand over at one time: each says that it is ready, and waits for a file.

ready-B-7   B's contribution to round 7 is ready
go-7        everybody may hand over for round 7
over-7      round 7 is measured: numbers for the next one may be made, which are no part of it
"""

import time
from collections.abc import Iterable
from pathlib import Path

_LOOK_S = 0.002


def wait_at(folder: Path, name: str, round_index: int) -> None:
    """In the trainer: until the gate of a round opens."""
    (folder / f"ready-{name}-{round_index}").touch()
    _wait_for(folder / f"go-{round_index}")


def wait_until_over(folder: Path, round_index: int) -> None:
    """In the trainer: until a round is measured; round 0 always is."""
    if round_index:
        _wait_for(folder / f"over-{round_index}")


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(_LOOK_S)


def are_ready(folder: Path, names: Iterable[str], round_index: int) -> bool:
    """Whether all these wait at the gate of a round, or have passed it."""
    return all((folder / f"ready-{name}-{round_index}").exists() for name in names)


def let_go(folder: Path, round_index: int) -> None:
    """Let everybody hand over."""
    (folder / f"go-{round_index}").touch()


def say_over(folder: Path, round_index: int) -> None:
    """Let the trainers go on to the next round."""
    (folder / f"over-{round_index}").touch()
