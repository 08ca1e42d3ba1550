"""Sorting each coordinate over peers: whole rows go through a network of minima and maxima.

B elements of a block

A network compares the same pairs whatever the values are, so a comparison is one instruction over
many coordinates at once. What no wanted rank depends on is left out.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from training.arithmetic import Vector

Comparator = tuple[int, int, bool, bool]
"""Two wires, and whether the lower and the upper value are asked for."""


@lru_cache(maxsize=256)
def network(rows: int, ranks: frozenset[int]) -> tuple[Comparator, ...]:
    """The comparators, in order, that bring those ranks to the wires of their number."""
    wanted, found = set(ranks), []
    for low, high in reversed(list(_batcher(rows))):
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


def sort_rows(rows: list[Vector], spare_B: Vector, comparators: tuple[Comparator, ...]) -> Vector:
    """Sort in place: `rows` are the ranks then; buffers change places, the spare one is returned.

    Rows must hold no negative zero: which zero a minimum gives depends on the processor.
    """
    for low, high, is_low, is_high in comparators:
        a_B, b_B = rows[low], rows[high]
        if is_low and is_high:
            np.minimum(a_B, b_B, out=spare_B)
            np.maximum(a_B, b_B, out=b_B)
            rows[low], spare_B = spare_B, a_B
        elif is_low:
            np.minimum(a_B, b_B, out=a_B)
        else:
            np.maximum(a_B, b_B, out=b_B)
    return spare_B
