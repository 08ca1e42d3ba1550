"""What a contribution says of the work behind it, and what others say who ran it again (R10)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from protocol import limits
from protocol.wire import Digest, DigestOrEmpty, Range, Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What audits run again (R10): the inner state as a hash chain, through a round and across
    rounds.

    `onion` is the sender's layer for this round, `device` its class (`protocol.auditing`): equal
    classes compute equal bits. `trace` has the roots of the states at the ends of all
    segments, the one that training began with first. `before` and `after` are roots of what goes
    from round to round beside weights and residual: the moments, EMPTY_ROOT of none.
    """

    onion: Digest
    device: Annotated[str, Size(1, 64)]
    trace: Annotated[tuple[Digest, ...], Size(2, limits.SEGMENTS_MAX + 1)]
    before: Digest
    after: Digest


class Outcome(IntEnum):
    """What came of an audit. The numbers are the wire's."""

    RIGHT = 1
    WRONG = 2
    UNOPENED = 3
    """Nobody served the state that the segment begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """VERDICT: the sender ran a segment of a listed COMMIT's work again (R10).

    Segments count from 0; behind those of training comes the encoding. `found` names the end to
    which that led, so that equal words are of machines that found the same; empty if UNOPENED.
    """

    commit: Digest
    segment: Annotated[int, Range(0, limits.SEGMENTS_MAX)]
    outcome: Outcome
    found: DigestOrEmpty

    def __post_init__(self) -> None:
        if len(self.found) != (0 if self.outcome is Outcome.UNOPENED else 32):
            raise ValueError(f"{self.outcome.name} with an end of {len(self.found)} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retract:
    """RETRACT: the sender takes back what it contributed to this round, which it cannot show or
    knows to be wrong. It costs the seat; two within RETRACT_ROUNDS convict."""

    commit: Digest
