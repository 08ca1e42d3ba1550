"""FedCompass behind the one loop: unequal replicas take unequal numbers of steps, and so come
together (Li et al. 2024).

A group that is complete, or over, makes a step of the server. Who comes late counts with the next
group, and goes on at once; so does who was not observed before, whose step is its own.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.methods.compass import Compass, Group
from sim.methods.staleness import Polynomial, Staleness
from sim.methods.virtual_swarm import VirtualSwarm
from training.channel.exchange import Contribution
from training.loop.replicas import Weights

STEPS_MIN_SHARE = 0.2
"""Of the most steps of a round the fewest: their Q_min / Q_max."""


@dataclass(frozen=True, slots=True)
class _Came:
    """What a replica trained, from which anchor (N,) float32, of which version."""

    contribution: Contribution
    began_N: Weights
    version: int


@dataclass
class CompassSwarm(VirtualSwarm):
    """Replica r takes `step_s[r]` seconds for a step; H are the most of a round.

    The anchor goes towards what came, each by its part, whatever it began from:
    x <- x - sum of a_r (x - x_r), a_r = rate s(versions behind) / R, where x_r is what r trained.
    """

    step_s: tuple[float, ...] = ()
    rate: float = 1.0
    """Theirs is 0.9, and costs 0.02 nats per byte of a small model."""
    staleness: Staleness = field(default_factory=Polynomial)
    steps: list[list[int]] = field(init=False)
    """By replica those of each of its rounds."""
    idle_s: list[float] = field(init=False)
    """By replica how long it waited for its groups."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = [[] for _ in range(self.replicas)]
        self.idle_s = [0.0] * self.replicas
        most = self.manifest.inner.inner_steps
        self._compass = Compass(steps_min=max(1, round(STEPS_MIN_SHARE * most)), steps_max=most)
        self._due: list[tuple[float, int]] = []
        """When each replica that trains is through."""
        self._began: dict[int, Weights] = {}
        self._group: dict[int, Group | None] = {}
        """Both by replica."""
        self._waiting: dict[int, tuple[float, _Came]] = {}
        """Who came in time for its group, since when."""
        self._late: list[_Came] = []

    def conduct(self) -> None:
        """See VirtualSwarm: about as many steps as all would have trained in lock step."""
        for replica in range(self.replicas):
            # Nobody was observed yet.
            self._train(replica, self.manifest.inner.inner_steps, None)
        while self._due or self._waiting:
            over_s = min((group.ends_s for group in self._compass.groups), default=math.inf)
            if self._due and self._due[0][0] <= over_s:
                self._arrive()
            else:
                self.now_s = over_s
            for group in self._compass.ended(self.now_s):
                self._end(group)
        self._merge(self._late)

    def _train(self, replica: int, steps: int, group: Group | None) -> None:
        self.steps[replica].append(steps)
        self._began[replica], self._group[replica] = self.anchors[0], group
        self.go_on(replica, steps)
        heapq.heappush(self._due, (self.now_s + steps * self.step_s[replica], replica))

    def _assign(self, replica: int) -> None:
        if self.steps_left > 0:
            found = self._compass.assign(replica, self.now_s)
            self._train(replica, found.steps, found.group)

    def _arrive(self) -> None:
        self.now_s, replica = heapq.heappop(self._due)
        self._compass.observed(replica, self.step_s[replica])
        came = _Came(self.handed.pop(replica), self._began[replica], self.base[replica])
        group = self._group[replica]
        if group is not None and self._compass.arrived(replica, group, self.now_s):
            self._waiting[replica] = self.now_s, came
            return
        if group is None:
            self._merge([came])
        else:
            self._late.append(came)
        self._assign(replica)

    def _end(self, group: Group) -> None:
        members = [replica for replica in self._waiting if self._group[replica] is group]
        found = {replica: self._waiting.pop(replica) for replica in members}
        self._merge([*self._late, *(came for _, came in found.values())])
        self._late = []
        for replica in sorted(members, key=self.step_s.__getitem__):
            self.idle_s[replica] += self.now_s - found[replica][0]
            self._assign(replica)

    def _merge(self, came: Sequence[_Came]) -> None:
        if came:
            ways = [self.anchors[0] - (one.began_N - self.drift(one.contribution)) for one in came]
            weights = [
                self.rate * self.staleness(self.clock.round - one.version) / self.replicas
                for one in came
            ]
            self.moved([one.contribution for one in came], ways, weights)
