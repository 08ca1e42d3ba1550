"""What status says of the method: what was chosen for the round in hand, and why."""

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from node.status.records import EQUAL_STEPS, LEFT_OUT, MethodRecord, NodeStatus, from_plain
from node.status.snapshot import snapshot
from node.status.tables import draw_status
from node.text.shown import to_plain
from tests.node.cores import A, B, C, core_of
from tests.node.status_scene import board_at, sealed, sources_of

TOLD: dict[str, Any] = {
    "preset": "auto",
    "codec": "ternary",
    "fragments": 1,
    "steps": 120,
    "steps_max": 400,
    "why": "95% of a round of 12.0 s, to arrive with the others",
    "step_s": 0.1,
    "exchange_s": 0.6,
    "computing": 0.94,
}


def status_after(*events: dict[str, Any]) -> NodeStatus:
    board = board_at(0.0)
    for fields in events:
        board.emit("method", **fields)
    return snapshot(sources_of(core_of(A, B, C), board), 1.0).status


def drawn(status: NodeStatus) -> str:
    console = Console(width=300, no_color=True)
    with console.capture() as capture:
        console.print(draw_status(status))
    return capture.get()


def test_choice_and_its_reason_are_told_in_json_and_to_people() -> None:
    status = status_after({**TOLD, "steps": 5}, TOLD)
    assert status.method == MethodRecord(**TOLD)
    assert from_plain(NodeStatus, to_plain(status)).method == status.method
    text = drawn(status)
    assert "auto, codec ternary; 120 steps a round of at most 400" in text
    assert "to arrive with the others" in text
    assert "a step 100 ms, an exchange 0.60 s, 94% of the time in steps" in text


@pytest.mark.parametrize("events", [(), ({**TOLD, "step_s": None, "exchange_s": None},)])
def test_what_is_not_measured_yet_is_not_told(events: tuple[dict[str, Any], ...]) -> None:
    status = status_after(*events)
    assert (status.method is None) == (not events)
    assert "of the time in steps" not in drawn(status)


EQUAL: dict[str, Any] = {"equal_steps": True, "whole_s": 55.0, "fastest_s": 40.0, "slowest_s": 71.0}


def test_with_equal_steps_status_says_what_they_take_here_and_on_the_others() -> None:
    status = status_after({**TOLD, **EQUAL})
    assert from_plain(NodeStatus, to_plain(status)).method == MethodRecord(**TOLD, **EQUAL)
    said = "the steps of one take 55.0 s here, 40.0 s on the fastest machine, 71.0 s on the slowest"
    assert f"{EQUAL_STEPS}: {said}" in drawn(status)
    early = status_after({**TOLD, **EQUAL, "fastest_s": None, "slowest_s": None})
    assert EQUAL_STEPS in drawn(early)
    assert "on the fastest" not in drawn(early)


def test_where_steps_fit_nothing_is_said_of_equal_ones() -> None:
    assert EQUAL_STEPS not in drawn(status_after({**TOLD, **EQUAL, "equal_steps": False}))


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_status_says_why_the_last_round_is_without_this_node(left_out: str) -> None:
    board = board_at(0.0)
    board.emit("sealed", **sealed(1, was_listed=False, left_out=left_out))
    status = snapshot(sources_of(core_of(A, B, C), board), 1.0).status
    assert status.last_round is not None
    assert status.last_round.left_out == left_out
    assert f"without this node: {LEFT_OUT[left_out]}" in drawn(status)


def test_node_that_is_set_back_reads_until_when_and_why() -> None:
    status = replace(status_after(), set_back_until=15)
    assert from_plain(NodeStatus, to_plain(status)).set_back_until == 15
    assert "last to sum and to propose until round 15, for it kept others waiting" in drawn(status)
