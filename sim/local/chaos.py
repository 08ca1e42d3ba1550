"""Which fault comes next, and to whom: a function of the seed and of who is well. Pure."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Part = Literal["node", "network", "trainer"]
Move = Literal["leave", "return", "join"]

DOWN_S = (0.5, 8.0)
"""Between a kill and the next start: shorter than a suspicion, and longer."""

STILL_S = (1.0, 15.0)
EXTRA_NODES_MAX = 2
"""Churn adds at most so many to those that began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFault:
    """One fault: `victim` is a node's name, `lasts_s` until it is undone."""

    kind: str
    victim: str
    lasts_s: float = 0.0
    part: Part = "node"
    """Of a kill: both processes, or one of them."""

    move: Move = "leave"
    """Of churn."""

    beside: tuple[str, ...] = ()
    """Of a partition: who is on the victim's side, which is the smaller one."""

    @property
    def victims(self) -> tuple[str, ...]:
        """All to whom it is done."""
        return (self.victim, *self.beside)

    def __str__(self) -> str:
        match self.kind:
            case "kill":
                what = {"node": "", "network": "'s network process", "trainer": "'s trainer"}
                return f"kill {self.victim}{what[self.part]}, back after {self.lasts_s:.1f} s"
            case "churn":
                return f"{self.victim} {self.move}s"
            case "freeze" | "stall":
                return f"{self.kind} {self.victim} for {self.lasts_s:.1f} s"
            case "partition":
                side = " and ".join(self.victims)
                return f"partition of {side} from the others for {self.lasts_s:.1f} s"
            case _:
                return f"{self.kind} {self.victim}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The swarm as one sees it from outside. Names are in the order of the first start."""

    well: Sequence[str]
    """Members of the round under way that run, and to which nothing is done now."""

    running: Sequence[str]
    """Nodes whose processes run and to which nothing is done now."""

    gone: Sequence[str]
    """Nodes that have left and may come back."""

    num_here: int
    """Nodes that have not left, however they are."""

    members: int
    """On the roster of the newest seal."""

    num_begun: int
    """Nodes that began with the run."""


class ProcessChaos:
    """A stream of faults. Every call draws equally often, whatever becomes of it."""

    def __init__(self, kinds: Sequence[str], *, seed: int, is_reckless: bool = False) -> None:
        self._kinds = tuple(kinds)
        self._stream = random.Random(f"{seed}/chaos")
        self._is_reckless = is_reckless

    def next(self, now: Situation) -> ProcessFault | None:
        """The fault that is due; None where it would cost the quorum, or there is nobody left."""
        kind = self._kinds[int(self._stream.random() * len(self._kinds))]
        whom, length, part, move = (self._stream.random() for _ in range(4))
        if kind == "churn":
            chosen = self._move(now, move)
            if chosen == "join":
                return ProcessFault(kind=kind, victim="", move="join")
            if chosen == "return":
                return ProcessFault(kind=kind, victim=_pick(now.gone, whom), move="return")
        candidates = now.running if self._is_reckless else now.well
        if not candidates or not (self._is_reckless or can_spare_one(now)):
            return None
        victim = _pick(candidates, whom)
        match kind:
            case "kill":
                parts: tuple[Part, ...] = ("node", "network", "trainer")
                down_s = _between(DOWN_S, length)
                return ProcessFault(
                    kind=kind, victim=victim, lasts_s=down_s, part=parts[int(part * len(parts))]
                )
            case "freeze" | "stall":
                return ProcessFault(kind=kind, victim=victim, lasts_s=_between(STILL_S, length))
            case "partition":
                others = [name for name in candidates if name != victim]
                beside = _side(others, int(part * self._most(now)), whom)
                lasts_s = _between(STILL_S, length)
                return ProcessFault(kind=kind, victim=victim, lasts_s=lasts_s, beside=beside)
            case _:
                return ProcessFault(kind=kind, victim=victim)

    def _most(self, now: Situation) -> int:
        """How many a partition may cut off: a majority of the members stays together and well, or
        where nothing matters, half of all are here."""
        if self._is_reckless:
            return max(1, len(now.running) // 2)
        return max(1, len(now.well) - (now.members // 2 + 1))

    def _move(self, now: Situation, draw: float) -> Move:
        """More leave where there are many, and more come where there are few."""
        if now.num_here >= now.num_begun + EXTRA_NODES_MAX or draw < 0.4:
            return "leave"
        return "return" if now.gone and draw < 0.7 else "join"


def can_spare_one(now: Situation) -> bool:
    """Whether without one of those that are well, a majority of the members is still well."""
    return len(now.well) - 1 >= now.members // 2 + 1


def _side(names: Sequence[str], count: int, draw: float) -> tuple[str, ...]:
    """So many of them, in their order."""
    chosen = random.Random(draw).sample(range(len(names)), min(count, len(names)))
    return tuple(names[index] for index in sorted(chosen))


def _pick(names: Collection[str], draw: float) -> str:
    return list(names)[int(draw * len(names))]


def _between(span: tuple[float, float], draw: float) -> float:
    return span[0] + draw * (span[1] - span[0])
