"""Who sits where more peers ask than there are seats: they take turns. Pure (R1).

The order of a round is MoDeST's, by a hash of its number and the peer (`training.modest`): equal
for all who know both, and another one in each round, so that no identity is before others for good.
Joiners are named and seated in it, and among those seated together it says who gives way first.

A seat is no sample for one round, as it is there: a newcomer votes two rounds later at the
earliest, and needs all that its first round begins with. So it is kept for some rounds, and given
up only while enough others vote: turns never take its quorum from a swarm in which somebody died.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from protocol.identity import PeerId
from protocol.messages import SeatRecord
from training.modest import order

TURN_ROUNDS = 8
"""So long a seat is kept at least; and at most this part of the seats is given up in a round."""

VOTING_SHARE = (3, 4)
"""Of the members, rounded down: so many voters stay that proved themselves in this very round."""


def in_turn(round_index: int, peers: Collection[PeerId]) -> list[PeerId]:
    """The peers in the order of that round."""
    return order(b"seats" + round_index.to_bytes(8, "big"), peers)


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of one round, in a run in which `most` may sit."""

    round_index: int
    most: int
    trust: str

    def with_joiners(
        self,
        seats: Mapping[PeerId, SeatRecord],
        joiners: Collection[PeerId],
        *,
        kept: Collection[PeerId],
    ) -> dict[PeerId, SeatRecord]:
        """The seats behind the round's seal; `seats` are those that go on without joiners.

        There is room for the voters `kept` too: where nobody else would vote, they keep their
        seats.
        """
        found, now = dict(seats), self.round_index
        if not joiners:
            return found  # As nearly always.
        free = max(0, self.most - len(found.keys() | set(kept)))
        number = min(len(joiners) - free, max(1, self.most // TURN_ROUNDS))
        for peer in islice(self._giving_way(seats), max(0, number)):
            del found[peer]
            free += 1
        for peer in in_turn(now, joiners)[:free]:
            found[peer] = SeatRecord(peer=peer, seated=now, voter_since=-1, proved=-1, absent=0)
        return found

    def _giving_way(self, seats: Mapping[PeerId, SeatRecord]) -> Iterator[PeerId]:
        """Who may give way, longest seated first.

        In open runs no voter does: their electorate grows slowly, so that nobody replaces it by
        identities made by the dozen, and turns must be no way around that.
        """
        due = [p for p, seat in seats.items() if self.round_index - seat.seated >= TURN_ROUNDS]
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
