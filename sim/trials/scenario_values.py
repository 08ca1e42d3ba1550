"""Values of scenario files: what each may be, and what is said of any other."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from node.settings.toml_file import did_you_mean
from protocol.errors import ConfigError
from sim.trials.faults import ROLES
from sim.trials.scenario import PEERS_MAX

SECONDS_MAX = 86_400.0

_NAME = re.compile(r"[njc]\d{2,4}")


def _span(value: object, *, low: float, high: float, is_whole: bool = False) -> tuple[float, float]:
    """A number, or [least, most]."""
    what = "a whole number" if is_whole else "a number"
    pair: list[Any] = value if isinstance(value, list) else [value, value]
    allowed = (int,) if is_whole else (int, float)
    if len(pair) != 2 or any(type(one) not in allowed for one in pair):
        raise ValueError(f"must be {what} or [least, most]")
    least, most = pair
    # A comparison with NaN is false, so NaN does not pass.
    if not low <= least <= most <= high:
        raise ValueError(f"must be {what} or [least, most] from {low:g} to {high:g}")
    return (least, most) if is_whole else (float(least), float(most))


def spans(low: float, high: float) -> BeforeValidator:
    """A pair of numbers within these."""
    return BeforeValidator(partial(_span, low=low, high=high))


def counts(low: int, high: int) -> BeforeValidator:
    """A pair of whole numbers within these."""
    return BeforeValidator(partial(_span, low=low, high=high, is_whole=True))


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    """Checks that a name is known; any other is told the closest."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"is unknown; {did_you_mean(name, list(known))}")
        return name

    return check


def node_name(name: str) -> str:
    """A node's name. What has another side is there at once, so a role cannot be it."""
    if not _NAME.fullmatch(name):
        raise ValueError('must be a node such as "n03"')
    return name


def victim(name: str) -> str:
    """A node's name, or a role."""
    if name not in ROLES and not _NAME.fullmatch(name):
        raise ValueError(f'must be a node such as "n03" or one of {", ".join(ROLES)}')
    return name


def as_key(error: ConfigError) -> str:
    """What is wrong with an attack, in the words of a file instead of an option."""
    return str(error).removeprefix("--attack").removeprefix(":").strip().replace("--", "")


def as_float(value: object) -> object:
    """Whole numbers as floats."""
    # In TOML 3 is a whole number, and whoever writes it as a duration means 3.0.
    return float(value) if type(value) is int and abs(value) < 2**53 else value


Pair = tuple[float, float]
Counts = tuple[int, int]
Seconds = Annotated[Pair, spans(0.0, SECONDS_MAX)]
Second = Annotated[float, BeforeValidator(as_float), Field(ge=0.0, le=SECONDS_MAX)]
Share = Annotated[float, BeforeValidator(as_float), Field(ge=0.0, le=1.0)]
Amount = Annotated[float, BeforeValidator(as_float), Field(ge=-1e6, le=1e6)]
Positive = Annotated[float, BeforeValidator(as_float), Field(gt=0.0, le=1e12)]
Victims = Annotated[list[str], Field(max_length=PEERS_MAX)]
