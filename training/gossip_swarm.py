"""Replicas without a common anchor behind the one loop: each goes on from weights of its own.

R replicas, N elements

A round ends as in `training.replicas`, but what comes home to a replica is what its neighbours and
it made of their weights. So the loop, its schedule and its transaction are DiLoCo's; there is no
seal, no outer step, and nothing that two replicas could compare.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from training.arithmetic import joined
from training.exchange import Outcome, RunClock, RunStart
from training.gossip import Mixing, Pairwise
from training.replicas import MemorySession, Swarm, Weights


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
        rows = []
        for replica in here:
            payloads = self.contributions.pop((index, replica)).payloads
            cells = zip(payloads, numels, strict=True)
            drift_N = np.concatenate([self._codec.decode(one, numel) for one, numel in cells])
            rows.append(self.own[replica] - drift_N)
        mixed_RN: Weights = self.mixing.mix(np.stack(rows), index).astype(np.float32)
        for row, replica in enumerate(here):
            self.own[replica] = mixed_RN[row]
        copies = self.mixing.copies(len(here)) * len(here)
        self.payload_bytes += round(4 * sum(numels) * copies)
        inner = self.manifest.inner
        self.clock = RunClock(
            round=index + 1,
            step=self.clock.step + inner.inner_steps,
            tokens=self.clock.tokens + inner.inner_steps * inner.batch * len(here),
        )


@dataclass
class OwnSession(MemorySession):
    """Begins with the replica's own weights."""

    swarm: GossipSwarm

    @property
    def start(self) -> RunStart:
        """See Session."""
        return replace(super().start, anchors=(self.swarm.own[self.replica],))
