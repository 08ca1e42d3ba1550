"""`barnraise sim sweep robustness`: every attack against the default rule and against none."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from protocol.errors import ConfigError
from sim.attacks import ATTACKS, Attack
from sim.robustness.game import Course, Stage, play, rule_named, undefended

CALM = "none"
"""The row without an attack: what the defence itself costs."""

LIMITS = {
    CALM: 1.0,
    "sign_flip": 5.0,
    "scale": 5.0,
    "gaussian": 5.0,
    "nan": 5.0,
    "constant_direction": 5.0,
    "alie": 3.0,
    "min_max": 3.0,
    "min_sum": 3.0,
    "ipm": 5.0,
    "zero": 3.0,
    "mimic": 3.0,
    "label_flip": 3.0,
    "stale": 3.0,
    "targeted_slice": 3.0,
    "shift": 2.0,
    "slow_drift": 2.0,
    "searched_alie": 10.0,
    "searched_ipm": 8.0,
}
"""Loss above the clean run in percent, at 16 peers and a quarter of liars (`robustness.md` 4.4)."""

LIMIT_ELSE = 5.0
"""For an attack that the table does not name."""

_SMALL_GROUPS = ((4, 4.0), (8, 2.5))
"""Up to so many peers limits are so many times as large: one liar is a quarter of four."""


@dataclass(frozen=True, slots=True)
class Row:
    """One attack: courses by seed, of the clean run, of the default rule, and of the bare mean."""

    attack: str
    clean: tuple[Course, ...]
    defended: tuple[Course, ...]
    bare: tuple[Course, ...]
    limit: float

    @property
    def loss_percent(self) -> float:
        """Median over seeds of the loss above the clean run, with the defence."""
        return _above(self.clean, self.defended)

    @property
    def bare_percent(self) -> float:
        """The same without a defence."""
        return _above(self.clean, self.bare)

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
        """Whether the promise holds."""
        return self.loss_percent <= self.limit

    def as_json(self) -> dict[str, object]:
        """For scripts; a loss that is infinite is null."""
        return {
            "loss_percent": _number(self.loss_percent),
            "limit_percent": self.limit,
            "bare_percent": _number(self.bare_percent),
            "damage": _number(self.damage),
            "kept_direction": round(self.kept_direction, 4),
            "triggered": round(max(course.triggered for course in self.defended), 4),
            "kept": self.is_kept,
        }


def limit_of(attack: str, peers: int) -> float:
    """The most that an attack may cost, in percent."""
    factor = next((factor for most, factor in _SMALL_GROUPS if peers <= most), 1.0)
    return factor * LIMITS.get(attack, LIMIT_ELSE)


def run_trial(
    stage: Stage,
    seeds: Sequence[int],
    tell: Callable[[Row], None],
    attacks: Mapping[str, Callable[[], Attack]] = ATTACKS,
) -> list[Row]:
    """A row for every attack, and one for none. Raises ConfigError for liars that are too many."""
    if not 0 < 2 * stage.liars < stage.peers:
        raise ConfigError(f"{stage.liars} liars of {stage.peers} peers: it must be some, not half")
    default = rule_named("default", liars=stage.liars)
    mean = rule_named("mean")
    calm = replace(stage, liars=0)
    clean = tuple(play(calm, Attack(), mean, seed) for seed in seeds)
    rows = []
    for name in (CALM, *attacks):
        played = calm if name == CALM else stage
        # An attack may remember what it saw: a new one for every run.
        make = Attack if name == CALM else attacks[name]
        row = Row(
            attack=name,
            clean=clean,
            defended=tuple(play(played, make(), default, seed) for seed in seeds),
            bare=tuple(play(played, make(), undefended, seed) for seed in seeds),
            limit=limit_of(name, stage.peers),
        )
        rows.append(row)
        tell(row)
    return rows


def _above(clean: Sequence[Course], found: Sequence[Course]) -> float:
    return median(
        100.0 * (there.loss_last / base.loss_last - 1.0)
        for base, there in zip(clean, found, strict=True)
    )


def _number(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
