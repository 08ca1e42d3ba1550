"""What simulated nodes learn, and the trainer process that learns it.

    N elements of the shard   K symbols   C contexts   B samples of a step

A Learner makes up a drift, or trains a small model of text; in runs with audits it does so in
segments. The trainer puts real error feedback around it.
"""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from node.plane.hooks import NodeHooks
from protocol import events as ev
from protocol.identity import PeerId
from protocol.leases import Lease, lease_size, part_of_lease
from protocol.manifest import RunManifest
from protocol.rounds.fates import Fates
from protocol.segments import (
    TRACES_KEPT,
    SegmentPlace,
    SegmentState,
    cells_of_fragment,
    luck_of,
    nothing_left,
    root_of,
)
from training.audits.traces import AuditTask, rerun
from training.compression import Encoded, ErrorFeedback, make_codec, with_grades
from training.loop.sums import INNER_STATES_KEPT

# The seam -----------------------------------------------------------------------------------------

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Learned:
    """What a round of training gives: the pseudo-gradient, and the mean loss if there is one."""

    drift_N: Vector
    loss: float | None = None


Learner = Callable[[Vector, Lease, random.Random], Learned]
"""SEAM: trains from an anchor, which it must not write to, on leased samples."""


# A round in segments, each of which anybody can run again (R10) -----------------------------------

Bend = Callable[[int, Vector, Vector], Vector]

MOMENTS = 1
DAMPING = np.float32(0.25)
"""Of the momentum from one segment to the next."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A round of training: what it leaves, and all states on the way, by root."""

    done: ev.WorkDone
    states: dict[bytes, tuple[bytes, ...]]
    begins: SegmentState
    ends: SegmentState
    loss: float | None


class TracedWork:
    """RunsSegments for one manifest, one's own rounds or those of others.

    A segment trains on its share of the lease, from weights and one vector of momentum; what it
    draws follows from its place. A state at a boundary is float32: so whoever begins with its bytes
    goes on exactly as its owner did.
    """

    def __init__(self, manifest: RunManifest, learner: Learner) -> None:
        self._manifest, self._learner = manifest, learner
        self._layout = manifest.layout(0)
        self.segments = manifest.audits.segments
        self.bend: Bend = NodeHooks().trained
        """What becomes of the own weights behind a segment."""

    def begun(self, anchor_N: Vector) -> SegmentState:
        """What a round of whoever begins anew begins with."""
        zeros_N: Vector = np.zeros_like(anchor_N)
        return SegmentState(anchor_N, (zeros_N,) * MOMENTS, 0, nothing_left(self._layout))

    def train(self, begins: SegmentState, place: SegmentPlace) -> Traced:
        """A whole round, whose beginning `place` is."""
        trace, states, losses, state = [], {}, [], begins
        for segment in range(self.segments + 1):
            cells = state.cells(self._layout)
            trace.append(root_of(cells))
            states[trace[-1]] = cells
            if segment < self.segments:
                before_N = state.weights_N
                state, loss = self._run(state, replace(place, segment=segment))
                bent_N = self.bend(segment, before_N, state.weights_N)
                state = replace(state, weights_N=bent_N)
                losses += [] if loss is None else [loss]
        before = begins.inner_root(self._layout)
        after = state.handed_on(self._layout).inner_root(self._layout)
        done = ev.WorkDone(trace=tuple(trace), before=before, after=after)
        return Traced(done, states, begins, state, float(np.mean(losses)) if losses else None)

    def again(self, task: ev.Rerun, work: bytes, anchor_N: Vector) -> bytes:
        """What names the end of a segment that begins with this; empty where nobody here can tell,
        for nothing is known of what its owner inherited."""
        found = AuditTask(
            place=SegmentPlace(
                round=task.round, step=task.step, segment=task.segment, lease=task.lease
            ),
            before=task.commit.work[0].before,
            residual_before=task.commit.residual_before,
            inherited=task.inherited,
            since=task.since,
        )
        return rerun(self._manifest, found, work, anchor_N, self, moments=MOMENTS)

    def run(self, state: SegmentState, place: SegmentPlace) -> SegmentState:
        """See RunsSegments."""
        return self._run(state, place)[0]

    def _run(self, state: SegmentState, place: SegmentPlace) -> tuple[SegmentState, float | None]:
        size, segment = lease_size(place.lease), place.segment
        first, stop = (size * number // self.segments for number in (segment, segment + 1))
        share = part_of_lease(place.lease, first, stop - first)
        luck = random.Random(luck_of(self._manifest, place.round, place.lease, segment))
        # What liars make of the anchor, or show to auditors, may overflow: an end like others.
        with np.errstate(all="ignore"):
            learned = self._learner(state.weights_N, share, luck)
            moving_N = DAMPING * state.moments[0] + learned.drift_N
            weights_N = state.weights_N - moving_N
        return SegmentState(weights_N, (moving_N,), state.steps + 1, state.left), learned.loss


# The trainer --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Saved:
    """What the trainer has on its disk of a round: its contribution, the residuals of all fragments
    before it, that of its own behind it, and what had drifted."""

    anchor_N: Vector
    encoded: Encoded
    before: tuple[Vector | None, ...]
    after_N: Vector | None
    drift_N: Vector
    pending: tuple[int, ...] = ()
    """Rounds before it of which nobody knew then what became of them (R5)."""
    traced: Traced | None = None
    basis: bytes = b""
    """What names the round: of the same number there may be one on each branch (R4)."""


@dataclass(frozen=True, slots=True)
class Flight:
    """What is in flight beside the round in hand (R5): the last round that is sealed, what names
    that in hand, and all that may be contributed to."""

    sealed: int
    basis: bytes = b""
    bases: tuple[bytes, ...] = (b"",)


class SimTrainer:
    """One trainer. Rounds are those that are trained for; anchors and drifts are of the shard.

    What it does at a start and with an outcome is `training.loop.diloco`'s, so that a restart hands
    over the same bytes again, and a residual is taken over, given back or dropped as there (R6).
    """

    def __init__(self, manifest: RunManifest, learner: Learner, peer: PeerId | None = None) -> None:
        self._learner, self._peer = learner, peer or PeerId(bytes(32))
        self.traced = TracedWork(manifest, learner) if manifest.audits.rate else None
        self._inner: SegmentState | None = None
        """What the next round begins with in runs with audits; None of whoever begins anew."""
        self._layout = manifest.layout(0)
        of_grades = with_grades(make_codec(manifest.outer))
        self._grades = None if of_grades is None else of_grades.grades
        self.feedback = [
            ErrorFeedback(
                make_codec(manifest.outer),
                manifest.outer.feedback,
                cell_elements=self._layout.cell_elements,
            )
            for _ in range(self._layout.num_fragments)
        ]
        self._saved: dict[int, _Saved] = {}
        self._lag = manifest.outer.overlap
        self._is_delayed = self._layout.num_fragments < self._lag
        """Whether rounds in flight are about one fragment: one is trained beside the other (R5)."""
        self._pending: tuple[int, ...] = ()
        """Rounds that were contributed to, and are not known to be over (R5)."""
        self._round, self._basis = -1, b""
        self._anchor_N: Vector | None = None
        """What the round in hand began from."""
        self._newest_N: Vector | None = None
        """The newest anchor that it knows; with a delay not what the round began from."""
        self._drift_N: Vector | None = None
        """By how much the weights are below the anchor; None stands for zero."""
        self._lease: Lease = ()
        self._under_way: Encoded | None = None
        self.loss: float | None = None

    def _grade(self) -> int:
        """Each has a line of its own, which changes with every round."""
        if self._grades is None:
            return 0
        return self._grades[(self._peer[0] + self._round) % len(self._grades)]

    def forget(self) -> None:
        """Its disk is lost."""
        self._saved = {}

    def restarted(self) -> "SimTrainer":
        """The trainer that the next process starts, with what the disk has."""
        fresh = copy.copy(self)
        fresh.feedback = [copy.copy(feedback) for feedback in self.feedback]
        fresh._restore([None] * len(fresh.feedback))
        fresh._inner = None
        fresh._saved = dict(self._saved)
        fresh._under_way, fresh._drift_N, fresh._pending = None, None, ()
        return fresh

    def _restore(self, residuals: Sequence[Vector | None]) -> None:
        for feedback, residual_N in zip(self.feedback, residuals, strict=True):
            feedback.restore(residual_N)

    def start(
        self,
        round_index: int,
        anchor_N: Vector,
        lease: Lease,
        fates: Fates,
        flight: Flight | None = None,
    ) -> bool:
        """Begin; whether a contribution of the process before is under way, so that it is sent
        again and nothing is trained.
        """
        self._go_on(round_index, anchor_N, lease)
        flight = flight or Flight(round_index - 1)
        self._basis = flight.basis
        if self._lag > 1:
            self._recall(flight, fates)
            return self._take_up()
        newest = max((index for index in self._saved if index <= round_index), default=-1)
        saved = self._saved.get(newest)
        if saved is None or saved.basis not in (*fates.names, *flight.bases):
            return False  # Nothing is there, or it is of a branch that was left: e = 0.
        fragment = self._layout.fragment_of(newest)
        is_same = newest == round_index and np.array_equal(saved.anchor_N, anchor_N)
        if is_same and lease:
            self._restore(saved.before)
            self._inherit(newest, saved, was_listed=False)
            self.feedback[fragment].reopen(saved.before[fragment], saved.after_N)
            self._under_way = saved.encoded
            self._drift_on(saved, [])
        elif newest < round_index and not fates.is_behind(newest):
            self._restore(saved.before)
            self._inherit(newest, saved, was_listed=fates.was_listed(newest))
            if fates.was_listed(newest):
                self.feedback[fragment].restore(saved.after_N)
            self._drift_on(saved, [fragment])
        return self._under_way is not None

    def _recall(self, flight: Flight, fates: Fates) -> None:
        """R5: residuals and drift as the disk has them, with up to two rounds in flight."""
        # Who waited for the outcome of the round before has handed in no later one without it.
        sealed = flight.sealed
        last = sealed + (1 if self._is_delayed else self._lag)
        newest = max((index for index in self._saved if index <= last), default=-1)
        saved = self._saved.get(newest)
        if saved is None or fates.is_behind(newest):
            return
        if saved.basis not in (*fates.names, *flight.bases):
            return  # Of a branch that was left, whatever was sealed since: e = 0.
        if self._is_delayed and newest == self._round - 1:
            self._anchor_N = saved.anchor_N
        self._restore(saved.before)
        settled = []
        for index in (*saved.pending, newest):
            fragment, known = self._layout.fragment_of(index), self._saved.get(index)
            is_known = known is not None and not fates.is_behind(index)
            if index <= sealed:
                settled.append(fragment)
                after_N = known.after_N if known is not None else None
                if not is_known:
                    # Nobody tells what became of it: e = 0.
                    self.feedback[fragment].restore(None)
                elif fates.was_listed(index):
                    self.feedback[fragment].restore(after_N)
        self._drift_on(saved, settled)

    def _take_up(self) -> bool:
        """R5: whether the round in hand was contributed to by the process before, from the same
        version of its fragment: then the same bytes go out again."""
        saved, fragment = self._saved.get(self._round), self._layout.fragment_of(self._round)
        span = self._layout.fragment_span(fragment)
        assert self._newest_N is not None
        if saved is None or not self._lease or self._round in self._pending:
            return False
        if saved.basis != self._basis:
            return False
        # With a delay the newest version is not the one that it is to; what names the round does.
        is_same = np.array_equal(saved.anchor_N[span], self._newest_N[span])
        if not is_same and not self._is_delayed:
            return False
        self.feedback[fragment].reopen(saved.before[fragment], saved.after_N)
        self._under_way = saved.encoded
        return True

    def _go_on(self, round_index: int, anchor_N: Vector, lease: Lease) -> None:
        self._round, self._lease = round_index, lease
        self._anchor_N = self._newest_N = anchor_N

    def waits_for(self) -> int | None:
        """The round whose outcome is needed before the one in hand is contributed to: its residual
        goes on from there. None where there is no delay, or no such round."""
        return self._pending[-1] if self._is_delayed and self._pending else None

    def join(self, anchor_N: Vector, sealed: int, fates: Fates) -> None:
        """R5: the outcome of the round before is here; what the round in hand began from stays."""
        self._settle(anchor_N, sealed, fates)
        self._newest_N = anchor_N

    def _settle(self, anchor_N: Vector, sealed: int, fates: Fates) -> None:
        """R5, R6: what became of the rounds that are over by now; anchors that moved."""
        assert self._anchor_N is not None
        over = [index for index in self._pending if index <= sealed]
        if any(fates.is_behind(index) for index in self._pending):
            self._restore([None] * len(self.feedback))
            self._drift_N, over = None, list(self._pending)
        else:
            for index in over:
                feedback = self.feedback[self._layout.fragment_of(index)]
                if fates.was_listed(index):
                    feedback.commit()
                else:
                    feedback.abort()
        self._settle_left(sealed, fates)
        self._pending = tuple(index for index in self._pending if index not in over)
        if self._drift_N is not None:
            self._drift_N = self._drift_N.copy()
            moved = {self._layout.fragment_of(index) for index in over}
            for fragment in range(self._layout.num_fragments):
                span = self._layout.fragment_span(fragment)
                if fragment in moved or not np.array_equal(self._anchor_N[span], anchor_N[span]):
                    self._drift_N[span] = 0.0

    def _settle_left(self, sealed: int, fates: Fates) -> None:
        """Rounds that the process before contributed to, and that were over before this one handed
        them over again: what others had of them was enough."""
        for index in range(self._round + 1, sealed + 1):
            saved = self._saved.get(index)
            if saved is not None and fates.was_listed(index) and index not in self._pending:
                self.feedback[self._layout.fragment_of(index)].restore(saved.after_N)

    def _inherit(self, index: int, saved: _Saved, *, was_listed: bool) -> None:
        """In runs with audits, what a round leaves goes on as residuals do: what no seal lists was
        not. Of fragments about which a round was since then the anchor goes on."""
        if saved.traced is None:
            return
        assert self._anchor_N is not None
        traced, layout = saved.traced, self._layout
        state = traced.ends.handed_on(layout) if was_listed else traced.begins
        weights_N = state.weights_N.copy()
        for later in range(index, self._round)[: layout.num_fragments]:
            span = layout.fragment_span(layout.fragment_of(later))
            weights_N[span] = self._anchor_N[span]
        self._inner = replace(state, weights_N=weights_N)

    def work(self, round_index: int) -> ev.WorkDone | None:
        """What the COMMIT of a round that was contributed to says of it, in runs with audits."""
        saved = self._saved.get(round_index)
        return None if saved is None or saved.traced is None else saved.traced.done

    def kept(self, root: bytes) -> Sequence[bytes]:
        """The cells of a state or residual that an audit may ask for; empty of another one."""
        for index, saved in self._saved.items():
            if saved.traced is None:
                continue
            if root in saved.traced.states:
                return saved.traced.states[root]
            fragment = self._layout.fragment_of(index)
            residual_N = saved.before[fragment]
            if saved.encoded.residual_before == root and residual_N is not None:
                return cells_of_fragment(self._layout, fragment, residual_N)
        return ()

    def _drift_on(self, saved: _Saved, settled: Sequence[int]) -> None:
        """What had drifted against anchors that are still the same, but for settled fragments."""
        assert self._anchor_N is not None
        if self._layout.num_fragments == 1:
            return
        self._drift_N = saved.drift_N.copy()
        for fragment in range(self._layout.num_fragments):
            span = self._layout.fragment_span(fragment)
            is_same = np.array_equal(saved.anchor_N[span], self._anchor_N[span])
            if fragment in settled or not is_same:
                self._drift_N[span] = 0.0

    def contribute(self, stream: random.Random) -> Encoded:
        """The encoded contribution of the round in hand, on the disk when it is given."""
        pending = self._pending
        if self._lag > 1:
            self._pending = (*pending, self._round)
        if self._under_way is not None:
            encoded, self._under_way = self._under_way, None
            return encoded
        assert self._anchor_N is not None, "it was not started"
        before_N = self._drift_N
        weights_N = self._anchor_N if before_N is None else self._anchor_N - before_N
        traced = None
        if self.traced is not None:
            place = SegmentPlace(round=self._round, step=0, segment=0, lease=self._lease)
            traced = self.traced.train(self._inner or self.traced.begun(self._anchor_N), place)
            learned = Learned(self._anchor_N - traced.ends.weights_N, traced.loss)
            before_N = None  # It is in the state that the round began with.
        else:
            learned = self._learner(weights_N, self._lease, stream)
        self.loss = learned.loss
        drift_N = learned.drift_N if before_N is None else before_N + learned.drift_N
        before = tuple(feedback.residual_N for feedback in self.feedback)
        fragment = self._layout.fragment_of(self._round)
        span = self._layout.fragment_span(fragment)
        encoded = self.feedback[fragment].encode(drift_N[span], grade=self._grade())
        after_N, self._drift_N = self.feedback[fragment].residual_after_N, drift_N
        assert self._newest_N is not None
        self._saved[self._round] = _Saved(
            self._newest_N, encoded, before, after_N, drift_N, pending, traced, self._basis
        )
        # Of later rounds there may be some of a branch that was given up.
        num_kept = TRACES_KEPT if traced else INNER_STATES_KEPT
        kept = sorted(index for index in self._saved if index <= self._round)[-num_kept:]
        self._saved = {index: self._saved[index] for index in kept}
        return encoded

    def finish(
        self,
        round_index: int,
        anchor_N: Vector,
        lease: Lease,
        fates: Fates,
        flight: Flight | None = None,
    ) -> bool:
        """What became of the contribution; the next round, and its anchor. As `start`."""
        layout, contributed = self._layout, self._round
        flight = flight or Flight(round_index - 1)
        self._basis = flight.basis
        if self._lag > 1:
            sealed, before_N = flight.sealed, self._newest_N
            is_behind = any(fates.is_behind(index) for index in self._pending)
            self._settle(anchor_N, sealed, fates)
            self._go_on(round_index, anchor_N, lease)
            if self._is_delayed and sealed == round_index - 1 == contributed and not is_behind:
                self._anchor_N = before_N  # It was late: the next round's own base is not yet old.
            return self._take_up()
        fragment = layout.fragment_of(contributed)
        if fates.is_behind(contributed):
            self._restore([None] * len(self.feedback))
            self._drift_N = self._inner = None
        elif fates.was_listed(contributed):
            self.feedback[fragment].commit()
        else:
            self.feedback[fragment].abort()
        if layout.num_fragments == 1:
            self._drift_N = None
        elif self._drift_N is not None:
            self._drift_N = self._drift_N.copy()
            for index in range(contributed, round_index)[: layout.num_fragments]:
                self._drift_N[layout.fragment_span(layout.fragment_of(index))] = 0.0
        self._go_on(round_index, anchor_N, lease)
        saved = self._saved.get(contributed)
        if saved is not None and not fates.is_behind(contributed):
            self._inherit(contributed, saved, was_listed=fates.was_listed(contributed))
        return False


# Learners -----------------------------------------------------------------------------------------


def drift(anchor_N: Vector, lease: Lease, stream: random.Random) -> Learned:
    """A made-up pseudo-gradient: a pull towards one, unequal on every peer and round."""
    del lease
    generator = np.random.Generator(np.random.PCG64(stream.getrandbits(64)))
    noise_N = generator.random(len(anchor_N), dtype=np.float32) - np.float32(0.5)
    drift_N: Vector = np.float32(0.1) * (anchor_N - np.float32(1.0)) + np.float32(0.01) * noise_N
    return Learned(drift_N)


NUM_SYMBOLS = 8
NUM_SAMPLES = 1 << 15
LEARNING_RATE = 4.0
"""Of the inner steps: a row of logits gets its own share of a batch only, some sixtieth."""

BRANCHES = 3
"""So many symbols follow a context often; entropy is then well below that of any symbol."""


class TextModel:
    """A Learner: a small real model of who follows whom in a text made from the seed.

    The whole shard is one table of K logits for each context, spread where there are several
    fragments, so that each has a part of it; a context is the last two symbols, or the last one
    where the shard is small. Softmax over a row, cross-entropy, plain gradient
    descent: the gradient is exact, and a round is H steps on the leased samples. numpy alone; `exp`
    and `log` are numpy's, so that losses and traces are equal where numpy's build is.
    """

    def __init__(self, manifest: RunManifest, seed: int) -> None:
        """All nodes of a world share one: it holds the text and nothing that is learned."""
        numel = manifest.layout(0).numel
        self._order = 2 if numel >= NUM_SYMBOLS**3 else 1
        self._num_contexts = NUM_SYMBOLS**self._order
        if numel < self._num_contexts * NUM_SYMBOLS:
            raise ValueError(f"a model of {numel} elements is too small for a model of text")
        size = self._num_contexts * NUM_SYMBOLS
        stride = numel // size if manifest.layout(0).num_fragments > 1 else 1
        self._places = slice(0, size * stride, stride)
        self._steps = manifest.inner.inner_steps
        self._batch = manifest.inner.batch
        self.context_B, self.next_B = _text(random.Random(f"{seed}/text"), self._order)

    @property
    def entropy(self) -> float:
        """What no model of this order gets below on this text, nats per symbol."""
        counts_CK = np.zeros((self._num_contexts, NUM_SYMBOLS))
        np.add.at(counts_CK, (self.context_B, self.next_B), 1.0)
        shares_CK = counts_CK / np.maximum(counts_CK.sum(axis=1, keepdims=True), 1.0)
        logs_CK = np.log(np.maximum(shares_CK, 1e-300))
        return float(-(counts_CK * logs_CK).sum() / counts_CK.sum())

    def loss(self, anchor_N: Vector) -> float:
        """Mean cross-entropy of the whole text, nats per symbol."""
        rows_BK = self._table(anchor_N)[self.context_B]
        return float(_losses(rows_BK, self.next_B).mean())

    def __call__(self, anchor_N: Vector, lease: Lease, stream: random.Random) -> Learned:
        """See Learner: H steps of gradient descent; the mean loss over them."""
        del stream
        samples = np.concatenate([np.arange(first, stop) for first, stop in lease])
        table_CK = self._table(anchor_N).astype(np.float64)
        losses = []
        for step in range(self._steps):
            chosen_B = samples[step * self._batch : (step + 1) * self._batch] % NUM_SAMPLES
            if not len(chosen_B):
                break  # The lease of the last round may be short.
            context_B, next_B = self.context_B[chosen_B], self.next_B[chosen_B]
            rows_BK = table_CK[context_B]
            losses.append(_losses(rows_BK, next_B).mean())
            gradient_BK = _softmax(rows_BK)
            gradient_BK[np.arange(len(next_B)), next_B] -= 1.0
            np.subtract.at(table_CK, context_B, LEARNING_RATE / len(next_B) * gradient_BK)
        drift_N = np.zeros_like(anchor_N)
        used_N = table_CK.reshape(-1).astype(np.float32)
        drift_N[self._places] = anchor_N[self._places] - used_N
        return Learned(drift_N, float(np.mean(losses)))

    def _table(self, anchor_N: Vector) -> Vector:
        return anchor_N[self._places].reshape(self._num_contexts, NUM_SYMBOLS)


def _softmax(rows_BK: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted_BK = np.exp(rows_BK - rows_BK.max(axis=1, keepdims=True))
    shares_BK: NDArray[np.float64] = shifted_BK / shifted_BK.sum(axis=1, keepdims=True)
    return shares_BK


def _losses(rows_BK: NDArray[np.floating], next_B: NDArray[np.int64]) -> NDArray[np.float64]:
    shares_BK = _softmax(rows_BK.astype(np.float64))
    losses_B: NDArray[np.float64] = -np.log(shares_BK[np.arange(len(next_B)), next_B])
    return losses_B


def _text(stream: random.Random, order: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Contexts and what follows them, in the order of the text."""
    likely = [stream.choices(range(NUM_SYMBOLS), k=BRANCHES) for _ in range(NUM_SYMBOLS**order)]
    context, contexts, following = 0, [], []
    for _ in range(NUM_SAMPLES):
        is_likely = stream.random() < 0.9
        symbol = stream.choice(likely[context]) if is_likely else stream.randrange(NUM_SYMBOLS)
        contexts.append(context)
        following.append(symbol)
        context = (context * NUM_SYMBOLS + symbol) % NUM_SYMBOLS**order
    return np.array(contexts, dtype=np.int64), np.array(following, dtype=np.int64)
