"""What joiners get of a line: so much, and hardly any beside moving parts."""

import pytest

from dht.reaching.token_bucket import TokenBucket
from node.plane.bulk_queue import YIELD_S_MAX, YIELD_TIMES, Throttle

MIB = 1 << 20


def taken_s(bucket: TokenBucket, sizes, *, start_s: float = 0.0) -> float:
    """When the last piece went, each sent as soon as the one before has."""
    now_s = start_s
    for size in sizes:
        now_s += bucket.delay_s(size, now_s)
    return now_s


def test_rate_is_kept_from_the_burst_on():
    bucket = TokenBucket(1e6, now_s=0.0)
    assert taken_s(bucket, [32_768] * 306) == pytest.approx(9.0, abs=0.1)


def test_pause_fills_the_bucket_to_its_burst_and_not_further():
    bucket = TokenBucket(1e6, now_s=0.0)
    taken_s(bucket, [1_000_000])
    assert bucket.delay_s(1_000_000, 100.0) == 0.0
    assert bucket.delay_s(500_000, 100.0) == pytest.approx(0.5)


def test_takers_at_one_moment_wait_one_behind_the_other():
    bucket = TokenBucket(1e6, now_s=0.0)
    delays = [bucket.delay_s(500_000, 0.0) for _ in range(4)]
    assert delays == pytest.approx([0.0, 0.0, 0.5, 1.0])


def test_slow_rate_lets_a_piece_through_at_once_and_no_limit_all():
    assert TokenBucket(1000.0, now_s=0.0).delay_s(32_768, 0.0) == 0.0
    assert TokenBucket(0.0, now_s=0.0).delay_s(1 << 40, 0.0) == 0.0


def test_clock_that_does_not_move_gives_nothing():
    bucket = TokenBucket(1e6, now_s=10.0)
    bucket.delay_s(1_000_000, 10.0)
    assert bucket.delay_s(1000, 9.0) > 0.0


def test_tenth_of_the_time_is_taken_beside_a_round_that_moves_and_all_of_it_else():
    throttle = Throttle(0.0, now_s=0.0)
    for now_s, took_s, is_moving, delay_s in (
        (1.0, 0.0, True, 0.0),
        (1.2, 0.2, True, 0.2 * YIELD_TIMES),
        (1.2, 0.2, True, 0.4 * YIELD_TIMES),  # Another joiner: they wait one behind the other.
        (50.0, 50.0, True, YIELD_S_MAX),
        (50.0, 0.2, False, 0.0),
    ):
        found_s = throttle.delay_s(MIB, took_s=took_s, is_round_moving=is_moving, now_s=now_s)
        assert found_s == pytest.approx(delay_s)
