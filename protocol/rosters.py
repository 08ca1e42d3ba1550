"""Who takes part: the seats that a seal names."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from protocol import limits
from protocol.identity import PeerId
from protocol.slots import Round
from protocol.wire import Peer, Range, Size

Peers = Annotated[tuple[Peer, ...], Size(0, limits.SEATS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRecord:
    """One seat of a roster.

    `voter_since` is the round from which the member votes, 0 for the founder, -1 for a member that
    does not vote. `proved` is the last round in which its SEAL was shown, by its own listed COMMIT
    or, of a voter, by the listed words of others, -1 before the first. `absent` counts the rounds
    in a row of which too few saw its COMMIT. `reached` says whether most others have a link with
    it, `rate` is the level of the rate at which they get bytes from it, the median of theirs, 0
    while nobody has measured it (R8). `earned` counts the sealed rounds that took a newcomer
    towards its full weight (`protocol.rounds.ramp`). Until the round `set_back_until` it comes last
    among reducers and closers, for the `set_backs`-th time in a row, because it kept others waiting
    for what it owed (R8).
    """

    peer: Peer
    seated: Round
    voter_since: Annotated[int, Range(-1, limits.ROUNDS_MAX)]
    proved: Annotated[int, Range(-1, limits.ROUNDS_MAX)]
    absent: Annotated[int, Range(0, limits.ROUNDS_MAX)]
    reached: bool = True
    rate: Annotated[int, Range(0, limits.RATE_LEVEL_MAX)] = 0
    earned: Annotated[int, Range(0, 2 * limits.RAMP_ROUNDS_MAX)] = 0
    set_backs: Annotated[int, Range(0, limits.SET_BACKS_MAX)] = 0
    set_back_until: Round = 0


@dataclass(frozen=True, kw_only=True)
class Roster:
    """Who takes part in the rounds that a seal names: seats by ascending peer id.

    `window` holds the last non-empty rounds, at most SEAL_WINDOW of them, oldest first; `banned`
    the last of those who lost their seats to evidence, in that order: they get none again.
    """

    seats: Annotated[tuple[SeatRecord, ...], Size(1, limits.SEATS_MAX)]
    window: Annotated[tuple[Round, ...], Size(0, limits.SEAL_WINDOW)]
    banned: Peers = ()

    def __post_init__(self) -> None:
        peers = [seat.peer for seat in self.seats]
        if peers != sorted(set(peers)):
            raise ValueError("seats must be sorted by peer id, each once")

    @cached_property
    def members(self) -> tuple[PeerId, ...]:
        """All seated peers, ascending."""
        return tuple(seat.peer for seat in self.seats)

    @cached_property
    def member_set(self) -> frozenset[PeerId]:
        """All seated peers."""
        return frozenset(self.members)

    @cached_property
    def voters(self) -> tuple[PeerId, ...]:
        """The voting members, ascending."""
        return tuple(seat.peer for seat in self.seats if seat.voter_since >= 0)

    @cached_property
    def voter_set(self) -> frozenset[PeerId]:
        """The voting members."""
        return frozenset(self.voters)
