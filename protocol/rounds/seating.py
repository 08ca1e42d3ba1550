"""Who sits where more peers ask than there are seats, and what a newcomer's seat weighs (R1, R9).
Pure.

Where there are fewer seats than peers they take turns.

The order of a round is MoDeST's (de Vos et al. 2023), by a hash of its number and the peer:
equal for all who know both, and another one in each round, so that no identity is before others for
good. Joiners are named and seated in it, and among those seated together it says who gives way
first.

A seat is no sample for one round, as it is there: a newcomer votes two rounds later at the
earliest, and needs all that its first round begins with. So it is kept for some rounds, and given
up only while enough others vote: turns never take its quorum from a swarm in which somebody died.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from typing import TypeVar

from blake3 import blake3

from protocol import limits
from protocol.evidence import may_judge_voters, words_needed
from protocol.identity import PeerId
from protocol.manifest import NO_AUDITS, AdmissionSpec, AuditSpec
from protocol.messages import Commit, Roster, SeatRecord, SignedMessage

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


# Unaudited ----------------------------------------------------------------------------------------
#
# What those weigh together whose training nobody can run again (R10).
#
# A function of the seal that names the roster and of the listed COMMITs, which say each sender's
# class: so equal on every peer to the bit. The encoding is audited whatever the class; training is
# only where so many voters of the sender's class are listed that their words would convict it. A
# class that is too small for that may train whatever it likes, so all such together weigh at most
# the manifest's share of a round.

Row = tuple[PeerId, bytes, int]
"""Sender, COMMIT digest, weight."""


def answerable(roster: Roster, classes: Sequence[tuple[PeerId, str]]) -> frozenset[PeerId]:
    """Of the listed, with their classes, those whose training other listed voters of the class can
    run again, so many of them that their equal words convict."""
    voters = roster.voter_set
    judges = Counter(device for peer, device in classes if peer in voters)
    needed = words_needed(len(voters))
    return frozenset(p for p, device in classes if judges[device] - (p in voters) >= needed)


def unaudited(roster: Roster, classes: Sequence[tuple[PeerId, str]]) -> frozenset[PeerId]:
    """Of the listed, those whom the cap is for.

    Not voters of a roster of so few that nobody of them may lie. Nobody at all where nobody is
    answerable: a run of machines that all differ has no audits of training to lean on, and no share
    would say anything.
    """
    bound = answerable(roster, classes)
    if not bound:
        return frozenset()
    trusted = frozenset() if may_judge_voters(roster) else roster.voter_set
    return frozenset(peer for peer, _ in classes if peer not in bound and peer not in trusted)


def capped(rows: Sequence[Row], those: Collection[PeerId], law: AuditSpec) -> list[Row]:
    """The same rows; `those` weigh at most `law.unaudited` of all together, each in proportion.

    In whole numbers and exact fractions: nothing is rounded but each weight, down.
    """
    own = sum(weight for peer, _, weight in rows if peer in those)
    rest = sum(weight for peer, _, weight in rows if peer not in those)
    share = Fraction(law.unaudited)
    if not rest or own * (1 - share) <= rest * share:
        return list(rows)
    most = int(rest * share / (1 - share))
    return [(p, commit, w * most // own if p in those else w) for p, commit, w in rows]


# Ramp ---------------------------------------------------------------------------------------------
#
# How a newcomer of an open run comes to its weight: probation, its turn, the ramp.
#
# Pure functions of manifest and seals (R9), so equal on every peer to the bit. Whoever is seated by
# the first round is a *founding* member: the founder waited for it, and it weighs as everybody did.
# Everybody later has `SeatRecord.earned`, which counts listed rounds:
#
#     0 .. probation            weighs nothing, and nobody believes its reports of others
#     probation                 waits for its turn: the growth cap of R1, for weights
#     probation + k, k <= ramp  weighs k / ramp of what its tokens weigh
#
# What it contributes meanwhile is asked, moved, listed and credited like all else; it is left out
# of the rows that the rule sees, so that it is no vote of a rule of ranks either. A seat that is
# lost takes with it what was earned.

FOUNDING_ROUND = 1
"""The seal of this round names the founding members: genesis has the founder alone."""

ERA_ROUNDS = 16
"""In so many rounds at most a quarter of those who count come to count, and at least one (R1)."""


def is_newcomer(seat: SeatRecord) -> bool:
    """Whether no SEAL of it was seen yet, and the founder did not wait for it (R3)."""
    return seat.proved < 0 and seat.seated > FOUNDING_ROUND


def parts(seat: SeatRecord, law: AdmissionSpec) -> int:
    """What a token of that seat weighs, in parts of `law.ramp`; 1 in a run without a ramp."""
    if not law.ramp:
        return 1
    if seat.seated <= FOUNDING_ROUND:
        return law.ramp
    return min(max(0, seat.earned - law.probation), law.ramp)


def counting(roster: Roster, law: AdmissionSpec) -> frozenset[PeerId]:
    """The members whose work weighs something, and whose reports of others count."""
    return frozenset(seat.peer for seat in roster.seats if parts(seat, law))


def weighed(
    roster: Roster,
    law: AdmissionSpec,
    listed: Sequence[tuple[PeerId, bytes, Commit]],
    audits: AuditSpec = NO_AUDITS,
) -> list[tuple[PeerId, bytes, int]]:
    """Sender, COMMIT digest and weight of those that are summed, in the order of `listed`.

    Those whose training nobody can run again weigh a share together, in runs with audits.

    Where nobody listed counts all of them stay, with no weight: no rule makes anything of that, so
    the result is zero. Were they summed instead, a closer could list newcomers alone.
    """
    seats = {seat.peer: seat for seat in roster.seats}
    rows = [(p, digest, c.tokens * parts(seats[p], law)) for p, digest, c in listed]
    if audits.rate:
        classes = [(p, c.work[0].device) for p, _, c in listed if c.work]
        rows = capped(rows, unaudited(roster, classes), audits)
    return [row for row in rows if row[2]] or rows


def earned(
    seats: Mapping[PeerId, SeatRecord],
    listed: Collection[PeerId],
    round_index: int,
    law: AdmissionSpec,
) -> dict[PeerId, SeatRecord]:
    """The seats after a round that listed these; `seats` are all those that its seal has.

    Turns are drawn by round and peer, so that a new identity with a low id gains nothing. Where
    nobody who counts is left, those count who have earned most: a run of nobody else goes on with
    whom it has.
    """
    if not law.ramp:
        return dict(seats)
    found = dict(seats)
    full = law.probation + law.ramp
    # Whoever takes its seat with this seal was in no round yet.
    newcomers = [p for p, seat in seats.items() if FOUNDING_ROUND < seat.seated < round_index]
    for peer in newcomers:
        had = seats[peer].earned
        if peer in listed and had != law.probation and had < full:
            found[peer] = replace(seats[peer], earned=had + 1)
    counted = [peer for peer, seat in found.items() if parts(seat, law)]
    waiting = [p for p in newcomers if seats[p].earned == law.probation and p in listed]
    turns: list[PeerId] = []
    if not counted:
        most = max((found[peer].earned for peer in newcomers), default=0)
        turns = [peer for peer in newcomers if found[peer].earned == most]
    elif round_index % max(1, ERA_ROUNDS // max(1, len(counted) // 4)) == 0:
        mark = round_index.to_bytes(8, "big")
        turns = sorted(waiting, key=lambda peer: blake3(mark + peer).digest())[:1]
    for peer in turns:
        found[peer] = replace(found[peer], earned=law.probation + 1)
    return found
