"""No sample is lost, and none is trained on twice."""

import random

import pytest

from protocol.leases import give_back, lease_size, normalised, part_of_lease, take
from protocol.limits import LEASE_INTERVALS_MAX


def members(lease):
    return {sample for first, stop in lease for sample in range(first, stop)}


def is_canonical(lease):
    return lease == normalised(lease)


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ((), ()),
        (((3, 5), (0, 3)), ((0, 5),)),
        (((7, 9), (0, 3)), ((0, 3), (7, 9))),
        (((4, 5), (2, 3), (3, 4)), ((2, 5),)),
    ],
)
def test_normalised_intervals_are_ascending_and_merged(intervals, expected):
    assert normalised(intervals) == expected


@pytest.mark.parametrize("intervals", [((0, 3), (2, 4)), ((5, 5),), ((4, 2),), ((-1, 2),)])
def test_normalised_refuses_overlap_and_what_is_no_interval(intervals):
    with pytest.raises(ValueError, match="interval"):
        normalised(intervals)


def test_take_serves_unused_samples_before_new_ones():
    taken = take(((2, 4), (10, 20)), 100, 5)

    assert taken.lease == ((2, 4), (10, 13))
    assert taken.unused == ((13, 20),)
    assert taken.cursor == 100


def test_take_beyond_the_unused_moves_the_cursor():
    taken = take(((98, 100),), 100, 5)

    assert taken.lease == ((98, 103),)
    assert taken.unused == ()
    assert taken.cursor == 103


def test_giving_back_what_is_unused_already_is_refused():
    with pytest.raises(ValueError, match="two intervals"):
        give_back(((0, 10),), ((9, 12),))


def test_a_history_of_takes_and_returns_loses_no_sample_and_leases_none_twice(seed):
    choose = random.Random(f"{seed}/leases")
    for _ in range(30):
        unused: tuple[tuple[int, int], ...] = ()
        cursor = 0
        held: list[tuple[tuple[int, int], ...]] = []
        trained: set[int] = set()
        for _ in range(40):
            if held and choose.random() < 0.6:
                lease = held.pop(choose.randrange(len(held)))
                if choose.random() < 0.5:
                    unused = give_back(unused, lease)
                else:
                    trained |= members(lease)
            else:
                count = choose.randrange(0, 30)
                lease, unused, cursor = take(unused, cursor, count)
                assert lease_size(lease) == count
                assert is_canonical(lease)
                held.append(lease)
            assert is_canonical(unused)
            # Disjoint, and together everything that was ever leased: equal sums and equal union.
            parts = [trained, members(unused), *map(members, held)]
            assert set().union(*parts) == set(range(cursor))
            assert sum(map(len, parts)) == cursor


def test_the_unused_set_stays_bounded_and_forgets_the_fewest_samples():
    short = tuple((10 * number, 10 * number + 1) for number in range(3))
    long = tuple((10 * number, 10 * number + 5) for number in range(3, 3 + LEASE_INTERVALS_MAX))

    unused = give_back(long, short)

    assert len(unused) == LEASE_INTERVALS_MAX
    assert unused == long


def test_equal_intervals_beyond_the_bound_are_forgotten_lowest_first():
    intervals = tuple((10 * number, 10 * number + 5) for number in range(LEASE_INTERVALS_MAX + 2))

    assert give_back(intervals[5:], intervals[:5]) == intervals[2:]


def test_the_parts_of_a_lease_are_the_lease(seed):
    choose = random.Random(f"{seed}/parts")
    for _ in range(50):
        starts = sorted(choose.sample(range(0, 500, 10), 5))
        lease = tuple((start, start + choose.randrange(1, 10)) for start in starts)
        size = choose.randrange(1, 12)
        parts = [part_of_lease(lease, at, size) for at in range(0, lease_size(lease), size)]

        assert normalised(interval for part in parts for interval in part) == normalised(lease)
        assert all(lease_size(part) == size for part in parts[:-1])


def test_a_part_beyond_the_end_is_short():
    assert part_of_lease(((0, 3), (5, 8)), 4, 10) == ((6, 8),)
    assert part_of_lease(((0, 3),), 3, 10) == ()
