"""How many steps a node takes of a round, alone or among others, and in how many bits it encodes:
found from what it measured.
"""

import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from node.status.board import EventLog, Field
from node.trainers.choosing import (
    FIRST_STEPS,
    SHARE,
    SURELY,
    UNKNOWN_S,
    Choosing,
    Fit,
    Headway,
    Pace,
    StepsChoice,
    TrainerWatch,
    grading,
    pace_of,
)
from protocol.frames import Phase
from protocol.rounds.patience import WholeRound
from tests.protocol.vectors import MANIFEST
from training.channel.exchange import Contribution, TrainerTimes
from training.compression import CODECS
from training.compression.blocks import GradedCodec
from training.methods.method import has_equal_steps
from training.methods.presets import GRADE_FROM_MBIT

ROUNDS = 120
SETTLED = 60


def swarm(
    step_s: list[float],
    exchange_s: float,
    *,
    most: int = 2000,
    jitter: float = 0.0,
    line_s: float = 0.0,
    seed: int = 0,
) -> list[list[tuple[StepsChoice, float]]]:
    """Peers of these speeds whose rounds end `exchange_s` behind the last, of which the others hear
    `line_s` later: each round's choice of each peer, and what share of the round it trained."""
    luck = random.Random(f"{seed}/pace")
    peers, now_s, found = [Pace(steps_max=most, is_chosen=True) for _ in step_s], 0.0, []
    for _ in range(ROUNDS):
        chosen = [peer.next(now_s) for peer in peers]
        lasts = [
            choice.steps * one_s * (1.0 + jitter * luck.uniform(-1.0, 1.0))
            for choice, one_s in zip(chosen, step_s, strict=True)
        ]
        for peer, choice, last_s in zip(peers, chosen, lasts, strict=True):
            peer.handed(choice.steps, now_s + last_s)
        round_s = max(lasts) + exchange_s * (1.0 + jitter * luck.uniform(-1.0, 1.0))
        for index, (peer, last_s) in enumerate(zip(peers, lasts, strict=True)):
            others = lasts[:index] + lasts[index + 1 :]
            heard_s = now_s + max(others) + line_s if others else None
            peer.landed(round_s - last_s, now_s + round_s, last_s=heard_s)
        now_s += round_s
        found.append([(c, last_s / round_s) for c, last_s in zip(chosen, lasts, strict=True)])
    return found


def trained(rounds: list[list[tuple[StepsChoice, float]]]) -> list[float]:
    """What share of its time each peer trained, once rounds have settled."""
    behind = rounds[SETTLED:]
    return [sum(one[peer][1] for one in behind) / len(behind) for peer in range(len(behind[0]))]


@pytest.mark.parametrize("speeds", [[0.05], [0.05] * 4, [0.02, 0.02, 0.04, 0.16]])
@pytest.mark.parametrize("jitter", [0.0, 0.04])
def test_every_peer_trains_nine_tenths_of_the_time_in_the_shortest_rounds(
    speeds: list[float], jitter: float, seed: int
) -> None:
    rounds = swarm(speeds, 0.4, jitter=jitter, seed=seed)
    assert min(trained(rounds)) >= 0.9
    steps = [choice.steps * one_s for (choice, _), one_s in zip(rounds[-1], speeds, strict=True)]
    shortest_s = SHARE / (1.0 - SHARE) * 0.4
    assert shortest_s * 0.8 <= max(steps) <= shortest_s * 1.25


@pytest.mark.parametrize("speeds", [[0.018] * 2, [0.02, 0.02, 0.04, 0.16], [0.02] * 12])
@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.04])
def test_peers_that_measure_the_exchange_a_little_differently_stay_together(
    speeds: list[float], jitter: float, seed: int
) -> None:
    """Who is last measures the line as well. Each at its own measure, one aimed at rounds that are
    longer by a fifth, and all others waited for it in every round."""
    rounds = swarm(speeds, 0.5, jitter=jitter, line_s=0.1, seed=seed)
    assert min(trained(rounds)) >= 0.9
    steps = [choice.steps * one_s for (choice, _), one_s in zip(rounds[-1], speeds, strict=True)]
    assert max(steps) <= 1.35 * SHARE / (1.0 - SHARE) * 0.5


def test_many_peers_that_are_late_in_turn_do_not_make_rounds_longer(seed: int) -> None:
    """One of twelve is always late by a tenth: rounds are longer by half. If that passed for the
    exchange, they would grow until the manifest's most ends them, and who is fast would wait for
    who is slow."""
    speeds = [0.01, 0.01, 0.04] * 4
    rounds = swarm(speeds, 0.5, most=5000, jitter=0.1, seed=seed)
    steps = [choice.steps * one_s for (choice, _), one_s in zip(rounds[-1], speeds, strict=True)]
    assert max(steps) <= 1.75 * SHARE / (1.0 - SHARE) * 0.5
    assert min(trained(rounds)) >= 0.85


def test_peers_of_unequal_speed_arrive_together_and_none_waits_for_the_slowest() -> None:
    """Q9: speeds 1:1:2:4, nobody idle for a fifth of the time; with equal steps the fast ones are
    for three quarters of it."""
    speeds = [0.04, 0.04, 0.02, 0.01]
    rounds = swarm(speeds, 0.3)
    assert min(trained(rounds)) >= 0.8
    steps = [choice.steps for choice, _ in rounds[-1]]
    assert steps[3] == pytest.approx(4 * steps[0], rel=0.1)
    done_each_s = sum(steps) / (max(s * t for s, t in zip(steps, speeds, strict=True)) + 0.3)
    lock_step_s = 4 * steps[0] / (steps[0] * 0.04 + 0.3)
    assert lock_step_s <= 0.6 * done_each_s


def test_first_rounds_are_short_and_grow_at_most_twofold() -> None:
    steps = [one[0][0].steps for one in swarm([0.001], 5.0)]
    assert steps[0] == FIRST_STEPS
    assert all(after <= 2 * before for before, after in pairwise(steps))
    assert steps[-1] > 50 * FIRST_STEPS


def flying(
    step_s: list[float], exchange_s: float, *, jitter: float, seed: int
) -> list[list[tuple[StepsChoice, float]]]:
    """As `swarm`, with two rounds in flight: a round is sealed `exchange_s` behind the last of its
    contributions and behind the seal before; who handed in goes on once the round before is."""
    luck = random.Random(f"{seed}/flying")
    peers = [Pace(steps_max=2000, is_chosen=True, is_overlapped=True) for _ in step_s]
    began, sealed, found = [0.0] * len(peers), [0.0], []
    handed: list[list[float]] = [[] for _ in peers]
    for number in range(ROUNDS):
        chosen = []
        for index, one_s in enumerate(step_s):
            choice = peers[index].next(began[index])
            last_s = choice.steps * one_s * (1.0 + jitter * luck.uniform(-1.0, 1.0))
            peers[index].handed(choice.steps, began[index] + last_s)
            handed[index].append(began[index] + last_s)
            if number:
                flight_s = sealed[number] - handed[index][number - 1]
                last_s = max(times[number - 1] for times in handed)
                peers[index].landed(flight_s, sealed[number], last_s=last_s)
            chosen.append((choice, last_s))
        took_s = exchange_s * (1.0 + jitter * luck.uniform(-1.0, 1.0))
        sealed.append(max(sealed[-1], *(times[number] for times in handed)) + took_s)
        ends = [max(times[number], sealed[number]) for times in handed]
        found.append(
            [
                (choice, last_s / (end_s - began_s))
                for (choice, last_s), end_s, began_s in zip(chosen, ends, began, strict=True)
            ]
        )
        began = ends
    return found


@pytest.mark.parametrize("speeds", [[0.05], [0.05] * 4, [0.02, 0.02, 0.04, 0.16]])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_with_two_rounds_in_flight_short_rounds_are_enough(
    speeds: list[float], jitter: float, seed: int
) -> None:
    rounds = flying(speeds, 2.0, jitter=jitter, seed=seed)
    assert min(trained(rounds)) >= 0.9
    steps = [choice.steps * one_s for (choice, _), one_s in zip(rounds[-1], speeds, strict=True)]
    # With one in flight they would be 38 s.
    assert max(steps) <= 2.0 * 2.0
    assert "in flight meanwhile" in rounds[-1][0][0].why or "arrive" in rounds[-1][0][0].why


def delayed(
    step_s: list[float], exchange_s: float, *, jitter: float, seed: int
) -> list[list[tuple[StepsChoice, float]]]:
    """As `flying`, with a round of delay: who has trained waits for the seal before, hands in, and
    goes on at once. It tells how long its steps took."""
    luck = random.Random(f"{seed}/delayed")
    peers = [Pace(steps_max=2000, is_chosen=True, is_overlapped=True) for _ in step_s]
    began, sealed, found = [0.0] * len(peers), [0.0], []
    last_handed: list[float] = []
    for number in range(ROUNDS):
        chosen = [peer.next(now_s) for peer, now_s in zip(peers, began, strict=True)]
        lasts = [
            choice.steps * one_s * (1.0 + jitter * luck.uniform(-1.0, 1.0))
            for choice, one_s in zip(chosen, step_s, strict=True)
        ]
        ends = [max(a + b, sealed[number]) for a, b in zip(began, lasts, strict=True)]
        for index, peer in enumerate(peers):
            if number:
                flight_s = sealed[number] - last_handed[index]
                peer.landed(flight_s, sealed[number], last_s=max(last_handed))
            told = TrainerTimes(
                train_s=lasts[index], wait_s=ends[index] - began[index] - lasts[index]
            )
            peer.handed(chosen[index].steps, ends[index], told)
        took_s = exchange_s * (1.0 + jitter * luck.uniform(-1.0, 1.0))
        sealed.append(max(ends) + took_s)
        shares = [b / (c - a) for a, b, c in zip(began, lasts, ends, strict=True)]
        found.append(list(zip(chosen, shares, strict=True)))
        began = last_handed = ends
    return found


@pytest.mark.parametrize("speeds", [[0.05], [0.05] * 4, [0.02, 0.02, 0.04, 0.16]])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_with_a_round_of_delay_steps_grow_until_the_exchange_is_hidden(
    speeds: list[float], jitter: float, seed: int
) -> None:
    rounds = delayed(speeds, 2.0, jitter=jitter, seed=seed)
    assert min(trained(rounds)) >= 0.9
    steps = [choice.steps * one_s for (choice, _), one_s in zip(rounds[-1], speeds, strict=True)]
    assert max(steps) <= 2.0 * 2.0
    # An exchange that takes a quarter, for there is less to send, wants a quarter of the steps.
    fewer = delayed(speeds, 0.5, jitter=jitter, seed=seed)[-1]
    assert fewer[0][0].steps <= 0.5 * rounds[-1][0][0].steps


@pytest.mark.parametrize("speeds", [[0.05], [0.05] * 4, [0.02, 0.02, 0.04, 0.16]])
def test_nine_tenths_are_reached_within_twelve_rounds(speeds: list[float], seed: int) -> None:
    rounds = swarm(speeds, 2.0, most=4000, jitter=0.02, seed=seed)
    assert min(share for one in rounds[12:20] for _, share in one) >= 0.85
    behind = [one[0][1] for one in rounds[12:30]]
    assert sum(behind) / len(behind) >= 0.9


def test_latecomer_begins_with_half_of_what_rounds_had() -> None:
    pace = Pace(steps_max=300, is_chosen=True)
    assert pace.next(0.0, usual=80).steps == 40
    assert Pace(steps_max=300, is_chosen=True).next(0.0, usual=4).steps == FIRST_STEPS
    assert Pace(steps_max=300, is_chosen=True).next(0.0, usual=5000).steps == 300


def test_manifest_bounds_what_is_chosen_and_no_round_is_empty() -> None:
    assert {one[0][0].steps for one in swarm([0.001], 5.0, most=64)[SETTLED:]} == {64}
    assert "the manifest's most" in swarm([0.001], 5.0, most=64)[-1][0][0].why
    assert {one[0][0].steps for one in swarm([30.0], 0.1)[SETTLED:]} == {1}


def test_one_round_with_a_fault_in_it_changes_nothing() -> None:
    pace, now_s = Pace(steps_max=1000, is_chosen=True), 0.0
    steps = []
    for number in range(80):
        choice = pace.next(now_s)
        steps.append(choice.steps)
        pace.handed(choice.steps, now_s + choice.steps * 0.05)
        now_s += choice.steps * 0.05 + (60.0 if number == 70 else 0.5)
    assert max(steps[71:]) <= 1.1 * steps[70]


def test_where_nothing_is_chosen_it_is_measured_all_the_same() -> None:
    pace = Pace(steps_max=50, is_chosen=False)
    for number in range(5):
        assert pace.next(10.0 * number).steps == 50
        pace.handed(50, 10.0 * number + 5.0)
    choice = pace.next(50.0)
    assert (choice.step_s, choice.exchange_s, choice.computing) == (0.1, 5.0, 0.5)


def busy(
    step_s: float, exchange_s: float, beside_s: float, *, is_chosen: bool = True, most: int = 5000
) -> list[tuple[StepsChoice, float]]:
    """One peer whose trainer encodes and saves for so long behind its steps: each choice, and what
    share of its round was steps."""
    peer, now_s, found = Pace(steps_max=most, is_chosen=is_chosen), 0.0, []
    for _ in range(ROUNDS):
        choice = peer.next(now_s)
        train_s = choice.steps * step_s
        handed_s = now_s + train_s + beside_s
        told = TrainerTimes(train_s=train_s, encode_s=0.7 * beside_s, save_s=0.3 * beside_s)
        peer.handed(choice.steps, handed_s, told)
        peer.landed(exchange_s, handed_s + exchange_s)
        found.append((choice, train_s / (train_s + beside_s + exchange_s)))
        now_s = handed_s + exchange_s
    return found


def test_encoding_and_saving_pass_neither_for_steps_nor_for_computing() -> None:
    """At 123M parameters five steps of 2.2 s took 11 s, and encoding and saving as long again."""
    choice, share = busy(2.2, 6.0, 11.0, is_chosen=False, most=5)[-1]
    assert choice.step_s == pytest.approx(2.2)
    assert choice.computing == pytest.approx(share) == pytest.approx(11.0 / 28.0)
    assert choice.exchange_s == pytest.approx(6.0)


@pytest.mark.parametrize("beside_s", [0.0, 0.5, 11.0])
def test_nine_tenths_are_steps_however_long_encoding_takes(beside_s: float) -> None:
    rounds = busy(0.1, 2.0, beside_s)
    assert sum(share for _, share in rounds[SETTLED:]) / (ROUNDS - SETTLED) >= 0.9
    steps_s = rounds[-1][0].steps * 0.1
    shortest_s = SHARE / (1.0 - SHARE) * (2.0 + beside_s)
    assert shortest_s * 0.8 <= steps_s <= shortest_s * 1.25
    assert ("encoding" in rounds[-1][0].why) == (beside_s > 0.0) or "arrive" in rounds[-1][0].why


def test_what_the_trainer_does_itself_is_not_hidden_by_a_round_in_flight() -> None:
    peer = Pace(steps_max=5000, is_chosen=True, is_overlapped=True)
    now_s = 0.0
    for _ in range(ROUNDS):
        train_s = peer.next(now_s).steps * 0.1
        now_s += train_s + 3.0
        peer.handed(round(train_s / 0.1), now_s, TrainerTimes(train_s=train_s, encode_s=3.0))
        peer.landed(2.0, now_s)
    assert train_s / (train_s + 3.0) >= 0.9


def test_whoever_waits_for_each_outcome_hides_nothing() -> None:
    flight = TrainerWatch()
    for began_s in (0.0, 10.0, 20.0):
        flight.goes_on(began_s)
        flight.handed(began_s + 6.0)
        assert flight.landed(began_s + 9.0) == pytest.approx(3.0)
    assert flight.take() == pytest.approx((9.0, 0.0))
    assert flight.take() is None


def test_steps_while_two_are_in_flight_count_for_both() -> None:
    flight = TrainerWatch()
    flight.goes_on(0.0)
    flight.handed(10.0)
    flight.goes_on(11.0)
    flight.handed(15.0)
    flight.landed(20.0)  # Of ten seconds it stepped four, and then waited.
    assert flight.take() == pytest.approx((10.0, 4.0))
    flight.goes_on(21.0)
    flight.landed(24.0)  # In the midst of its steps.
    assert flight.take() == pytest.approx((9.0, 3.0))
    flight.handed(30.0)
    flight.goes_on(30.0)
    flight.landed(31.0)
    assert flight.take() == pytest.approx((1.0, 1.0))


def test_what_never_stepped_hides_nothing() -> None:
    flight = TrainerWatch()
    flight.handed(5.0)
    flight.landed(7.0)
    assert flight.take() == pytest.approx((2.0, 0.0))


ALL = GradedCodec()


def test_codec_without_grades_is_left_alone() -> None:
    assert grading(CODECS["int8"](), 0, 500.0).bits == 0


def test_until_the_line_is_known_it_is_the_usual_or_the_last() -> None:
    assert grading(GradedCodec(usual=4), 0, None).bits == 4
    assert grading(ALL, 8, None).bits == 8
    assert "until enough has been sent" in grading(ALL, 0, None).why


@pytest.mark.parametrize(
    ("mbit", "bits"), [(1.0, 2), (39.0, 2), (51.0, 4), (99.0, 4), (126.0, 8), (1e5, 8)]
)
def test_line_decides(mbit: float, bits: int) -> None:
    found = grading(ALL, 0, mbit)
    assert found.bits == bits
    assert f"{mbit:.0f} Mbit/s leave this node" in found.why


@pytest.mark.parametrize("bits", [4, 8])
def test_line_at_the_edge_does_not_change_the_grade_with_every_round(bits: int) -> None:
    edge = GRADE_FROM_MBIT[bits]
    coarser = bits // 2
    for before in (bits, coarser):
        assert grading(ALL, before, edge * 1.01).bits == before
    assert grading(ALL, bits, edge * 0.99).bits == coarser
    assert grading(ALL, coarser, edge * SURELY).bits == bits


def test_run_may_allow_fewer_grades_than_there_are() -> None:
    assert grading(GradedCodec(finest=4), 0, 1e4).bits == 4
    assert grading(GradedCodec(coarsest=4, usual=4), 0, 1.0).bits == 4


# How far it is ------------------------------------------------------------------------------------


def test_headway_says_what_a_trainer_does_and_how_long_that_takes_by_the_round_before():
    headway = Headway()
    for round_index, start_s in ((4, 0.0), (5, 100.0)):
        headway.begins(round_index, 10, 40 * round_index, start_s)
        is_known = round_index == 5
        said = headway.working(start_s + 1.0)
        assert (said.round, said.phase, said.total) == (round_index, Phase.BEGIN, 1)
        assert said.end_s == (2.0 if is_known else UNKNOWN_S)
        for step in range(10):
            headway.progressed(40 * round_index + step, start_s + 2.0 + 3.0 * step)
        said = headway.working(start_s + 30.0)
        assert (said.phase, said.done, said.total) == (Phase.TRAIN, 9, 10)
        assert said.end_s == pytest.approx(3.0)
        said = headway.working(start_s + 33.0)
        assert (said.phase, said.end_s) == (Phase.ENCODE, 8.0 if is_known else UNKNOWN_S)
        headway.handed(start_s + 40.0)


# Steps that fit -----------------------------------------------------------------------------------


def fitted(own_s: float, fastest_s: float, *, rounds: int = 3) -> list[int]:
    """Steps of one round after the other of a node that takes so long for a whole one."""
    fit, steps, found = Fit(), 50, []
    for _ in range(rounds):
        fit.trained(steps, own_s * steps / 50, 50)
        fit.saw(WholeRound(fastest_s, 2.0 * own_s))
        steps = fit.steps(50)
        found.append(steps)
    return found


@pytest.mark.parametrize(
    ("own_s", "steps"), [(60.0, 50), (65.0, 50), (120.0, 25), (240.0, 12), (1e6, 1)]
)
def test_each_takes_the_share_of_steps_that_fits_its_speed(own_s, steps):
    assert fitted(own_s, 60.0) == [steps] * 3


def test_one_round_with_a_fault_in_it_changes_no_steps():
    fit = Fit()
    for took_s in (60.0, 300.0, 60.0):
        fit.trained(50, took_s, 50)
        fit.saw(WholeRound(60.0, 60.0))
    assert fit.steps(50) == 50


@pytest.mark.parametrize(
    ("changes", "is_equal"),
    [
        ({}, False),
        ({"inner": {"equal_steps": True}}, True),
        ({"outer": {"preset": "scaffold"}}, True),
        ({"outer": {"overlap": 2, "then": ()}}, False),
        ({"outer": {"overlap": 2}}, True),
    ],
)
def test_manifest_and_method_say_whether_steps_are_equal(changes, is_equal):
    parts = {name: replace(getattr(MANIFEST, name), **more) for name, more in changes.items()}
    manifest = replace(MANIFEST, **parts)
    assert has_equal_steps(manifest) == is_equal
    fit = pace_of(manifest).fit
    assert fit is not None
    assert fit.is_equal == is_equal


@pytest.mark.parametrize(("own_s", "steps"), [(60.0, 50), (65.0, 46), (120.0, 25), (1e6, 1)])
def test_with_two_rounds_in_flight_who_is_a_little_slower_takes_fewer_steps(own_s, steps):
    """Nobody begins a round together with the others, so what it takes longer adds up."""
    fit = Fit(is_overlapped=True)
    for took_s in (own_s - 10.0, own_s + 10.0):
        fit.trained(50, took_s, 50)
        fit.saw(WholeRound(60.0, 2.0 * own_s))
    assert fit.steps(50) == steps


def test_equal_steps_are_all_of_them_and_what_they_take_is_told():
    fit = Fit(is_equal=True)
    assert (fit.own_s, fit.fastest_s, fit.slowest_s) == (None, None, None)
    fit.trained(50, 120.0, 50)
    fit.saw(WholeRound(60.0, 125.0, 122.0))
    assert fit.steps(50) == 50
    assert (fit.own_s, fit.fastest_s, fit.slowest_s) == (122.0, 60.0, 125.0)


@pytest.mark.parametrize("is_equal", [True, False])
def test_choice_tells_what_whole_rounds_take_here_and_elsewhere(is_equal):
    told: list[dict[str, Field]] = []
    log = EventLog(None, 0.0, (SimpleNamespace(emit=lambda _, **fields: told.append(fields)),))
    manifest = replace(MANIFEST, inner=replace(MANIFEST.inner, equal_steps=is_equal))
    steps = manifest.inner.inner_steps
    choosing = Choosing(manifest, 1, log, lambda: None)
    choosing.next(1, 0.0, usual=0)
    contribution = Contribution(
        payloads=(), tokens=0, samples=0, steps=steps, loss=0.0, residual_before=b"",
        residual_after=b"", fragment=0,
    )  # fmt: skip
    choosing.handed(1, contribution, 120.0)
    choosing.saw(WholeRound(60.0, 130.0, 122.0))
    choosing.landed(131.0, last_s=None)
    choosing.next(2, 131.0, usual=steps)
    assert told[0]["whole_s"] is None
    names = ("equal_steps", "whole_s", "fastest_s", "slowest_s")
    assert [told[1][name] for name in names] == [is_equal, 122.0, 60.0, 130.0]
    assert (told[1]["steps"] == steps) == is_equal


def fitted_to_its_line(sends_s: float, *, rounds: int = 4) -> tuple[list[int], Fit]:
    """Steps of a node that trains as fast as the others, whose parts take three seconds."""
    fit, steps, found = Fit(), 50, []
    for _ in range(rounds):
        fit.trained(steps, 60.0 * steps / 50, 50)
        fit.saw(WholeRound(60.0, 60.0))
        fit.exchanged(sends_s, 3.0)
        steps = fit.steps(50)
        found.append(steps)
    return found, fit


@pytest.mark.parametrize(("sends_s", "steps"), [(3.0, 50), (9.0, 50), (30.0, 28), (62.0, 1)])
def test_each_takes_so_many_steps_that_its_parts_come_with_those_of_the_fastest(sends_s, steps):
    found, fit = fitted_to_its_line(sends_s)
    assert found == [50, steps, steps, steps], "one measurement of the line is not trusted"
    assert not fit.too_slow


def test_one_transfer_that_waited_takes_no_steps():
    fit = Fit()
    for sends_s in (300.0, 3.0, 300.0):
        fit.trained(50, 60.0, 50)
        fit.saw(WholeRound(60.0, 60.0))
        fit.exchanged(sends_s, 3.0)
        assert fit.steps(50) == 50


def test_line_that_no_number_of_steps_fits_is_said_with_what_would_help():
    found, fit = fitted_to_its_line(90.0)
    assert found == [50, 50, 50, 50], "fewer would be for nothing"
    assert "takes 90 s" in fit.too_slow
    assert "done in 63 s" in fit.too_slow
    assert "codec" in fit.too_slow


def test_line_that_is_too_slow_is_warned_of_and_taken_back():
    told = []
    sink = SimpleNamespace(emit=lambda event, **fields: told.append((event, fields)))
    choosing = Choosing(MANIFEST, 1, EventLog(None, 0.0, (sink,)), lambda: None)
    for sends_s in (90.0, 90.0, 90.0, 3.0):
        choosing.saw(WholeRound(60.0, 60.0))
        choosing.sent((sends_s, 3.0))
    warned = [fields["text"] for event, fields in told if event == "warning"]
    assert len(warned) == 3
    assert warned[0] == warned[1] != ""
    assert warned[2] == ""
