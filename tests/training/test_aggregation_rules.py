"""What each rule computes, against a second writing of it; and what all but the mean withstand."""

import numpy as np
import pytest
from blake3 import blake3
from numpy.typing import NDArray

from tests.training import aggregation_reference as reference
from training.aggregation import AGGREGATORS, PRE_STEPS
from training.aggregation.coordinates import Plan, network, planned, run, trimming
from training.aggregation.gram_rules import Arc, Bucketing, Flag, Krum, Nnm
from training.aggregation.seam import capped_shares, tolerated

NUMEL = 3000
ROBUST = [name for name in AGGREGATORS if name != "mean"]
LINEAR = [
    "krum",
    "multi_krum",
    "geometric_median",
    "norm_clip",
    "norm_guard",
    "caf",
    "flag",
    "mean",
]


def honest_of(seed: int, peers: int) -> NDArray[np.float32]:
    """Rows that share a direction and differ in length, as pseudo-gradients do."""
    luck = np.random.default_rng(seed)
    rows_PN = luck.normal(size=NUMEL) + 2.3 * luck.normal(size=(peers, NUMEL))
    return (rows_PN * luck.uniform(0.8, 1.2, size=(peers, 1))).astype(np.float32)


def without_ties_of(seed: int, peers: int) -> NDArray[np.float32]:
    """The same with all distances told apart: of a near tie the rounding of the Gram matrix to 15
    bits may take the other neighbour, which is as good."""
    for attempt in range(100):
        rows_PN = honest_of(seed + attempt, peers)
        ascending_PP = np.sort(reference.distances(rows_PN.astype(np.float64)), axis=1)[:, 1:]
        if np.all(np.diff(ascending_PP) > 3e-5 * ascending_PP[:, 1:]):
            return rows_PN
    raise AssertionError("distances of random rows are always nearly equal")


def relative_error(found_N: NDArray[np.floating], wanted_N: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found_N - wanted_N) / np.linalg.norm(wanted_N))


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("name", sorted(reference.REFERENCES))
@pytest.mark.parametrize(("peers", "f"), [(15, 3), (16, 3), (7, 1)])
def test_rule_is_what_its_definition_says(name: str, peers: int, f: int, seed: int) -> None:
    rows_PN = without_ties_of(seed, peers)
    wide_PN = rows_PN.astype(np.float64)
    if name == "flag":
        # Which of two nearly equal directions is the last of the subspace turns on the last bits of
        # the Gram matrix: so both get the same one.
        gram_PP = wide_PN @ wide_PN.T
        found_N = Flag().of_gram(gram_PP, np.full(peers, 1 / peers), f) @ wide_PN
    else:
        found_N = AGGREGATORS[name](f=f)(rows_PN).value.astype(np.float64)
    # CAF follows the direction of the largest spread, and honest noise hardly has one.
    limit = 2e-3 if name in ("caf", "default") else 1e-4
    assert relative_error(found_N, reference.REFERENCES[name](wide_PN, f)) < limit


def test_guard_leaves_out_the_overlong_and_compares_drifts_per_root_of_steps(seed: int) -> None:
    rows_PN = honest_of(seed, 5)
    rows_PN /= np.linalg.norm(rows_PN, axis=1, keepdims=True)
    rows_PN[3] *= 40.0
    found = AGGREGATORS["norm_guard"]()(rows_PN)
    assert found.scores[3] == 0.0
    assert relative_error(found.value, np.delete(rows_PN, 3, axis=0).mean(axis=0)) < 1e-4
    # Four times the steps, twice the length: that is no lie, and is not shortened.
    rows_PN[3] /= 20.0
    tokens_P = np.array([2.0, 2.0, 2.0, 4.0, 2.0])
    rows_PN[3] *= np.sqrt(2.0) / 2.0
    found = AGGREGATORS["norm_guard"]()(rows_PN, tokens_P)
    assert found.scores[3] == pytest.approx(4 / 12, rel=1e-3)


def test_guard_shares_equally_where_only_the_overlong_row_has_tokens(seed: int) -> None:
    rows_PN = honest_of(seed, 4)
    rows_PN /= np.linalg.norm(rows_PN, axis=1, keepdims=True)
    rows_PN[0] *= 40.0
    found = AGGREGATORS["norm_guard"]()(rows_PN, np.array([9.0, 0.0, 0.0, 0.0]))
    assert found.scores == pytest.approx([0.0, 1 / 3, 1 / 3, 1 / 3], rel=1e-3)


def test_guard_takes_nobody_for_overlong_because_others_have_no_tokens(seed: int) -> None:
    rows_PN = honest_of(seed, 5)
    rows_PN /= np.linalg.norm(rows_PN, axis=1, keepdims=True)
    found = AGGREGATORS["norm_guard"]()(rows_PN, np.array([7.0, 7.0, 0.0, 0.0, 0.0]))
    assert found.scores == pytest.approx([0.5, 0.5, 0.0, 0.0, 0.0], rel=1e-3)


@pytest.mark.parametrize("name", ["median", "mean", "caf", "krum"])
def test_rule_after_arc_and_neighbours_is_the_rule_of_those_rows(name: str, seed: int) -> None:
    rows_PN = honest_of(seed, 12)
    rows_PN[:2] *= 30.0
    found_N = AGGREGATORS[name](f=2, pre=(Arc(), Nnm()))(rows_PN).value
    mixed_PN = reference.nnm(reference.arc(rows_PN.astype(np.float64), 2), 2)
    rule = reference.REFERENCES.get(name, lambda x_PN, f: x_PN.mean(axis=0))
    # Krum's choice among mixed rows may be a tie: then another row, which is as central.
    limit = 1e-4 if name != "krum" else 0.5
    assert relative_error(found_N, rule(mixed_PN, 2)) < limit


def test_buckets_hold_every_row_once_and_follow_the_seed(seed: int) -> None:
    gram_PP = np.eye(11)
    drawn = [Bucketing(2, bytes([number])).mixing(gram_PP, 1) for number in range(8)]
    for mixing_RP in drawn:
        assert mixing_RP.shape == (6, 11)
        assert np.allclose(mixing_RP.sum(axis=1), 1.0)
        assert ((mixing_RP > 0).sum(axis=0) == 1).all()
    assert len({mixing_RP.tobytes() for mixing_RP in drawn}) > 1
    rows_PN = honest_of(seed, 11)
    rule = AGGREGATORS["trimmed_mean"](f=2, pre=(Bucketing(2, b"\0"),))
    wanted_N = reference.trimmed_mean(drawn[0] @ rows_PN.astype(np.float64), 2)
    assert relative_error(rule(rows_PN).value, wanted_N) < 1e-4


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("step", list(PRE_STEPS))
@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_every_rule_takes_every_step_before_it(name: str, step: str, seed: int) -> None:
    if name == "nnm_trimmed_mean":
        return
    rows_PN = honest_of(seed, 12)
    rule = AGGREGATORS[name](f=1, pre=(PRE_STEPS[step](),))
    found = rule(rows_PN)
    assert np.isfinite(found.value).all()
    assert found.scores.shape == (12,)
    away = np.linalg.norm(found.value - rows_PN.mean(axis=0))
    assert away < np.linalg.norm(rows_PN - rows_PN.mean(axis=0), axis=1).max()


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("size", [-10.0, 1e6, 1e30])
@pytest.mark.parametrize("name", ROBUST)
def test_liars_of_any_size_move_no_rule_beyond_the_honest(
    name: str, size: float, seed: int
) -> None:
    rows_PN = honest_of(seed, 16)
    mean_N = rows_PN[:13].mean(axis=0)
    rows_PN[13:] = (mean_N * np.float32(size))[None]
    spread = np.sqrt((np.linalg.norm(rows_PN[:13] - mean_N, axis=1) ** 2).mean())
    found_N = AGGREGATORS[name](f=3)(rows_PN).value
    assert np.linalg.norm(found_N.astype(np.float64) - mean_N) < 1.2 * spread


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "mea_med", "phocas", *LINEAR])
def test_cuts_inside_a_cell_change_no_bit(name: str, seed: int) -> None:
    """Element-wise work: what a block holds is nobody's business. 40,000 are several blocks."""
    luck = np.random.default_rng(seed)
    rows_PN = luck.normal(size=(6, 40_000)).astype(np.float32)
    rule = AGGREGATORS[name](f=1)
    stats = rule.stats(rows_PN) if rule.uses_stats else np.empty(0)
    coefficients = rule.coefficients(stats, np.ones(6))
    whole_N = rule.combine(rows_PN, coefficients)
    cuts = sorted(luck.integers(1, 40_000, size=3))
    pieces = [rule.combine(piece, coefficients) for piece in np.split(rows_PN, cuts, axis=1)]
    assert np.concatenate(pieces).tobytes() == whole_N.tobytes()


def places_for(plan: Plan, values: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """The rows of the values, and whatever else the plan writes to."""
    return [*values, *np.empty((plan.num_places - len(values), values.shape[1]), dtype=np.float32)]


@pytest.mark.parametrize("are_spent", [False, True])
def test_sorting_network_sorts_and_keeps_the_ranks_that_are_asked_for(
    seed: int, are_spent: bool
) -> None:
    luck = np.random.default_rng(seed)
    for rows in (1, 2, 3, 5, 8, 16, 31, 32, 64):
        values = luck.normal(size=(rows, 50)).astype(np.float32)
        wanted = frozenset(luck.choice(rows, size=max(1, rows // 3), replace=False).tolist())
        given = values.copy()
        plan = planned(rows, network(rows, wanted), are_spent=are_spent)
        wires = run(plan, places_for(plan, given))
        ordered = np.sort(values, axis=0)
        assert all(np.array_equal(wires[rank], ordered[rank]) for rank in wanted)
        assert are_spent or np.array_equal(given, values)
        assert plan.num_places <= (rows + 1 if are_spent else 2 * rows + 1)


def test_trimming_network_leaves_all_but_the_lowest_and_the_highest(seed: int) -> None:
    """Of any number of rows up to 33, and any f; with ties, which both ends may share."""
    luck = np.random.default_rng(seed)
    for rows in range(1, 34):
        for f in range((rows + 1) // 2):
            values = luck.integers(-9, 9, size=(rows, 40)).astype(np.float32)
            plan = planned(rows, trimming(rows, f))
            wires = run(plan, places_for(plan, values))
            left = np.sort(np.array(wires[f : rows - f]), axis=0)
            assert np.array_equal(left, np.sort(values, axis=0)[f : rows - f]), (rows, f)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["median", "trimmed_mean", "mea_med", "phocas"])
def test_rules_of_ranks_refuse_what_is_no_number_and_name_the_row(name: str, bad: float) -> None:
    """Minima and maxima that pass over it would lose it."""
    rows_PN = np.ones((9, 60_000), dtype=np.float32)
    rows_PN[4, 59_999] = bad
    rule = AGGREGATORS[name](f=2)
    for call in (lambda: rule(rows_PN), lambda: rule.combine(rows_PN, np.ones(9, np.float32))):
        with pytest.raises(ValueError, match="row 4 is not finite"):
            call()


def test_trimming_a_quarter_compares_less_than_sorting() -> None:
    """16 rows with f = 4: 84 minima and maxima, where the ranks in the middle take 114."""

    def cost(comparators: tuple[tuple[int, int, bool, bool], ...]) -> int:
        return sum(is_low + is_high for *_, is_low, is_high in comparators)

    assert cost(trimming(16, 4)) == 84
    assert cost(network(16, frozenset(range(4, 12)))) == 114


def test_negative_zeros_leave_no_trace(seed: int) -> None:
    luck = np.random.default_rng(seed)
    rows_PN = luck.choice(np.array([-0.0, 0.0, 1.0, -1.0], dtype=np.float32), size=(9, 400))
    positive_PN = rows_PN + np.float32(0.0)
    for name in ("median", "trimmed_mean", "mea_med", "phocas", "bulyan", "nnm_trimmed_mean"):
        rule = AGGREGATORS[name](f=1)
        assert rule(rows_PN).value.tobytes() == rule(positive_PN).value.tobytes()


def test_claimed_tokens_count_twice_the_median_at_most() -> None:
    shares_P = capped_shares(np.array([10.0, 10.0, 10.0, 1e9, 5.0]))
    assert np.allclose(shares_P, np.array([10, 10, 10, 20, 5]) / 55)
    assert np.allclose(capped_shares(np.array([0.0, 0.0, 0.0, 4.0, 4.0])), [0, 0, 0, 0.5, 0.5])


def test_number_of_lies_follows_the_rows_and_the_rule() -> None:
    assert [tolerated(None, rows) for rows in (1, 3, 4, 7, 8, 16, 64)] == [0, 0, 1, 1, 2, 4, 16]
    assert [tolerated(7, rows) for rows in (1, 4, 15, 16)] == [0, 1, 7, 7]
    assert tolerated(4, 16, (16 - 3) // 4) == 3
    # So that every row has a neighbour that is honest; of mixed rows as many as were said to be.
    assert [Krum().faults(rows, 9) for rows in (2, 4, 5, 8, 9)] == [0, 0, 1, 2, 3]
    assert (Krum(2).faults(20, 5), Krum(2).faults(20), Krum().faults(20)) == (5, 2, 5)
    with pytest.raises(ValueError, match="negative"):
        AGGREGATORS["caf"](f=-1)
    with pytest.raises(ValueError, match="cells of 0 elements"):
        AGGREGATORS["caf"](cell_elements=0)


def fixed_rows() -> NDArray[np.float32]:
    """The same on every machine: sixteen bits of a hash each."""
    raw = blake3(b"golden aggregation").digest(length=2 * 9 * 1500)
    words = np.frombuffer(raw, dtype="<i2").astype(np.float32).reshape(9, 1500)
    words[8] *= np.float32(3.0)
    return words / np.float32(1 << 12)


GOLDEN = {
    "bulyan": "e61f913f4ab24293",
    "caf": "088ea088c45a6601",
    "centered_clip": "0d37a4180b9c4ceb",
    "default": "4c5439cec9e4b05c",
    "flag": "eb9642717fb139c7",
    "geometric_median": "5a2669adec4adfd2",
    "krum": "00efbba535752a86",
    "mea_med": "6ad4358668b98702",
    "mean": "13703df7eb11debf",
    "median": "dc6b3ca36626825e",
    "multi_krum": "1dfaf8222c877a69",
    "nnm_trimmed_mean": "9004dc3b9ddbef29",
    "norm_clip": "92e36efeded3016a",
    "norm_guard": "c51ea3207847ebcc",
    "phocas": "5fce0d600312dc62",
    "trimmed_mean": "95af33ba00a8b47d",
}


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_result_has_the_bytes_that_it_has_on_every_machine(name: str) -> None:
    weights_P = np.arange(3.0, 12.0)
    found = AGGREGATORS[name](f=2, cell_elements=512)(fixed_rows(), weights_P)
    digest = blake3(found.value.astype("<f4").tobytes() + found.scores.astype("<f4").tobytes())
    assert digest.hexdigest()[:16] == GOLDEN.get(name), (
        f'a new rule has a line in GOLDEN: "{name}": "{digest.hexdigest()[:16]}",'
    )
