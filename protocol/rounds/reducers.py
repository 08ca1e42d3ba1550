"""R8: who sums which cells. A pure function of the last seal, whose seats carry what was measured.

Shares follow the rates; the order is permuted by the seal, so that nobody sums the same cells in
every round. (Open runs are to take the beacon for it, once there is one: R10.)
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise
from math import log2
from statistics import median_high

from blake3 import blake3

from protocol import limits
from protocol.evidence import words_needed
from protocol.identity import PeerId
from protocol.messages import Roster, SeatRecord

# Belief -------------------------------------------------------------------------------------------
#
# Whose equal words make a sum believed, so that liars among the voters cannot (R2, R8).
#
# A *word* is what a member says of a slice: its AGG, or its GRAM. Friends believe one. Open runs
# believe what more voters say than may lie, so that one of them is honest and summed it itself.
# Words of members without a vote count for nothing by themselves: seats cost nothing yet, votes
# take time.

OPEN_VOTERS_MIN = 4
"""With fewer voters not one of them may lie, and an open run decides as friends do."""


def liars(num_voters: int, trust: str) -> int:
    """b: how many voters may lie and nothing final be wrong; less than a third in open runs."""
    return words_needed(num_voters) - 1 if trust == "open" else 0


def few_of(num_members: int, num_voters: int, trust: str) -> int:
    """So many members may be late without a say in how long the others wait: a quarter, and as
    many as may lie. Of two each waits for the other."""
    return max(1, num_members // 4, liars(num_voters, trust)) if num_members > 2 else 0


def copies(trust: str) -> int:
    """How many members sum each cell at least."""
    return 2 if trust == "open" else 1


@dataclass(frozen=True, slots=True)
class Belief:
    """Believed is what `least` members say alike, `words` of `voters` among them."""

    least: int
    words: int
    voters: frozenset[PeerId]

    @property
    def holders(self) -> int:
        """How many besides the sender must say that they hold its parts, before it may be listed.

        An honest sender serves them itself. Of who lies one fewer than may lie are left to say that
        they hold what they do not: so many words have an honest one among them.
        """
        return max(self.least, self.words - 1)

    def counts(self, peer: PeerId) -> bool:
        """Whether that peer's word on what it holds counts: where some may lie, a voter's alone."""
        return self.words < 2 or peer in self.voters

    def is_enough(self, peers: Collection[PeerId]) -> bool:
        """Whether what these members say alike is believed."""
        if len(peers) < self.least:
            return False
        return not self.words or len(self.voters.intersection(peers)) >= self.words

    def num_needed(self, ranks: Sequence[PeerId]) -> int:
        """How many of the first are enough if they say the same; all of them where that is not
        enough."""
        num_voters = 0
        for index, peer in enumerate(ranks):
            num_voters += peer in self.voters
            if index + 1 >= self.least and num_voters >= self.words:
                return index + 1
        return len(ranks)


def belief_of(roster: Roster, trust: str, *, without: Collection[str] = ()) -> Belief:
    """What a run of that trust believes in a round of that roster.

    `without` "words" two members are enough, whoever they are: a defence that tests switch off.
    """
    least = copies(trust)
    words = liars(len(roster.voters), trust) + 1 if least > 1 and "words" not in without else 0
    return Belief(least, words, roster.voter_set)


# Bit maps -----------------------------------------------------------------------------------------
#
# Sets of members as bits over a roster, as COMMITs and HAVEs carry them.


def pack_senders(senders: Collection[PeerId], members: tuple[PeerId, ...]) -> bytes:
    """A bit map over the roster: bit i of byte i // 8, lowest first, is member i."""
    bits = bytearray(-(-len(members) // 8))
    for index, member in enumerate(members):
        if member in senders:
            bits[index // 8] |= 1 << (index % 8)
    return bytes(bits)


@lru_cache(maxsize=256)
def unpack_senders(bits: bytes, members: tuple[PeerId, ...]) -> frozenset[PeerId]:
    """Inverse of `pack_senders`; bits beyond the roster say nothing."""
    return frozenset(
        member
        for index, member in enumerate(members)
        if index // 8 < len(bits) and bits[index // 8] >> (index % 8) & 1
    )


LEVELS_PER_OCTAVE = 4
"""A rate is told as a level: four times its binary logarithm in bytes per second, rounded. One
level is a factor of 1.19."""

ALIKE_LEVELS = 4
"""Whoever is less than a factor of two away from the median sums as much as the median: equal
machines are never measured quite equal."""

HELD_LEVELS = 2
"""A seat's rate moves only if the new median is so far away from it, or shares would flap."""

TWICE_CUT_WORDS_MAX = 1024
"""AGGs of a round, and as many GRAMs, up to which the slices of an open run are cut twice: at most
half of the messages that are kept. Of 64 voters 22 sum each slice, so there are to be 64 slices."""

_QUARTERS = (1024, 1218, 1448, 1722)
"""1024 times 2^(0/4), 2^(1/4), 2^(2/4), 2^(3/4): integers, equal on every machine."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Cells [first, stop), and who sums them: `reducers` by rank, all members in the end.

    Friends have one reducer and substitutes behind it. In open runs the first of them that are
    enough to be believed sum (`Belief.num_needed`).
    """

    first: int
    stop: int
    reducers: tuple[PeerId, ...]


# From the COMMITs to the seats --------------------------------------------------------------------


def measured(
    seats: Mapping[PeerId, SeatRecord],
    members: Sequence[PeerId],
    reports: Sequence[tuple[PeerId, bytes]],
) -> dict[PeerId, SeatRecord]:
    """The seats with what the listed COMMITs say of them.

    A report has a byte for each of `members`: 0 for one that its sender has no link with, 1 for one
    of no known rate, 1 + level otherwise. Nobody counts for itself. A seat is `reached` if more
    than half of the others reach it; its rate is the median of those who measured one.
    """
    found = dict(seats)
    told = [(sender, said) for sender, said in reports if len(said) == len(members)]
    for index, peer in enumerate(members):
        said = [report[index] for sender, report in told if sender != peer]
        if peer not in seats or not said:
            continue
        levels = [byte - 1 for byte in said if byte > 1]
        is_reached = 2 * (len(said) - said.count(0)) > len(said)
        rate = _moved(seats[peer].rate, levels)
        if (is_reached, rate) != (seats[peer].reached, seats[peer].rate):
            found[peer] = replace(seats[peer], reached=is_reached, rate=rate)
    return found


def _moved(rate: int, levels: Sequence[int]) -> int:
    if not levels:
        return rate
    level = median_high(levels)
    return level if not rate or abs(level - rate) >= HELD_LEVELS else rate


# From the seats to the slices ---------------------------------------------------------------------


def slices(roster: Roster, basis: bytes, num_cells: int, *, trust: str) -> tuple[Slice, ...]:
    """Contiguous slices with their reducers; only slices that have cells.

    The second reducer of an open run sums other cells as first, half of the grid away, so that
    its share follows its rate too. Behind the first voters come first: their words count.
    """
    weights, belief, back = _weights(roster), belief_of(roster, trust), set_back(roster)
    order = sorted(weights, key=lambda peer: blake3(basis + peer).digest())
    bounds = [0]
    for share in _shares([weights[peer] for peer in order], num_cells):
        bounds.append(bounds[-1] + share)
    is_cut_twice = belief.least > 1 and 2 * len(order) * (belief.words + 1) <= TWICE_CUT_WORDS_MAX
    half = num_cells // 2 if is_cut_twice else 0
    cuts = {*bounds, *((bound - half) % num_cells for bound in bounds)} if half else {*bounds}
    room = _Room({p: w for p, w in weights.items() if p in belief.voters}, belief, num_cells)
    found = []
    for first, stop in pairwise(sorted({*cuts, 0, num_cells})):
        owner = _owner(bounds, first)
        second = order[_owner(bounds, (first + half) % num_cells)]
        ring = [*order[owner:], *order[:owner]]
        rest = [peer for peer in roster.members if peer not in weights]
        ring += sorted(rest, key=lambda peer: (peer in back, peer))
        if belief.least > 1:
            chosen = room.choose(ring, second, stop - first)
            ring = [*chosen, *(peer for peer in ring if peer in belief.voters), *ring]
        found.append(Slice(first, stop, tuple(dict.fromkeys(ring))))
    return tuple(found)


def one_slice(roster: Roster, num_cells: int) -> tuple[Slice, ...]:
    """All cells, which every member sums: nobody sends a result that all have made themselves."""
    return (Slice(0, num_cells, roster.members),)


class _Room:
    """How many cells each voter may still sum before it sums more than its rate allows."""

    def __init__(self, weights: Mapping[PeerId, int], belief: Belief, num_cells: int) -> None:
        self._belief, self._each = belief, sum(weights.values())
        # In parts of a cell that are whole numbers: what is compared has no fractions.
        self._left = {p: belief.words * num_cells * weight for p, weight in weights.items()}

    def choose(self, ring: Sequence[PeerId], second: PeerId, num_cells: int) -> list[PeerId]:
        """The reducers of a slice: its owner, who comes first on the ring, the second if it is of
        use, and the voters that have most room, until they are enough."""
        belief, chosen = self._belief, [ring[0]]
        if second in belief.voters or belief.is_enough((ring[0], second)):
            chosen = list(dict.fromkeys([*chosen, second]))
        places = {peer: place for place, peer in enumerate(ring)}
        free = sorted(self._left.keys() - set(chosen), key=lambda p: (-self._left[p], places[p]))
        for peer in free:
            if belief.is_enough(chosen):
                break
            chosen.append(peer)
        for peer in chosen:
            if peer in self._left:
                self._left[peer] -= self._each * num_cells
        return chosen


def _owner(bounds: Sequence[int], cell: int) -> int:
    """The place in the order of the one share that holds a cell; empty shares hold none."""
    return next(i for i in range(len(bounds) - 1) if bounds[i] <= cell < bounds[i + 1])


def _weights(roster: Roster) -> dict[PeerId, int]:
    """What each that most others reach may sum, relative to the others; never nobody."""
    back = set_back(roster)
    ahead = [seat for seat in roster.seats if seat.peer not in back] or list(roster.seats)
    seats = [seat for seat in ahead if seat.reached] or ahead
    known = [seat.rate for seat in seats if seat.rate]
    middle = median_high(known) if known else 0
    return {seat.peer: _weight(seat.rate or middle, middle) for seat in seats}


def _weight(level: int, middle: int) -> int:
    if abs(level - middle) < ALIKE_LEVELS:
        level = middle
    return _QUARTERS[level % LEVELS_PER_OCTAVE] << (level // LEVELS_PER_OCTAVE)


def _shares(weights: Sequence[int], num_cells: int) -> list[int]:
    """Cells for each by largest remainder; of equal remainders the first in the order."""
    total = sum(weights)
    found = [num_cells * weight // total for weight in weights]
    rest = [num_cells * weight % total for weight in weights]
    for index in sorted(range(len(weights)), key=lambda i: -rest[i])[: num_cells - sum(found)]:
        found[index] += 1
    return found


def set_back(roster: Roster) -> frozenset[PeerId]:
    """Who comes last among reducers and closers now, for it kept others waiting (R8).

    Nobody, unless two thirds of the voters come before them: else a few could be left with the sums
    and the LISTs of all.
    """
    last = roster.window[-1] if roster.window else 0
    found = frozenset(seat.peer for seat in roster.seats if seat.set_back_until > last)
    ahead = len(roster.voter_set - found)
    return found if 3 * ahead >= 2 * len(roster.voters) else frozenset()


def level_of(bytes_per_s: float) -> int:
    """The level of a rate, from 1 to RATE_LEVEL_MAX: what is signed has no floats."""
    level = round(LEVELS_PER_OCTAVE * log2(max(bytes_per_s, 1.0)))
    return min(max(level, 1), limits.RATE_LEVEL_MAX)


# Gathering ----------------------------------------------------------------------------------------
#
# Who holds and sums which slices now, as this node sees it (R3, R8).


class Gathering:
    """Of one round and one node. Asked often, and found out again only when something changed.

    Of each slice the first reducer gathers all parts and sums them, in open runs the first that
    are enough to be believed do; the next in rank once one before it is suspected, once as many
    attempts have failed that no suspicion explains, or when it is called. In open runs more keep
    the parts of those who sum: a sender's are held by as many others (R2).
    """

    def __init__(self, slices: tuple[Slice, ...], me: PeerId, belief: Belief) -> None:
        self.summing: list[tuple[PeerId, ...]] = []
        """Who gathers and sums each slice."""
        self.keeping: list[tuple[PeerId, ...]] = []
        """Who holds parts of each slice: they, and in open runs one more of where they are two."""
        self.own: list[Slice] = []
        """Slices that this node sums."""
        self.kept: list[Slice] = []
        """Slices of which it holds parts."""
        self.first_keeping: list[tuple[PeerId, ...]] = []
        """As `keeping`, without those who were called since: the first HAVEs are theirs."""
        self.first_keepers: frozenset[PeerId] = frozenset()
        """All of `first_keeping`."""
        self.first_kept: list[Slice] = []
        """As `kept`, without those for which this node was called."""
        self._slices, self._me, self._belief = slices, me, belief
        self._owing: frozenset[PeerId] | None = None
        self._called: dict[int, int] = {}
        self._called_to_hold: dict[int, int] = {}
        self._seen: tuple[int, frozenset[PeerId]] = (-1, frozenset())

    def at(self, attempt: int, suspects: frozenset[PeerId]) -> "Gathering":
        """The same, as it is in that attempt with those suspects."""
        seen_attempt, seen = self._seen
        if attempt == seen_attempt and (suspects is seen or suspects == seen):
            return self
        self._seen = (attempt, suspects)
        self.summing, self.keeping, self.own, self.kept = [], [], [], []
        self.first_keeping, self.first_kept = [], []
        # A death explains one attempt: it costs the slices of the dead, not a second copy of all.
        unexplained = attempt - bool(suspects)
        belief = self._belief
        for piece in self._slices:
            alive = [rank for rank, peer in enumerate(piece.reducers) if peer not in suspects]
            peers = [piece.reducers[rank] for rank in alive]
            # Where so many do not live, everybody does what they can.
            num_needed = belief.num_needed(peers)
            is_enough = belief.is_enough(peers)
            last = alive[num_needed - 1] if is_enough else len(piece.reducers)
            last = max(last, unexplained + belief.num_needed(piece.reducers) - 1)
            num = belief.holders + 1 if belief.least > 1 else 0
            # A word that does not count makes no sender complete.
            more = [peer for peer in peers if belief.counts(peer)] if num else []
            first = tuple(dict.fromkeys([*piece.reducers[: last + 1], *more[:num]]))
            summing = piece.reducers[: last + 1 + self._called.get(piece.first, 0)]
            num += self._called_to_hold.get(piece.first, 0)
            keeping = tuple(dict.fromkeys([*summing, *more[:num]]))
            self.summing.append(summing)
            self.keeping.append(keeping)
            self.first_keeping.append(first)
            for peers_of, pieces in (
                (summing, self.own),
                (keeping, self.kept),
                (first, self.first_kept),
            ):
                if self._me in peers_of:
                    pieces.append(piece)
        self.first_keepers = frozenset().union(*self.first_keeping)
        return self

    def call(self, piece: Slice, count: int) -> None:
        """So many substitutes are called in for a slice, whoever lives; never fewer than before."""
        if count > self._called.get(piece.first, 0):
            self._called[piece.first] = count
            self._seen = (-1, frozenset())

    def call_to_hold(self, piece: Slice, count: int) -> None:
        """So many more are to hold the parts of a slice. Among friends, where whoever holds them
        sums, they sum it as well."""
        if self._belief.least == 1:
            self.call(piece, count)
        elif count > self._called_to_hold.get(piece.first, 0):
            self._called_to_hold[piece.first] = count
            self._seen = (-1, frozenset())

    def holds(self, piece: Slice, sender: PeerId) -> bool:
        """Whether this node is to hold that sender's part of one of the slices that it keeps."""
        if self._belief.least == 1 or piece in self.own:
            return True
        return self._me in self._others(piece, sender, self._seen[1])

    def targets(self, piece: Slice, sender: PeerId) -> tuple[PeerId, ...]:
        """To whom that member sends its part: to those who sum, itself if it is one of them, and
        to so many others that it is complete (R2)."""
        return self._targets(piece, sender, self._seen[1])

    def owing_keepers(self) -> frozenset[PeerId]:
        """Those of `first_keepers` who know by the roster alone that they are to hold parts (R8).

        Whom somebody suspected when it spoke or did not, no other node can tell; and who takes the
        place of one that died may hear of it after it was due.
        """
        if self._owing is None:
            fresh = type(self)(self._slices, self._me, self._belief)
            self._owing = fresh.at(0, frozenset()).first_keepers
        return self._owing

    def owing_targets(self, piece: Slice, sender: PeerId) -> tuple[PeerId, ...]:
        """Likewise of `targets`."""
        called, self._called_to_hold = self._called_to_hold, {}
        found = self._targets(piece, sender, frozenset())
        self._called_to_hold = called
        return found

    def _targets(
        self, piece: Slice, sender: PeerId, suspects: frozenset[PeerId]
    ) -> tuple[PeerId, ...]:
        peers = [peer for peer in piece.reducers if peer == sender or peer not in suspects]
        peers = peers[: self._belief.num_needed(peers)]
        more = self._others(piece, sender, suspects) if self._belief.least > 1 else ()
        return tuple(dict.fromkeys([*peers, *more]))

    def is_soon(self, piece: Slice) -> bool:
        """Whether this node is sent the parts of a slice unasked, if nothing goes wrong."""
        num = self._belief.num_needed(piece.reducers)
        if self._me in piece.reducers[:num] or self._belief.least == 1:
            return self._me in piece.reducers[:num]
        more = filter(self._belief.counts, piece.reducers)
        return self._me in islice(more, self._belief.holders + 1)

    def _others(
        self, piece: Slice, sender: PeerId, suspects: frozenset[PeerId]
    ) -> tuple[PeerId, ...]:
        """The first besides the sender that are to hold its part, in open runs."""
        left_out, counts = {sender, *suspects}, self._belief.counts
        others = (p for p in piece.reducers if p not in left_out and counts(p))
        more = self._called_to_hold.get(piece.first, 0)
        return tuple(islice(others, self._belief.holders + more))


class GatheringAll(Gathering):
    """Where everybody sums everything: every part goes to all members. Whoever is none takes the
    result of what is final."""

    def at(self, attempt: int, suspects: frozenset[PeerId]) -> "Gathering":
        """See Gathering; no attempt and no death changes it."""
        del attempt
        self._seen = (0, suspects)
        if not self.summing:
            self.own = self.kept = [piece for piece in self._slices if self._me in piece.reducers]
            self.summing = self.keeping = [piece.reducers for piece in self._slices]
            self.first_keeping, self.first_kept = self.keeping, self.kept
            self.first_keepers = frozenset().union(*self.first_keeping)
        return self

    def call(self, piece: Slice, count: int) -> None:
        """See Gathering; nobody is left to be called."""

    def holds(self, piece: Slice, sender: PeerId) -> bool:
        """See Gathering."""
        return True

    def _targets(
        self, piece: Slice, sender: PeerId, suspects: frozenset[PeerId]
    ) -> tuple[PeerId, ...]:
        return tuple(peer for peer in piece.reducers if peer == sender or peer not in suspects)

    def is_soon(self, piece: Slice) -> bool:
        """See Gathering."""
        return self._me in piece.reducers


# Rates --------------------------------------------------------------------------------------------
#
# How fast bytes come from each peer, as this node measures it (R8).
#
# Only ever said to others: in a COMMIT, as a level. What comes of it, the median of all says.

SAMPLE_S = 0.05
SAMPLE_BYTES = 128 * 1024
"""Of less than both, what was measured is the noise of a scheduler: nothing is said of it."""

KEPT_SHARE = 0.5
"""What is past counts half per round of the own."""

PEERS_MAX = 256
"""A peer may come under many names; beyond it those who are not linked are forgotten."""


class Rates:
    """Bytes and seconds of bulk transfers, by sender; and who is linked."""

    def __init__(self) -> None:
        self.linked: Collection[PeerId] = ()
        """Peers with an open control stream: set by whoever knows."""
        self._sums: dict[PeerId, tuple[float, float]] = {}

    def took(self, peer: PeerId, num_bytes: int, seconds: float) -> None:
        """So many bytes came from a peer in so much time of one transfer."""
        if seconds <= 0.0 or num_bytes <= 0:
            return
        if peer not in self._sums and len(self._sums) >= PEERS_MAX:
            self._sums = {p: sums for p, sums in self._sums.items() if p in self.linked}
        had_bytes, had_s = self._sums.get(peer, (0.0, 0.0))
        self._sums[peer] = (had_bytes + num_bytes, had_s + seconds)

    def level(self, peer: PeerId) -> int:
        """The level of a peer's rate; 0 while too little is known."""
        num_bytes, seconds = self._sums.get(peer, (0.0, 0.0))
        if seconds < SAMPLE_S and num_bytes < SAMPLE_BYTES:
            return 0
        return level_of(num_bytes / seconds)

    def bytes_per_s(self, peer: PeerId) -> float | None:
        """What was measured; None while too little is known."""
        num_bytes, seconds = self._sums.get(peer, (0.0, 0.0))
        return num_bytes / seconds if self.level(peer) else None

    def report(self, members: Sequence[PeerId], me: PeerId) -> bytes:
        """A byte for each member, as a COMMIT has them (`seen`)."""
        near = {me, *self.linked}
        return bytes([1 + self.level(peer) if peer in near else 0 for peer in members])

    def fade(self) -> None:
        """A round is over: what was measured in it counts less in the next."""
        self._sums = {
            peer: (num_bytes * KEPT_SHARE, seconds * KEPT_SHARE)
            for peer, (num_bytes, seconds) in self._sums.items()
        }
