"""Leases: who trains on which samples, as arithmetic on intervals.

Samples are numbered from 0 without end, in the order of the corpus's keyed permutation. A set of
them is a canonical tuple of intervals (first, stop): ascending, disjoint, none empty, none touching
the next; equal sets are equal tuples. A seal carries the cursor behind the highest sample ever
leased and the unused set below it, what was leased and came back. All functions are pure.
"""

from collections.abc import Iterable
from typing import NamedTuple

from protocol import limits

Lease = tuple[tuple[int, int], ...]
"""Sample ranges, each [first, behind the last), of the corpus's keyed permutation."""


class Taken(NamedTuple):
    """A lease, and what is left for the next one."""

    lease: Lease
    unused: Lease
    cursor: int


def lease_size(lease: Lease) -> int:
    """Number of samples."""
    return sum(stop - first for first, stop in lease)


def normalised(intervals: Iterable[tuple[int, int]]) -> Lease:
    """The canonical form of disjoint intervals in any order.

    Raises ValueError for an empty or negative interval and for a sample that is in two: it would
    be trained on twice.
    """
    merged: list[tuple[int, int]] = []
    for first, stop in sorted(intervals):
        if not 0 <= first < stop:
            raise ValueError(f"no interval of samples: {first}..{stop}")
        if merged and first < merged[-1][1]:
            raise ValueError(f"sample {first} is in two intervals")
        if merged and first == merged[-1][1]:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((first, stop))
    return tuple(merged)


def take(unused: Lease, cursor: int, count: int) -> Taken:
    """Lease `count` samples: the lowest unused ones first, then new ones from `cursor` on."""
    if count < 0:
        raise ValueError(f"a lease of {count} samples")
    lease: list[tuple[int, int]] = []
    left: list[tuple[int, int]] = []
    for first, stop in unused:
        middle = min(stop, first + count)
        if first < middle:
            lease.append((first, middle))
            count -= middle - first
        if middle < stop:
            left.append((middle, stop))
    if count:
        lease.append((cursor, cursor + count))
    return Taken(normalised(lease), tuple(left), cursor + count)


def give_back(unused: Lease, lease: Lease) -> Lease:
    """The unused set with a lease that was not trained on, or not sealed, back in it.

    Holds at most LEASE_INTERVALS_MAX intervals: beyond that the shortest are forgotten, of equal
    ones the lowest, which loses the fewest samples until the next epoch; merging across the
    gaps instead would train on samples twice. Raises ValueError where a sample is there already.
    """
    everything = normalised((*unused, *lease))
    excess = len(everything) - limits.LEASE_INTERVALS_MAX
    if excess <= 0:
        return everything
    shortest_first = sorted(everything, key=lambda interval: (interval[1] - interval[0], interval))
    return normalised(shortest_first[excess:])


def part_of_lease(lease: Lease, start: int, count: int) -> Lease:
    """Samples number `start` to `start + count` of the lease, counted in its own order."""
    part: list[tuple[int, int]] = []
    for first, stop in lease:
        low = first + max(0, start)
        high = min(stop, first + start + count)
        if low < high:
            part.append((low, high))
        start -= stop - first
    return tuple(part)
