"""I2: who is seated and who votes behind a round follows from the seal before and its LIST (R1).

Written from the law, not from `protocol.rounds.roster`: all nodes work a roster out by the same
code, so where that is wrong they agree, and no other check would see it. Whose turn it is where
there are fewer seats than peers is left to `protocol.rounds.seating`. What newcomers weigh is
written down once more from the words of `protocol.rounds.seating`: each seal must follow from the
seal before and its list, so by induction from genesis.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from node.reporting.tracing import Adopted, Advanced, Confirmed, Record
from protocol.errors import DecodeError
from protocol.identity import PeerId, short_id
from protocol.manifest import AdmissionSpec, RunManifest
from protocol.messages import Commit, Kind, Seal, SealValue, SeatRecord, decode_message
from sim.checks.history import Check, Electorate, History, Kinds

# What newcomers weigh -----------------------------------------------------------------------------

Row = tuple[PeerId, int, NDArray[np.float32]]
"""Sender, tokens, decoded wire."""


def num_parts(value: SealValue, peer: PeerId, law: AdmissionSpec) -> int:
    """What a token of that member weighs in the round behind a seal; 0 without a seat."""
    return sum(_parts(seat, law) for seat in value.roster.seats if seat.peer == peer)


def _parts(seat: SeatRecord, law: AdmissionSpec) -> int:
    if law.ramp == 0:
        return 1
    if seat.seated in (0, 1):
        return law.ramp
    return sorted((0, seat.earned - law.probation, law.ramp))[1]


def weighed_rows(
    named: SealValue, rows: Sequence[Row], manifest: RunManifest, classes: Mapping[PeerId, str]
) -> list[Row]:
    """The rows that are summed, with what their tokens weigh in the round that `named` has named.
    `classes` are those that the COMMITs say.

    Empty where nobody listed weighs anything: then the result is zero.
    """
    law = manifest.admission
    weights = {peer: tokens * num_parts(named, peer, law) for peer, tokens, _ in rows}
    if manifest.audits.rate:
        weights = capped_weights(named, weights, classes, manifest.audits.unaudited)
    return [(peer, weights[peer], wire_N) for peer, _, wire_N in rows if weights[peer]]


def capped_weights(
    named: SealValue, weights: dict[PeerId, int], classes: Mapping[PeerId, str], share: float
) -> dict[PeerId, int]:
    """R10: those whose training too few others can run again weigh `share` together, written down
    once more from the words of `protocol.rounds.seating`. A float is a whole number over a power of
    two, so this is exact."""
    voters = [seat.peer for seat in named.roster.seats if seat.voter_since >= 0]
    bad = (len(voters) - 1) // 3
    lone = set()
    for peer in weights:
        able = [v for v in voters if v != peer and classes.get(v) == classes[peer]]
        if len(able) <= bad:
            lone.add(peer)
    if lone == set(weights):
        return weights
    if len(voters) <= 3:
        lone -= set(voters)
    part, whole = share.as_integer_ratio()
    loud = sum(weights[peer] for peer in lone)
    rest = sum(weights.values()) - loud
    if rest == 0 or loud * whole <= (loud + rest) * part:
        return weights
    most = rest * part // (whole - part)
    return {p: w * most // loud if p in lone else w for p, w in weights.items()}


class Earning(Check):
    """Newcomers come to their weight as the manifest says, no faster than R1 lets voters in."""

    name = "I2"
    kinds: Kinds = (Adopted,)

    def __init__(self, history: History, manifest: RunManifest) -> None:
        self._history = history
        self._law = manifest.admission
        self._seen: set[bytes] = set()

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        assert isinstance(record, Adopted)
        value = record.certificate.value
        before = self._history.values.get(value.before)
        said = [self._history.commits.get(digest) for digest in value.commits]
        if value.digest in self._seen or before is None or None in said:
            return
        self._seen.add(value.digest)
        listed = {each.message.sender for each in said if each is not None}
        expected = self._expected(before, value, listed) if listed else None
        for seat in value.roster.seats:
            had = _earned_by(before, seat)
            wanted = had if expected is None else expected[seat.peer]
            if seat.earned != wanted:
                yield (
                    f"round {value.round} credits {short_id(seat.peer)} with {seat.earned} rounds "
                    f"towards its weight, {wanted} by its list"
                )

    def _expected(
        self, before: SealValue, value: SealValue, listed: set[PeerId]
    ) -> dict[PeerId, int]:
        law, seats = self._law, value.roster.seats
        wanted = {seat.peer: _earned_by(before, seat) for seat in seats}
        if not law.ramp:
            return wanted
        new = {seat.peer for seat in seats if seat.seated > 1}
        waiting = {p for p in new & listed if wanted[p] == law.probation}
        # Whoever takes its seat with this seal is not listed by it.
        waiting -= {seat.peer for seat in seats if seat.seated == value.round}
        for peer in new & listed:
            if wanted[peer] not in (law.probation, law.probation + law.ramp):
                wanted[peer] += 1
        num_counting = sum(p not in new or wanted[p] > law.probation for p in wanted)
        if not num_counting:
            sitting = {seat.peer for seat in seats if seat.seated != value.round}
            most = max(wanted[peer] for peer in sitting) if sitting else 0
            counts = {peer for peer in sitting if wanted[peer] == most}
            return {p: law.probation + 1 if p in counts else n for p, n in wanted.items()}
        admitted_per_era = max(1, num_counting // 4)
        if waiting and value.round % max(1, 16 // admitted_per_era) == 0:
            drawn = {blake3(value.round.to_bytes(8, "big") + p).digest(): p for p in waiting}
            wanted[drawn[min(drawn)]] += 1
        return wanted


def _earned_by(before: SealValue, seat: SeatRecord) -> int:
    """What the seat had before; nothing where it is a new one."""
    same = (
        old for old in before.roster.seats if (old.peer, old.seated) == (seat.peer, seat.seated)
    )
    return next((old.earned for old in same), 0)


# Who sits and who votes ---------------------------------------------------------------------------

WINDOW = 4
"""Non-empty rounds within which a voter must have shown its own SEAL."""

ABSENCES = 2
ERA_ROUNDS = 16
BACK_ROUNDS = 8
BACKS = 8
FOUNDING_ROUND = 1
"""Who sits since then votes once it has shown its SEAL, however many there are."""

FEW_VOTERS = 4
"""From so many on one may die; with fewer a voter that leaves makes successors."""


@dataclass(frozen=True, slots=True)
class _Round:
    """A sealed round: the seal before it, the one that named it, and what its LIST holds."""

    before: SealValue
    named: SealValue
    value: SealValue
    commits: dict[PeerId, Commit]
    words: set[PeerId] | None
    """Whose word counts: voters of the seal that named the round, among friends everybody's."""
    told: list[Commit]
    """COMMITs of theirs that say what they saw a round before."""
    seen: Counter[PeerId]
    """In how many of these each member's COMMIT was seen."""


class Seating(Check):
    """I2 over records: each roster beside the one before."""

    name = "I2"
    kinds: Kinds = (Adopted, Advanced, Confirmed)

    def __init__(self, history: History, manifest: RunManifest) -> None:
        self._history, self._law = history, manifest.admission
        self._trust, self._is_open = manifest.trust, manifest.trust == "open"
        self._lag = manifest.outer.overlap
        self._seen: set[bytes] = set()
        self._entered: Counter[int] = Counter()
        """New voters of each 16 rounds of an open run, which has no branches."""

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        assert isinstance(record, Adopted | Advanced | Confirmed)
        value, values = record.certificate.value, self._history.values
        before, named = values.get(value.before), values.get(value.basis)
        said = [self._history.commits.get(digest) for digest in value.commits]
        if value.digest in self._seen or before is None or named is None or None in said:
            return
        self._seen.add(value.digest)
        commits: dict[PeerId, Commit] = {}
        for each in said:
            assert each is not None
            assert isinstance(each.body, Commit)
            commits[each.message.sender] = each.body
        words = _voting(named) if self._is_open else None
        counts = [c for peer, c in commits.items() if words is None or peer in words]
        told = [commit for commit in counts if commit.committed]
        now = _Round(before, named, value, commits, words, told, _seen(named, told))
        checks = (self._members, self._seats, self._voters) if commits else (_unchanged,)
        for check in checks:
            for text in check(now):
                yield f"round {value.round} {text}"

    # Seats --------------------------------------------------------------------------------------

    def _members(self, now: _Round) -> Iterator[str]:
        roster, old = now.value.roster, now.before.roster
        seated, sat = set(roster.members), set(old.members)
        joining, leaving = self._joining(now), self._leaving(now)
        # Where nobody would vote, or nobody would sit, the old voters or members stay.
        is_kept = not self._able(now) & set(roster.voters)
        # A voter that leaves keeps its place until it is known that others vote.
        free = self._law.seats - len(sat - leaving | set(old.voters))
        taken = seated | (set(old.voters) - (sat - seated - leaving))
        for peer in sorted(seated - sat - joining):
            yield f"seats {short_id(peer)}, whom too few of its LIST name"
        for peer in sorted(sat - seated - leaving):
            if len(joining) <= free:
                yield f"takes the seat of {short_id(peer)}, against whom nothing is said"
        for peer in sorted(seated & (leaving | set(roster.banned))):
            if not is_kept or peer in roster.banned:
                yield f"leaves {short_id(peer)} its seat, which is lost by its LIST"
        most = len(joining)
        if self._is_open and now.value.round > self._lag:
            most = max(1, len(sat) // 4)
        if len(joining & seated) > most:
            yield f"seats {len(joining & seated)} at once, {most} are the most"
        is_full = len(taken) >= self._law.seats or len(joining & seated) >= most
        if joining - seated and not is_full and not is_kept:
            yield f"seats {short_id(min(joining - seated))} not, and there is room"
        gained = [peer for peer in roster.banned if peer not in old.banned]
        if set(gained) - self._convicted(now):
            yield "bans somebody whom too few voters of its LIST convict"

    def _joining(self, now: _Round) -> set[PeerId]:
        names = self._named(now, ((peer, c.joins) for peer, c in now.commits.items()))
        bans = self._convicted(now) | set(now.before.roster.banned)
        return names - set(now.before.roster.members) - self._gone(now) - bans

    def _leaving(self, now: _Round) -> set[PeerId]:
        """Of the members who is suspected by most, absent twice, gone or banned."""
        old, leaving = now.before.roster, self._suspected(now)
        absent = {seat.peer for seat in old.seats if self._absences(now, seat.peer) >= ABSENCES}
        absent -= self._waiting(now)
        bans = self._convicted(now) | set(old.banned)
        stay = self._held(now) & set(now.value.roster.members)
        return (leaving | absent | (self._gone(now) - stay) | bans) & set(old.members)

    def _held(self, now: _Round) -> set[PeerId]:
        """Voters that leave and may be kept: who is listed and stays is no quorum without them."""
        gone, rest = self._gone(now), set(now.commits) - self._gone(now)
        leavers = _voting(now.before) & gone
        return set() if self._is_quorum(now.before, rest) else leavers

    def _suspected(self, now: _Round) -> set[PeerId]:
        asked = {
            peer: commit.suspects
            for peer, commit in now.commits.items()
            if self._has_word(now, peer) and num_parts(now.named, peer, self._law)
        }
        counts = _counted(asked.values())
        of_all = len(_voting(now.named)) if self._may_lie(now) else len(asked)
        return {peer for peer, count in counts.items() if 2 * count > of_all}

    def _gone(self, now: _Round) -> set[PeerId]:
        return self._named(now, ((peer, c.gone) for peer, c in now.commits.items()))

    def _convicted(self, now: _Round) -> set[PeerId]:
        """Those against whom more listed voters hold evidence than may lie."""
        voters = _voting(now.named)
        names = [commit.bans for peer, commit in now.commits.items() if peer in voters]
        return {p for p, count in _counted(names).items() if count >= self._enough(now)}

    def _named(self, now: _Round, words: Iterable[tuple[PeerId, Sequence[PeerId]]]) -> set[PeerId]:
        told = [names for peer, names in words if self._has_word(now, peer)]
        return {p for p, count in _counted(told).items() if count >= self._enough(now)}

    def _has_word(self, now: _Round, peer: PeerId) -> bool:
        return now.words is None or peer in now.words

    def _enough(self, now: _Round) -> int:
        """Friends 1, open one more than may lie."""
        return self._may_lie(now) + 1

    def _may_lie(self, now: _Round) -> int:
        return 0 if now.words is None else (len(now.words) - 1) // 3

    def _absences(self, now: _Round, peer: PeerId) -> int:
        """In a row, of rounds a lag before: those of which too few saw its COMMIT."""
        had = next(seat for seat in now.before.roster.seats if seat.peer == peer)
        if peer in now.commits:
            return 0
        judged = now.value.round - self._lag
        # Where so few say anything liars may be half of them.
        is_told = len(now.told) > 2 * self._may_lie(now)
        if not is_told or judged < 1 or had.seated > judged - self._lag:
            return had.absent
        return 0 if now.seen[peer] >= self._enough(now) else had.absent + 1

    def _is_shown(self, now: _Round, peer: PeerId) -> bool:
        """Whether its SEAL is: by its own listed COMMIT, or by the words of enough."""
        if peer in now.commits and _shows_seal(now, peer):
            return True
        if peer not in _voting(now.before):
            return False  # Words of others keep a vote, and give none.
        members = now.named.roster.members
        maps = [int.from_bytes(commit.sealed, "little") for commit in now.told]
        bit = members.index(peer) if peer in members else 8 * 64
        return sum(bits >> bit & 1 for bits in maps) >= self._enough(now)

    def _waiting(self, now: _Round) -> set[PeerId]:
        """Voters that would lose their votes for not being seen, and wait their turn: in a window
        only as many lose them as may lie."""
        number = self._may_lie(now)
        if not number:
            return set()
        window = (*now.before.roster.window, now.value.round)[-WINDOW:]
        losing = []
        for seat in now.before.roster.seats:
            if seat.voter_since < 0:
                continue
            absent = self._absences(now, seat.peer)
            proved = now.value.round if self._is_shown(now, seat.peer) else seat.proved
            if absent >= ABSENCES or proved < window[0]:
                losing.append((-absent, proved, seat.peer))
        stay = self._held(now) & set(now.value.roster.members)
        bans = self._convicted(now) | set(now.before.roster.banned)
        gone = (self._gone(now) - stay) | bans | self._suspected(now)
        order = [peer for *_, peer in sorted(losing) if peer not in gone]
        return set(order[number if now.value.round % WINDOW == 0 else 0 :])

    # Votes --------------------------------------------------------------------------------------

    def _seats(self, now: _Round) -> Iterator[str]:
        """What each seat says of its member's rounds."""
        old = {seat.peer: seat for seat in now.before.roster.seats}
        leaving = self._leaving(now)
        for seat in now.value.roster.seats:
            had = old.get(seat.peer)
            if had is None:
                if (seat.seated, seat.voter_since, seat.absent) != (now.value.round, -1, 0):
                    yield f"seats {short_id(seat.peer)} as if it had been there before"
                continue
            if seat.peer in leaving:
                continue  # It is kept for want of others, with what it had.
            is_shown = self._is_shown(now, seat.peer)
            if seat.proved != (now.value.round if is_shown else had.proved):
                yield f"says of {short_id(seat.peer)} that it proved itself in {seat.proved}"
            if seat.absent != self._absences(now, seat.peer):
                yield f"counts {seat.absent} absences of {short_id(seat.peer)}"
            backs = (seat.set_backs, seat.set_back_until)
            if backs != self._backs(now, had):
                yield f"sets {short_id(seat.peer)} back {backs[0]} times, until {backs[1]}"

    def _backs(self, now: _Round, had: SeatRecord) -> tuple[int, int]:
        """How often in a row a seat is set back, and until when."""
        members, index = now.named.roster.members, now.value.round
        maps = [int.from_bytes(commit.lapsed, "little") for commit in now.told]
        bit = members.index(had.peer) if had.peer in members else 8 * 64
        since = had.set_back_until - (BACK_ROUNDS << max(0, had.set_backs - 1))
        is_known = had.set_backs and index < since + 2 * self._lag
        if sum(bits >> bit & 1 for bits in maps) < self._enough(now) or is_known:
            return had.set_backs, had.set_back_until
        again = had.set_backs and index <= 2 * had.set_back_until - since
        backs = min(had.set_backs + 1, BACKS) if again else 1
        return backs, index + (BACK_ROUNDS << (backs - 1))

    def _able(self, now: _Round) -> set[PeerId]:
        """Who may vote: it has shown its SEAL of late, and its LIST takes no seat of it."""
        roster = now.value.roster
        shown = {seat.peer for seat in roster.seats if seat.proved >= roster.window[0]}
        shown |= self._waiting(now) & set(roster.members)
        return shown - self._leaving(now)

    def _voters(self, now: _Round) -> Iterator[str]:
        roster, old = now.value.roster, now.before.roster
        expected = (*old.window, now.value.round)[-WINDOW:]
        if roster.window != expected:
            yield f"has the window {roster.window} in place of {expected}"
        able = self._able(now)
        votes, voted = _voting(now.value), _voting(now.before)
        entered = votes - voted
        if not votes & able:
            if votes - voted:
                yield "lets somebody vote who has shown no SEAL of late"
            return  # A roster that would have no voter keeps the old ones.
        for peer in sorted(votes - able):
            yield f"lets {short_id(peer)} vote, which has shown no SEAL of late"
        for peer in sorted(voted & able - votes):
            yield f"takes the vote of {short_id(peer)}, which has shown its SEAL"
        here = {seat.peer for seat in roster.seats if seat.proved == now.value.round}
        founding = {seat.peer for seat in roster.seats if seat.seated == FOUNDING_ROUND}
        if leavers := voted & self._gone(now):
            yield from self._handing_on(now, leavers, here)
            able &= here
        for peer in sorted((able - votes) & founding):
            yield f"lets {short_id(peer)} wait for its vote, which sits since the first round"
        late, waiting = entered - founding, able - votes - founding
        most = len(voted)
        if self._is_open:
            most = max(1, most // 4)
        if leavers:
            most = max(most, FEW_VOTERS - len(votes - late))
            if len(late) > most:
                yield f"makes {len(late)} voters in the place of {len(leavers)} that leave"
            return
        yield from self._growth(now, late, waiting, most, len(entered & founding))

    def _growth(
        self, now: _Round, late: set[PeerId], waiting: set[PeerId], most: int, num_founding: int
    ) -> Iterator[str]:
        """Who came after the first round: so many at most, lowest peer ids first."""
        if late and waiting and min(waiting) < max(late):
            yield f"lets others vote before {short_id(min(waiting))}"
        if self._is_open:
            era = now.value.round // ERA_ROUNDS
            self._entered[era] += len(late)
            if late and self._entered[era] > most:
                yield f"makes {self._entered[era]} voters in 16 rounds, {most} are the most"
            return
        most = max(0, most - num_founding)
        if len(late) > most or (waiting and len(late) < most):
            yield f"makes {len(late)} voters of {len(late | waiting)}, beside {most}"

    def _handing_on(self, now: _Round, leavers: set[PeerId], here: set[PeerId]) -> Iterator[str]:
        """A leaver that was needed is gone only where others carry on; and it makes successors."""
        votes = _voting(now.value)
        dropped = (self._held(now) - set(now.value.roster.members)) & leavers
        if dropped and dropped - self._thrown_out(now) and not self._is_quorum(now.value, here):
            yield f"lets {short_id(min(dropped))} leave, and no quorum is known to be there"
        for peer in sorted(votes - _voting(now.before) - here):
            yield f"makes {short_id(peer)} a voter, which may be dead, while others leave"
        waiting = self._able(now) & here - votes
        if waiting and len(votes) < FEW_VOTERS:
            yield f"lets {short_id(min(waiting))} wait for the vote of one that leaves"

    def _thrown_out(self, now: _Round) -> set[PeerId]:
        """Who loses its seat whether it leaves or not."""
        absent = {
            seat.peer
            for seat in now.before.roster.seats
            if self._absences(now, seat.peer) >= ABSENCES
        }
        return absent | self._suspected(now) | self._convicted(now) | set(now.before.roster.banned)

    def _is_quorum(self, value: SealValue, peers: set[PeerId]) -> bool:
        """Whether the voters of that seal among these make a round final."""
        return Electorate(value.roster, self._trust).is_quorum(peers)


def _unchanged(now: _Round) -> Iterator[str]:
    """Of an empty LIST nobody was seen absent, and nobody was named."""
    if now.value.roster != now.before.roster:
        yield "lists nobody, and has another roster"


def _voting(value: SealValue) -> set[PeerId]:
    return {seat.peer for seat in value.roster.seats if seat.voter_since >= 0}


def _seen(named: SealValue, told: Sequence[Commit]) -> Counter[PeerId]:
    maps = [int.from_bytes(commit.committed, "little") for commit in told]
    members = enumerate(named.roster.members)
    return Counter({peer: sum(bits >> at & 1 for bits in maps) for at, peer in members})


def _counted(names: Iterable[Sequence[PeerId]]) -> Counter[PeerId]:
    """By how many each is named."""
    return Counter(peer for of_one in names for peer in set(of_one))


def _shows_seal(now: _Round, peer: PeerId) -> bool:
    """Whether its COMMIT carries its own SEAL or PSEAL of the seal that named the round. Whether it
    is signed is seen where that SEAL counts."""
    try:
        message, body = decode_message(now.commits[peer].seal)
    except DecodeError:
        return False
    is_own = message.sender == peer and message.slot.kind in (Kind.SEAL, Kind.PSEAL)
    return is_own and isinstance(body, Seal) and body.value == now.named.digest
