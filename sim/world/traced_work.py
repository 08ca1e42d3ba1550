"""The inner loop of a simulated trainer in segments, each of which anybody can run again (R10).

N elements of the shard

A segment trains on its share of the lease, from weights and one vector of momentum; what it draws
follows from run, round, peer and segment. A state at a boundary is float32: so whoever begins with
its bytes goes on exactly as its owner did.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node.plane.hooks import NodeHooks
from protocol import events as ev
from protocol.grid import EMPTY_ROOT
from protocol.identity import PeerId
from protocol.leases import Lease, lease_size, part_of_lease
from protocol.manifest import RunManifest
from protocol.segments import cells_of, encoded_end, root_of, vectors_of
from sim.world.learning import Learner
from training.audits.traces import NO_START
from training.compression import ErrorFeedback, make_codec

Vector = NDArray[np.float32]

Bend = Callable[[int, Vector, Vector], Vector]

MOMENTS = 1
DAMPING = np.float32(0.25)
"""Of the momentum from one segment to the next."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A round of training: what it leaves, and all states on the way, by root."""

    done: ev.WorkDone
    states: dict[bytes, tuple[bytes, ...]]
    before_N: Vector | None
    after_N: Vector
    weights_N: Vector
    loss: float | None


class TracedWork:
    """Trains in segments for one manifest, one's own rounds or those of others."""

    def __init__(self, manifest: RunManifest, learner: Learner) -> None:
        self._manifest, self._learner = manifest, learner
        self._layout = manifest.layout(0)
        self.segments = manifest.audits.segments
        self.bend: Bend = NodeHooks().trained
        """What becomes of the own weights behind a segment."""

    def train(
        self,
        anchor_N: Vector,
        moments_N: Vector | None,
        lease: Lease,
        place: tuple[int, PeerId],
    ) -> Traced:
        """A whole round: `place` is which, and whose."""
        weights_N, moving_N = anchor_N, self._begun(moments_N)
        trace, states, losses = [], {}, []
        for segment in range(self.segments + 1):
            cells = cells_of(self._layout, (weights_N, moving_N))
            trace.append(root_of(cells))
            states[trace[-1]] = cells
            if segment < self.segments:
                before_N = weights_N
                weights_N, moving_N, loss = self._run(weights_N, moving_N, lease, place, segment)
                weights_N = self.bend(segment, before_N, weights_N)
                losses += [] if loss is None else [loss]
        before = EMPTY_ROOT if moments_N is None else self._root(moments_N)
        done = ev.WorkDone(trace=tuple(trace), before=before, after=self._root(moving_N))
        loss = float(np.mean(losses)) if losses else None
        return Traced(done, states, moments_N, moving_N, weights_N, loss)

    def again(
        self,
        task: ev.Rerun,
        state: tuple[bytes, ...],
        residual: tuple[bytes, ...],
        anchor_N: Vector,
    ) -> bytes:
        """What names the end of a segment that begins with these cells; empty where nobody here can
        tell, for nothing is known of what its owner inherited."""
        work = task.commit.work[0]
        weights_N, moving_N = vectors_of(self._layout, state)
        residuals = vectors_of(self._layout, residual)
        if not all(np.isfinite(vector_N).all() for vector_N in (weights_N, moving_N, *residuals)):
            return NO_START  # No honest trainer goes on with such numbers.
        if task.segment in (0, self.segments) and not task.inherited:
            return b""
        if task.segment == 0 and not self._is_start(task, weights_N, moving_N, anchor_N):
            return NO_START
        if task.segment < self.segments:
            place = (task.round, task.sender)
            weights_N, moving_N, _ = self._run(weights_N, moving_N, task.lease, place, task.segment)
            return root_of(cells_of(self._layout, (weights_N, moving_N)))
        if (work.before, task.commit.residual_before) not in task.inherited:
            return NO_START
        outer = self._manifest.outer
        width = self._layout.cell_elements
        feedback = ErrorFeedback(make_codec(outer), outer.feedback, cell_elements=width)
        feedback.restore(residuals[0] if residuals else None)
        try:
            with np.errstate(all="ignore"):
                encoded = feedback.encode(anchor_N - weights_N)
        except ValueError:
            return NO_START  # Not finite: nobody can have sent that.
        return encoded_end(root_of(encoded.payloads), encoded.residual_after, self._root(moving_N))

    def _is_start(
        self, task: ev.Rerun, weights_N: Vector, moving_N: Vector, anchor_N: Vector
    ) -> bool:
        """Whether it begins with the sealed anchor, and with what its owner had."""
        before = task.commit.work[0].before
        is_own = before == self._root(moving_N) or (before == EMPTY_ROOT and not moving_N.any())
        is_known = (before, task.commit.residual_before) in task.inherited
        return is_own and is_known and weights_N.tobytes() == anchor_N.tobytes()

    def _run(
        self,
        weights_N: Vector,
        moving_N: Vector,
        lease: Lease,
        place: tuple[int, PeerId],
        segment: int,
    ) -> tuple[Vector, Vector, float | None]:
        size = lease_size(lease)
        first, stop = (size * number // self.segments for number in (segment, segment + 1))
        share = part_of_lease(lease, first, stop - first)
        round_index, peer = place
        name = f"{self._manifest.digest.hex()}/{round_index}/{peer.hex()}/{segment}"
        # What liars make of the anchor, or show to auditors, may overflow: an end like others.
        with np.errstate(all="ignore"):
            learned = self._learner(weights_N, share, random.Random(name))
            moving_N = DAMPING * moving_N + learned.drift_N
            return weights_N - moving_N, moving_N, learned.loss

    def _begun(self, moments_N: Vector | None) -> Vector:
        zeros_N: Vector = np.zeros(self._layout.numel, dtype=np.float32)
        return zeros_N if moments_N is None else moments_N

    def _root(self, moments_N: Vector) -> bytes:
        return root_of(cells_of(self._layout, (moments_N,)))
