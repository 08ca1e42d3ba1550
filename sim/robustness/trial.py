"""`barnraise sim sweep robustness`: every attack against the default rule and against none.

What is played, attacks on values with their numbers, and how much each may cost; then the runs of a
trial, and what came of each.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from protocol.errors import ConfigError
from sim.attacks import ATTACKS, Attack
from sim.attacks.values import Alie, Gaussian, Ipm, Scale, Shift
from sim.robustness.game import Course, LyingStage, play, rule_named, undefended

CALM = "none"
"""The row without an attack: what the defence itself costs."""


def _bends_values(attack: type[Attack]) -> bool:
    return attack.craft is not Attack.craft or attack.poison is not Attack.poison


def _of_values() -> dict[str, Callable[[], Attack]]:
    """All registered attacks but those on the protocol, which send what was computed."""
    made = {name: type(ATTACKS[name]()) for name in ATTACKS}
    return {
        name: attack
        for name, attack in made.items()
        if _bends_values(attack) and not attack.is_fresh  # Here nobody comes later.
    }


_VARIANTS: dict[str, Callable[[], Attack]] = {
    "alie z_max": partial(Alie, z=None),
    "gaussian 1": partial(Gaussian, size=1.0),
    "ipm 0.1": partial(Ipm, epsilon=0.1),
    "scale -10": partial(Scale, factor=-10.0),
    "shift sigma": partial(Shift, of_deviations=True),
}

CASES = dict(sorted((_of_values() | _VARIANTS).items()))
"""By name; what stands behind a registered name is the number that differs from its own."""

_QUARTER, _NEAR_HALF = 0, 1
LIMITS: dict[str, tuple[float, float | None]] = {
    CALM: (1.0, 2.0),
    "sign_flip": (5.0, 20.0),
    "scale": (5.0, 15.0),
    "gaussian": (5.0, 15.0),
    "nan": (5.0, 15.0),
    "constant_direction": (5.0, 15.0),
    "alie": (3.0, 6.0),
    "min_max": (3.0, 6.0),
    "min_sum": (3.0, 6.0),
    "ipm": (5.0, 40.0),
    "zero": (3.0, None),
    "mimic": (3.0, 25.0),
    "label_flip": (3.0, 25.0),
    "stale": (3.0, 25.0),
    "targeted_slice": (3.0, 15.0),
    "shift": (2.0, 8.0),
    "slow_drift": (2.0, 8.0),
    "searched_alie": (10.0, 35.0),
    "searched_ipm": (8.0, 70.0),
}
"""Loss above the clean run in percent at 16 peers, of which a quarter or up to 7 lie;
None: told, not judged."""

_LIMIT_ELSE = (5.0, 25.0)
"""For an attack that the table does not name."""

_LIMIT_SKEWED = 12.0
_SMALL_GROUPS = ((4, 4.0), (8, 2.5))
"""Up to so many peers limits are so many times as large: one liar is a quarter of four."""

_AS_IN_LARGE = frozenset({"label_flip"})
"""But for these where a quarter lies: of 4 and of 8 peers it costs 2.0 % and 0.3 %, and 4.4 % where
lengths alone are clipped, so a rule without CAF is told from ours in every size."""


def limit_of(case: str, peers: int, liars: int, skew: float | None = None) -> float | None:
    """The most that an attack may cost, in percent; None where there is no promise."""
    column = _QUARTER if 4 * liars <= peers else _NEAR_HALF
    if skew is not None:
        return _LIMIT_SKEWED if column == _QUARTER else None
    name = case.split()[0]
    limit = LIMITS.get(name, _LIMIT_ELSE)[column]
    factor = next((factor for most, factor in _SMALL_GROUPS if peers <= most), 1.0)
    if column == _QUARTER and name in _AS_IN_LARGE:
        factor = 1.0
    return None if limit is None else factor * limit


DEFAULT, MEAN, BARE = "default", "mean", "bare"
"""Rules: of an open run, of friends, and the mean of whatever comes."""


@dataclass(frozen=True, slots=True)
class Take:
    """One run to be played."""

    stage: LyingStage
    case: str
    rule: str
    seed: int

    def play(self) -> Course:
        """Play it."""
        rule = undefended if self.rule == BARE else rule_named(self.rule)
        stage = replace(self.stage, liars=0) if self.case == CALM else self.stage
        # An attack may remember what it saw: a new one for every run.
        attack = Attack() if self.case == CALM else CASES[self.case]()
        return play(stage, attack, rule, self.seed)


@dataclass(frozen=True, slots=True)
class Row:
    """One attack: courses by seed, of the clean run, of the default rule, and of the bare mean if
    that was played."""

    attack: str
    clean: tuple[Course, ...]
    defended: tuple[Course, ...]
    bare: tuple[Course, ...]
    limit: float | None

    @property
    def loss_percent(self) -> float:
        """Median over seeds of the loss above the clean run, with the defence."""
        return _above(self.clean, self.defended)

    @property
    def bare_percent(self) -> float | None:
        """The same without a defence."""
        return _above(self.clean, self.bare) if self.bare else None

    @property
    def damage(self) -> float:
        """What was lost, as a share of what the clean run learns in the second half of its rounds:
        a small model soon learns little, and then no loss in percent is large."""
        return median(
            (there.loss_last - base.loss_last)
            / max(base.losses[len(base.losses) // 2] - base.loss_last, 1e-9)
            for base, there in zip(self.clean, self.defended, strict=True)
        )

    @property
    def kept_direction(self) -> float:
        """The least share over seeds of attacked rounds that point the way of the honest mean."""
        return min(course.kept_direction for course in self.defended)

    @property
    def is_kept(self) -> bool:
        """Whether the promise holds, if there is one."""
        return self.limit is None or self.loss_percent <= self.limit

    @property
    def is_harmless(self) -> bool:
        """Whether the limit holds without a defence, too: that it is kept then says little."""
        if self.bare_percent is None or self.limit is None or self.attack == CALM:
            return False
        return self.bare_percent <= self.limit

    @property
    def verdict(self) -> str:
        """In a word; what is only told judges nobody."""
        if not self.is_kept:
            return "BROKEN"
        return "told" if self.limit is None or self.is_harmless else "kept"

    def as_json(self) -> dict[str, object]:
        """For scripts; a loss that is infinite is null."""
        return {
            "loss_percent": _number(self.loss_percent),
            "limit_percent": self.limit,
            "bare_percent": None if self.bare_percent is None else _number(self.bare_percent),
            "damage": _number(self.damage),
            "kept_direction": round(self.kept_direction, 4),
            "triggered": round(max(course.triggered for course in self.defended), 4),
            "verdict": self.verdict,
            "kept": self.is_kept,
            "harmless": self.is_harmless,
        }


def takes_of(
    stage: LyingStage, seeds: Sequence[int], cases: Sequence[str], *, with_bare: bool = True
) -> list[Take]:
    """All runs of a trial, the most telling first: one that is broken off has the first seeds
    whole. Raises ConfigError for liars that are too many."""
    if not 0 < 2 * stage.liars < stage.peers:
        raise ConfigError(f"{stage.liars} liars of {stage.peers} peers: it must be some, not half")
    found = []
    for seed in seeds:
        found.append(Take(stage, CALM, MEAN, seed))
        found += [Take(stage, case, DEFAULT, seed) for case in (CALM, *cases)]
    if with_bare:
        found += [Take(stage, case, BARE, seed) for seed in seeds for case in (CALM, *cases)]
    return found


def rows_of(
    stage: LyingStage, seeds: Sequence[int], cases: Sequence[str], courses: Mapping[Take, Course]
) -> list[Row]:
    """A row for every attack, and one for none, from what was played."""

    def of(case: str, rule: str) -> tuple[Course, ...]:
        takes = (Take(stage, case, rule, seed) for seed in seeds)
        return tuple(courses[take] for take in takes if take in courses)

    return [
        Row(
            attack=case,
            clean=of(CALM, MEAN),
            defended=of(case, DEFAULT),
            bare=of(case, BARE),
            limit=limit_of(case, stage.peers, stage.liars, stage.skew),
        )
        for case in (CALM, *cases)
    ]


def _above(clean: Sequence[Course], found: Sequence[Course]) -> float:
    return median(
        100.0 * (there.loss_last / base.loss_last - 1.0)
        for base, there in zip(clean, found, strict=True)
    )


def _number(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
