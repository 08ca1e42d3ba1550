"""Rules that look at one coordinate at a time: nothing to exchange, the order of values decides.

P peers, R rows that are sorted, N elements of a slice, B elements of a block
"""

from typing import ClassVar

import numpy as np

from training.aggregation.mixing import Mixer, prepared
from training.aggregation.seam import Floats, Rule, shares_of, tolerated
from training.aggregation.sorting import Comparator, Network, Sorter, network, trimming
from training.kernels import kernels_for
from training.numeric.arithmetic import Vector, blocks
from training.numeric.gram import gram_of, gram_stats

_ROWS_AT_A_TIME = 4
"""A minimum looks at three. Blocks so long that not all rows stay in a core's own cache take a
tenth to a quarter less than shorter ones with more calls: 16 to 64 rows, 1 MiB of cache."""


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
        network = Network(rows, self.comparators(rows, faults), self.used(rows, faults))
        sorter = Sorter(network, width, are_spent=mixer is not None)
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
