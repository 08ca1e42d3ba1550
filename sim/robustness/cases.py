"""What is played: attacks on values with their numbers, and how much each may cost."""

from collections.abc import Callable
from functools import partial

from sim.attacks import ATTACKS, Attack
from sim.attacks.values import Alie, Gaussian, Ipm, Scale, Shift

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
