"""Promises of every aggregator, by registry; then those of each rule."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import ConfigError
from training.aggregation import AGGREGATORS, coefficients_of

pytestmark = pytest.mark.parametrize("name", list(AGGREGATORS))

PEERS, NUMEL = 8, 300


def updates_of(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(PEERS, NUMEL)).astype(np.float32)


def tokens_of(seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed + 1).integers(1, 10**6, size=PEERS).astype(np.float64)


def test_permuting_rows_and_weights_permutes_the_scores_only(name: str, seed: int) -> None:
    updates_PN, tokens_P = updates_of(seed), tokens_of(seed)
    order = np.random.default_rng(seed + 2).permutation(PEERS)
    plain = AGGREGATORS[name](f=1)(updates_PN, tokens_P)
    permuted = AGGREGATORS[name](f=1)(updates_PN[order], tokens_P[order])
    assert np.allclose(permuted.value, plain.value, rtol=0, atol=1e-6)
    assert np.allclose(permuted.scores, plain.scores[order], rtol=0, atol=1e-6)


def test_slices_by_slices_equal_the_whole_to_the_bit(name: str, seed: int) -> None:
    updates_PN, tokens_P = updates_of(seed), tokens_of(seed)
    rule = AGGREGATORS[name](f=1, cell_elements=64)
    cuts = [updates_PN[:, :128], updates_PN[:, 128:192], updates_PN[:, 192:]]
    stats = sum((rule.stats(cut) for cut in cuts), np.zeros(1)) if rule.uses_stats else np.empty(0)
    coefficients_P = rule.coefficients(stats, tokens_P)
    joined = np.concatenate([rule.combine(cut, coefficients_P) for cut in cuts])
    assert joined.tobytes() == rule(updates_PN, tokens_P).value.tobytes()


def test_value_and_scores_have_their_shapes_and_are_float32(name: str, seed: int) -> None:
    result = AGGREGATORS[name](f=1)(updates_of(seed))
    assert result.value.shape == (NUMEL,)
    assert result.scores.shape == (PEERS,)
    assert result.value.dtype == result.scores.dtype == np.float32


def test_one_row_alone_is_its_own_aggregate(name: str, seed: int) -> None:
    update_N = updates_of(seed)[0]
    assert np.array_equal(AGGREGATORS[name](f=0)(update_N[None]).value, update_N)


def test_inputs_are_only_read(name: str, seed: int) -> None:
    updates_PN, tokens_P = updates_of(seed), tokens_of(seed)
    before = updates_PN.tobytes(), tokens_P.tobytes()
    AGGREGATORS[name](f=1)(updates_PN, tokens_P)
    assert (updates_PN.tobytes(), tokens_P.tobytes()) == before


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_row_that_is_not_finite_is_refused_by_number(name: str, seed: int, bad: float) -> None:
    updates_PN = updates_of(seed)
    updates_PN[3, 17] = bad
    with pytest.raises(ValueError, match="row 3 is not finite"):
        AGGREGATORS[name](f=1)(updates_PN)


@pytest.mark.quick(each="name")
@pytest.mark.parametrize(
    "weights",
    [[1.0] * (PEERS - 1), [-1.0] + [1.0] * (PEERS - 1), [np.nan] * PEERS, [0.0] * PEERS],
    ids=["too few", "negative", "nan", "all zero"],
)
def test_weights_that_make_no_sense_are_refused(name: str, seed: int, weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        AGGREGATORS[name](f=1)(updates_of(seed), np.array(weights))


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("shape", [(0, 5), (5,), (2, 3, 4)])
def test_updates_that_are_no_matrix_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="peers, elements"):
        AGGREGATORS[name](f=1)(np.zeros(shape, dtype=np.float32))


def test_made_up_stats_that_lead_to_no_number_or_are_of_other_rows_lead_to_nothing(
    name: str,
) -> None:
    """Reducers that lie together may say anything that a Gram matrix can be."""
    rule = AGGREGATORS[name]()
    if not rule.uses_stats:
        return
    lengths_P = np.array([1e-20, *[1e40] * (PEERS - 1)])
    form = np.outer(lengths_P, lengths_P)[np.triu_indices(PEERS)].astype("<f8").tobytes()
    found = coefficients_of(rule, [form], np.ones(PEERS))
    assert np.isfinite(found).all()
    # The direction of the shortest, at the length of the others, takes more than float32 has.
    assert found.any() == (name != "flag")
    assert coefficients_of(rule, [form], np.ones(PEERS - 1)).tolist() == [0.0] * (PEERS - 1)


def test_mean_is_the_token_weighted_mean(name: str, seed: int) -> None:
    if name != "mean":
        return
    updates_PN, tokens_P = updates_of(seed), tokens_of(seed)
    result = AGGREGATORS["mean"]()(updates_PN, tokens_P)
    expected_N = np.average(updates_PN.astype(np.float64), axis=0, weights=tokens_P)
    assert np.allclose(result.value, expected_N, rtol=0, atol=1e-6)
    assert np.allclose(result.scores, tokens_P / tokens_P.sum(), rtol=1e-6)


def test_unknown_rule_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        AGGREGATORS[name + "?"]
