"""The made-up trainer of a simulated node: real error feedback around a made-up drift."""

import copy
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node import events as ev
from protocol.manifest import RunManifest
from training.compression import CODECS, Encoded, ErrorFeedback

Vector = NDArray[np.float32]


@dataclass(slots=True)
class _Saved:
    """What the trainer has on its disk: its last contribution and the feedback around it (R6)."""

    round: int
    encoded: Encoded
    feedback: ErrorFeedback


class SimTrainer:
    """One trainer. Rounds are named by the seal that they start from."""

    def __init__(self, manifest: RunManifest) -> None:
        self.feedback = ErrorFeedback(
            CODECS[manifest.outer.codec](),
            manifest.outer.feedback,
            cell_elements=manifest.layout(0).cell_elements,
        )
        self.has_open_contribution = False
        self._saved: _Saved | None = None
        self._pending: Encoded | None = None

    def forget(self) -> None:
        """Its disk is lost."""
        self._saved = None

    def restarted(self) -> "SimTrainer":
        """The trainer that the next process finds on the disk."""
        fresh = copy.copy(self)
        fresh.has_open_contribution, fresh._pending = False, None
        if self._saved is None:
            fresh.feedback = copy.deepcopy(self.feedback)
            fresh.feedback.restore(None)
        else:
            fresh.feedback = copy.deepcopy(self._saved.feedback)
            fresh.has_open_contribution = True
        return fresh

    def take_over(self, action: ev.Train) -> bool:
        """Settle the last contribution; whether there is something to train."""
        head = action.certificate.value
        self._pending = None
        if self.has_open_contribution:
            started = self._saved.round if self._saved else head.round
            if started == head.round and not action.is_resync:
                # Restarted in the middle of the round: the same bytes once more.
                assert self._saved is not None
                self._pending = self._saved.encoded
                return bool(action.lease)
            if action.was_listed:
                self.feedback.commit()
            else:
                self.feedback.abort()
            if started < head.round - 1:
                self.feedback.restore(None)
            self.has_open_contribution = False
        if action.is_resync:
            self.feedback.restore(None)
        return bool(action.lease)

    def contribution(
        self, round_index: int, anchor_N: Vector, stream: random.Random
    ) -> Encoded | None:
        """The encoded contribution, on the disk when it is given; None while one is under way."""
        if self._pending is not None:
            encoded, self._pending = self._pending, None
            return encoded
        if self.has_open_contribution:
            return None
        encoded = self.feedback.encode(_drift(anchor_N, stream))
        self.has_open_contribution = True
        self._saved = _Saved(round_index, encoded, copy.deepcopy(self.feedback))
        return encoded


def _drift(anchor_N: Vector, stream: random.Random) -> Vector:
    """A made-up pseudo-gradient: a pull towards one, unequal on every peer and round."""
    generator = np.random.Generator(np.random.PCG64(stream.getrandbits(64)))
    noise_N = generator.random(len(anchor_N), dtype=np.float32) - np.float32(0.5)
    drift_N: Vector = np.float32(0.1) * (anchor_N - np.float32(1.0)) + np.float32(0.01) * noise_N
    return drift_N
