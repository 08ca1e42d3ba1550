"""What leaves a node, by its own transfers."""

import pytest

from node.plane.bulk_queue import SAMPLE_BYTES, SAMPLES_KEPT, Uplink

MIB = 1 << 20


def sends(uplink: Uplink, num_bytes: int | None, seconds: float, *, at_s: float = 0.0) -> None:
    uplink.began(at_s)
    uplink.ended(num_bytes, at_s + seconds)


def test_nothing_is_known_before_enough_was_sent() -> None:
    uplink = Uplink()
    assert uplink.mbit() is None
    sends(uplink, SAMPLE_BYTES - 1, 0.1)
    assert uplink.mbit() is None
    sends(uplink, SAMPLE_BYTES, 1.0)
    assert uplink.mbit() == pytest.approx(8e-6 * SAMPLE_BYTES)


def test_transfers_side_by_side_share_the_line() -> None:
    """Four takers of a mebibyte each within a second are four mebibytes a second."""
    uplink = Uplink()
    for _ in range(4):
        uplink.began(10.0)
    for done_s in (10.4, 10.7, 10.9):
        uplink.ended(MIB, done_s)
        assert uplink.mbit() is None
    uplink.ended(MIB, 11.0)
    assert uplink.mbit() == pytest.approx(8e-6 * 4 * MIB)


def test_pause_between_transfers_is_not_counted() -> None:
    uplink = Uplink()
    sends(uplink, MIB, 0.5, at_s=1.0)
    sends(uplink, MIB, 0.5, at_s=60.0)
    assert uplink.mbit() == pytest.approx(8e-6 * 2 * MIB)


def test_transfer_that_broke_off_spoils_those_beside_it_and_no_others() -> None:
    uplink = Uplink()
    uplink.began(0.0)
    uplink.began(0.0)
    uplink.ended(None, 0.1)
    uplink.ended(8 * MIB, 1.0)
    assert uplink.mbit() is None
    sends(uplink, MIB, 1.0, at_s=2.0)
    assert uplink.mbit() == pytest.approx(8e-6 * MIB)


def test_slow_taker_does_not_hide_the_line_but_a_line_that_became_slow_shows() -> None:
    uplink = Uplink()
    sends(uplink, 4 * MIB, 1.0)
    sends(uplink, MIB, 1.0)
    assert uplink.mbit() == pytest.approx(8e-6 * 4 * MIB)
    for _ in range(SAMPLES_KEPT):
        sends(uplink, MIB, 1.0)
    assert uplink.mbit() == pytest.approx(8e-6 * MIB)


def test_transfer_without_time_says_nothing() -> None:
    uplink = Uplink()
    sends(uplink, MIB, 0.0)
    assert uplink.mbit() is None
