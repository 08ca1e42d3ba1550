"""What people see: lines without a terminal, a picture in one."""

import io

import pytest
from rich.console import Console

from sim.demo.display import (
    LineDisplay,
    LiveDisplay,
    Scene,
    draw_scene,
    open_display,
    print_result,
    result_lines,
    sparkline,
    tell_duration,
    time_left_s,
)
from sim.demo.swarm_view import SwarmView
from sim.processes import events
from tests.sim.demo.scene import ROUND_S, options, seal, sealed, start, whole_demo, whole_result


def console(*, is_terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=80, force_terminal=is_terminal, color_system=None, height=40
    )


def printed(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


@pytest.fixture
def view() -> SwarmView:
    swarm = SwarmView(num_rounds=10)
    start(swarm, "AB")
    return swarm


def test_lines_are_one_per_sealed_round(view):
    out = console()
    display = LineDisplay(out)
    scene = Scene(view=view, now_s=lambda: 9.0)
    for index in (1, 2):
        seal(view, index, "AB", "AB", 3.0 + ROUND_S * index)
        for _ in range(3):
            display.changed(scene)
            display.tick(scene)
    lines = printed(out).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[   4.5 s] round  1 of 10 sealed: 2 of 2 listed, attempt 0, 1.5 s")
    assert "loss" in lines[1]
    assert "left" in lines[1]


def test_line_of_a_round_waits_for_its_loss_or_until_two_more_are_sealed(view):
    out = console()
    display = LineDisplay(out)
    scene = Scene(view=view, now_s=lambda: 9.0)
    view.fold("A", sealed(1, "AB"), 4.0)
    display.changed(scene)
    assert printed(out) == ""
    view.fold("A", sealed(2, "AB"), 5.0)
    display.changed(scene)
    assert printed(out) == ""
    view.fold("A", sealed(3, "AB"), 6.0)
    display.changed(scene)
    assert printed(out).count("sealed") == 1
    view.fold("A", events.Validated(round=2, loss=2.718), 6.2)
    display.changed(scene)
    assert "round  2 of 10 sealed: 2 of 2 listed, attempt 0, 1.5 s  loss 2.718" in printed(out)


def test_lines_keep_the_order_of_what_happened(view):
    out = console()
    display = LineDisplay(out)
    scene = Scene(view=view, now_s=lambda: 9.0)
    view.fold("A", sealed(1, "AB"), 4.0)
    view.fold("B", events.Resynced(reason="other root"), 4.1)
    display.changed(scene)
    assert printed(out) == ""
    display.finish(scene)
    assert [line[:20] for line in printed(out).splitlines()] == [
        "[   4.0 s] round  1 ",
        "[   4.1 s] B takes a",
    ]


def test_last_round_without_a_loss_is_told_when_the_swarm_is_done(view):
    out = console()
    display = LineDisplay(out)
    scene = Scene(view=view, now_s=lambda: 9.0)
    view.fold("A", sealed(1, "AB"), 4.0)
    scene.start_measuring()
    display.changed(scene)
    assert [line.split("]")[1][:8] for line in printed(out).splitlines()] == [
        " round  ",
        " trainin",
    ]


def test_lines_tell_what_is_out_of_the_ordinary_once(view):
    out = console()
    display = LineDisplay(out)
    scene = Scene(view=view, now_s=lambda: 9.0)
    view.fold("A", events.FaultSeen(peer="x" * 20, reason="[red]odd[/red]"), 5.0)
    display.changed(scene)
    display.changed(scene)
    assert printed(out) == "[   5.0 s] A reports a fault of xxxxxxxx: [red]odd[/red]\n"


def test_lines_say_that_measuring_has_begun(view):
    out = console()
    display = LineDisplay(out)
    scene = Scene(view=view, now_s=lambda: 61.0)
    scene.start_measuring()
    display.changed(scene)
    display.changed(scene)
    assert printed(out) == "[  61.0 s] training one node alone, to compare\n"


def test_picture_shows_rounds_nodes_bytes_and_what_happened():
    view = whole_demo(options())
    out = console()
    out.print(draw_scene(Scene(view=view, now_s=lambda: 70.0)))
    text = printed(out)
    for shown in (
        "40 of 40 sealed",
        "nats per byte",
        "killed",
        "finished",
        "round 18 is the first",
    ):
        assert shown in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_picture_before_anything_happened_can_be_drawn():
    out = console()
    out.print(draw_scene(Scene(view=SwarmView(num_rounds=40), now_s=lambda: 0.1)))
    assert "0 of 40 sealed" in printed(out)


def test_picture_shows_the_yardsticks_progress():
    scene = Scene(view=whole_demo(options()), now_s=lambda: 75.0)
    scene.start_measuring()
    scene.tell_measured(0.5)
    out = console()
    out.print(draw_scene(scene))
    assert "alone" in printed(out)


def test_display_fits_the_console():
    for is_terminal, kind in ((True, LiveDisplay), (False, LineDisplay)):
        with open_display(console(is_terminal=is_terminal)) as display:
            assert isinstance(display, kind)


def test_time_left_counts_the_rounds_to_go(view):
    scene = Scene(view=view, now_s=lambda: 3.0 + ROUND_S * 4)
    assert time_left_s(scene) is None
    for index in range(1, 5):
        seal(view, index, "AB", "AB", 3.0 + ROUND_S * index)
    left_s = time_left_s(scene)
    assert left_s is not None
    assert 6 * ROUND_S <= left_s <= 10 * ROUND_S


def test_time_left_of_the_measurement_follows_its_share(view):
    now_s = [60.0]
    scene = Scene(view=view, now_s=lambda: now_s[0])
    scene.start_measuring()
    assert time_left_s(scene) is None
    now_s[0] = 63.0
    scene.tell_measured(0.25)
    assert time_left_s(scene) == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "time left: not known yet"),
        (3.0, "a few seconds left"),
        (42.0, "about 40 s left"),
        (170.0, "about 3 min left"),
    ],
)
def test_duration_is_told_roughly(seconds, words):
    assert tell_duration(seconds) == words


def test_sparkline_spans_its_values():
    assert sparkline([3.0, 2.0, 1.0], 8) == "█▅▁"
    assert sparkline([1.0, 1.0], 8) == "▁▁"
    assert sparkline([], 8) == ""
    assert len(sparkline([float(x) for x in range(50)], 8)) == 8


def test_end_shows_table_findings_and_sample():
    out = console()
    print_result(out, whole_result(options()))
    text = printed(out)
    for shown in (
        "latecomer",
        "killed",
        "The trained model writes",
        "def parse",
        "equal to the bit",
    ):
        assert shown in text
    assert max(len(line) for line in text.split("A, which")[0].splitlines()) <= 80


def test_findings_say_when_weights_differ():
    lines = result_lines(whole_result(options(), error="they differ"))
    assert any("NOT EQUAL" in line for line in lines)
