"""SEAM Exchange and Ticket: all that training asks of the swarm.

The trainer hands over an encoded contribution and later learns the outcome of the round. DiLoCo
asks at once; with two rounds in flight (R5) it is told for which round to go on, and steps on while
the outcome is on its way.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protocol.leases import Lease
from protocol.manifest import RunManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClock:
    """The clock that a seal carries (R9); learning rate and stop conditions read nothing else."""

    round: int
    step: int
    """Inner steps of the run before this round: the token-weighted median H of each, summed up."""
    tokens: int
    """Tokens of all sealed contributions so far."""
    basis: bytes = b""
    """What names the round: its number is not enough, each branch has its own (R4). Nothing is
    computed from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """Where a trainer enters the run: the sealed anchors, the clock and its first lease.

    At genesis the anchors are `genesis_weights(manifest)` and the clock is zero. `listed` names the
    rounds from `since` on whose seals have the own contribution in them; what was contributed
    before belongs to weights long gone (R6). `members` is how many have a seat in the round in
    hand. `bases` names all that a contribution may be for and those from `since` on: what was made
    for others is of a branch that was left. The caller does not
    write to the anchors.
    """

    anchors: tuple[NDArray[np.float32], ...]
    clock: RunClock
    lease: Lease
    since: int = 0
    listed: tuple[int, ...] = ()
    members: int = 1
    bases: tuple[bytes, ...] = (b"",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRoots:
    """What a trainer keeps of a round, as its COMMIT says it: the roots of the states between all
    segments, and those of the moments before and behind the round; EMPTY_ROOT of none."""

    trace: tuple[bytes, ...]
    before: bytes
    after: bytes


NO_TRACE = TraceRoots(trace=(), before=b"", after=b"")
"""Of a run without audits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerTimes:
    """Where a trainer's time went since it handed over the contribution before this one, in seconds
    of its own monotonic clock: each moment counts for one of these, so their sum is that time."""

    train_s: float = 0.0
    """Inner steps, with fetching their batches."""
    validate_s: float = 0.0
    """Measuring an anchor on held-out text."""
    encode_s: float = 0.0
    """From the drift to the payload."""
    save_s: float = 0.0
    """Keeping what a restart must know."""
    audit_s: float = 0.0
    """Running segments of others again (R10)."""
    take_s: float = 0.0
    """Taking an outcome over: residuals, and the new weights in the model."""
    wait_s: float = 0.0
    """Doing nothing, until the network process said how to go on."""

    @property
    def beside_s(self) -> float:
        """What no step and no waiting was, and comes with every round whatever its length."""
        return self.encode_s + self.save_s + self.take_s


TrainerPhase = Literal["train", "validate", "encode", "save", "audit", "take", "wait"]
"""What a trainer does; the fields of TrainerTimes say what each is."""


class Stopwatch:
    """Counts the seconds of each phase. Whoever is in no other phase trains.

    A phase within another one takes its time from it, so that the sum of all phases is the time
    that has passed. `now_s` is a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._phase: TrainerPhase = "train"
        self._since_s = now_s()
        self._spent_s: dict[TrainerPhase, float] = {}

    @contextmanager
    def within(self, phase: TrainerPhase) -> Iterator[None]:
        """What the block takes counts for that phase, and behind it the one before goes on."""
        before = self._enter(phase)
        try:
            yield
        finally:
            self._enter(before)

    def take(self) -> TrainerTimes:
        """The seconds since the last call, or since the beginning; from here on anew."""
        self._enter(self._phase)
        spent_s, self._spent_s = self._spent_s, {}
        return TrainerTimes(**{f"{phase}_s": seconds for phase, seconds in spent_s.items()})

    def count_as(self, phase: TrainerPhase) -> None:
        """What passed since the last call of `take` counts for that phase."""
        self._enter(self._phase)
        self._spent_s = {phase: sum(self._spent_s.values())}

    def _enter(self, phase: TrainerPhase) -> TrainerPhase:
        before, now_s = self._phase, self._now_s()
        self._spent_s[before] = self._spent_s.get(before, 0.0) + now_s - self._since_s
        self._phase, self._since_s = phase, now_s
        return before


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One peer's encoded pseudo-gradient of one fragment.

    `payloads[c]` is the wire form of cell c. `residual_before` and `residual_after` are the roots
    of the error feedback around it (R6). `traced` is there in runs with audits. `times` are shown
    to people, and the number of steps is chosen by them; None where nobody took them.
    """

    fragment: int
    payloads: tuple[bytes, ...]
    tokens: int
    samples: int
    steps: int
    residual_before: bytes
    residual_after: bytes
    loss: float
    """Mean training loss over the round, nats per byte: shown to people, never decided upon."""

    traced: TraceRoots | None = None
    times: TrainerTimes | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a round.

    `anchor_N` is the new anchor of the fragment, float32; the caller must not write to it. `others`
    are the new anchors of other fragments, about which this trainer missed rounds. `listed`
    says whether the own contribution is in the sealed aggregate: if not, its drift is dropped and
    the residual goes back to what it was before (R6). `is_resync` says that seals were missed and
    the state was fetched: then the residual is zero, whether it was listed or not. `lease` and
    `clock` belong to the next round, which need not be the one behind; `lease` is empty when the
    run is finished, `members` is how many have a seat in that round. With two rounds in flight a
    Turn says all that, and these are the seal's.
    """

    listed: bool
    anchor_N: NDArray[np.float32]
    clock: RunClock
    lease: Lease
    members: int = 1
    is_resync: bool = False
    others: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """For which round to go on, where two are in flight (R5): its clock and lease.

    `lease` is empty when the run is finished. `others` are new anchors of fragments that no outcome
    of this trainer has told of. `members` is how many have a seat in that round. `listed` names the
    rounds that are over since the last turn and have the own contribution in them: it may be one of
    a process before this one, which has not handed it over again.
    """

    clock: RunClock
    lease: Lease
    others: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    members: int = 1
    listed: tuple[int, ...] = ()


class Ticket(Protocol):
    """A contribution under way."""

    def is_here(self) -> bool:
        """Whether `result` would not block; asked where two rounds are in flight.

        Raises as `result` does.
        """
        ...

    def result(self) -> Outcome:
        """Block until the round is sealed; called by the trainer, once per ticket.

        Raises TrainerError when the network process is gone; in a user's program, what it gave as
        its reason.
        """
        ...


@dataclass(slots=True)
class Pending:
    """A contribution without an outcome; `sent_N` is what it was taken from, if that goes on."""

    round: int
    ticket: Ticket
    is_void: bool = False
    """Whether a resync came behind it: then no residual waits for its outcome (R6)."""
    sent_N: NDArray[np.float32] | None = None


class Exchange(Protocol):
    """SEAM: where contributions go. Implementations: the channel to the network process, in our own
    trainer and in a user's program (`node.swarm`); tests."""

    def begin(self, fragment: int, contribution: Contribution) -> Ticket:
        """Hand over the contribution of this round; called by the trainer, once per round.

        The contribution is frozen from here on: the same bytes stay valid until the outcome.
        """
        ...

    def proceed(self) -> Turn:
        """Block until it is known for which round to go on, behind what was handed over last.

        Called once per contribution where two rounds are in flight, and never with one. By then the
        outcomes of all rounds are here but for that of the last. Raises as `Ticket.result` does.
        """
        ...


@runtime_checkable
class KnowsLine(Protocol):
    """An Exchange that knows what leaves its machine, and so in how many bits to encode."""

    @property
    def grade(self) -> int:
        """Bits per element of the next contribution, where the codec has grades; 0: the usual."""
        ...


@runtime_checkable
class HasDraft(Protocol):
    """An Exchange that says where the next contribution is to lie."""

    def draft(self) -> NDArray[np.uint8]:
        """That memory, none where contributions are copied; what lies there already `begin` need
        not copy. Asked once the round has begun."""
        ...


def grade_of(exchange: Exchange) -> int:
    """That of an Exchange which knows; the usual one of any other."""
    return exchange.grade if isinstance(exchange, KnowsLine) else 0


@runtime_checkable
class HearsOfValues(Protocol):
    """An Exchange of somebody's own program, whose model may hold what took long to train."""

    def values_replaced(self, names: Sequence[str]) -> None:
        """The run's values took the place of the model's own, in these tensors."""
        ...


class Session(Exchange, Protocol):
    """An Exchange that knows its run: all that a training loop needs besides model and data."""

    @property
    def manifest(self) -> RunManifest:
        """The law of the run."""
        ...

    @property
    def start(self) -> RunStart:
        """Where this trainer enters; read once, when the loop object is made."""
        ...
