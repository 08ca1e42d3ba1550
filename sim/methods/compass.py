"""FedCompass: unequal clients get unequal numbers of steps, so that they come together (Li et al.
2024). Pure: times in, steps out.

    who is free joins the open group that leaves it the most steps, within steps_min..steps_max
    no group: a new one, of as many steps as let it end with the group that is latest, if any
    a group arrives at once, or ends `slack` times later; who comes behind that counts alone
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import floor, inf

from protocol.errors import ConfigError

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
    """Who takes how many steps. `slack` is how much longer than planned a group is open."""

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
