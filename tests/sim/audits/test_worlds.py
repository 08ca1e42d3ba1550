"""Audits in worlds: who sends what it did not train is banned by those who ran it again."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from protocol.entry_kinds import Accusation
from protocol.evidence import Evidence
from protocol.wire import decode
from sim.attacks.work import FindsWrong
from sim.trials.scenario import overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import Outcome, run_trial

ROUNDS = 9


def audited(
    attack: str | None, seed: int, *, peers: int = 7, rounds: int = ROUNDS, **changes
) -> Outcome:
    """So many voters, of whom a quarter lies; each contribution meets an audit, on average."""
    calm = overridden(
        read_scenario("open-calm"), peers=peers, rounds=rounds, attack=attack, audits=1.0
    )
    return run_trial(replace(calm, **{"cells": 2} | changes), seed)


def accusations(found: Outcome) -> dict[str, Accusation]:
    return {
        name: decode(Evidence, bytes.fromhex(data)).accusation
        for name, data in found.evidence.items()
    }


@pytest.mark.extended
def test_liar_who_sends_what_it_did_not_train_is_banned(seed):
    found = audited("sign_flip:0.25", seed)
    assert found.violation is None
    assert found.honest_digests_equal
    assert (found.rounds_sealed, found.banned, found.false_bans) == (ROUNDS, 1, 0)
    assert accusations(found) == {"n06": Accusation.WRONG_WORK}


@pytest.mark.extended
def test_without_audits_the_same_liar_stays(seed):
    found = audited("sign_flip:0.25", seed, rounds=6, audits=0.0)
    assert found.violation is None
    assert (found.rounds_sealed, found.banned, found.evidence) == (6, 0, {})


@pytest.mark.extended
def test_auditor_who_calls_right_work_wrong_is_banned_and_nobody_else(seed):
    found = audited("lying_auditor:0.25", seed)
    assert found.violation is None
    assert (found.rounds_sealed, found.banned, found.false_bans) == (ROUNDS, 1, 0)
    assert accusations(found) == {"n06": Accusation.WRONG_VERDICT}


@pytest.mark.extended
def test_auditor_that_cannot_run_work_again_says_nothing_of_it(seed):
    """Its trainer lacks the weights, say: that is no end which differs."""
    with patch.object(FindsWrong, "reran", lambda _hooks, _found: b""):
        found = audited("lying_auditor:0.25", seed, rounds=6)
    assert found.violation is None
    assert (found.rounds_sealed, found.banned, found.evidence) == (6, 0, {})


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["scale", "shift", "slow_drift"])
def test_liars_of_other_kinds_are_banned(attack, seed):
    found = audited(f"{attack}:0.25", seed, peers=9, rounds=14)
    assert found.violation is None
    assert (found.rounds_sealed, found.banned, found.false_bans) == (14, 2, 0)
    assert set(accusations(found).values()) == {Accusation.WRONG_WORK}


@pytest.mark.slow
@pytest.mark.parametrize("fragments", [1, 4])
def test_seven_liars_of_sixteen_are_banned_at_the_usual_rate(fragments, seed):
    found = audited("scale:0.4375", seed, peers=16, rounds=30, audits=0.2, fragments=fragments)
    assert found.violation is None
    assert (found.rounds_sealed, found.banned, found.false_bans) == (30, 7, 0)
    assert set(accusations(found).values()) == {Accusation.WRONG_WORK}


@pytest.mark.slow
def test_liar_whose_segments_do_not_lead_to_each_other_is_banned_when_one_is_met(seed):
    # One of eight is bent in nearly each round: an audit meets it with one chance in nine.
    found = audited("bent_segment:0.15", seed, peers=9, rounds=70)
    assert found.violation is None
    assert (found.banned, found.false_bans) == (1, 0)


@pytest.mark.slow
def test_work_that_nobody_is_shown_costs_the_seat_for_good(seed):
    found = audited("closed_work:0.25", seed, peers=9, rounds=20)
    assert found.violation is None
    assert (found.rounds_sealed, found.evidence, found.false_bans) == (20, {}, 0)
    assert found.seats_last == 7


@pytest.mark.slow
def test_voter_whom_a_liar_shows_nothing_keeps_its_seat(seed):
    found = audited("shuts_out:0.25", seed, rounds=40)
    assert found.violation is None
    assert (found.rounds_sealed, found.evidence, found.false_bans) == (40, {}, 0)
    assert found.seats_last == 7


@pytest.mark.slow
def test_without_bans_liars_stay_though_all_is_said(seed):
    found = audited("sign_flip:0.25", seed, peers=9, without=("bans",))
    assert found.violation is None
    assert (found.rounds_sealed, found.banned, found.evidence) == (ROUNDS, 0, {})


@pytest.mark.slow
def test_honest_peers_are_audited_at_the_rate_of_the_run_and_nothing_is_said(seed):
    found = audited(None, seed, peers=12, rounds=20)
    assert found.violation is None
    assert (found.banned, found.false_bans, found.evidence) == (0, 0, {})
    # One of eight segments per contribution of all rounds but the last two: 216 draws.
    assert abs(found.audited_share - 0.9 / 8) < 0.03


# Classes whose training nobody can run again


def lone(seed: int, **changes) -> Outcome:
    """Three of nine say that their device is like no other, and train backwards."""
    return audited("lone_class:0.34", seed, peers=9, rounds=8, audits=0.25, **changes)


def uncapped(seed: int, **changes) -> Outcome:
    """Where all weigh what their tokens do, in the rules and in what checks them (I2)."""
    with (
        patch("protocol.rounds.seating.capped", lambda rows, those, law: list(rows)),
        patch("sim.checks.seating.capped_weights", lambda named, weights, *_: weights),
    ):
        return lone(seed, **changes)


@pytest.mark.slow
def test_training_that_nobody_can_run_again_does_less_harm_by_its_share(seed):
    """By the mean, so that no other rule bears them: I2 works the weights out by itself."""
    clean = audited(None, seed, peers=9, rounds=8, audits=0.25, aggregator="mean")
    losses = []
    for found in (clean, lone(seed, aggregator="mean"), uncapped(seed, aggregator="mean")):
        assert found.violation is None
        assert (found.rounds_sealed, found.banned, found.false_bans) == (8, 0, 0)
        assert found.loss_last is not None
        losses.append(found.loss_last)
    assert losses[0] < losses[1] < losses[2]


def test_weights_that_are_not_capped_are_not_what_the_listed_bytes_give(seed):
    with patch("protocol.rounds.seating.capped", lambda rows, those, law: list(rows)):
        found = lone(seed)
    assert found.violation is not None
    assert "I2" in str(found.violation)


# Less work than is claimed


def test_lazy_peer_is_banned_by_audits_of_whatever_segment(seed):
    found = audited("lazy:0.15", seed)
    assert found.violation is None
    assert (found.banned, found.false_bans) == (1, 0)
    assert accusations(found) == {"n06": Accusation.WRONG_WORK}


@pytest.mark.extended
def test_lazy_peer_is_paid_as_others_are_where_nobody_runs_its_work_again(seed):
    # Signals alone would have it audited: its work is of odd length.
    with patch("protocol.auditing.audit_rounds._meets", lambda *_: False):
        found = audited("lazy:0.15", seed, rounds=6)
    assert found.violation is None
    assert (found.rounds_sealed, found.banned, found.evidence) == (6, 0, {})
    assert found.seats_last == 7


# Several fragments, of which each round syncs one


@pytest.mark.quick(1)
@pytest.mark.parametrize("attack", ["sign_flip", "scale", "lazy", "lying_auditor"])
def test_liar_is_banned_where_each_round_syncs_another_fragment(attack, seed):
    found = audited(f"{attack}:0.25", seed, fragments=4, rounds=14)
    assert found.violation is None
    assert found.honest_digests_equal
    assert (found.rounds_sealed, found.banned, found.false_bans) == (14, 1, 0)
    kind = Accusation.WRONG_VERDICT if attack == "lying_auditor" else Accusation.WRONG_WORK
    assert accusations(found) == {"n06": kind}


@pytest.mark.quick(1)
@pytest.mark.parametrize("scenario", ["open-kill-each-phase", "open-mixed", "open-partition-half"])
def test_honest_peers_that_die_and_come_back_are_accused_of_nothing(scenario, seed):
    """Rounds go on without them, and fragments move under the weights that they go on with."""
    calm = overridden(read_scenario(scenario), audits=1.0)
    found = run_trial(replace(calm, cells=2, fragments=3, peers=(7, 9)), seed)
    assert found.violation is None
    assert (found.banned, found.false_bans, found.evidence) == (0, 0, {})
    assert found.audited_share > 0.02
