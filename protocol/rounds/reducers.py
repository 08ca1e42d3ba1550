"""R8: who sums which cells. A pure function of the last seal, whose seats carry what was measured.

Shares follow the rates; the order is permuted by the seal, so that nobody sums the same cells in
every round. (Open runs are to take the beacon for it, once there is one: R10.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2
from statistics import median_high

from blake3 import blake3

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Roster, SeatRecord
from protocol.rounds.belief import Belief, belief_of

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
