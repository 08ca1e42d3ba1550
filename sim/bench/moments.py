"""When a fault is dealt, and to whom: a function of the seed and of what was heard. Pure."""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.reporting.tracing import Adopted, Record, Signed
from protocol.identity import PeerId
from protocol.messages import Kind, SealValue
from protocol.rounds import roster as rosters
from protocol.rounds.reducers import slices

RANDOM = "random"

MOMENTS = ("training", "parts", "have", "vote", "sum", "seal")
"""Each begins with what `_begins` says and ends where the next one begins."""

ROLES = ("member", "reducer", "closer", "founder", "bootstrap")
FOUNDER, BOOTSTRAP = 0, 1
"""In the order of the start. The nodes behind the second are told of that one only."""

_KINDS = {
    Kind.COMMIT: "parts",
    Kind.HAVE: "have",
    Kind.LIST: "vote",
    Kind.AGG: "sum",
    Kind.SEAL: "seal",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault that is to come: `delay` is a share of the moment's usual length, [0, 1)."""

    moment: str
    role: str
    delay: float
    whom: float
    """Which of those that fit the role, [0, 1)."""


def plan(moment: str, victim: str, *, seed: int) -> FaultPlan:
    """Draws what is left to chance."""
    stream = random.Random(f"{seed}/bench fault")
    drawn_moment, drawn_role = stream.choice(MOMENTS), stream.choice(ROLES)
    return FaultPlan(
        moment=drawn_moment if moment == RANDOM else moment,
        role=drawn_role if victim == RANDOM else victim,
        delay=stream.random(),
        whom=stream.random(),
    )


def victim_of(plan: FaultPlan, peers: Sequence[PeerId], head: SealValue, num_cells: int) -> PeerId:
    """Who is struck in the round that follows `head`; `peers` in the order of their start."""
    match plan.role:
        case "founder":
            return peers[FOUNDER]
        case "bootstrap":
            return peers[BOOTSTRAP]
        case "closer":
            return rosters.closer(head.roster, head.digest, head.shard, 0)
        case "reducer":
            pieces = slices(head.roster, head.digest, num_cells, trust="friends")
            fitting: Sequence[PeerId] = sorted({piece.reducers[0] for piece in pieces})
        case _:
            fitting = [peer for peer in peers[1:] if peer in head.roster.members]
    return fitting[int(plan.whom * len(fitting))]


def stage(record: Record) -> tuple[int, str] | None:
    """The round and the moment that a record begins; None for one that begins none.

    A moment begins with its first record of anybody. "parts" of a victim begin with its own COMMIT.
    """
    if isinstance(record, Adopted):
        return record.certificate.value.round + 1, "training"
    if isinstance(record, Signed):
        slot = record.message.slot
        if slot.kind in _KINDS:
            return slot.round, _KINDS[slot.kind]
    return None


class Stages:
    """When each moment of each round began."""

    def __init__(self) -> None:
        self._began_s: dict[int, dict[str, float]] = {}

    def saw(self, record: Record) -> None:
        """Take a record of any node in."""
        found = stage(record)
        if found is not None:
            times = self._began_s.setdefault(found[0], {})
            times[found[1]] = min(record.at_s, times.get(found[1], record.at_s))

    def usual_s(self, moment: str) -> float:
        """The median length of a moment in the rounds that are over; 0 if none is."""
        lengths = []
        for index, times in self._began_s.items():
            order = [*(times.get(name) for name in MOMENTS), self._next_s(index)]
            first = order[MOMENTS.index(moment)]
            behind = [at_s for at_s in order[MOMENTS.index(moment) + 1 :] if at_s is not None]
            if first is not None and behind:
                lengths.append(max(0.0, behind[0] - first))
        return statistics.median(lengths) if lengths else 0.0

    def _next_s(self, index: int) -> float | None:
        following: Mapping[str, float] = self._began_s.get(index + 1, {})
        return following.get("training")
