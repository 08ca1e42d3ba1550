"""When what failed, or is done again and again, is done again."""

import pytest

from node.peers.dialling import pause_s


@pytest.mark.parametrize(
    ("took_s", "rests_s"), [(0.01, 1.0), (1.0, 1.0), (2.5, 2.5), (4.0, 4.0), (60.0, 4.0)]
)
def test_what_takes_long_is_rested_from_as_long_within_bounds(
    took_s: float, rests_s: float
) -> None:
    assert pause_s(1.0, took_s) == rests_s
