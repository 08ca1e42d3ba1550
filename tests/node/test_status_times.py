"""What status says of where the time of a round went, and over what a loss was measured."""

from typing import Any

from rich.console import Console, RenderableType

from node.status.records import PHASES, NodeStatus, PhaseTimes, from_plain
from node.status.snapshot import snapshot
from node.status.tables import draw_rounds, draw_status
from node.text.shown import to_plain
from tests.node.cores import A, B, C, core_of
from tests.node.status_scene import board_at, sealed, sources_of

TOLD: dict[str, Any] = {
    "round": 4,
    "steps": 50,
    "round_s": 112.0,
    "train_s": 104.0,
    "validate_s": 1.0,
    "encode_s": 2.0,
    "save_s": 0.5,
    "audit_s": 0.0,
    "wait_s": 0.25,
    "exchange_s": 3.0,
    "seal_s": 1.25,
}


def scene(*events: tuple[str, dict[str, Any]]) -> Any:
    board = board_at(0.0)
    for event, fields in events:
        board.emit(event, **fields)
    return snapshot(sources_of(core_of(A, B, C), board), 1.0)


def drawn(what: RenderableType) -> str:
    console = Console(width=300, no_color=True)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_a_round_is_told_by_phases_of_its_whole_time() -> None:
    status = scene(("times", TOLD)).status
    expected = PhaseTimes(**{name: value for name, value in TOLD.items() if name != "round"})
    assert status.last_times == status.total_times == expected
    assert sum(expected.share(phase) for phase in PHASES) == 1.0
    assert from_plain(NodeStatus, to_plain(status)).last_times == expected
    assert (
        "a round of 112.0 s: train 92.9%, validate 0.9%, encode 1.8%, save 0.4%, wait 0.2%, "
        "exchange 2.7%, seal 1.1%"
    ) in drawn(draw_status(status))


def test_rounds_are_summed_up_from_the_start() -> None:
    status = scene(("times", TOLD), ("times", {**TOLD, "train_s": 50.0, "round_s": 58.0})).status
    assert status.last_times.train_s == 50.0
    assert status.total_times.train_s == 154.0
    assert (status.total_times.round_s, status.total_times.steps) == (170.0, 100)


def test_before_the_first_contribution_nothing_is_told_of_times() -> None:
    status = scene().status
    assert (status.last_times, status.total_times) == (None, None)
    assert "a round of" not in drawn(draw_status(status))


def test_loss_over_some_of_the_windows_says_so_and_one_over_all_does_not() -> None:
    partial = ("validation", {"round": 1, "loss": 2.5, "windows": 48, "of_windows": 128})
    whole = ("validation", {"round": 2, "loss": 2.25, "windows": 128, "of_windows": 128})
    first = scene(("sealed", sealed(1)), partial)
    text = drawn(draw_status(first.status))
    assert "2.5000 nats per byte after round 1, over 48 of 128 windows" in text
    assert (first.status.validation_windows, first.status.validation_of) == (48, 128)
    assert first.rounds.rounds[0].validation_windows == 48
    table = drawn(draw_rounds(first.rounds))
    assert "~2.5000" in table
    assert "over some of the held-out windows" in table
    both = scene(("sealed", sealed(1)), partial, ("sealed", sealed(2)), whole)
    assert "windows" not in drawn(draw_status(both.status))
    assert " 2.2500" in drawn(draw_rounds(both.rounds))
    only = scene(("sealed", sealed(2)), whole)
    assert "~" not in drawn(draw_rounds(only.rounds))
