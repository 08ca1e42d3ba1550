"""Q2 to Q10 of the quality suite (`tests/quality/README.md`).

Four replicas, 600 steps, H = 12, momentum 0.5, seed 0, nats per byte. Q1 is in `test_q1`. Q4 (forms
of overlap) and the half of Q7 with a delay run with two seeds, without the momentum that does not
go with it; Q18 to Q21 have modules of their own. Margins were set beforehand, but for three
(`tests/bench/RESULTS.md`, "Losses of methods"): what ternary loses without feedback, and how much
worse a plain mean does with a poisoned peer; and fragments in flight need not be 0.02 worse than at
once.
"""

from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from node.settings.sections import ThenSection
from tests.quality.toy import REPLICAS, STEPS, loss_of
from tests.quality.toy import toy as toy_of
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession
from training.models.building import read_fragment, write_fragment

pytestmark = pytest.mark.slow


@cache
def loss(name: str, seed: int = 0) -> tuple[float, int]:
    """The loss and payload of one run; each is trained once."""
    toy = partial(toy_of, seed=seed)
    sparse: dict[str, Any] = {"codec_settings": {"density": 1 / 16}, "learning_rate": 2.0}
    runs = {
        "diloco": partial(loss_of, toy()),
        "single": partial(loss_of, toy("local_sgd"), replicas=1),
        "h3": partial(loss_of, toy(inner_steps=3)),
        "h60": partial(loss_of, toy(inner_steps=60)),
        "streaming": partial(loss_of, toy("streaming_sync", inner_steps=3, codec="none")),
        "streaming_e3m0": partial(loss_of, toy("streaming_sync", inner_steps=3)),
        "in_flight": partial(loss_of, toy("streaming_diloco", inner_steps=3, codec="none")),
        "in_flight_e3m0": partial(loss_of, toy("streaming_diloco", inner_steps=3)),
        "eager": partial(loss_of, toy("eager", codec="none")),
        "late_eager": partial(
            loss_of,
            toy(codec="none", feedback=0.0, then=ThenSection(preset="eager", from_round=25)),
        ),
        "delayed": partial(loss_of, toy("one_step_delay", codec="none")),
        "delayed_momentum": partial(
            loss_of, toy("one_step_delay", codec="none", optimizer="nesterov", momentum=0.5)
        ),
        "dilocox": partial(loss_of, toy("dilocox")),
        "int8": partial(loss_of, toy("diloco_int8")),
        "int4": partial(loss_of, toy("diloco_int4")),
        "ternary": partial(loss_of, toy("diloco_ternary")),
        "graded": partial(loss_of, toy("diloco", codec="graded"), grades=(8, 4, 2, 2)),
        "sparse": partial(loss_of, toy("sparseloco", inner_steps=3, **sparse)),
        "sparse_low": partial(loss_of, toy("sparseloco", inner_steps=3, feedback=0.01, **sparse)),
        "ternary_low": partial(loss_of, toy("diloco_ternary", feedback=0.01)),
        "lowrank": partial(loss_of, toy("diloco_lowrank")),
        "lowrank_low": partial(loss_of, toy("diloco_lowrank", feedback=0.01)),
        "guard": partial(loss_of, toy("edit", codec="none")),
        "guard_poisoned": partial(loss_of, toy("edit", codec="none"), spoil=poisoned),
        "poisoned": partial(loss_of, toy(), spoil=poisoned),
        "churn": partial(loss_of, toy(), absent=ABSENT),
        "by_time": partial(
            loss_of,
            toy("a_edit", codec="none", inner_steps=48, steps=48 * BY_TIME_ROUNDS),
            steps=(12, 12, 24, 48),
        ),
    }
    return runs[name]()


BY_TIME_ROUNDS = int(0.6 * STEPS / 12)
ABSENT = frozenset(
    (round_index, (round_index // 5) % REPLICAS) for round_index in range(STEPS // 12)
)
"""One of four away for five rounds, then another: what it did meanwhile is lost."""


def poisoned(diloco: DiLoCo, model: torch.nn.Module, session: MemorySession) -> bool:
    """Of the last replica in each third round: noise, and three times the drift."""
    is_bad = session.replica == REPLICAS - 1 and diloco.clock.round % 3 == 2
    if is_bad and diloco.local_step == diloco.steps - 1:
        shard, anchor_N = session.manifest.shards[0], session.swarm.anchors[0]
        drift_N = read_fragment(model, shard, 0) - anchor_N
        write_fragment(model, shard, 0, anchor_N + 3 * drift_N)
    return is_bad


def test_q2_loss_does_not_fall_with_longer_rounds() -> None:
    short, usual, long = (loss(name)[0] for name in ("h3", "diloco", "h60"))
    assert short <= usual + 0.02
    assert usual <= long + 0.02


def test_q3_steps_while_a_fragment_is_in_flight_cost_little() -> None:
    """Tau 2 of 3 steps; what was trained meanwhile stays."""
    in_flight, _ = loss("in_flight")
    assert in_flight <= loss("diloco")[0] + 0.05
    assert abs(loss("in_flight_e3m0")[0] - in_flight) <= 0.03


def test_q3_fragments_in_turn_cost_little_and_move_a_quarter_at_a_time() -> None:
    streaming, peak = loss("streaming")
    assert streaming <= loss("diloco")[0] + 0.05
    assert abs(loss("streaming_e3m0")[0] - streaming) <= 0.03
    rounds = len(range(0, STEPS, 3))
    whole = loss("diloco")[1] / (STEPS / 12)
    assert peak / rounds == pytest.approx(whole / 4, rel=0.02)


@pytest.mark.parametrize("seed", [0, 1])
def test_q4_the_later_an_outcome_comes_the_more_it_costs(seed: int) -> None:
    """Some steps later, a round later with the own share at once, a round later. Some steps cost
    next to nothing since all that was trained meanwhile stays: 0.016 and 0.006 with the seeds."""
    at_once, *losses = (loss(name, seed)[0] for name in ("diloco", "in_flight", "eager", "delayed"))
    assert all(later >= sooner + 0.02 for sooner, later in pairwise(losses))
    assert losses[0] >= at_once - 0.01


@pytest.mark.parametrize("seed", [0, 1])
def test_q4_eager_behind_half_of_the_rounds_at_once_costs_little(seed: int) -> None:
    """A run that changes its method half-way ([outer.then])."""
    late = loss("late_eager", seed)[0]
    assert late <= loss("diloco", seed)[0] + 0.12
    assert late <= loss("eager", seed)[0] - 0.05


@pytest.mark.parametrize("seed", [0, 1])
def test_q4_momentum_and_a_round_of_delay_do_not_mix(seed: int) -> None:
    assert loss("delayed_momentum", seed)[0] >= loss("delayed", seed)[0] + 0.2


@pytest.mark.parametrize(
    ("name", "nats"), [("int8", 0.01), ("int4", 0.03), ("ternary", 0.02), ("graded", 0.02)]
)
def test_q5_coarse_codecs_with_feedback_are_as_good_as_float32(name: str, nats: float) -> None:
    assert loss(name)[0] <= loss("diloco")[0] + nats


def test_q5_ternary_all_but_without_feedback_is_worse() -> None:
    assert loss("ternary_low")[0] >= loss("ternary")[0] + 0.01


def test_q6_sparse_contributions_live_on_their_feedback() -> None:
    sparse, payload = loss("sparse")
    dense, dense_payload = loss("h3")
    assert loss("sparse_low")[0] >= sparse + 0.1
    assert sparse <= dense + 0.03
    assert loss("single")[0] >= sparse + 0.05
    assert dense_payload >= 30 * payload


def test_q7_low_rank_costs_little_with_feedback() -> None:
    assert loss("lowrank")[0] <= loss("diloco")[0] + 0.07
    assert loss("lowrank_low")[0] >= loss("lowrank")[0] + 0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_q7_low_rank_costs_as_little_with_a_round_of_delay(seed: int) -> None:
    low_rank, payload = loss("dilocox", seed)
    dense, dense_payload = loss("delayed", seed)
    assert low_rank <= dense + 0.04
    assert dense_payload >= 10 * payload


def test_q8_guard_bears_a_poisoned_peer_and_costs_nothing_among_the_clean() -> None:
    clean = loss("diloco")[0]
    assert loss("guard")[0] <= clean + 0.02
    assert loss("guard_poisoned")[0] <= clean + 0.06
    assert loss("poisoned")[0] >= loss("guard_poisoned")[0] + 0.15


def test_q9_rounds_by_time_reach_lock_step_s_loss_in_six_tenths_of_its_time() -> None:
    """Speeds 1:1:2:4, so 12 steps of the slowest last as long as 48 of the fastest."""
    assert loss("by_time")[0] <= loss("diloco")[0] + 0.01


def test_q10_churn_costs_little() -> None:
    assert loss("churn")[0] <= loss("diloco")[0] + 0.05
