"""The clock of a run, as each seal says it: steps, tokens, and the samples leased so far."""

from dataclasses import dataclass
from typing import Annotated

from protocol import limits
from protocol.wire import Range, Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Samples [first, stop) of the corpus's keyed permutation."""

    first: Annotated[int, Range(0, 2**62)]
    stop: Annotated[int, Range(0, 2**62)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealClock:
    """The clock of the run (R9): functions of it are equal on every peer.

    `step` sums the token-weighted median H of every round; `cursor` is the first sample never
    leased; `unused` are leased samples that came back. `ends_run` marks the last seal of the run.
    """

    step: Annotated[int, Range(0, 2**53)]
    tokens: Annotated[int, Range(0, 2**62)]
    cursor: Annotated[int, Range(0, 2**62)]
    unused: Annotated[tuple[Interval, ...], Size(0, limits.LEASE_INTERVALS_MAX)]
    ends_run: bool

    def __post_init__(self) -> None:
        bounds = [bound for gap in self.unused for bound in (gap.first, gap.stop)]
        if bounds != sorted(set(bounds)):
            raise ValueError("unused intervals must ascend, none empty, none touching the next")
