"""Replicas without a common anchor behind the one loop: each goes on from weights of its own.

R replicas, N elements

A round ends as in `training.loop.replicas`, but what comes home to a replica is what its neighbours
and it made of their weights. So the loop, its schedule and its transaction are DiLoCo's; there is
no seal, no outer step, and nothing that two replicas could compare.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sim.methods.acid import PLAIN, AcidPace, TwoCopies, pace_of
from sim.methods.gossip import Edge, Mixing, Pairwise, pairs, ring
from training.channel.exchange import Outcome, RunClock, RunStart
from training.loop.replicas import MemorySession, Swarm, Weights
from training.numeric.arithmetic import joined


@dataclass
class GossipSwarm(Swarm):
    """Mixes when all `replicas` have contributed; who is `absent` neither gives nor takes.

    The codec must lose nothing: weights travel whole, for no neighbour knows what they drifted
    from. `payload_bytes` counts every copy that is sent.
    """

    mixing: Mixing = field(default_factory=Pairwise)
    own: list[Weights] = field(init=False)
    """The weights that each replica goes on from, of the whole shard."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.own = [joined(self.anchors).copy() for _ in range(self.replicas)]

    @property
    def anchor(self) -> Weights:
        """The mean of all: nobody has it, it is what they differ from."""
        mean_N: Weights = np.stack(self.own).mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean_N

    @property
    def disagreement(self) -> float:
        """Root mean square distance of a weight from the mean of its replicas."""
        return float(np.std(self.own, axis=0, dtype=np.float64).mean())

    def finals(self) -> list[list[Weights]]:
        """Of each replica its own: the mean of their losses is the run's."""
        return [[own_N] for own_N in self.own]

    def sessions(self) -> list[MemorySession]:
        """One of each replica."""
        return [OwnSession(self, replica) for replica in range(self.replicas)]

    def outcome(self, replica: int) -> Outcome:
        """See Swarm: with the replica's own weights in place of the anchor."""
        return replace(super().outcome(replica), anchor_N=self.own[replica])

    def _seal(self) -> None:
        index, numels = self.clock.round, self.manifest.layout(0).cell_numels[0]
        here = [r for r in range(self.replicas) if (index, r) not in self.absent]
        drifts = {}
        for replica in here:
            payloads = self.contributions.pop((index, replica)).payloads
            cells = zip(payloads, numels, strict=True)
            drifts[replica] = np.concatenate([self._codec.decode(*one) for one in cells])
        self.payload_bytes += round(4 * sum(numels) * self.mixed(drifts, index))
        inner = self.manifest.inner
        self.clock = RunClock(
            round=index + 1,
            step=self.clock.step + inner.inner_steps,
            tokens=self.clock.tokens + inner.inner_steps * inner.batch * len(here),
        )

    def mixed(self, drifts: Mapping[int, Weights], round_index: int) -> float:
        """Take the drift of each replica, and mix; returns how many copies of weights were sent."""
        rows_RN = np.stack([self.own[replica] - drift_N for replica, drift_N in drifts.items()])
        mixed_RN: Weights = self.mixing.mix(rows_RN, round_index).astype(np.float32)
        for row, replica in enumerate(drifts):
            self.own[replica] = mixed_RN[row]
        return self.mixing.copies(len(drifts)) * len(drifts)


@dataclass
class NoLoCoSwarm(GossipSwarm):
    """NoLoCo: the outer step of each replica with one other, drawn anew for each round
    (Kolehmainen et al. 2025, arXiv 2506.10911).

    v <- mu v + rate mean(g) + pull (x - mean(x)),  x <- x - v; means over the pair, g what both
    drifted. The pull stands in for the anchor that nobody has: with 1 and without momentum it is
    averaging.
    """

    rate: float = 0.7
    momentum: float = 0.5
    pull: float = 1.0
    velocity: list[Weights] = field(init=False)
    """By replica, (N,) float32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.velocity = [np.zeros_like(own_N) for own_N in self.own]

    def mixed(self, drifts: Mapping[int, Weights], round_index: int) -> float:
        """See GossipSwarm: of both what it drifted, and where it began. Who is the last of an odd
        number is its own mean."""
        here = list(drifts)
        drawn = pairs(len(here), round_index)
        alone = set(range(len(here))) - {number for pair in drawn for number in pair}
        for group in (*drawn, *((number,) for number in alone)):
            members = [here[number] for number in group]
            drift_N = np.mean([drifts[one] for one in members], axis=0)
            begin_N = np.mean([self.own[one] for one in members], axis=0)
            for one in members:
                velocity_N = np.float32(self.momentum) * self.velocity[one]
                velocity_N += np.float32(self.rate) * drift_N
                velocity_N += np.float32(self.pull) * (self.own[one] - begin_N)
                self.velocity[one] = velocity_N
                self.own[one] = self.own[one] - velocity_N
        return 4.0 * len(drawn)


@dataclass
class AcidSwarm(GossipSwarm):
    """A2CiD2: two copies of each replica's weights, which meet on a ring without rounds.

    A round is the unit of time: its drifts come at its begin, then everybody meets a neighbour once
    on average, at moments that are drawn. The weights to train and to judge are the first copy's.
    `pace` of None is that of the graph; PLAIN is gossip with one copy.
    """

    pace: AcidPace | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        edges = ring(self.replicas)
        degree = 1 if self.replicas == 2 else 2
        self._rates: dict[Edge, float] = dict.fromkeys(edges, 1.0 / degree)
        pace = self.pace or (pace_of(self.replicas, self._rates) if edges else PLAIN)
        self._copies = TwoCopies(np.stack(self.own).astype(np.float64), pace)

    def mixed(self, drifts: Mapping[int, Weights], round_index: int) -> float:
        """See GossipSwarm."""
        for replica, drift_N in drifts.items():
            self._copies.gradient(replica, drift_N.astype(np.float64), float(round_index))
        meetings = [one for one in self._meetings(round_index) if drifts.keys() >= set(one[1])]
        for at, edge in meetings:
            self._copies.meet(edge, at)
        for replica in drifts:
            self.own[replica] = self._copies.x_RN[replica].astype(np.float32)
        return 2.0 * len(meetings)

    def _meetings(self, round_index: int) -> list[tuple[float, Edge]]:
        """Who meets whom in a round, and when: a Poisson process for each edge."""
        lot = random.Random(f"{self.manifest.model.seed}/{round_index}")
        found = []
        for edge, rate in self._rates.items():
            at = 0.0
            while (at := at - math.log(1.0 - lot.random()) / rate) < 1.0:
                found.append((round_index + at, edge))
        return sorted(found)


@dataclass
class OwnSession(MemorySession):
    """Begins with the replica's own weights."""

    swarm: GossipSwarm

    @property
    def start(self) -> RunStart:
        """See Session."""
        return replace(super().start, anchors=(self.swarm.own[self.replica],))
