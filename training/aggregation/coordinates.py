"""Rules that look at one coordinate at a time: nothing to exchange, the order of values decides.

P peers, R rows that are sorted, N elements of a slice, B elements of a block

Coordinates are sorted over peers by a network of minima and maxima through which whole rows go. A
network compares the same pairs whatever the values are, so a comparison is one instruction over
many coordinates at once. What no wanted rank depends on is left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import ClassVar

import numpy as np

from training.aggregation.seam import Floats, Mixer, Rule, prepared, shares_of, tolerated
from training.kernels import ROWS_MAX, Wiring, kernels_for
from training.numeric.arithmetic import Vector, blocks
from training.numeric.gram import gram_of, gram_stats

Comparator = tuple[int, int, bool, bool]
"""Two wires, and whether the lower and the upper value are asked for."""


@lru_cache(maxsize=256)
def network(rows: int, ranks: frozenset[int]) -> tuple[Comparator, ...]:
    """The comparators, in order, that bring those ranks to the wires of their number."""
    return _needed_for(_batcher(rows), ranks)


@lru_cache(maxsize=256)
def trimming(rows: int, f: int) -> tuple[Comparator, ...]:
    """The comparators that bring all but the f lowest and the f highest values to the wires from f
    to rows - f - 1, in no order; 2 f < rows.

    Of two sorted halves a and b the f lowest are those of min(a[i], b[f - 1 - i]), so that the
    halves are never merged: a quarter less to compare for 16 rows with f = 4.
    """
    kept = frozenset(range(f, rows - f))
    half = rows // 2
    if 2 * f > half:
        return network(rows, kept)  # Both ends of a half would meet.
    if not f:
        return ()
    pairs = list(_batcher(half))
    pairs += [(low + half, high + half) for low, high in _batcher(rows - half)]
    pairs += [(index, half + f - 1 - index) for index in range(f)]
    pairs += [(half - 1 - index, rows - f + index) for index in range(f)]
    return _needed_for(pairs, kept)


def _needed_for(pairs: Iterable[tuple[int, int]], wires: frozenset[int]) -> tuple[Comparator, ...]:
    wanted, found = set(wires), []
    for low, high in reversed(list(pairs)):
        is_low, is_high = low in wanted, high in wanted
        if is_low or is_high:
            found.append((low, high, is_low, is_high))
            wanted |= {low, high}
    return tuple(reversed(found))


def _batcher(rows: int) -> Iterator[tuple[int, int]]:
    """Odd-even merge sort (Batcher 1968) of any number of wires."""
    merged = 1
    while merged < rows:
        step = merged
        while step:
            for start in range(step % merged, rows - step, 2 * step):
                for low in range(start, min(start + step, rows - step)):
                    if low // (2 * merged) == (low + step) // (2 * merged):
                        yield low, low + step
            step //= 2
        merged *= 2


_LOWER, _HIGHER = np.fmin, np.fmax
"""Of numbers these are minimum and maximum at half of their price: those look for what is not a
number in both operands, and hand it on. It has to be refused before, for these lose it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A network as operations on places: first those of the given rows, then some to write to.

    Each operation is a ufunc, the places of its operands, and the place that it writes to.
    """

    operations: tuple[tuple[np.ufunc, int, int, int], ...]
    wires: tuple[int, ...]
    """Where each wire lies in the end: what was not compared lies where it was given."""

    num_places: int


@lru_cache(maxsize=256)
def planned(rows: int, comparators: tuple[Comparator, ...], *, are_spent: bool = False) -> Plan:
    """Where each comparator writes to: not to the given rows, unless they are spent."""
    wires, fresh = list(range(rows)), count(rows)
    operations: list[tuple[np.ufunc, int, int, int]] = []
    free: list[int] = []
    for low, high, is_low, is_high in comparators:
        a, b = wires[low], wires[high]
        spent = [place for place in (a, b) if are_spent or place >= rows]
        if is_low:
            # Not over one of the two while the higher value is still to be found.
            open_to = free if is_high else spent or free
            wires[low] = open_to.pop() if open_to else next(fresh)
            operations.append((_LOWER, a, b, wires[low]))
        if is_high:
            open_to = spent or free
            wires[high] = open_to.pop() if open_to else next(fresh)
            operations.append((_HIGHER, a, b, wires[high]))
        free += spent
    return Plan(tuple(operations), tuple(wires), next(fresh))


def run(plan: Plan, places: Sequence[Vector]) -> list[Vector]:
    """The wires behind the last comparator.

    Which of a negative and a positive zero is the lower depends on the processor.
    """
    for operate, a, b, to in plan.operations:
        operate(places[a], places[b], places[to])
    return [places[place] for place in plan.wires]


@dataclass(frozen=True, slots=True)
class Network:
    """Comparators over so many rows, and the wires that somebody looks at."""

    rows: int
    comparators: tuple[Comparator, ...]
    used: range


class Sorter:
    """Puts one block of rows after the other through a network; what it returns is overwritten by
    the next block."""

    def __init__(self, network: Network, width: int, *, are_spent: bool) -> None:
        """`width` is that of the longest block. With `are_spent` its rows are of one's own making:
        they may be overwritten, and are sorted even where they are not finite."""
        self._rows, self._used, self._are_spent = network.rows, network.used, are_spent
        self._plan = planned(network.rows, network.comparators, are_spent=are_spent)
        self._wiring = wired(network) if network.rows <= ROWS_MAX else None
        num_own = max(len(network.used), self._plan.num_places - network.rows)
        self._own = np.empty((num_own, width), dtype=np.float32)

    def sort(self, rows_RB: Vector) -> list[Vector]:
        """The wires; those that nobody looks at hold anything.

        Raises ValueError for a given row that is not finite.
        """
        own_OB = self._own[:, : rows_RB.shape[1]]
        kernels = kernels_for(rows_RB)
        if kernels and self._wiring:
            used_WB = own_OB[: len(self._used)]
            if kernels.sort(rows_RB, self._wiring, used_WB):
                wires = [own_OB[0]] * self._rows
                wires[self._used.start : self._used.stop] = used_WB
                return wires
        return self._run(rows_RB)

    def mean(self, rows_RB: Vector, out_B: Vector) -> bool:
        """Write the mean of the observed wires, added in their order, into `out_B`.

        Returns False, leaving the rows as they are, if no compiled kernel applies or a row is not
        finite: the caller then sorts the rows with numpy.
        """
        kernels = kernels_for(rows_RB, out_B)
        return bool(kernels and self._wiring and kernels.sort_mean(rows_RB, self._wiring, out_B))

    def _run(self, rows_RB: Vector) -> list[Vector]:
        own_OB = self._own[:, : rows_RB.shape[1]]
        if not self._are_spent:
            self.refuse_infinite(rows_RB)
        return run(self._plan, [*rows_RB, *own_OB])

    @staticmethod
    def refuse_infinite(block_PB: Vector) -> None:
        """Raise ValueError for a row that is not finite: minima and maxima would lose it. Here it
        costs little, for the block is in the cache for what comes next."""
        if kernels := kernels_for(block_PB):
            infinite = np.flatnonzero(~np.isfinite(kernels.peaks(block_PB)))
        else:
            # Not into a place of ours: where that is strided, numpy 2.4.6 writes the first four.
            infinite = np.flatnonzero(~np.isfinite(block_PB).all(axis=1))
        if len(infinite):
            raise ValueError(f"row {infinite[0]} is not finite")


@lru_cache(maxsize=256)
def wired(network: Network) -> Wiring:
    """The network as compiled code has it."""
    pairs = [pair[:2] for pair in network.comparators]
    return Wiring(
        network.rows,
        np.array(pairs, dtype=np.int32).reshape(-1, 2),
        np.array(network.used, dtype=np.int32),
    )


_ROWS_AT_A_TIME = 4
"""A minimum looks at three. Blocks so long that not all rows stay in a core's own cache take a
tenth to a quarter less than shorter ones with more calls: 16 to 64 rows, 1 MiB of cache."""


# The rules ---------------------------------------------------------------------------------------


class Coordinates(Rule):
    """A rule over the sorted values of each coordinate. Every row has one vote: ranks have no
    weights, and tokens are the cheapest lie."""

    is_mean: ClassVar[bool] = False
    """Whether the result is the mean of the wires that are used, in their order."""

    def stats(self, slice_PN: Vector) -> Floats:
        """For the steps before the rule: the exact Gram matrix."""
        return gram_stats(slice_PN, self._cell_elements)

    def coefficients(self, stats: Floats, weights_P: Floats) -> Vector:
        """One share for each; or how rows are mixed before."""
        shares_of(weights_P)
        rows = len(weights_P)
        if not self._pre or rows == 1:
            return np.full(rows, 1.0 / rows, dtype=np.float32)
        f = tolerated(self._f, rows)
        return prepared(self._pre, gram_of(stats, rows), f).mixing_RP.astype(np.float32)

    def combine(self, slice_PN: Vector, coefficients: Vector) -> Vector:
        """Block by block: mix, sort, and what the rule makes of the ranks.

        Raises ValueError for a row that is not finite.
        """
        mixer = Mixer(coefficients) if coefficients.ndim == 2 else None
        rows, numel = len(coefficients), slice_PN.shape[1]
        faults = self.faults(len(slice_PN), rows)
        spans = list(blocks(_ROWS_AT_A_TIME, numel))
        width = max((span.stop - span.start for span in spans), default=0)
        wiring = Network(rows, self.comparators(rows, faults), self.used(rows, faults))
        sorter = Sorter(wiring, width, are_spent=mixer is not None)
        mixed = np.empty((rows if mixer else 0, width), dtype=np.float32)
        spare = np.empty((2, width), dtype=np.float32)
        result_N = np.empty(numel, dtype=np.float32)
        for span in spans:
            block_PB, out_B = slice_PN[:, span], result_N[span]
            rows_RB, spare_BB = block_PB, spare[:, : len(out_B)]
            if mixer is not None:
                sorter.refuse_infinite(block_PB)
                rows_RB = mixed[:, : len(out_B)]
                mixer.mix(block_PB, list(rows_RB), spare_BB[0])
            if not (self.is_mean and sorter.mean(rows_RB, out_B)):
                wires = sorter.sort(rows_RB)
                self.of_wires(wires, faults, out_B, (spare_BB[0], spare_BB[1]))
            # Makes every zero a positive one: which of two the wires hold, the processor decided.
            np.add(out_B, np.float32(0.0), out=out_B)
        return result_N

    def faults(self, peers: int, rows: int) -> int:
        """How many of the mixed rows of so many peers may be lies: no more than peers lie."""
        return min(tolerated(self._f, peers), (rows - 1) // 2)

    @property
    def refuses(self) -> bool:
        """What is not finite, by itself."""
        return True

    def comparators(self, rows: int, f: int) -> tuple[Comparator, ...]:
        """What brings the values that `of_wires` looks at to its wires: all ranks to those of their
        number."""
        return network(rows, frozenset(self.used(rows, f)))

    def used(self, rows: int, f: int) -> range:
        """The wires that `of_wires` looks at."""
        del f
        return range(rows)

    def of_wires(
        self, wires: list[Vector], f: int, out_B: Vector, spare: tuple[Vector, Vector]
    ) -> None:
        """Write the result; `spare` may be written to, and of the wires what was compared."""
        raise NotImplementedError


class Median(Coordinates):
    """The median of each coordinate; of an even number the mean of the two in the middle."""

    def used(self, rows: int, f: int) -> range:
        """The one or two in the middle."""
        del f
        return range((rows - 1) // 2, rows // 2 + 1)

    def of_wires(
        self, wires: list[Vector], f: int, out_B: Vector, spare: tuple[Vector, Vector]
    ) -> None:
        """See Coordinates."""
        del f, spare
        _median(wires, out_B)


class TrimmedMean(Coordinates):
    """Of each coordinate the mean without the f lowest and the f highest values."""

    is_mean = True

    def comparators(self, rows: int, f: int) -> tuple[Comparator, ...]:
        """Those of what is not trimmed, in no order."""
        return trimming(rows, f)

    def used(self, rows: int, f: int) -> range:
        """What is not trimmed."""
        return range(f, rows - f)

    def of_wires(
        self, wires: list[Vector], f: int, out_B: Vector, spare: tuple[Vector, Vector]
    ) -> None:
        """See Coordinates."""
        del spare
        _mean(wires[f : len(wires) - f], out_B)


class Nearest(Coordinates):
    """Of each coordinate the mean of the values that are nearest to a centre."""

    def dropped(self, rows: int, f: int) -> int:
        """How many values of a coordinate are left out."""
        del rows
        return f

    def centre(self, ranks: list[Vector], f: int, out_B: Vector) -> None:
        """Write the centre."""
        del f
        _median(ranks, out_B)

    def of_wires(
        self, ranks: list[Vector], f: int, out_B: Vector, spare: tuple[Vector, Vector]
    ) -> None:
        """The nearest are neighbours in rank. A window moves up by one from where it starts as
        long as what it leaves is farther from the centre than what it takes in; on a tie it stays.
        """
        centre_B, far_B = spare
        self.centre(ranks, f, centre_B)
        drop = self.dropped(len(ranks), f)
        kept = len(ranks) - drop
        # Where the window starts differs by coordinate, but of ranks that are `kept` apart it holds
        # exactly one. So each rank below gives way to the one `kept` above it, or stays; from the
        # highest down, so that one that gave way is itself what the next gives way to.
        for rank in reversed(range(drop)):
            np.subtract(centre_B, ranks[rank], out=far_B)
            np.subtract(ranks[rank + kept], centre_B, out=out_B)
            np.copyto(ranks[rank], ranks[rank + kept], where=far_B > out_B)
        _mean(ranks[:kept], out_B)


class MeaMed(Nearest):
    """The mean of the P - f values nearest to the median (Xie, Koyejo and Gupta 2018)."""


class Phocas(Nearest):
    """The mean of the P - f values nearest to the trimmed mean (Xie, Koyejo and Gupta 2018)."""

    def centre(self, ranks: list[Vector], f: int, out_B: Vector) -> None:
        """The trimmed mean."""
        _mean(ranks[f : len(ranks) - f], out_B)


def _median(ranks: list[Vector], out_B: Vector) -> None:
    low_B, high_B = ranks[(len(ranks) - 1) // 2], ranks[len(ranks) // 2]
    if low_B is high_B:
        out_B[...] = low_B
        return
    # Halves first: the sum of two large numbers may be none.
    np.multiply(low_B, np.float32(0.5), out=out_B)
    np.add(out_B, np.float32(0.5) * high_B, out=out_B)


def _mean(ranks: list[Vector], out_B: Vector) -> None:
    """Added in the order in which they are given."""
    if kernels := kernels_for(out_B, *ranks):
        kernels.scaled_sum(ranks, 1.0, out_B)
    else:
        np.add(ranks[0], ranks[1] if len(ranks) > 1 else np.float32(0.0), out=out_B)
        for rank_B in ranks[2:]:
            np.add(out_B, rank_B, out=out_B)
    np.divide(out_B, np.float32(len(ranks)), out=out_B)
