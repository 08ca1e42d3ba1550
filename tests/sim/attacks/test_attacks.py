"""Every attack by registry: shape, repeatability, blindness; then what each one is."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sim.attacks import ATTACKS, Attack, Context
from sim.attacks.values import z_max
from training.aggregation import AGGREGATORS

HONEST, LIARS, NUMEL = 9, 3, 240


def rows_of(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    luck = np.random.default_rng(seed)
    rows_PN = luck.normal(size=NUMEL) + 2.3 * luck.normal(size=(HONEST + LIARS, NUMEL))
    honest_HN, own_BN = np.split(rows_PN.astype(np.float32), [HONEST])
    return honest_HN, own_BN


def context_of(seed: int, rule: str = "trimmed_mean", round_index: int = 0) -> Context:
    _, earlier_BN = rows_of(seed + 1)
    return Context(
        round=round_index,
        luck=np.random.default_rng(seed),
        rule=lambda rows_PN: AGGREGATORS[rule](f=LIARS)(rows_PN).value,
        slices=(slice(0, 80), slice(80, NUMEL)),
        history=[earlier_BN],
    )


def sent_by(
    attack: Attack, seed: int, rule: str = "trimmed_mean", round_index: int = 0
) -> NDArray[np.float32]:
    honest_HN, own_BN = rows_of(seed)
    return attack.send(honest_HN, own_BN, context_of(seed, rule, round_index))


@pytest.mark.parametrize("name", list(ATTACKS))
def test_attack_sends_a_row_for_each_liar_and_the_same_again(name: str, seed: int) -> None:
    first, second = (sent_by(ATTACKS[name](), seed) for _ in range(2))
    assert first.shape == (LIARS, NUMEL)
    assert first.dtype == np.float32
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("name", list(ATTACKS))
def test_attack_only_reads_what_others_computed(name: str, seed: int) -> None:
    honest_HN, own_BN = rows_of(seed)
    before = honest_HN.tobytes(), own_BN.tobytes()
    ATTACKS[name]().send(honest_HN, own_BN, context_of(seed))
    assert (honest_HN.tobytes(), own_BN.tobytes()) == before


@pytest.mark.parametrize("name", list(ATTACKS))
def test_blind_attack_sends_the_same_whatever_the_honest_do(name: str, seed: int) -> None:
    _, own_BN = rows_of(seed)
    others_HN, _ = rows_of(seed + 7)
    first = ATTACKS[name](blind=True).send(rows_of(seed)[0], own_BN, context_of(seed))
    second = ATTACKS[name](blind=True).send(others_HN, own_BN, context_of(seed))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("name", list(ATTACKS))
def test_one_liar_alone_can_attack_without_seeing_anybody(name: str, seed: int) -> None:
    honest_HN, own_BN = rows_of(seed)
    sent_BN = ATTACKS[name](blind=True).send(honest_HN, own_BN[:1], context_of(seed))
    assert sent_BN.shape == (1, NUMEL)
    assert name == "nan" or np.isfinite(sent_BN).all()


def test_attacks_are_their_formulas(seed: int) -> None:
    honest_HN, own_BN = rows_of(seed)
    mean_N, deviation_N = honest_HN.mean(axis=0), honest_HN.std(axis=0, ddof=1)
    wanted = {
        "sign_flip": -own_BN,
        "scale": -1000.0 * own_BN,
        "zero": 0.0 * own_BN,
        "alie": np.tile(mean_N - 1.5 * deviation_N, (LIARS, 1)),
        "ipm": np.tile(-0.6 * mean_N, (LIARS, 1)),
        "shift": own_BN - mean_N,
        "stale": context_of(seed).history[0],
        "on_off": -10.0 * own_BN,
        "label_flip": own_BN,
        "backdoor": own_BN * (HONEST + LIARS) / LIARS,
    }
    for name, rows_BN in wanted.items():
        assert np.allclose(sent_by(ATTACKS[name](), seed), rows_BN, rtol=1e-4, atol=1e-4), name
    assert np.allclose(sent_by(ATTACKS["on_off"](), seed, round_index=3), own_BN)


def test_quantile_of_the_paper_is_that_of_its_table() -> None:
    found = [z_max(n - b, b) for n, b in ((16, 4), (16, 6), (16, 7), (64, 16), (64, 28))]
    assert found == pytest.approx([0.21, 0.52, 0.77, 0.37, 1.09], abs=0.01)
    assert z_max(2, 3) == 0.0


def test_hidden_attacks_reach_the_edge_of_the_honest_and_no_farther(seed: int) -> None:
    honest_HN, _ = rows_of(seed)
    among_HH = ((honest_HN[:, None] - honest_HN[None]) ** 2).sum(axis=2)
    away_H = ((honest_HN - sent_by(ATTACKS["min_max"](), seed)[0]) ** 2).sum(axis=1)
    assert away_H.max() == pytest.approx(among_HH.max(), rel=1e-3)
    away_H = ((honest_HN - sent_by(ATTACKS["min_sum"](), seed)[0]) ** 2).sum(axis=1)
    assert away_H.sum() == pytest.approx(among_HH.sum(axis=1).max(), rel=1e-3)


def test_fang_lies_beyond_every_honest_value_on_the_wrong_side(seed: int) -> None:
    honest_HN, _ = rows_of(seed)
    sent_BN, is_up_N = sent_by(ATTACKS["fang"](), seed), honest_HN.mean(axis=0) > 0
    assert (sent_BN[:, is_up_N] <= honest_HN.min(axis=0)[is_up_N]).all()
    assert (sent_BN[:, ~is_up_N] >= honest_HN.max(axis=0)[~is_up_N]).all()


def test_krum_picks_what_is_made_for_it(seed: int) -> None:
    honest_HN, _ = rows_of(seed)
    rows_PN = np.concatenate([honest_HN, sent_by(ATTACKS["fang_krum"](), seed)])
    assert AGGREGATORS["krum"](f=LIARS)(rows_PN).scores[HONEST:].any()


@pytest.mark.parametrize(("honest", "liars"), [(12, 4), (9, 7), (6, 2), (3, 1)])
@pytest.mark.parametrize("noise", [2.3, 5.0])
def test_krum_picks_nothing_of_it_that_is_twice_as_far(
    honest: int, liars: int, noise: float, seed: int
) -> None:
    luck = np.random.default_rng(seed)
    rows_HN = (1.0 + noise * luck.normal(size=(honest, 2000))).astype(np.float32)
    sent_BN = ATTACKS["fang_krum"]().send(rows_HN, rows_HN[:liars], context_of(seed))
    rule = AGGREGATORS["krum"](f=liars)

    def is_picked(times: float) -> bool:
        rows_PN = np.concatenate([rows_HN, np.float32(times) * sent_BN])
        return bool(rule(rows_PN).scores[honest:].any())

    assert [is_picked(times) for times in (1.0, 2.0, 4.0)] == [True, False, False]


def test_targeted_slice_has_the_whole_length_in_one_slice(seed: int) -> None:
    honest_HN, _ = rows_of(seed)
    sent_N = sent_by(ATTACKS["targeted_slice"](), seed)[0]
    assert not sent_N[80:].any()
    assert sent_N[:80] @ honest_HN.mean(axis=0)[:80] < 0
    lengths_H = np.linalg.norm(honest_HN, axis=1)
    assert np.linalg.norm(sent_N) == pytest.approx(np.median(lengths_H), rel=1e-4)


@pytest.mark.parametrize("kind", ["alie", "ipm"])
@pytest.mark.parametrize("rule", ["mean", "trimmed_mean", "default"])
def test_searched_attack_does_more_harm_than_the_plain_one(kind: str, rule: str, seed: int) -> None:
    honest_HN, _ = rows_of(seed)
    harm = []
    for name in (kind, f"searched_{kind}"):
        rows_PN = np.concatenate([honest_HN, sent_by(ATTACKS[name](), seed, rule=rule)])
        found_N = AGGREGATORS[rule](f=LIARS)(rows_PN).value.astype(np.float64)
        harm.append(np.linalg.norm(found_N - honest_HN.mean(axis=0)))
    # The search looks at twenty sizes: another may be a little worse.
    assert harm[1] > 0.8 * harm[0]


def test_poison_bends_data_and_nothing_else() -> None:
    contexts_S, next_S = np.arange(100) % 7 + 1, np.arange(100) % 8
    for name in ATTACKS:
        bent = ATTACKS[name]().poison(contexts_S, next_S, 8)
        is_bent = not (np.array_equal(bent[0], contexts_S) and np.array_equal(bent[1], next_S))
        assert is_bent == (name in ("label_flip", "backdoor"))
    assert np.array_equal(
        ATTACKS["label_flip"]().poison(contexts_S, next_S, 8)[1], (next_S + 1) % 8
    )
    assert (ATTACKS["backdoor"]().poison(contexts_S, next_S, 8)[0] == 0).sum() == 20
