"""Error feedback as a transaction (R6), around every codec."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.grid import EMPTY_ROOT, cell_root, merkle_root
from tests.training.test_compression import NAMES, vector
from training.compression import CODECS, Codec, ErrorFeedback


def decode_all(
    codec: Codec, payloads: tuple[bytes, ...], numel: int, cell: int
) -> NDArray[np.float32]:
    sizes = [min(cell, numel - start) for start in range(0, numel, cell)]
    return np.concatenate([codec.decode(p, n) for p, n in zip(payloads, sizes, strict=True)])


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beta", [0.5, 0.95, 1.0])
def test_feedback_conserves_what_the_codec_loses(name: str, beta: float, seed: int) -> None:
    """E4: beta e + x = decoded + e' in every round; with beta 1 the sums of all sealed telescope.

    Whether a round is sealed with us, without us or lost in a restart, is drawn by lot.
    """
    numel, cell = 2500, 1024
    codec, generator = CODECS[name](), np.random.default_rng(seed)
    feedback = ErrorFeedback(codec, beta, cell_elements=cell)
    sent_N, drift_N = np.zeros(numel), np.zeros(numel)
    before_N = np.zeros(numel, dtype=np.float32)
    rounding = 0.0
    for index in range(30):
        x_N = vector(seed + index, numel, scale=10.0 ** generator.uniform(-4, 1))
        payloads = feedback.encode(x_N).payloads
        after_N = feedback.residual_after_N
        assert after_N is not None
        decoded_N = decode_all(codec, payloads, numel, cell)
        # Two float32 operations, each exact to half a unit of its largest operand.
        total_N = np.float64(beta) * before_N + x_N
        slack = 2.0**-22 * max(np.abs(total_N).max(), np.abs(after_N).max())
        assert np.allclose(total_N, decoded_N.astype(np.float64) + after_N, rtol=0, atol=slack)
        if generator.integers(3) == 0:
            # As if this process had died with the contribution under way.
            feedback = ErrorFeedback(codec, beta, cell_elements=cell)
            feedback.reopen(before_N.copy(), after_N)
        if generator.integers(3) == 0:
            feedback.abort()
        else:
            feedback.commit()
            sent_N += decoded_N
            drift_N += x_N
            rounding += slack
            before_N = after_N.copy()
        residual_N = feedback.residual_N
        assert (np.zeros(numel) if residual_N is None else residual_N).tolist() == before_N.tolist()
    if beta == 1.0:
        assert np.allclose(sent_N + before_N, drift_N, rtol=0, atol=rounding)
    if name != "none":
        # Or nothing was lost, and nothing shown.
        assert np.abs(before_N).max() > 0.0


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", NAMES)
def test_without_feedback_the_losses_of_a_codec_do_add_up(name: str, seed: int) -> None:
    """What E4 is about: drift that the codec leaves out arrives late, but it arrives."""
    numel, rounds = 64, 400
    codec = CODECS[name]()
    x_N = vector(seed, numel) * np.float32(1.0 + 2.0**-13)
    sent = {}
    for beta in (0.0, 1.0):
        feedback = ErrorFeedback(codec, beta)
        sent[beta] = np.zeros(numel)
        for _ in range(rounds):
            sent[beta] += codec.decode(feedback.encode(x_N).payloads[0], numel)
            feedback.commit()
    lost = {beta: np.linalg.norm(sent[beta] - rounds * x_N.astype(np.float64)) for beta in sent}
    assert lost[1.0] <= lost[0.0]
    if name != "none":
        # A coordinate waits 64 rounds at most.
        assert lost[1.0] < 0.2 * lost[0.0]


def test_abort_leaves_the_residual_as_it_was_before(seed: int) -> None:
    feedback = ErrorFeedback(CODECS["fp16"](), 1.0, cell_elements=1024)
    feedback.encode(vector(seed, 2500))
    feedback.commit()
    root = feedback.root
    aborted = feedback.encode(vector(seed + 1, 2500))
    assert feedback.root == root
    feedback.abort()
    assert feedback.root == root == aborted.residual_before != aborted.residual_after
    again = feedback.encode(vector(seed + 1, 2500))
    assert again == aborted


def test_roots_chain_over_commits_and_are_merkle_roots_of_the_residual(seed: int) -> None:
    feedback = ErrorFeedback(CODECS["fp16"](), 1.0, cell_elements=1024)
    first = feedback.encode(vector(seed, 2500))
    assert first.residual_before == EMPTY_ROOT
    feedback.commit()
    residual_N = feedback.residual_N
    assert residual_N is not None
    cells = [residual_N[start : start + 1024].tobytes() for start in (0, 1024, 2048)]
    assert first.residual_after == merkle_root([cell_root(cell) for cell in cells])
    assert feedback.encode(vector(seed + 1, 2500)).residual_before == first.residual_after


def test_encode_only_reads_its_input(seed: int) -> None:
    x_N = vector(seed, 2500)
    before = x_N.tobytes()
    feedback = ErrorFeedback(CODECS["fp16"](), 1.0)
    feedback.encode(x_N)
    feedback.commit()
    feedback.encode(x_N)
    assert x_N.tobytes() == before


@pytest.mark.parametrize("in_place", [False, True])
def test_payloads_lie_in_their_input_only_where_they_may(seed: int, in_place: bool) -> None:
    x_N = vector(seed, 100)
    before_N = x_N.copy()
    feedback = ErrorFeedback(CODECS["none"](), 1.0)
    encoded = feedback.encode(x_N, in_place=True) if in_place else feedback.encode(x_N)
    (payload,) = encoded.payloads
    x_N[:] = 0.0
    expected_N = x_N if in_place else before_N
    assert CODECS["none"]().decode(payload, 100).tolist() == expected_N.tolist()


def test_beta_zero_keeps_no_residual(seed: int) -> None:
    feedback = ErrorFeedback(CODECS["fp16"](), 0.0)
    encoded = feedback.encode(vector(seed, 100))
    feedback.commit()
    assert feedback.residual_N is None
    assert encoded.residual_before == encoded.residual_after == EMPTY_ROOT


def test_restored_residual_is_that_of_the_checkpoint_and_none_is_zero(seed: int) -> None:
    saved = ErrorFeedback(CODECS["fp16"](), 1.0)
    saved.encode(vector(seed, 100))
    saved.commit()
    restored = ErrorFeedback(CODECS["fp16"](), 1.0)
    restored.restore(saved.residual_N)
    assert restored.root == saved.root != EMPTY_ROOT
    assert restored.encode(vector(seed + 1, 100)) == saved.encode(vector(seed + 1, 100))
    restored.restore(None)
    assert restored.root == EMPTY_ROOT


def test_reopened_transaction_ends_as_the_one_that_was_interrupted(seed: int) -> None:
    whole, again = ErrorFeedback(CODECS["fp16"](), 1.0), ErrorFeedback(CODECS["fp16"](), 1.0)
    whole.encode(vector(seed, 100))
    whole.commit()
    under_way = whole.encode(vector(seed + 1, 100))
    again.reopen(whole.residual_N, whole.residual_after_N)
    assert (again.root, again.residual_after_N is None) == (under_way.residual_before, False)
    with pytest.raises(AssertionError):
        again.encode(vector(seed, 100))
    for feedback in (whole, again):
        feedback.commit()
        assert feedback.root == under_way.residual_after
        with pytest.raises(AssertionError):
            _ = feedback.residual_after_N


def test_second_contribution_before_the_outcome_of_the_first_is_a_bug(seed: int) -> None:
    feedback = ErrorFeedback(CODECS["fp16"](), 1.0)
    with pytest.raises(AssertionError):
        feedback.commit()
    with pytest.raises(AssertionError):
        feedback.abort()
    feedback.encode(vector(seed, 100))
    with pytest.raises(AssertionError):
        feedback.encode(vector(seed, 100))


def test_sum_that_overflows_opens_nothing() -> None:
    feedback = ErrorFeedback(CODECS["fp16"](), 1.0)
    huge_N = np.full(10, 3e38, dtype=np.float32)
    feedback.encode(huge_N)
    feedback.commit()
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="not finite"):
        feedback.encode(huge_N)
    feedback.encode(np.zeros(10, dtype=np.float32))


@pytest.mark.parametrize("overwrites", [False, True])
def test_sums_are_told_whether_or_not_what_is_left_takes_their_memory(seed: int, overwrites: bool):
    rng = np.random.default_rng(seed)
    first_N, second_N = rng.normal(0, 1, (2, 500)).astype(np.float32)
    given_N, told = second_N.copy(), []
    plain, hearing = (ErrorFeedback(CODECS["int4"](), 0.5, cell_elements=200) for _ in range(2))
    for feedback in (plain, hearing):
        feedback.encode(first_N)
        feedback.commit()
    expected = plain.encode(second_N)
    hear = lambda cell_N: told.append(cell_N.copy())  # noqa: E731
    assert hearing.encode(given_N, hear=hear, overwrites=overwrites) == expected
    assert [len(cell_N) for cell_N in told] == [200, 200, 100]
    left_N, expected_N = hearing.residual_after_N, plain.residual_after_N
    assert plain.residual_N is not None
    assert left_N is not None
    assert expected_N is not None
    assert np.array_equal(np.concatenate(told), second_N + np.float32(0.5) * plain.residual_N)
    assert np.array_equal(given_N, second_N) == (not overwrites)
    assert np.shares_memory(left_N, given_N) == overwrites
    assert np.array_equal(left_N, expected_N)
