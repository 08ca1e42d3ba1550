"""What of a state on the disk counts; rounds of the same number may be of two branches (R4)."""

import numpy as np
import pytest

from tests.training.loop.test_inner_state import state, store, vector
from tests.training.methods.test_method import method
from training.channel.exchange import RunClock, RunStart
from training.loop.inner_state import recall

OURS, THEIRS = b"ours", b"theirs"


def method_of(overlap: int):
    name = "in_flight" if overlap > 1 else "diloco"
    return method(name, inner_steps=10, fragments=1, overlap=overlap)


def recalled(folder, *, kept: bytes, bases: tuple[bytes, ...], sealed: int, overlap: int):
    """What is found of round 4, where the seals from 4 on are known and ours of 4 is listed."""
    inner = store(folder)
    inner.save(state(4, basis=kept))
    clock = RunClock(round=sealed + 1, step=1, tokens=1)
    start = RunStart(
        anchors=(vector(4),), clock=clock, lease=((0, 1),), since=3, listed=(4,), bases=bases
    )
    return recall(inner, start, method_of(overlap))


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("sealed", [3, 4, 6])
@pytest.mark.parametrize("bases", [(OURS,), (b"else", OURS)])
def test_residual_of_a_branch_that_was_left_is_void_whatever_was_sealed_since(
    tmp_path, sealed, bases, overlap
):
    found = recalled(tmp_path, kept=THEIRS, bases=bases, sealed=sealed, overlap=overlap)
    assert found is not None
    assert (found.residuals, dict(found.under_way)) == (None, {})


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("sealed", [4, 6])
def test_residual_of_a_round_that_is_over_here_is_the_one_that_its_seal_says(
    tmp_path, sealed, overlap
):
    found = recalled(tmp_path, kept=OURS, bases=(OURS,), sealed=sealed, overlap=overlap)
    assert found is not None
    assert found.residuals is not None
    assert np.array_equal(found.residuals[0], vector(24))


@pytest.mark.parametrize("since", [2, 3])
def test_residual_is_void_behind_a_round_of_which_nobody_tells_what_became_of_it(tmp_path, since):
    inner = store(tmp_path)
    inner.save(state(2))
    inner.save(state(4, pending=(2,)))
    start = RunStart(
        anchors=(vector(4),),
        clock=RunClock(round=5, step=1, tokens=1),
        lease=((0, 1),),
        since=since,
        listed=(2,),
    )
    found = recall(inner, start, method_of(2))
    assert found is not None
    assert found.residuals is not None
    (residual_N,) = found.residuals
    if since == 2:
        assert residual_N is not None
        assert np.array_equal(residual_N, vector(22))
    else:
        assert residual_N is None
