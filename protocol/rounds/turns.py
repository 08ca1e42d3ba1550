"""Who sits where more peers ask than there are seats: they take turns. Pure (R1).

The order of a round is MoDeST's (de Vos et al. 2023), by a hash of its number and the peer:
equal for all who know both, and another one in each round, so that no identity is before others for
good. Joiners are named and seated in it, and among those seated together it says who gives way
first.

A seat is no sample for one round, as it is there: a newcomer votes two rounds later at the
earliest, and needs all that its first round begins with. So it is kept for some rounds, and given
up only while enough others vote: turns never take its quorum from a swarm in which somebody died.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from blake3 import blake3

from protocol import limits
from protocol.identity import PeerId
from protocol.manifest import AdmissionSpec
from protocol.messages import SeatRecord, SignedMessage

TURN_ROUNDS = 8
"""So long a seat is kept at least, in runs where work counts at once."""

RAMPS_PER_TURN = 4
"""Where it does not, a turn is so many times longer as a newcomer takes to its full weight: a seat
that is lost takes with it what was earned."""

VOTING_SHARE = (3, 4)
"""Of the members, rounded down: so many voters stay that proved themselves in this very round."""


P = TypeVar("P", bound=bytes)


def order(seed: bytes, peers: Iterable[P]) -> list[P]:
    """The peers in the order of a round: of a hash, so that no two rounds have the same ones first
    and nobody can choose a place without another identity."""
    return sorted(set(peers), key=lambda peer: (place(seed, peer), peer))


def place(seed: bytes, peer: bytes) -> bytes:
    """What the order is by."""
    return blake3(seed + peer).digest()


def in_turn(round_index: int, peers: Collection[PeerId]) -> list[PeerId]:
    """The peers in the order of that round."""
    return order(_seed(round_index), peers)


def place_in_turn(round_index: int, peer: PeerId) -> bytes:
    """What that order is by."""
    return place(_seed(round_index), peer)


def _seed(round_index: int) -> bytes:
    return b"seats" + round_index.to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of one round."""

    round_index: int
    law: AdmissionSpec
    trust: str

    @property
    def length(self) -> int:
        """For how many rounds a seat is kept at least."""
        return TURN_ROUNDS + RAMPS_PER_TURN * (self.law.probation + self.law.ramp)

    def giving_way(
        self, seats: Mapping[PeerId, SeatRecord], kept: Collection[PeerId], num_joiners: int
    ) -> set[PeerId]:
        """Who gives its seat up to so many who ask for one, longest seated first; `seats` are those
        that go on, `kept` the voters, for whom there is room too: where nobody else would vote,
        they keep their seats. At most one `length`-th of all goes in a round.
        """
        number = min(num_joiners - self._room(seats, kept), max(1, self.law.seats // self.length))
        return set(islice(self._due(seats), max(0, number)))

    def with_joiners(
        self,
        seats: Mapping[PeerId, SeatRecord],
        kept: Collection[PeerId],
        joiners: Collection[PeerId],
    ) -> dict[PeerId, SeatRecord]:
        """The seats behind the round's seal: as many joiners as there is room for, in turn."""
        found, now = dict(seats), self.round_index
        for peer in in_turn(now, joiners)[: self._room(seats, kept)]:
            found[peer] = SeatRecord(peer=peer, seated=now, voter_since=-1, proved=-1, absent=0)
        return found

    def _room(self, seats: Mapping[PeerId, SeatRecord], kept: Collection[PeerId]) -> int:
        return max(0, self.law.seats - len(seats.keys() | set(kept)))

    def _due(self, seats: Mapping[PeerId, SeatRecord]) -> Iterator[PeerId]:
        """Who may give way.

        In open runs no voter does: their electorate grows slowly, so that nobody replaces it by
        identities made by the dozen, and turns must be no way around that.
        """
        due = [p for p, seat in seats.items() if self.round_index - seat.seated >= self.length]
        steady = sum(
            seat.voter_since >= 0 and seat.proved == self.round_index for seat in seats.values()
        )
        share, of = VOTING_SHARE
        spare = steady - max(1, share * len(seats) // of) if self.trust == "friends" else 0
        # Sorting is stable: among those seated together the order of the round decides.
        for peer in sorted(in_turn(self.round_index, due), key=lambda peer: seats[peer].seated):
            if seats[peer].voter_since >= 0:
                if spare <= 0:
                    continue
                spare -= 1
            yield peer


# Room ---------------------------------------------------------------------------------------------
#
# How much of a round's messages is kept of whom, so that nobody takes the room of others.
#
# Anybody can make up keys, and a member can sign for every attempt. Room is counted in messages and
# in bytes. What is not kept for want of room is sent again, later each time
# (`protocol.core.relay`).
#
# SEATs have a room that is theirs. Of more than it has those are kept that are first in the round's
# order: all nodes keep the same, and to be early is worth nothing.


@dataclass(slots=True)
class MessageQuota:
    """Of the messages of one round: each member has some of its own, and the rest is for all."""

    members: frozenset[PeerId]
    _filed: dict[PeerId, int] = field(default_factory=dict)
    _bytes: dict[PeerId, int] = field(default_factory=dict)
    _shared: int = 0
    _shared_bytes: int = 0
    _seats: list[tuple[bytes, PeerId]] = field(default_factory=list)
    """Who asks for a seat, ascending by its place in the order."""

    def takes(self, message: SignedMessage) -> bool:
        """Whether there is room for this one, which is no SEAT; it is taken then."""
        sender, size, most = message.sender, len(message.encoded), limits.MEMBER_BYTES_PER_ROUND_MAX
        if sender in self.members:
            filed, taken = self._filed.get(sender, 0), self._bytes.get(sender, 0) + size
            if taken > most:
                return False
            if filed < self._own:
                self._filed[sender], self._bytes[sender] = filed + 1, taken
                return True
        self._shared_bytes += size
        self._shared += 1
        is_there = self._shared <= limits.MESSAGES_SHARED_MAX - limits.SEATS_ASKED_MAX
        if is_there and self._shared_bytes <= most:
            return True
        self._shared_bytes -= size
        self._shared -= 1
        return False

    def seat(self, peer: PeerId, round_index: int) -> PeerId | None:
        """Take the SEAT of that peer; whose SEAT is one too many then, its own or another."""
        insort(self._seats, (place_in_turn(round_index, peer), peer))
        if len(self._seats) <= limits.SEATS_ASKED_MAX:
            return None
        return self._seats.pop()[1]

    @property
    def _own(self) -> int:
        own = limits.MESSAGES_PER_ROUND_MAX - limits.MESSAGES_SHARED_MAX
        return own // max(1, len(self.members))
