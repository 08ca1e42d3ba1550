"""The trainer of a bench: no torch, no training, numbers of a seed as its contribution.

    python -P -m sim.bench.trainer --seed 1 --name B --round-s 0.2 [options of the trainer]

Killed and started again it makes the same bytes again, so it keeps nothing: its contributions are
functions of its name and of the round, and not of the anchor, so that who checks a round need not
have followed the others. With `--gate FOLDER` it says when it is ready, and waits for a file:

    ready-B-7   B's contribution to round 7 is ready
    go-7        everybody may hand over for round 7
    over-7      round 7 is measured: numbers for the next one may be made, which are no part of it

N elements
"""

import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from sim.bench.sampling import TRAINER_SUFFIX, begin
from sim.local.made_up_trainer import TrainingPace, made_up_parser, run_trainer
from training.channel.trainer_end import ChannelExchange
from training.compression import Encoded, ErrorFeedback
from training.numeric.arithmetic import Vector
from training.numeric.memory import keep_freed_memory

_LOOK_S = 0.002
BASE_ELEMENTS = 1_000_003
"""A prime: no two cells of a vector have the same numbers, though its base comes again."""


def base(name: str, numel: int) -> Vector:
    """Uniform in [-0.5, 0.5): what all contributions of one trainer are multiples of, again and
    again. A whole vector of them would be memory that no node of a run needs."""
    numel = min(numel, BASE_ELEMENTS)
    key = int.from_bytes(blake3(f"{name}/base".encode()).digest(length=16), "little")
    draw_N = np.random.Generator(np.random.Philox(key=key)).random(numel, dtype=np.float32)
    draw_N -= np.float32(0.5)
    return draw_N


def scale(name: str, round_index: int) -> np.float32:
    """In [0.5, 1.5): the bytes of another round are never those of this one."""
    draw = int.from_bytes(blake3(f"{name}/{round_index}".encode()).digest(length=4), "little")
    return np.float32(0.5 + draw / 2**32)


class Numbers:
    """The contributions of one trainer; the costly part of them is made once."""

    def __init__(self, name: str, numel: int) -> None:
        self.name = name
        self._numel = numel
        self._base_N = base(name, numel)

    def contribution(self, round_index: int, *, out: Vector | None = None) -> Vector:
        """What it hands over in a round; in the memory of `out`, if there is one."""
        drift_N = np.empty(self._numel, dtype=np.float32) if out is None else out
        factor = scale(self.name, round_index)
        for start in range(0, self._numel, BASE_ELEMENTS):
            piece_N = drift_N[start : start + BASE_ELEMENTS]
            np.multiply(self._base_N[: len(piece_N)], factor, out=piece_N)
        return drift_N


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


class _Contributions:
    """Makes its numbers when it first knows how many, and never while others exchange theirs."""

    def __init__(self, gate: Path | None) -> None:
        self._gate = gate
        self._numbers: Numbers | None = None
        self._drift_N: Vector | None = None

    def __call__(
        self,
        feedback: ErrorFeedback,
        anchor_N: Vector,
        name: str,
        round_index: int,
        exchange: ChannelExchange,
    ) -> Encoded:
        if self._gate is not None:
            wait_until_over(self._gate, round_index - 1)
        if self._numbers is None:
            self._numbers = Numbers(name, len(anchor_N))
        place_N = self._memory(anchor_N, exchange.draft())
        drift_N = self._numbers.contribution(round_index, out=place_N)
        return feedback.encode(drift_N, in_place=True)

    def _memory(self, anchor_N: Vector, draft_B: NDArray[np.uint8]) -> Vector:
        """Where they are made: where they are to lie, if there is room for them."""
        if len(draft_B) >= anchor_N.nbytes:
            return draft_B[: anchor_N.nbytes].view(np.float32)
        if self._drift_N is None:
            # Every time in the same memory: the one before is handed over.
            self._drift_N = np.empty_like(anchor_N)
        return self._drift_N


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trainer; returns the exit status."""
    parser = made_up_parser()
    parser.add_argument(
        "--gate", type=Path, help="hand over the contribution only when this file exists"
    )
    parser.add_argument("--profile", type=Path, help="folder for CPU profile samples")
    options, _ = parser.parse_known_args(arguments)
    keep_freed_memory()  # A contribution is made and freed in each round, cell by cell.
    if options.profile is not None:
        begin((options.profile / options.name).with_suffix(TRAINER_SUFFIX))
    pace = TrainingPace(round_s=options.round_s, hold=options.hold)
    if options.gate is not None:
        waits = partial(wait_at, options.gate, options.name)
        pace = TrainingPace(round_s=options.round_s, hold=options.hold, before_handing=waits)
    return run_trainer(options, None, pace, _Contributions(options.gate))


if __name__ == "__main__":
    sys.exit(main())
