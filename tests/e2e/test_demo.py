"""`barnraise demo` holds what it promises, and its checks can fail."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.demo_command import Ended, run_demo, running_demo

pytestmark = [pytest.mark.slow, pytest.mark.net]

SHORT = ("--peers", "2", "--rounds", "14")
"""Long enough for the latecomer to take part."""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The demo as it is, once for all tests that look at it."""
    return run_demo(tmp_path_factory.mktemp("four"), "--peers", "4")


def test_demo_of_four_kills_one_adds_one_and_ends_with_equal_weights(four):
    report = four.report
    assert four.status == 0, four.progress[-3000:]
    assert (report["peers"], report["rounds_sealed"]) == (4, 40)
    assert report["anchors_equal"] is True
    assert (report["killed"], report["joined_late"]) == (1, 1)
    assert len(report["pids"]) == len(set(report["pids"])) == 2 * (4 + 1)
    assert report["killed_round"]["outcome"] in ("listed", "not listed", "carried")
    assert (report["disagreements"], report["faults"], report["error"]) == ([], [], None)


def test_demo_of_four_is_better_than_one_node_alone(four):
    assert four.report["loss_last"] <= 2.0
    assert four.report["loss_last"] <= four.report["loss_alone"] - 0.08
    assert four.report["loss_first"] > 5.0


def test_demo_of_four_is_in_time(four):
    assert four.report["wall_s"] < 120.0
    assert four.report["first_seal_s"] < 20.0


def test_demo_tells_each_round_and_leaves_its_pictures(four):
    lines = four.progress.splitlines()
    assert sum(" sealed: " in line for line in lines) == 40
    folder = Path(four.report["folder"])
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "A killed" in (folder / "index.html").read_text("utf-8")
    assert not (folder / "nodes").exists()


def test_node_that_was_told_only_one_address_exchanged_parts_with_the_others(four):
    exchanges = four.report["exchanges"]
    # All but E were told A's address only, and E only B's.
    assert {"C", "D"} <= set(exchanges["B"])
    assert {"C", "D"} <= set(exchanges["E"])


def test_node_that_was_told_only_one_address_meets_nobody_else_without_the_directory(tmp_path):
    ended = run_demo(tmp_path, "--peers", "3", "--rounds", "8", "--test-switch", "no-directory")
    exchanges = ended.report["exchanges"]
    assert "C" not in exchanges["B"]
    assert "B" not in exchanges["C"]


def test_demo_of_two_kills_nobody(tmp_path):
    ended = run_demo(tmp_path, *SHORT)
    report = ended.report
    assert ended.status == 0, ended.progress[-3000:]
    assert (report["killed"], report["killed_round"], report["joined_late"]) == (0, None, 1)
    assert (report["anchors_equal"], report["faults"]) == (True, [])
    assert len(set(report["pids"])) == 2 * (2 + 1)


def test_own_update_in_place_of_the_aggregate_shows_in_the_weights(tmp_path):
    ended = run_demo(tmp_path, "--peers", "2", "--rounds", "6", "--test-switch", "own-update")
    assert ended.report["anchors_equal"] is False
    assert ended.status == 1


def test_flipped_byte_is_a_fault_and_does_no_harm(tmp_path):
    ended = run_demo(tmp_path, "--peers", "2", "--rounds", "6", "--test-switch", "flip-byte")
    assert {(fault["by"], fault["of"]) for fault in ended.report["faults"]} >= {("A", "B")}
    assert ended.report["anchors_equal"] is True


def test_latecomer_without_the_outer_state_does_not_get_in(tmp_path):
    ended = run_demo(tmp_path, *SHORT, "--test-switch", "skip-outer-state")
    assert ended.report["joined_late"] == 0
    assert ended.status == 1


def test_killing_the_demo_leaves_no_process(tmp_path):
    with running_demo(tmp_path, "--peers", "3") as demo:
        demo.wait_for("round  2 of 40 sealed")
        assert len(demo.processes()) == 1 + 2 * 3
        os.kill(demo.process.pid, signal.SIGKILL)
        demo.process.wait()
        demo.wait_until_gone(5.0)


@pytest.mark.parametrize("is_group", [True, False], ids=["terminal", "parent only"])
def test_interrupt_ends_everything_with_a_message(tmp_path, is_group):
    with running_demo(tmp_path, "--peers", "3") as demo:
        demo.wait_for("round  2 of 40 sealed")
        send = os.killpg if is_group else os.kill
        send(demo.process.pid, signal.SIGINT)
        demo.wait_until_gone(3.0)
        assert demo.process.wait() == 130
        assert demo.process.stdout is not None
        said = demo.process.stdout.read()
        assert "Stopped. No process is left running" in said
        assert "Traceback" not in said
