"""What goes wrong in a world: rules, and the timetable that a seed makes of them.

A scenario has rules ("two to five nodes are killed, in any phase"). A seed turns them into a
timetable: a list of single faults, each with its moment, victims and duration. A timetable can be
printed, written to a file, and shortened one fault at a time; `sim.trials.chaos` carries it out.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

Span = tuple[float, float]
"""Least and most of what is drawn uniformly."""

ANY, CLOSER, NEXT_CLOSER = "any", "closer", "next closer"
ROLES: Mapping[str, str] = {
    ANY: "the first node that comes to the phase",
    CLOSER: "the closer of the round's first attempt",
    NEXT_CLOSER: "the closer of its second attempt",
}
"""Victims that are not known before the round: for faults in a phase."""

MEMBER, NEWCOMER, REPLACEMENT = "n", "j", "c"
"""First letters of names: members are there from the start, a newcomer joins by a fault, and a
replacement by churn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault. `says` completes "n03 ..."; `duration_s` and `amount` are the defaults.

    A lasting fault takes something away for good. `has_sides` are faults of links: the victims are
    one side, `against` the other (all others if empty).
    """

    says: str
    duration_s: Span = (0.0, 0.0)
    amount: Span = (0.0, 0.0)
    is_lasting: bool = False
    has_sides: bool = False


_SPOILED = "killed, a bit of its {} flips, restarts"
_DOWN_S: Span = (0.5, 8.0)

KINDS: Mapping[str, Kind] = {
    "crash": Kind(says="killed for good", is_lasting=True),
    "leave": Kind(says="leaves the run", is_lasting=True),
    "join": Kind(says="joins"),
    "bounce": Kind(says="killed, restarts", duration_s=(0.05, 8.0)),
    "power_off": Kind(says="power lost, restarts", duration_s=_DOWN_S),
    "lose_disk": Kind(says="disk lost, restarts", duration_s=_DOWN_S, is_lasting=True),
    # The duration is the age of the image: after so long the node goes back to it.
    "roll_back": Kind(says="disk rolled back to this moment later", duration_s=(4.0, 20.0)),
    "freeze": Kind(says="frozen", duration_s=(1.0, 15.0)),
    "nap": Kind(says="frozen for a moment", duration_s=(0.2, 1.5)),
    "partition": Kind(says="parted from the rest", duration_s=(3.0, 20.0), has_sides=True),
    "mute": Kind(says="heard by none of the others", duration_s=(3.0, 15.0), has_sides=True),
    "cut": Kind(says="link broken", duration_s=(2.0, 20.0), has_sides=True),
    "hold": Kind(says="messages held back", duration_s=(0.5, 6.0), has_sides=True),
    "clog": Kind(says="stream stands still", duration_s=(0.5, 6.0), has_sides=True),
    "slow": Kind(says="slow", duration_s=(10.0, 20.0), amount=(10.0, 10.0)),
    "wrong_sum": Kind(says="sums wrongly", duration_s=(5.0, 30.0)),
    "disk_full": Kind(says="disk full", duration_s=(1.0, 10.0)),
    # What is spoiled in the logs may be a signature of one's own: as after a lost disk.
    "spoil_slots": Kind(says=_SPOILED.format("signatures"), duration_s=_DOWN_S, is_lasting=True),
    "spoil_chain": Kind(says=_SPOILED.format("seals"), duration_s=_DOWN_S, is_lasting=True),
    "spoil_result": Kind(says=_SPOILED.format("results"), duration_s=_DOWN_S),
    "spoil_checkpoint": Kind(says=_SPOILED.format("newest checkpoint"), duration_s=_DOWN_S),
}
ALL_ROUNDS = 10_000
"""No run of a scenario is longer."""

CHURN = "churn"
"""A rule, not a kind: members come and go, with a mean stay of `amount` rounds."""

CHURN_AMOUNT: Span = (6.0, 6.0)
CHURN_WITHIN_S = 1.5
"""About as long as a round takes: who comes or goes does so anywhere in it."""

AFTER_S: Span = (0.0, 1.5)
"""When in its round a fault without a phase happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldFault:
    """One thing that goes wrong, once.

    It happens `after_s` after the first node begins `round`, or, with a `phase`, when a victim
    comes to that phase of the round. It ends after `duration_s`; 0 is for good. With a `period_s`
    it comes and goes.
    """

    kind: str
    round: int = 1
    phase: str = ""
    after_s: float = 0.0
    victims: tuple[str, ...]
    against: tuple[str, ...] = ()
    duration_s: float = 0.0
    period_s: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        when = self.phase or f"after {self.after_s:.2f} s"
        return f"round {self.round}, {when}: {', '.join(self.victims)} {self.what}"

    @property
    def what(self) -> str:
        """What it does to its victims, in words."""
        what = KINDS[self.kind].says
        if self.against:
            what += f", against {', '.join(self.against)}"
        if self.amount:
            what += f" ({self.amount:g})"
        if self.duration_s:
            what += f" for {self.duration_s:.2f} s"
        if self.period_s:
            what += f", on and off every {self.period_s:.2f} s"
        return what

    def table(self) -> dict[str, object]:
        """Its keys as a scenario file has them, without those at their defaults."""
        every = {name: getattr(self, name) for name in self.__dataclass_fields__}
        defaults = {"round": 1, "phase": "", "against": ()}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in every.items()
            if value != defaults.get(name, 0.0)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a seed draws faults from.

    Of the victims either a `count` is drawn, or a `share` of all peers, or `who` names them or
    their roles. `rounds`, cut at the end of the run, and `phases` say where; no phase is any time.
    `ways` is of a partition: the number of its parts.
    """

    kind: str
    times: tuple[int, int] = (1, 1)
    rounds: tuple[int, int] = (2, ALL_ROUNDS)
    phases: tuple[str, ...] = ()
    count: tuple[int, int] = (1, 1)
    share: Span = (0.0, 0.0)
    who: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    ways: int = 2
    after_s: Span | None = None
    duration_s: Span | None = None
    period_s: Span = (0.0, 0.0)
    amount: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What rules are drawn for: so many peers and rounds.

    At most `lasting_share` of the peers suffers a lasting fault: with a majority gone nothing that
    a run does later could be expected.
    """

    seed: int
    peers: int
    rounds: int
    lasting_share: float = 1.0


def member_names(count: int) -> list[str]:
    """The founder first."""
    return [f"{MEMBER}{index:02d}" for index in range(count)]


def is_member(name: str) -> bool:
    """Whether a node of that name is there from the start, in a large enough swarm."""
    return name.startswith(MEMBER) and name not in ROLES


def draw_timetable(rules: Sequence[Rule], setting: Setting) -> tuple[WorldFault, ...]:
    """The faults of one seed, by round. Each rule has a stream of its own."""
    members = member_names(setting.peers)
    pool = list(members)
    random.Random(f"{setting.seed}/faults/lasting").shuffle(pool)
    # Those who may be lost for good are taken from the front, nobody twice.
    lasting = iter(pool[: math.floor(setting.lasting_share * setting.peers)])
    drawn: list[WorldFault] = []
    for index, rule in enumerate(rules):
        stream = random.Random(f"{setting.seed}/faults/{index}/{rule.kind}")
        if rule.kind == CHURN:
            drawn += _churn(rule, setting, stream)
            continue
        for _ in range(stream.randint(*rule.times)):
            fault = _draw(rule, setting, stream, lasting)
            if fault is not None:
                drawn.append(fault)
    return tuple(sorted(_named_apart(drawn), key=lambda fault: (fault.round, fault.after_s)))


def _draw(
    rule: Rule, setting: Setting, stream: random.Random, lasting: Iterator[str]
) -> WorldFault | None:
    kind = KINDS[rule.kind]
    phase = stream.choice(rule.phases) if rule.phases else ""
    first, last = _rounds(rule, setting)
    fault_round = stream.randint(first, last)
    after_s = 0.0 if phase else _uniform(stream, rule.after_s or AFTER_S)
    victims = _victims(rule, setting, stream, in_phase=bool(phase))
    if kind.is_lasting and setting.lasting_share < 1.0 and rule.kind != "join":
        victims = tuple(name for _, name in zip(victims, lasting, strict=False))
    if not victims:
        return None
    against = rule.against
    if rule.kind == "partition" and rule.ways > 2 and not against:
        others = [name for name in member_names(setting.peers) if name not in victims]
        against = tuple(sorted(stream.sample(others, len(others) // (rule.ways - 1))))
    elif kind.has_sides and rule.kind in ("cut", "hold", "clog") and not against:
        others = [name for name in member_names(setting.peers) if name not in victims]
        against = (stream.choice(others),) if others else ()
    return WorldFault(
        kind=rule.kind,
        round=fault_round,
        phase=phase,
        after_s=after_s,
        victims=victims,
        against=against,
        duration_s=_uniform(stream, rule.duration_s or kind.duration_s),
        period_s=_uniform(stream, rule.period_s),
        amount=_uniform(stream, rule.amount or kind.amount),
    )


def _rounds(rule: Rule, setting: Setting) -> tuple[int, int]:
    first, last = rule.rounds
    return min(first, setting.rounds), min(last, setting.rounds)


def _victims(
    rule: Rule, setting: Setting, stream: random.Random, *, in_phase: bool
) -> tuple[str, ...]:
    members = member_names(setting.peers)
    if rule.who:
        # Of a swarm made smaller by an option, those who are left.
        return tuple(who for who in rule.who if who in members or not is_member(who))
    share = _uniform(stream, rule.share)
    count = math.ceil(share * len(members)) if share else stream.randint(*rule.count)
    if rule.kind == "join":
        return (NEWCOMER,) * count
    if in_phase:
        return (ANY,) * count
    return tuple(sorted(stream.sample(members, min(count, len(members)))))


def _churn(rule: Rule, setting: Setting, stream: random.Random) -> Iterator[WorldFault]:
    """Whoever goes, by a crash or by their leave, is replaced in the same round."""
    stay_rounds = _uniform(stream, rule.amount or CHURN_AMOUNT)
    first, last = _rounds(rule, setting)
    present = member_names(setting.peers)
    newcomers = 0
    for index in range(first, last + 1):
        going = [name for name in present if stream.random() < 1.0 - math.exp(-1.0 / stay_rounds)]
        for name in going:
            kind = stream.choice(("crash", "leave"))
            when_s = _uniform(stream, (0.0, CHURN_WITHIN_S))
            yield WorldFault(kind=kind, round=index, after_s=when_s, victims=(name,))
            newcomer = f"{REPLACEMENT}{newcomers:02d}"
            newcomers += 1
            when_s = _uniform(stream, (0.0, CHURN_WITHIN_S))
            yield WorldFault(kind="join", round=index, after_s=when_s, victims=(newcomer,))
            present.remove(name)
            present.append(newcomer)


def _named_apart(faults: Iterable[WorldFault]) -> list[WorldFault]:
    """Each newcomer without a number gets the next free one."""
    found = list(faults)
    taken = {name for fault in found for name in fault.victims}
    free = (f"{NEWCOMER}{index:02d}" for index in range(len(found) * 100))
    names = (name for name in free if name not in taken)
    return [_renamed(fault, names) if NEWCOMER in fault.victims else fault for fault in found]


def _renamed(fault: WorldFault, names: Iterator[str]) -> WorldFault:
    return replace(fault, victims=tuple(next(names) for _ in fault.victims))


def _uniform(stream: random.Random, span: Span) -> float:
    # Rounded, so that a timetable that was written to a file is the one that was drawn.
    return round(stream.uniform(*span), 3)
