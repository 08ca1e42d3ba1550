"""`bench homes`: numbers from what was measured, and the share of the time that a speed gives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.errors import ConfigError, StateError
from sim.bench.homes import (
    HomesFound,
    HomesOptions,
    HomesRow,
    HomesRun,
    draw_homes,
    hold_speed,
    homes_json,
    loss_at,
    newest_checkpoint,
    rates_named,
    seconds_to,
    speeds_named,
)

CURVE = [(0, 6.0), (10, 4.0), (20, 3.0)]


def options(folder: Path, **more: object) -> HomesOptions:
    asked = {"speeds": (0.5, 0.25), "rates": (2e7,), "round_trip_s": 0.06, "seconds": 100.0}
    return HomesOptions(folder=folder, **(asked | more))  # type: ignore[arg-type]


def found() -> HomesFound:
    return HomesFound(
        loss_first=6.0,
        alone=[
            HomesRow(homes=1, tokens_per_s=rate, loss=loss, seconds=100.0)
            for rate, loss in ((200.0, 3.5), (100.0, 4.0))
        ],
        together=[HomesRow(homes=2, tokens_per_s=290.0, loss=3.0, seconds=100.0)],
        curve=CURVE,
        tokens_per_step=2000,
    )


def test_loss_between_two_points_is_on_the_line_between_them() -> None:
    assert [loss_at(CURVE, step) for step in (0, 5, 10, 15, 99)] == [6.0, 5.0, 4.0, 3.5, 3.0]


def test_homes_together_are_held_against_the_best_of_them_alone(tmp_path: Path) -> None:
    said = homes_json(options(tmp_path), found(), {"commit": "abc"})
    rows = said["rows"]
    assert isinstance(rows, list)
    one, two = rows
    assert (one["homes"], two["homes"]) == (1, 2)
    assert two["best_alone_tokens_per_s"] == 200.0
    # Alone it is at 3.0 behind twenty steps of 2000 tokens: 200 s in place of 100.
    assert two["times_as_fast"] == 2.0
    assert two["loss_per_hour"] == pytest.approx(108.0)
    assert said["commit"] == "abc"


def test_loss_that_the_curve_of_one_alone_does_not_reach_is_told_as_such(tmp_path: Path) -> None:
    beyond = found()
    beyond.curve = CURVE[:2]
    rows = homes_json(options(tmp_path), beyond, {})["rows"]
    assert isinstance(rows, list)
    assert rows[1]["times_as_fast"] is None


def test_time_of_a_checkpoint_is_that_of_its_seal_and_none_before_any_trains() -> None:
    seals = [(5.0, 1), (12.0, 2), (20.0, 3)]
    assert seconds_to(2, seals, 10.0) == 2.0
    for round_index in (1, 4):
        with pytest.raises(StateError, match="no round was sealed in that time"):
            seconds_to(round_index, seals, 10.0)


def test_checkpoint_is_the_newest_whose_seal_was_heard(tmp_path: Path) -> None:
    for name in ("round-000002", "round-000010", "round-000011"):
        (tmp_path / "runs" / "a" / "checkpoints" / name).mkdir(parents=True)
    for sealed, name in ((9, "round-000010"), (99, "round-000011"), (8, "round-000002")):
        assert newest_checkpoint(tmp_path, sealed).name == name
    with pytest.raises(StateError, match="nothing was sealed"):
        newest_checkpoint(tmp_path, 0)


def test_picture_is_drawn(tmp_path: Path) -> None:
    draw_homes(options(tmp_path), found(), tmp_path / "homes.png")
    assert (tmp_path / "homes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"speeds": (1.5, 0.5)}, "--speeds 1.5"),
        ({"speeds": (0.5,)}, "number of --speeds 1"),
        ({"speeds": ()}, "number of --speeds 0"),
        ({"rates": (1e6, 2e6, 3e6)}, "3 rates for 2 homes"),
        ({"seconds": 1.0}, "--seconds"),
        ({"preset": "x"}, "--preset 'x' is none of"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, more: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        options(tmp_path, **more)


def test_speeds_and_lines_are_written_as_lists() -> None:
    assert speeds_named("0.4,0.2") == (0.4, 0.2)
    assert rates_named("20mbit,500kbit") == (2e7, 5e5)
    with pytest.raises(ConfigError, match="no list of numbers"):
        speeds_named("fast")
    for wrong in ("60ms", "y", "", "1bit", "20mbit,x"):
        with pytest.raises(ConfigError, match=f"--lines '{wrong}' is no list of rates"):
            rates_named(wrong)


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process")
def test_process_that_is_held_gets_its_share_and_runs_freely_afterwards() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def used_s() -> float:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def hold(seconds: float) -> float:
        before_s = used_s()
        with trio.move_on_after(seconds):
            await hold_speed(lambda: child.pid, 0.3)
        return used_s() - before_s

    try:
        assert 0.0 < trio.run(hold, 2.0) < 1.2
        state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state != "T"
        before_s, until_s = used_s(), time.monotonic() + 10.0
        while used_s() == before_s and time.monotonic() < until_s:
            pass
        assert used_s() > before_s
    finally:
        child.kill()
        child.wait()


class Founding(HomesRun):
    """Founds the runs, and then waits to be stopped, or `fails`."""

    fails = False

    async def _alone(self) -> None:
        self._found_run(1)

    async def _together(self, count: int) -> HomesRow:
        self._found_run(count)
        if self.fails:
            raise StateError("it is stuck")
        await trio.sleep_forever()
        raise AssertionError


async def test_bench_that_is_stopped_leaves_no_keys_and_one_that_fails_keeps_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(1.0):
        await Founding(options(tmp_path / "stopped"), lambda _: None).play()
    assert (tmp_path / "stopped" / "2-homes" / "logs").is_dir()
    assert not list((tmp_path / "stopped").rglob("nodes"))
    failing = Founding(options(tmp_path / "failed"), lambda _: None)
    failing.fails = True
    with pytest.raises(StateError, match="stuck"):
        await failing.play()
    assert len(list((tmp_path / "failed").rglob("nodes"))) == 2
