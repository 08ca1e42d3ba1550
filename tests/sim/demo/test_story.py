"""When the demo kills and adds a node, and its verdict on the round in which it killed."""

import dataclasses
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from sim.demo import story
from sim.demo.story import DemoOptions
from sim.demo.swarm_view import SwarmView
from sim.processes import events
from sim.processes.node_process import TEST_SWITCHES
from tests.sim.demo.scene import options, phase, seal, sealed, start, whole_demo


def swarm(sealed_rounds: int, peers: str = "ABCD", voters: int | None = None) -> SwarmView:
    view = SwarmView(num_rounds=40)
    start(view, peers)
    for index in range(1, sealed_rounds + 1):
        count = len(peers) if voters is None else voters
        seal(view, index, peers, peers, 3.0 + index, voters=count)
    return view


def pushing(view: SwarmView, index: int, name: str = "A") -> SwarmView:
    view.fold(name, phase("pushing", index), 60.0)
    return view


def test_founder_is_killed_when_its_parts_are_on_their_way_after_a_third_of_the_run():
    assert story.should_kill_founder(options(), pushing(swarm(13), 14))


@pytest.mark.parametrize(
    ("why", "view"),
    [
        ("the founder still trains", swarm(13)),
        ("only a peer pushes", pushing(swarm(13), 14, "B")),
        ("it is too early", pushing(swarm(12), 13)),
        ("not everybody votes", pushing(swarm(13, voters=3), 14)),
        ("the round is sealed already", pushing(swarm(14), 14)),
        ("nothing is sealed", pushing(swarm(0), 14)),
    ],
)
def test_founder_is_not_killed_at_any_other_moment(why, view):
    assert not story.should_kill_founder(options(), view), why


def test_founder_is_not_killed_among_three():
    view = pushing(swarm(13, "ABC"), 14)
    assert not story.should_kill_founder(options(peers=3), view)


def test_founder_is_not_killed_while_its_trainer_is_unknown():
    view = pushing(swarm(13), 14)
    view.nodes["A"].trainer_pid = None
    assert not story.should_kill_founder(options(), view)


def test_founder_is_killed_once():
    view = pushing(swarm(13), 14)
    view.kill("A", 60.0)
    assert not story.should_kill_founder(options(), view)


def test_latecomer_waits_until_the_killed_round_is_settled():
    view = pushing(swarm(13), 14)
    view.kill("A", 60.0)
    assert not story.should_start_latecomer(options(), view)
    seal(view, 14, "BCD", "BCD", 63.0)
    assert story.should_start_latecomer(options(), view)
    start(view, "E")
    assert not story.should_start_latecomer(options(), view)


def test_latecomer_of_a_demo_without_a_kill_comes_after_a_third():
    assert not story.should_start_latecomer(options(peers=2), swarm(13, "AB"))
    assert story.should_start_latecomer(options(peers=2), swarm(14, "AB"))


def test_latecomer_gets_its_turn_when_the_kill_does_not_come_about():
    assert not story.should_start_latecomer(options(), swarm(23, voters=2))
    assert story.should_start_latecomer(options(), swarm(24, voters=2))


def test_run_is_over_when_every_survivor_has_finished():
    view = whole_demo(options())
    assert story.is_over(view)
    assert [node.name for node in story.finishers(view)] == ["B", "C", "D", "E"]
    assert story.num_joined_late(view) == 1


def test_run_waits_for_a_latecomer_that_takes_part():
    view = whole_demo(options())
    view.nodes["E"].status = "training"
    assert not story.is_over(view)
    assert not story.is_over_but_for_latecomer(view)


def test_latecomer_that_never_took_part_holds_nobody_up():
    view = swarm(40, "AB")
    start(view, "C")
    for name in "AB":
        view.fold(name, events.Finished(round=40, checkpoint="x"), 70.0)
    assert not story.is_over(view)
    assert story.is_over_but_for_latecomer(view)
    assert [node.name for node in story.finishers(view)] == ["A", "B"]
    assert story.num_joined_late(view) == 0
    assert "C came too late" in story.tell(options(peers=2), view)


def test_demo_falls_short_when_weights_seals_or_a_latecomers_state_differ():
    view = whole_demo(options())
    assert story.shortcoming(view, are_anchors_equal=True) is None
    assert "not equal" in str(story.shortcoming(view, are_anchors_equal=False))
    view.fold("C", sealed(7, "ABCD", digest="0" * 64), 80.0)
    assert "round 7" in str(story.shortcoming(view, are_anchors_equal=True))


def test_latecomer_whose_state_never_fitted_is_a_shortcoming():
    view = swarm(40, "AB")
    start(view, "C")
    assert story.shortcoming(view, are_anchors_equal=True) is None
    view.fold("C", events.Resynced(reason="other root"), 70.0)
    assert "the state of C" in str(story.shortcoming(view, are_anchors_equal=True))
    assert "1 times its state was not" in story.tell(options(peers=2), view)


def test_last_losses_are_waited_for_while_the_node_lives():
    view = whole_demo(options())
    assert story.has_last_losses(view)
    del view.nodes["C"].validations[40]
    assert not story.has_last_losses(view)
    view.nodes["C"].has_ended = True
    assert story.has_last_losses(view)


def killed(listed: str | None, got_parts: str = "") -> SwarmView:
    view = pushing(swarm(13), 14)
    view.kill("A", 60.0)
    for name in got_parts:
        parts = events.PartsMoved(round=14, peer=view.nodes["A"].peer, cells=8, direction="in")
        view.fold(name, parts, 60.1)
    if listed is not None:
        for name, late_s in zip("BCD", (0.0, 0.5, 1.0), strict=True):
            seal(view, 14, name, listed, 63.0 + late_s, attempt=1)
    return view


@pytest.mark.parametrize(
    ("listed", "outcome", "words"),
    [
        ("ABCD", "listed", "sealed the round with A's contribution, in the second attempt, 3.0 s"),
        ("BCD", "not listed", "sealed the round without A's contribution"),
        ("", "carried", "carried the round, with nobody's contribution"),
    ],
)
def test_verdict_says_what_became_of_the_killed_round(listed, outcome, words):
    view = killed(listed)
    verdict = story.killed_round(view)
    assert verdict is not None
    assert (verdict.round, verdict.outcome, verdict.attempt) == (14, outcome, 1)
    assert (verdict.first_s, verdict.all_s) == (3.0, 4.0)
    assert words in story.tell(options(), view)


def test_verdict_names_the_survivors_that_had_all_parts():
    view = killed("BCD", got_parts="BD")
    verdict = story.killed_round(view)
    assert verdict is not None
    assert verdict.got_parts == ("B", "D")
    assert "B and D had received all of them" in story.tell(options(), view)


def test_verdict_is_open_until_a_survivor_has_sealed():
    view = killed(None)
    view.fold("A", events.StateFetched(round=14), 61.0)
    verdict = story.killed_round(view)
    assert verdict is not None
    assert (verdict.outcome, verdict.first_s, verdict.all_s) == ("open", None, None)
    assert "have not sealed that round" in story.tell(options(), view)


def test_seal_of_the_dead_node_alone_decides_nothing():
    view = pushing(swarm(13), 14)
    view.kill("A", 60.0)
    seal(view, 14, "A", "ABCD", 60.1)
    verdict = story.killed_round(view)
    assert verdict is not None
    assert verdict.outcome == "open"


def test_demo_without_its_kill_says_so():
    assert story.killed_round(swarm(40)) is None
    assert "Nobody was killed" in story.tell(options(), swarm(40))
    assert story.tell(options(peers=2), swarm(40, "AB")) == ""


@pytest.mark.parametrize(
    "change", [{"peers": 1}, {"peers": 17}, {"rounds": 0}, {"test_switch": "magic"}]
)
def test_options_out_of_range_are_refused_by_name(change):
    (name,) = change
    with pytest.raises(ConfigError, match=name.replace("_", ".")):
        options(**change)


@pytest.mark.parametrize("switch", TEST_SWITCHES)
def test_switch_reaches_all_nodes_but_that_for_latecomers(switch):
    chosen = options(test_switch=switch)
    assert chosen.switches_for(is_late=True) == (switch,)
    expected = () if switch == "skip-outer-state" else (switch,)
    assert chosen.switches_for(is_late=False) == expected


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DemoOptions(peers=2, rounds=1, seed=0, folder=Path()).peers = 3  # type: ignore[misc]
