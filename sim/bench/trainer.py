"""The trainer of a bench: no torch, no training, numbers of a seed as its contribution.

    python -P -m sim.bench.trainer --seed 1 --name B --round-s 0.2 [options of the trainer]

Killed and started again it makes the same bytes again, so it keeps nothing. With `--gate FOLDER` it
hands over when the gate of a round is open.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from node.processes.heap import keep_freed_memory
from sim.bench.gate import wait_at, wait_until_over
from sim.bench.made_up import Numbers, Vector
from sim.bench.sampling import begin
from sim.bench.stages import TRAINER_SUFFIX
from sim.local.made_up_trainer import TrainingPace, made_up_parser, run_trainer
from training.channel.trainer_end import ChannelExchange
from training.compression import Encoded, ErrorFeedback


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
