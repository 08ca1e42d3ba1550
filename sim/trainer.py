"""The trainer process of a simulated node: real error feedback around whatever it learns.

What it does at a start and with an outcome is `training.diloco`'s, so that a restart hands over the
same bytes again, and a residual is taken over, given back or dropped as there (R6).
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node.rules.fates import Fates
from protocol.manifest import RunManifest
from training.compression import Encoded, ErrorFeedback, make_codec
from training.exchange import Lease

Vector = NDArray[np.float32]

INNER_STATES_KEPT = 3
"""As `training.inner_state`, whose module needs torch."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a round of training gives: the pseudo-gradient, and the mean loss if there is one."""

    drift_N: Vector
    loss: float | None = None


Learner = Callable[[Vector, Lease, random.Random], Learned]
"""SEAM: trains from an anchor, which it must not write to, on leased samples."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """What the trainer has on its disk of a round: its contribution, and the feedback around it."""

    anchor_N: Vector
    encoded: Encoded
    before_N: Vector | None
    after_N: Vector | None


class SimTrainer:
    """One trainer. Rounds are those that are trained for."""

    def __init__(self, manifest: RunManifest, learner: Learner) -> None:
        self._learner = learner
        self.feedback = ErrorFeedback(
            make_codec(manifest.outer),
            manifest.outer.feedback,
            cell_elements=manifest.layout(0).cell_elements,
        )
        self._saved: dict[int, _Saved] = {}
        self._round = -1
        self._anchor_N: Vector | None = None
        self._lease: Lease = ()
        self._under_way: Encoded | None = None
        self.loss: float | None = None

    def forget(self) -> None:
        """Its disk is lost."""
        self._saved = {}

    def restarted(self) -> "SimTrainer":
        """The trainer that the next process starts, with what the disk has."""
        fresh = copy.copy(self)
        fresh.feedback = copy.copy(self.feedback)
        fresh.feedback.restore(None)
        fresh._saved = dict(self._saved)
        fresh._under_way = None
        return fresh

    def start(self, round_index: int, anchor_N: Vector, lease: Lease, fates: Fates) -> bool:
        """Begin; whether a contribution of the process before is under way, so that it is sent
        again and nothing is trained.
        """
        self._round, self._anchor_N, self._lease = round_index, anchor_N, lease
        newest = max((index for index in self._saved if index <= round_index), default=-1)
        saved = self._saved.get(newest)
        if saved is None:
            return False
        is_same = newest == round_index and np.array_equal(saved.anchor_N, anchor_N)
        if is_same and lease:
            self.feedback.reopen(saved.before_N, saved.after_N)
            self._under_way = saved.encoded
        elif newest < round_index and not fates.is_behind(newest):
            is_listed = fates.was_listed(newest)
            self.feedback.restore(saved.after_N if is_listed else saved.before_N)
        return self._under_way is not None

    def contribute(self, stream: random.Random) -> Encoded:
        """The encoded contribution of the round in hand, on the disk when it is given."""
        if self._under_way is not None:
            encoded, self._under_way = self._under_way, None
            return encoded
        assert self._anchor_N is not None, "it was not started"
        learned = self._learner(self._anchor_N, self._lease, stream)
        self.loss = learned.loss
        before_N = self.feedback.residual_N
        encoded = self.feedback.encode(learned.drift_N)
        after_N = self.feedback.residual_after_N
        self._saved[self._round] = _Saved(self._anchor_N, encoded, before_N, after_N)
        # Of later rounds there may be some of a branch that was given up.
        kept = sorted(index for index in self._saved if index <= self._round)[-INNER_STATES_KEPT:]
        self._saved = {index: self._saved[index] for index in kept}
        return encoded

    def finish(self, round_index: int, anchor_N: Vector, lease: Lease, fates: Fates) -> None:
        """What became of the contribution; the next round, and its anchor."""
        if fates.is_behind(self._round):
            self.feedback.restore(None)
        elif fates.was_listed(self._round):
            self.feedback.commit()
        else:
            self.feedback.abort()
        self._round, self._anchor_N, self._lease = round_index, anchor_N, lease


def drift(anchor_N: Vector, lease: Lease, stream: random.Random) -> Learned:
    """A made-up pseudo-gradient: a pull towards one, unequal on every peer and round."""
    del lease
    generator = np.random.Generator(np.random.PCG64(stream.getrandbits(64)))
    noise_N = generator.random(len(anchor_N), dtype=np.float32) - np.float32(0.5)
    drift_N: Vector = np.float32(0.1) * (anchor_N - np.float32(1.0)) + np.float32(0.01) * noise_N
    return Learned(drift_N)
