"""What a network is to be like, and how long things take: the options' little languages. Pure."""

import math
import re
from dataclasses import dataclass

from protocol.errors import ConfigError

SEGMENT_BYTES = 1448
"""What a TCP segment carries over Ethernet: the unit in which packets get lost."""

RETRANSMIT_S = 0.2
"""The least that TCP waits before it sends a lost segment again, besides a round trip."""

_PART = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>[a-z%]+)")
_BITS = {"kbit": 1e3, "mbit": 1e6}
_SECONDS = {"ms": 1e-3, "s": 1.0}
_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>ms|s|m|h)?")
_DURATIONS = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

RATE_MIN, RATE_MAX = 8e3, 1e10
ROUND_TRIP_S_MAX = 10.0
LOSS_MAX = 0.5
_EXAMPLE = "--shape 20mbit,80ms,1%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Each node's access line. The defaults shape nothing."""

    bits_per_s: float | None = None
    """Of a node's line, in each direction; all connections of the node share it."""

    round_trip_s: float = 0.0
    """Added to every connection, half of it in each direction."""

    loss: float = 0.0
    """Probability that a segment is lost. TCP repairs it: what is behind it waits."""

    def chance_of_loss(self, size: int) -> float:
        """That at least one of the segments of `size` bytes is lost."""
        return 1.0 - (1.0 - self.loss) ** math.ceil(size / SEGMENT_BYTES)

    @property
    def repair_s(self) -> float:
        """How long a lost segment holds up what is behind it."""
        return self.round_trip_s + RETRANSMIT_S

    def __str__(self) -> str:
        parts = []
        if self.bits_per_s is not None:
            parts.append(f"{self.bits_per_s / 1e6:g} Mbit/s")
        if self.round_trip_s:
            parts.append(f"{self.round_trip_s * 1000:g} ms round trip")
        if self.loss:
            parts.append(f"{self.loss:.2%} loss")
        return ", ".join(parts) or "as it is"


def shape_named(text: str) -> Shape:
    """`20mbit,80ms,1%` in any order, each at most once. Raises ConfigError saying what is wrong."""
    values: dict[str, float] = {}
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part.lower())
        if match is None:
            raise ConfigError(
                f"--shape: {part!r} is no number with a unit; write it like {_EXAMPLE}"
            )
        number, unit = float(match["number"]), match["unit"]
        if unit in _BITS:
            name, value = "rate", number * _BITS[unit]
        elif unit in _SECONDS:
            name, value = "round trip", number * _SECONDS[unit]
        elif unit == "%":
            name, value = "loss", number / 100.0
        else:
            units = ", ".join([*_BITS, *_SECONDS, "%"])
            raise ConfigError(f"--shape: {part!r} has an unknown unit; there are {units}")
        if name in values:
            raise ConfigError(f"--shape: the {name} is given twice")
        values[name] = value
    rate = values.get("rate")
    if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
        raise ConfigError(f"--shape: a rate is {RATE_MIN / 1e3:g}kbit to {RATE_MAX / 1e6:g}mbit")
    if values.get("round trip", 0.0) > ROUND_TRIP_S_MAX:
        raise ConfigError(f"--shape: a round trip is at most {ROUND_TRIP_S_MAX:g}s")
    if values.get("loss", 0.0) > LOSS_MAX:
        raise ConfigError(f"--shape: a loss is at most {LOSS_MAX:.0%}")
    return Shape(
        bits_per_s=rate,
        round_trip_s=values.get("round trip", 0.0),
        loss=values.get("loss", 0.0),
    )


def seconds_named(option: str, text: str) -> float:
    """`60s`, `2.5m`, `1h`, `500ms`, or a bare number of seconds.

    Raises ConfigError naming `option`.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = 0.0 if match is None else float(match["number"]) * _DURATIONS[match["unit"]]
    if seconds <= 0.0:
        raise ConfigError(f"{option}: {text!r} is no time above zero; write it like 60s or 5m")
    return seconds
