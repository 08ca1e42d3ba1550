"""FedCompass behind the one loop: unequal replicas take unequal numbers of steps, and so come
together (Li et al. 2024).

A group that is complete, or over, makes a step of the server. Who comes late counts with the next
group, and goes on at once; so does who was not observed before, whose step is its own.
"""

import heapq
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import floor, inf

from protocol.errors import ConfigError
from sim.methods.virtual_swarm import Polynomial, Staleness, VirtualSwarm
from training.channel.exchange import Contribution
from training.loop.replicas import Weights

MEMORY = 0.5
"""What is past counts half per round of a client's speed."""


@dataclass(slots=True)
class Group:
    """Clients that are to arrive at one moment."""

    arrives_s: float
    ends_s: float
    """Nobody is waited for any longer."""
    expected: set[Hashable] = field(default_factory=set)
    fastest_s: float = inf
    """A step of its fastest client."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """How many steps, and with which group."""

    steps: int
    group: Group


class Compass:
    """Who takes how many steps. `slack` is how much longer than planned a group is open.

        who is free joins the open group that leaves it the most steps, within bounds
        no group: a new one, of as many steps as let it end with the group that is latest, if any
        a group arrives at once, or ends `slack` times later; who comes behind that counts alone

    Pure: times in, steps out.
    """

    def __init__(self, *, steps_min: int, steps_max: int, slack: float = 1.2) -> None:
        """Raises ConfigError for bounds that are none."""
        if not 1 <= steps_min <= steps_max or slack < 1.0:
            raise ConfigError(f"{steps_min} to {steps_max} steps with a slack of {slack}")
        self._steps_min, self._steps_max, self._slack = steps_min, steps_max, slack
        self._step_s: dict[Hashable, float] = {}
        self._groups: list[Group] = []

    @property
    def groups(self) -> tuple[Group, ...]:
        """Those that are open."""
        return tuple(self._groups)

    def observed(self, client: Hashable, step_s: float) -> None:
        """A step of this client took so long."""
        before = self._step_s.get(client, step_s)
        self._step_s[client] = MEMORY * before + (1.0 - MEMORY) * step_s

    def assign(self, client: Hashable, now_s: float) -> Assigned:
        """Work for a client that is free and was observed at least once."""
        step_s = self._step_s[client]
        fitting = [
            (steps, -number, group)
            for number, group in enumerate(self._groups)
            if self._steps_min
            <= (steps := floor((group.arrives_s - now_s) / step_s + 1e-9))
            <= self._steps_max
        ]
        if fitting:
            steps, _, group = max(fitting, key=lambda one: one[:2])
        else:
            steps = self._steps_of_new(now_s, step_s)
            planned_s = steps * step_s
            group = Group(now_s + planned_s, now_s + self._slack * planned_s)
            self._groups.append(group)
        group.expected.add(client)
        group.fastest_s = min(group.fastest_s, step_s)
        return Assigned(steps, group)

    def arrived(self, client: Hashable, group: Group, now_s: float) -> bool:
        """Whether the client is in time for its group; late ones count alone."""
        if group not in self._groups or now_s > group.ends_s:
            return False
        group.expected.discard(client)
        return True

    def ended(self, now_s: float) -> list[Group]:
        """Groups that are complete or over; they are open no longer."""
        over = [group for group in self._groups if not group.expected or now_s >= group.ends_s]
        self._groups = [group for group in self._groups if group not in over]
        return over

    def _steps_of_new(self, now_s: float, step_s: float) -> int:
        ends = [group.ends_s + group.fastest_s * self._steps_max for group in self._groups]
        found = [floor((end_s - now_s) / step_s) for end_s in ends if end_s > now_s]
        found = [steps for steps in found if steps <= self._steps_max]
        return max(self._steps_min, max(found)) if found else self._steps_max


# Behind the one loop ------------------------------------------------------------------------------

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
