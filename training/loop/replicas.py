"""R replicas of a run in one process: the trainer's loop, and a round without a network.

All that is computed between gradient and new anchor is a node's own: error feedback and codec of
each replica, decoded bytes, rule of aggregation, result codec, outer step. Only who is there is
simple: everybody, in every round, but whom a caller names as absent.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.manifest import RunManifest
from training.aggregation import AGGREGATORS, coefficients_of
from training.channel.exchange import (
    Contribution,
    Lease,
    Outcome,
    RunClock,
    RunStart,
    Turn,
)
from training.compression import make_codec, result_codec
from training.models.genesis import genesis_weights
from training.numeric.arithmetic import joined
from training.numeric.gram import wire_form
from training.outer.optimizers import OuterInfo, make_outer

T = TypeVar("T")
Weights = NDArray[np.float32]

WAIT_S = 600.0
"""Longest wait for another replica; one that fails is not waited for at all."""


@dataclass
class Swarm:
    """Seals a round when all `replicas` have contributed to it; `absent` names who is left out.

    `absent` holds (round, replica) pairs: their contributions arrive too late to be listed. Of
    `contributions` the last `rounds_kept` rounds stay; None keeps all. `grades` are the bits per
    element of the first replicas, where the codec has grades; the others send the usual ones.
    """

    manifest: RunManifest
    replicas: int
    absent: frozenset[tuple[int, int]] = frozenset()
    grades: tuple[int, ...] = ()
    rounds_kept: int | None = None
    contributions: dict[tuple[int, int], Contribution] = field(default_factory=dict)
    clock: RunClock = field(init=False)
    anchors: list[Weights] = field(init=False)
    slots: list[dict[str, Weights]] = field(init=False)
    """Both by fragment."""

    payload_bytes: int = 0
    """Of all contributions that were listed so far."""

    result_bytes: int = 0
    """Of all results so far, each counted once."""

    def __post_init__(self) -> None:
        self.clock = RunClock(round=0, step=0, tokens=0)
        self.anchors = list(genesis_weights(self.manifest))
        self.slots = [{} for _ in self.anchors]
        self.barrier = threading.Barrier(self.replicas, action=self._seal, timeout=WAIT_S)
        outer = self.manifest.outer
        self._codec, self._result_codec = make_codec(outer), result_codec(outer)
        self._rule = AGGREGATORS[outer.aggregator](cell_elements=self.manifest.cell_elements)
        self._outer = make_outer(outer)

    @property
    def anchor(self) -> Weights:
        """Of the whole shard."""
        return joined(self.anchors)

    def finals(self) -> list[list[Weights]]:
        """Whose loss is the run's: the anchors, by fragment; where replicas have own ones, all."""
        return [self.anchors]

    def sessions(self) -> list["MemorySession"]:
        """One of each replica."""
        grades = [*self.grades, *[0] * (self.replicas - len(self.grades))]
        return [MemorySession(self, replica, grade) for replica, grade in enumerate(grades)]

    def lease(self, replica: int, round_index: int) -> Lease:
        """The samples of a replica in a round: nobody's twice, none behind the end."""
        if round_index >= self.manifest.rounds:
            return ()
        per_round = self.manifest.inner.inner_steps * self.manifest.inner.batch
        first = (round_index * self.replicas + replica) * per_round
        return ((first, first + per_round),)

    def turn(self, replica: int, round_index: int) -> Turn:
        """That round in the hands of a replica, which need not be the one behind the last seal."""
        ahead = (round_index - self.clock.round) * self.manifest.inner.inner_steps
        clock = replace(self.clock, round=round_index, step=self.clock.step + ahead)
        lease = self.lease(replica, round_index)
        return Turn(clock=clock, lease=lease, members=self.replicas)

    def outcome(self, replica: int) -> Outcome:
        """Of the round that was sealed last, for one replica."""
        return Outcome(
            listed=(self.clock.round - 1, replica) not in self.absent,
            anchor_N=self.anchors[self._fragment(self.clock.round - 1)],
            clock=self.clock,
            lease=self.lease(replica, self.clock.round),
            members=self.replicas,
        )

    def _fragment(self, round_index: int) -> int:
        return round_index % len(self.anchors)

    def _seal(self) -> None:
        index, fragment = self.clock.round, self._fragment(self.clock.round)
        listed = [
            self.contributions[index, replica]
            for replica in range(self.replicas)
            if (index, replica) not in self.absent
        ]
        weights_P = np.array([float(one.tokens) for one in listed])
        numels = self.manifest.layout(0).cell_numels[fragment]
        rows = [
            np.stack([self._codec.decode(one.payloads[cell], numel) for one in listed])
            for cell, numel in enumerate(numels)
        ]
        self.payload_bytes += sum(len(payload) for one in listed for payload in one.payloads)
        grams = []
        if self._rule.uses_stats:
            # As of one reducer: where there are more, each rounds its own share.
            stats = [self._rule.stats(cell_PN) for cell_PN in rows]
            grams.append(wire_form(sum(stats[1:], stats[0]), len(listed)))
        factors = coefficients_of(self._rule, grams, weights_P)
        cells = []
        for cell_PN, numel in zip(rows, numels, strict=True):
            result = self._result_codec.encode(self._rule.combine(cell_PN, factors))
            self.result_bytes += len(result)
            cells.append(self._result_codec.decode(result, numel))
        info = OuterInfo(round=index, slots=self.slots[fragment])
        step = self._outer.step(self.anchors[fragment], np.concatenate(cells), info)
        self.anchors[fragment], self.slots[fragment] = step.anchor_N, dict(step.slots)
        self.clock = RunClock(
            round=index + 1,
            step=self.clock.step + self.manifest.inner.inner_steps,
            tokens=self.clock.tokens + sum(one.tokens for one in listed),
        )
        if self.rounds_kept is not None:
            for replica in range(self.replicas):
                self.contributions.pop((index - self.rounds_kept, replica), None)


@dataclass
class MemorySession:
    """One replica's Session with a Swarm."""

    swarm: Swarm
    replica: int
    grade: int = 0
    """See KnowsLine."""
    _round: int = 0
    """The round in hand: with two in flight (R5) it may be ahead of the swarm's."""

    @property
    def manifest(self) -> RunManifest:
        """See Session."""
        return self.swarm.manifest

    @property
    def start(self) -> RunStart:
        """See Session."""
        swarm = self.swarm
        anchors, lease = tuple(swarm.anchors), swarm.lease(self.replica, swarm.clock.round)
        return RunStart(anchors=anchors, clock=swarm.clock, lease=lease, members=swarm.replicas)

    def begin(self, fragment: int, contribution: Contribution) -> "MemoryTicket":
        """See Exchange."""
        assert fragment == contribution.fragment
        self.swarm.contributions[self._round, self.replica] = contribution
        self._round += 1
        return MemoryTicket(self.swarm, self.replica)

    def proceed(self) -> Turn:
        """See Exchange."""
        return self.swarm.turn(self.replica, self._round)


@dataclass
class MemoryTicket:
    """Waits for the slowest replica."""

    swarm: Swarm
    replica: int

    def is_here(self) -> bool:
        """See Ticket. All step at one pace here: nobody need be asked whether it is through."""
        return True

    def result(self) -> Outcome:
        """See Ticket. Raises BrokenBarrierError where another replica has failed."""
        self.swarm.barrier.wait()
        return self.swarm.outcome(self.replica)


def run_replicas(swarm: Swarm, train: Callable[[MemorySession], T]) -> list[T]:
    """`train(session)` for every replica, each in a thread; the first failure is raised."""

    def guarded(session: MemorySession) -> T:
        with ExitStack() as failure:
            # The others must fail at once, not wait for a replica that has failed.
            failure.callback(swarm.barrier.abort)
            result = train(session)
            failure.pop_all()
        return result

    with ThreadPoolExecutor(swarm.replicas) as pool:
        futures = [pool.submit(guarded, session) for session in swarm.sessions()]
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
