"""Cells from several sources at once: who is asked for which, and what of those who do not give.

Pure. It asks every source for as much as the source gives in a moment. Whoever is silent loses its
cells to the others, and so does, at the end, whoever is much slower than they are: nobody waits for
the slowest. Nothing that has arrived is asked for again.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol import limits
from protocol.frames import Bulk
from protocol.identity import PeerId

STALL_S = 5.0
"""A source from which nothing has come for so long loses what it was asked for."""

REST_S, RESTS_GROW = 10.0, 3
"""So long it is not asked again; twice as long each time, up to so many times."""

HOPELESS_S = 12.0
"""Nothing from anybody for so long: nobody has these cells any more."""

CELL_S, NO_CELL_S = 240.0, 300.0
"""A source whose pieces make no whole cell within so long is as good as silent, and where no cell
at all comes within so long it is hopeless: the first cells of a line of 70 kbit/s take as long."""

WINDOW_S = 2.0
"""Ask a source for as many cells as it is expected to deliver in this many seconds."""

WINDOW_BYTES_MAX = 32 * limits.MIB
GROWTH = 2
"""Ask a source for at most this many times as many bytes as it has delivered so far."""

CELLS_AT_FIRST = 2
"""Number of cells to ask of a source whose rate is not known yet."""

MUCH_SLOWER = 2.0
"""Near the end of a fetch, ask a second source for a cell when the first is expected to take this
many times longer than the second."""

SOON_S = 1.0
"""Do not ask again for a cell that is expected within this time, nor for one whose source was asked
less than this time ago."""

RATE_S = 10.0
"""Rates are averages over about this many seconds."""

Place = tuple[int, int]
"""Number of a batch, and a cell of it."""


@dataclass(frozen=True, slots=True)
class CellBatch:
    """Cells under one subject: those of a state, or the result of one round. `sizes` in bytes."""

    bulk: Bulk
    subject: bytes
    sizes: tuple[int, ...]


@dataclass(slots=True)
class _Source:
    """`moved_s` is when the last of it came or it was asked after a pause, `whole_s` when the last
    whole cell did; busy since `busy_s`."""

    asked: dict[Place, None] = field(default_factory=dict)
    asked_bytes: int = 0
    moved_s: float = 0.0
    whole_s: float = 0.0
    busy_s: float = 0.0
    came_bytes: float = 0.0
    given_bytes: int = 0
    rests_until_s: float = -math.inf
    num_rests: int = 0
    has_lied: bool = False
    lacks: set[int] = field(default_factory=set)
    """Batches of which it said that it has nothing."""

    def rate(self, now_s: float) -> float:
        """Bytes per second while it had something to give; 0 while nothing is known."""
        return self.came_bytes / max(now_s - self.busy_s, 1e-3)

    def expected_s(self, num_bytes: int, now_s: float) -> float:
        """How long it would take for what it was asked for and so many bytes more."""
        rate = self.rate(now_s)
        return (self.asked_bytes + num_bytes) / rate if rate else math.inf


class CellFetch:
    """One fetch. Batches are wanted in their order; `begin` says what of them is here already."""

    def __init__(self, batches: Sequence[CellBatch], *, now_s: float) -> None:
        self.batches = tuple(batches)
        self.total_bytes = sum(sum(batch.sizes) for batch in self.batches)
        self.here_bytes = 0
        self.is_begun = False
        self._numbers = {batch.subject: number for number, batch in enumerate(self.batches)}
        self._open: dict[Place, None] = {
            (number, cell): None
            for number, batch in enumerate(self.batches)
            for cell in range(len(batch.sizes))
        }
        self._missing = dict(self._open)
        self._sources: dict[PeerId, _Source] = {}
        self._givers: dict[int, set[PeerId]] = {}
        self._alone: dict[int, PeerId | None] = {}
        """Batches of which all cells are to come from one source, once it is chosen this one."""
        self._resumed: set[int] = set()
        """Batches of which something was here before: somebody had them."""
        self._moved_s = self._whole_s = now_s

    # What came ----------------------------------------------------------------------------------

    def begin(self, held: Mapping[bytes, Collection[int]], *, now_s: float) -> None:
        """What of which subjects was here before anybody was asked."""
        self.is_begun, self._moved_s, self._whole_s = True, now_s, now_s
        for subject, cells in held.items():
            if subject in self._numbers:
                self._settle(self._numbers[subject], cells)
                if cells:
                    self._resumed.add(self._numbers[subject])

    def arrived(
        self, source: PeerId, subject: bytes, cells: Collection[int], *, now_s: float
    ) -> None:
        """Cells are here; `source` sent the one that these are, or prove to be the same as old."""
        number = self._numbers.get(subject)
        if number is None:
            return
        found = self._sources.get(source)
        if found is not None:
            sizes = self.batches[number].sizes
            given = sum(sizes[cell] for cell in cells if (number, cell) in found.asked)
            found.came_bytes += given
            found.given_bytes += given
            found.num_rests = 0
            found.whole_s = now_s if given else found.whole_s
        if any((number, cell) in self._missing for cell in cells):
            self._whole_s = now_s
        self._givers.setdefault(number, set()).add(source)
        self.moved(source, now_s=now_s)
        self._settle(number, cells)

    def _settle(self, number: int, cells: Collection[int]) -> None:
        sizes = self.batches[number].sizes
        for cell in cells:
            place = (number, cell)
            if place in self._missing:
                del self._missing[place]
                self._open.pop(place, None)
                self.here_bytes += sizes[cell]
                for source in self._sources.values():
                    if place in source.asked:
                        del source.asked[place]
                        source.asked_bytes -= sizes[cell]

    def moved(self, source: PeerId, *, now_s: float) -> None:
        """Bytes of a cell are arriving."""
        found = self._sources.get(source)
        if found is not None:
            found.moved_s = self._moved_s = now_s

    def rest(self, source: PeerId, *, now_s: float) -> None:
        """Leave it alone for a while: others are asked for what it was asked for."""
        found = self._sources.setdefault(source, _Source())
        self._release(found)
        found.rests_until_s = now_s + REST_S * 2.0 ** min(found.num_rests, RESTS_GROW)
        found.num_rests += 1

    def lacks(self, source: PeerId, bulk: Bulk, subject: bytes) -> None:
        """It was asked for cells of which it has none: others are asked for these."""
        number, found = self._numbers.get(subject), self._sources.get(source)
        if number is None or found is None or bulk is not self.batches[number].bulk:
            return
        places = [place for place in found.asked if place[0] == number]
        if places:
            self._release(found, places)
            found.lacks.add(number)

    def lied(self, source: PeerId) -> None:
        """It sent what is not true: it is not asked again."""
        found = self._sources.setdefault(source, _Source())
        self._release(found)
        found.has_lied = True

    def redo(self, subject: bytes) -> PeerId | None:
        """A whole batch turned out to be wrong. Who is to blame, if one source sent all of it.

        If there were several, the next time one is asked for all.
        """
        number = self._numbers[subject]
        givers = self._givers.pop(number, set())
        for cell, size in enumerate(self.batches[number].sizes):
            place = (number, cell)
            if place not in self._missing:
                self._missing[place] = self._open[place] = None
                self.here_bytes -= size
        if len(givers) != 1:
            self._alone[number] = None
            return None
        (liar,) = givers
        self.lied(liar)
        return liar

    # What may be asked --------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    @property
    def num_givers(self) -> int:
        """Sources that have cells to give at the moment."""
        return sum(1 for source in self._sources.values() if source.asked)

    def is_asked(self, source: PeerId, subject: bytes, cell: int) -> bool:
        """Whether that source was asked for that cell, and it is still missing."""
        number, found = self._numbers.get(subject), self._sources.get(source)
        return number is not None and found is not None and (number, cell) in found.asked

    def rate(self, now_s: float) -> float:
        """Bytes per second of all who are asked."""
        return sum(source.rate(now_s) for source in self._sources.values() if source.asked)

    def is_hopeless(self, now_s: float, *, lag_s: float) -> bool:
        """Whether nothing came from anybody for long, or no whole cell for very long."""
        until_s = min(self._moved_s + HOPELESS_S, self._whole_s + NO_CELL_S)
        return self.is_begun and not self.is_whole and now_s > until_s + lag_s

    def is_lacked(self, able: Collection[PeerId]) -> bool:
        """Whether all who may have it said of something that is missing that they lack it: those
        of `able`, and whoever gave of it, though out of reach."""
        found = [self._sources.setdefault(peer, _Source()) for peer in able]
        lacks = [source.lacks for source in found if not source.has_lied]
        if not (lacks and all(lacks)):
            return False  # As nearly always.
        missing = {number for number, _ in self._missing}
        return any(
            all(self._lacks(giver, number) for giver in self._givers.get(number, ()))
            for number in missing.intersection(*lacks) - self._resumed
        )

    def _lacks(self, peer: PeerId, number: int) -> bool:
        # Who gave need not have been asked: a cell of a state proves itself.
        source = self._sources.get(peer)
        return source is not None and number in source.lacks

    def due(
        self, able: Collection[PeerId], *, lag_s: float, now_s: float
    ) -> Iterator[tuple[PeerId, bytes, Bulk, tuple[int, ...]]]:
        """Whom to ask for which cells now. `able` may have them, and are in reach.

        `lag_s` is by how much this node itself is late: it blames nobody for that.
        """
        if not self.is_begun or self.is_whole:
            return
        for peer, source in self._sources.items():
            if not source.asked:
                continue
            if peer not in able:
                self._release(source)
            elif now_s > min(source.moved_s + STALL_S, source.whole_s + CELL_S) + lag_s:
                self.rest(peer, now_s=now_s)
        usable = self._usable(able, now_s)
        # Nobody takes everything before the others were asked.
        share = math.ceil(len(self._open) / len(usable)) if usable else 0
        for peer in usable:
            yield from self._ask(peer, self._take(peer, usable, share, now_s), now_s)
        if not self._open:
            for peer in usable:
                yield from self._ask(peer, self._take_over(peer, now_s), now_s)

    def _usable(self, able: Collection[PeerId], now_s: float) -> list[PeerId]:
        found = []
        for peer in sorted(able):
            source = self._sources.setdefault(peer, _Source())
            if not source.has_lied and now_s >= source.rests_until_s:
                found.append(peer)
        # The fastest first: what is left at the end goes to them.
        return sorted(found, key=lambda peer: -self._sources[peer].rate(now_s))

    def _take(self, peer: PeerId, usable: list[PeerId], share: int, now_s: float) -> list[Place]:
        """Open cells for a source that has room for some."""
        source = self._sources[peer]
        taken: list[Place] = []
        if not self._open:
            return []
        rate = source.rate(now_s)
        # A rate that was measured over a moment is a guess: what a source has given is not.
        window = min(WINDOW_S * rate, WINDOW_BYTES_MAX, GROWTH * source.given_bytes)
        num_max = limits.WANT_CELLS_MAX
        if not rate:
            num_max, window = CELLS_AT_FIRST - len(source.asked), math.inf
        elif source.asked_bytes > window / 2:
            return []  # In lumps: each is a stream of its own.
        num_max = min(num_max, share)
        num_bytes = source.asked_bytes
        for place in self._open:
            size = self.batches[place[0]].sizes[place[1]]
            is_full = taken and num_bytes + size > window
            if len(taken) >= num_max or is_full:
                break
            if self._may_give(peer, place[0], usable):
                taken.append(place)
                num_bytes += size
        return taken

    def _may_give(self, peer: PeerId, number: int, usable: list[PeerId]) -> bool:
        if number in self._sources[peer].lacks:
            return False
        if number in self._alone:
            alone = self._alone[number]
            if alone is None or alone not in usable or self._lacks(alone, number):
                self._alone[number] = peer
        return self._alone.get(number, peer) == peer

    def _take_over(self, peer: PeerId, now_s: float) -> list[Place]:
        """For a source without work, cells of the one that will be last."""
        source = self._sources[peer]
        if source.asked or not source.rate(now_s):
            return []
        others = [other for other in self._sources.values() if other.asked]
        if not others:
            return []
        last = max(others, key=lambda other: other.expected_s(0, now_s))
        if min(last.expected_s(0, now_s), now_s - last.busy_s) < SOON_S:
            return []
        taken: list[Place] = []
        num_bytes = 0
        for place in reversed(last.asked):
            size = self.batches[place[0]].sizes[place[1]]
            own_s = source.expected_s(num_bytes + size, now_s)
            is_slower = MUCH_SLOWER * own_s < last.expected_s(0, now_s)
            if not is_slower or place[0] in self._alone or (taken and own_s > SOON_S):
                break
            if place[0] in source.lacks:
                continue
            if sum(1 for other in others if place in other.asked) == 1:
                taken.append(place)
                num_bytes += size
        return taken

    def _ask(
        self, peer: PeerId, places: list[Place], now_s: float
    ) -> Iterator[tuple[PeerId, bytes, Bulk, tuple[int, ...]]]:
        source = self._sources[peer]
        if places and not source.asked:
            # What it gave before counts on, as if there had been no pause, but not for ever.
            busy_s = min(max(source.moved_s - source.busy_s, 0.0), RATE_S)
            known = source.rate(source.moved_s) if source.came_bytes else 0.0
            source.busy_s, source.came_bytes = now_s - busy_s, known * busy_s
            source.moved_s = source.whole_s = now_s
        for place in places:
            self._open.pop(place, None)
            source.asked[place] = None
            source.asked_bytes += self.batches[place[0]].sizes[place[1]]
        for number in sorted({number for number, _ in places}):
            batch = self.batches[number]
            cells = tuple(cell for of, cell in places if of == number)
            yield peer, batch.subject, batch.bulk, cells

    def _release(self, source: _Source, places: Collection[Place] | None = None) -> None:
        """What it was asked for, or these of it, is open again, before all that comes later."""
        places = list(source.asked) if places is None else places
        if not places:
            return
        still = [other for other in self._sources.values() if other is not source]
        freed = {p for p in places if not any(p in other.asked for other in still)}
        self._open = dict.fromkeys(sorted(freed.union(self._open)))
        for place in places:
            del source.asked[place]
            source.asked_bytes -= self.batches[place[0]].sizes[place[1]]
