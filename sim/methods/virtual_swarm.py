"""Replicas that come when they are ready, or when they are drawn, behind the one loop.

A conductor lets one replica's thread go on at a time, in virtual seconds. What the loop asks for is
what a node gives it: an outcome whose clock and lease need not be of the round behind.

R clients; client r is to count with p_r in the long run, and needs T_r seconds for a round.
"""

import heapq
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from protocol.errors import ConfigError, StateError
from protocol.leases import Lease
from sim.methods.modest import MODELS_MIN, View, sample
from training.channel.exchange import Contribution, Outcome, RunClock, RunStart
from training.loop.replicas import MemorySession, MemoryTicket, Swarm, Weights
from training.numeric import Registry
from training.outer.optimizers import OuterInfo

# Threads of which one runs at a time --------------------------------------------------------------

Made = TypeVar("Made")


class Baton(Generic[Made]):
    """A thread for each of so many works, which is given its number; the conductor is the caller.

    They run in the order that the conductor gives: virtual time. A thread that waits hands the
    baton back; so whatever the machine does, a run has one history.

    A context manager: behind it every thread has ended.
    """

    def __init__(self, works: int, work: Callable[[int], Made]) -> None:
        self._work = work
        self._go = [threading.Semaphore(0) for _ in range(works)]
        self._back = threading.Semaphore(0)
        self._has_ended = [False] * works
        self._is_over = False
        self._pool = ThreadPoolExecutor(max(1, works))
        self._futures = [self._pool.submit(self._run, number) for number in range(works)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        for go in self._go:
            go.release()
        self._pool.shutdown()

    def run(self, number: int) -> bool:
        """Let a work go on until it waits again: whether it does. Raises what it raised."""
        if self._has_ended[number]:
            return False
        self._go[number].release()
        self._back.acquire()
        if self._has_ended[number]:
            self._futures[number].result()
            return False
        return True

    def wait(self, number: int) -> None:
        """Called in the thread of that number: until the conductor lets it go on.

        Raises StateError where the conductor has left.
        """
        self._back.release()
        self._await(number)

    def _await(self, number: int) -> None:
        self._go[number].acquire()
        if self._is_over:
            raise StateError("the run is over")

    def _run(self, number: int) -> Made:
        try:
            self._await(number)
            return self._work(number)
        finally:
            self._has_ended[number] = True
            self._back.release()


# What a contribution weighs that comes when it is ready -------------------------------------------

# FedAsync, FedBuff, FedFix. Who comes more often must weigh less each time, or the fast ones decide
# where training ends. The weights d_r are those of Fraboni et al. 2023 (FedFix): the mean of what r
# weighs over the server's steps, 0 in those without it, is p_r for every client.


class Staleness(Protocol):
    """SEAM: a factor by how many versions the anchor is behind that a contribution is against."""

    def __call__(self, behind: int) -> float:
        """1 where it is not behind, never more."""
        ...


STALENESS: Registry[Staleness] = Registry("staleness")
"""Factories without arguments; the forms are FedAsync's (Xie et al. 2019)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """All count alike."""

    def __call__(self, behind: int) -> float:
        """See Staleness."""
        del behind
        return 1.0


CONSTANT = Constant()


@dataclass(frozen=True, slots=True)
class Polynomial:
    """(1 + behind)^-a; with a = 1/2 that of FedBuff (Nguyen et al. 2022)."""

    exponent: float = 0.5

    def __call__(self, behind: int) -> float:
        """See Staleness."""
        return float((1 + behind) ** -self.exponent)


@dataclass(frozen=True, slots=True)
class Hinge:
    """1 up to so many versions behind, then 1 / (a (behind - b) + 1)."""

    slope: float = 10.0
    free: int = 4

    def __call__(self, behind: int) -> float:
        """See Staleness."""
        return 1.0 if behind <= self.free else 1.0 / (self.slope * (behind - self.free) + 1.0)


STALENESS.register("constant", Constant)
STALENESS.register("polynomial", Polynomial)
STALENESS.register("hinge", Hinge)


def fedavg_weights(shares: Sequence[float]) -> tuple[float, ...]:
    """Everybody comes in every step: d_r = p_r."""
    return tuple(shares)


def fedfix_weights(
    shares: Sequence[float], seconds: Sequence[float], interval_s: float
) -> tuple[float, ...]:
    """A step each `interval_s`, of whoever came in it: d_r = p_r N_r, for r comes once in
    N_r = ceil(T_r / interval) of them."""
    if interval_s <= 0.0:
        raise ConfigError(f"a step of the server each {interval_s} s; it must be more than 0")
    turns = (ceil(Fraction(took) / Fraction(interval_s)) for took in seconds)
    return tuple(share * turn for share, turn in zip(shares, turns, strict=True))


def fedasync_weights(shares: Sequence[float], seconds: Sequence[float]) -> tuple[float, ...]:
    """A step for each arrival: d_r = p_r T_r sum over s of 1 / T_s, for r makes 1 / T_r of them."""
    arrivals = sum(1.0 / took for took in seconds)
    return tuple(share * took * arrivals for share, took in zip(shares, seconds, strict=True))


def fedbuff_weights(
    shares: Sequence[float], seconds: Sequence[float], size: int
) -> tuple[float, ...]:
    """A step for each `size` arrivals: those of FedAsync over the size."""
    if size < 1:
        raise ConfigError(f"a buffer of {size} contributions; it must be 1 or more")
    return tuple(weight / size for weight in fedasync_weights(shares, seconds))


# Swarms -------------------------------------------------------------------------------------------

T = TypeVar("T")


@dataclass
class VirtualSwarm(Swarm):
    """A Swarm whose replicas wait for a conductor in place of each other."""

    rounds_kept: int | None = 1
    handed: dict[int, Contribution] = field(default_factory=dict)
    """By replica, not summed yet."""
    num_samples: int = 0
    """Leased so far."""
    is_finished: bool = False
    now_s: float = 0.0
    """Virtual time."""
    base: dict[int, int] = field(default_factory=dict)
    """By replica the round of the anchor that it works from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._baton: Baton[object] | None = None
        self._leases: dict[int, Lease] = {}

    def sessions(self) -> list[MemorySession]:
        """One of each replica."""
        return [VirtualSession(self, replica) for replica in range(self.replicas)]

    def conducted(self, train: Callable[[MemorySession], T]) -> None:
        """Train to the end of the run."""
        sessions = self.sessions()
        with Baton[object](self.replicas, lambda replica: train(sessions[replica])) as baton:
            self._baton = baton
            self.conduct()
            self.is_finished = True
            for replica in range(self.replicas):
                while baton.run(replica):
                    pass

    @abstractmethod
    def conduct(self) -> None:
        """Let replicas go on until the run is over."""
        ...

    @property
    def steps_left(self) -> int:
        """Of as many as all would have trained in lock step."""
        inner = self.manifest.inner
        in_all = self.manifest.rounds * self.replicas * inner.inner_steps
        return in_all - self.num_samples // inner.batch

    def go_on(self, replica: int, steps: int | None = None) -> None:
        """A replica takes the newest anchor, and trains so many steps on new samples, by default
        those of a round."""
        inner = self.manifest.inner
        first = self.num_samples
        self.num_samples += (steps or inner.inner_steps) * inner.batch
        self._leases[replica] = ((first, self.num_samples),)
        self.base[replica] = self.clock.round
        assert self._baton is not None
        self._baton.run(replica)

    def wait(self, replica: int) -> None:
        """In the replica's thread, until it goes on."""
        assert self._baton is not None
        self._baton.wait(replica)

    def lease(self, replica: int, round_index: int) -> Lease:
        """Those that the conductor gave it."""
        del round_index
        return () if self.is_finished else self._leases.get(replica, ())

    def outcome(self, replica: int) -> Outcome:
        """With the newest anchor; what was handed in and not summed by now never is."""
        is_summed = self.handed.pop(replica, None) is None
        return replace(super().outcome(replica), listed=is_summed)

    def drift(self, contribution: Contribution) -> Weights:
        """What is decoded of it, as one vector."""
        numels = self.manifest.layout(0).cell_numels[0]
        cells = zip(contribution.payloads, numels, strict=True)
        return np.concatenate([self._codec.decode(one, numel) for one, numel in cells])

    def stepped(self, contributions: Sequence[Contribution], weights: Sequence[float]) -> None:
        """A step of the server with these contributions, each times its weight."""
        drifts = [self.drift(contribution) for contribution in contributions]
        self.moved(contributions, drifts, weights)

    def moved(
        self,
        contributions: Sequence[Contribution],
        drifts: Sequence[Weights],
        weights: Sequence[float],
    ) -> None:
        """A step of the server away from these drifts, each times its weight; the tokens are those
        of the contributions."""
        aggregate_N = np.zeros_like(self.anchors[0])
        tokens = 0
        for contribution, drift_N, weight in zip(contributions, drifts, weights, strict=True):
            aggregate_N += np.float32(weight) * drift_N
            tokens += contribution.tokens
            self.payload_bytes += sum(map(len, contribution.payloads))
        info = OuterInfo(round=self.clock.round, slots=self.slots[0])
        step = self._outer.step(self.anchors[0], aggregate_N, info)
        self.anchors[0], self.slots[0] = step.anchor_N, dict(step.slots)
        self.clock = RunClock(
            round=self.clock.round + 1,
            step=self.step_after(self.clock.tokens + tokens),
            tokens=self.clock.tokens + tokens,
        )

    def step_after(self, tokens: int) -> int:
        """The step that the learning rate is at: as far as a replica is on average."""
        context = self.manifest.model.setting("context")
        assert isinstance(context, int)
        return tokens // (context * self.manifest.inner.batch * self.replicas)


@dataclass
class VirtualSession(MemorySession):
    """One replica's Session with a conductor; it begins when it is told to."""

    swarm: VirtualSwarm

    @property
    def start(self) -> RunStart:
        """See Session."""
        return super().start

    def begin(self, fragment: int, contribution: Contribution) -> "VirtualTicket":
        """See Exchange."""
        assert fragment == contribution.fragment == 0
        self.swarm.handed[self.replica] = contribution
        return VirtualTicket(self.swarm, self.replica)


@dataclass
class VirtualTicket(MemoryTicket):
    """Waits for the conductor."""

    swarm: VirtualSwarm

    def result(self) -> Outcome:
        """See Ticket. Raises StateError where the conductor has left."""
        self.swarm.wait(self.replica)
        return self.swarm.outcome(self.replica)


@dataclass
class AsyncSwarm(VirtualSwarm):
    """Everybody trains all the time: FedAsync, FedBuff, FedFix.

    Replica r takes `seconds[r]` for a round. The server steps with each `size` contributions, or
    each `interval_s` seconds with what came; `weights[r]` is what one of r counts.
    """

    seconds: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    size: int = 0
    interval_s: float = 0.0
    staleness: Staleness = CONSTANT

    def conduct(self) -> None:
        """See VirtualSwarm: as many rounds as all would have trained in lock step. What came last
        is a step of its own, though it be fewer than `size`."""
        due = sorted((seconds, replica) for replica, seconds in enumerate(self.seconds))
        for replica in range(self.replicas):
            self.go_on(replica)
        buffer: list[tuple[Contribution, float]] = []
        waiting: list[int] = []
        tick_s = self.interval_s
        is_timed = self.interval_s > 0.0
        while due or waiting:
            if is_timed and (not due or due[0][0] > tick_s + 1e-9):
                self.now_s, tick_s = tick_s, tick_s + self.interval_s
                free, waiting = waiting, []
            else:
                self.now_s, replica = heapq.heappop(due)
                buffer.append(self._taken(replica))
                if is_timed:
                    waiting.append(replica)
                    continue
                free = [replica]  # It waits for nobody.
            is_last = not due and self.steps_left <= 0
            if buffer and (is_timed or len(buffer) == self.size or is_last):
                contributions, weights = zip(*buffer, strict=True)
                self.stepped(contributions, weights)
                buffer = []
            for replica in free:
                if self.steps_left > 0:
                    self.go_on(replica)
                    heapq.heappush(due, (self.now_s + self.seconds[replica], replica))

    def _taken(self, replica: int) -> tuple[Contribution, float]:
        """What came, and what it counts."""
        behind = self.clock.round - self.base[replica]
        weight = self.weights[replica] * self.staleness(behind)
        return self.handed.pop(replica), weight


@dataclass
class SampledSwarm(VirtualSwarm):
    """MoDeST: of all replicas `size` are drawn for each round, the others have nothing to do.

    In round `killed_from` those of the `killed` that were drawn die in it, and from then on none of
    them answers. Who aggregates is no question here: where one is gone, the next of the order does.
    """

    size: int = 4
    killed: frozenset[int] = frozenset()
    killed_from: int = -1
    attempts: list[tuple[int, int]] = field(default_factory=list)
    """Round and how many models came: fewer than MODELS_MIN are no round, and another is drawn."""

    def conduct(self) -> None:
        """See VirtualSwarm."""
        numbers = {replica.to_bytes(2, "big"): replica for replica in range(self.replicas)}
        view, gone = View().active(numbers, 0), frozenset[int]()
        while self.clock.round < self.manifest.rounds:
            index = self.clock.round
            is_blow = index == self.killed_from and not gone
            here = self._drawn(view, numbers, gone)
            for replica in here:
                self.go_on(replica)
            if is_blow:
                gone = self.killed
                here = [replica for replica in here if replica not in gone]
            self.attempts.append((index, len(here)))
            if len(here) >= min(MODELS_MIN, self.size):
                came = [self.handed.pop(replica) for replica in here]
                self.stepped(came, [1.0 / len(here)] * len(here))
                view = view.active([p for p, replica in numbers.items() if replica in here], index)

    def _drawn(self, view: View, numbers: Mapping[bytes, int], gone: frozenset[int]) -> list[int]:
        seed = f"{self.manifest.model.seed}/{self.clock.round}/{len(self.attempts)}".encode()
        peers = sample(
            seed,
            view.candidates(self.clock.round),
            self.size,
            lambda peer: numbers[peer] not in gone,
        )
        return [numbers[peer] for peer in peers]

    def step_after(self, tokens: int) -> int:
        """A round is one of all who were drawn."""
        del tokens
        return (self.clock.round + 1) * self.manifest.inner.inner_steps
