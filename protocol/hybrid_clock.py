"""A hybrid logical clock: wall time where it goes on, a counter where it does not.

A stamp is one integer, 48 bits of Unix milliseconds above 16 bits of counter (the wire's integers
leave the highest bit out, which lasts until the year 6400). Stamps of one clock always ascend,
whatever the wall clock does; between writers they only break ties. Source: Kulkarni, Demirbas,
Madappa, Avva and Leone, "Logical Physical Clocks", 2014.
"""

from collections.abc import Callable
from typing import Annotated, NewType

from protocol.wire import INT_MAX, Range

Stamp = NewType("Stamp", int)
"""Milliseconds << 16 | counter."""

WireStamp = Annotated[Stamp, Range(0, INT_MAX)]

COUNTER_BITS = 16
AHEAD_S_MAX = 300.0
"""A stamp further ahead of the own wall clock is refused: else one writer with a clock of next year
would win every tie."""

HEARD_S_MAX = 60.0
"""A stamp further ahead does not move the own clock. Whoever stamps at the very edge of what is
taken would else push everybody there, where slower clocks refuse them."""


def stamp_at(wall_s: float) -> Stamp:
    """The first stamp of a moment in Unix seconds."""
    return Stamp(min(max(0, int(wall_s * 1000.0)) << COUNTER_BITS, INT_MAX))


def stamp_s(stamp: int) -> float:
    """The wall time of a stamp, in Unix seconds."""
    return (stamp >> COUNTER_BITS) / 1000.0


def is_ahead(stamp: int, wall_s: float) -> bool:
    """Whether a stamp is further ahead of `wall_s` than honest clocks are."""
    return stamp_s(stamp) > wall_s + AHEAD_S_MAX


class HybridClock:
    """One node's clock. `last` is what it showed last, and goes to disk with what it stamped.

    A wall clock that jumps an hour ahead and back leaves it an hour ahead, counting on: then the
    stamps still ascend, and others refuse them until their own clocks are there.
    """

    def __init__(self, last: int = 0) -> None:
        self.last = Stamp(last)

    def next(self, wall_s: float) -> Stamp:
        """A stamp later than all that this clock showed or heard."""
        # More than 65,536 in a millisecond run over into the next one: still ascending.
        self.last = Stamp(max(self.last + 1, stamp_at(wall_s)))
        return self.last

    def hear(self, stamp: int, wall_s: float) -> bool:
        """Take note of another's stamp: what is said next is later. False if it is far ahead."""
        if stamp_s(stamp) > wall_s + HEARD_S_MAX:
            return False
        self.last = Stamp(max(self.last, stamp))
        return True


WallClock = Callable[[], float]
"""Unix seconds. Injected wherever a record expires, so that the simulator owns it."""
