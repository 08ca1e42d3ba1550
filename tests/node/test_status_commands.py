"""`barnraise status`, `peers` and `rounds`: what people and programs see, and how fast."""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from node.commands.app import app
from node.commands.looking import WATCH_S, look_again
from node.status.records import Snapshot
from node.status.snapshot import snapshot
from node.status.tables import PICTURES, ROUNDS_SHOWN
from node.text.shown import to_plain
from protocol.errors import ConfigError, NetworkError
from protocol.identity import peer_id_text
from tests.node.cores import GENESIS, A, B, C, core_of
from tests.node.status_scene import board_at, busy_snapshot, sealed, sources_of
from tests.node.status_web import PATIENCE_S, serving
from tests.test_architecture import ROOT

RUN = "0123456789ab"
HEAVY = ("torch", "numpy", "trio", "libp2p", "h11", "msgpack", "cryptography", "blake3")


def run_folder(state: Path) -> Path:
    folder = state / "runs" / RUN
    folder.mkdir(parents=True)
    return folder


def drawn(name: str, shot: Snapshot, width: int = 120) -> str:
    """The picture as plain text."""
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(PICTURES[name](json.loads(json.dumps(to_plain(getattr(shot, name))))))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_status_is_told_in_lines() -> None:
    shot = busy_snapshot()
    text = drawn("status", shot)
    for part in (
        f"{shot.status.title}  {shot.status.run[:12]}",
        "pushing in round 5 of 100",
        "3 members, 3 voters, 2 linked; this node is a voter",
        "round 2 in 1.5 s: 2 contributions, this node's too, training loss 2.0000",
        "2.5000 nats per byte after round 1",
        "cpu, float32, 2 threads, micro-batch 8, step 40, loss 2.2500, process 7",
        "up 10 s",
        peer_id_text(A),
        "1 of peers; the last: ",
    ):
        assert part in text


def test_text_of_peers_is_no_markup_and_moves_no_cursor() -> None:
    shot = busy_snapshot()
    for name in ("status", "peers"):
        text = drawn(name, shot)
        assert "[red]" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_warnings_and_a_hanging_node_are_told() -> None:
    shot = busy_snapshot()
    status = dataclasses.replace(shot.status, age_s=12.0, warnings=("look here",))
    text = drawn("status", dataclasses.replace(shot, status=status))
    assert "the network process has not moved for 12 s" in text
    assert "look here" in text
    assert "moved" not in drawn("status", shot)


@pytest.mark.parametrize("width", [30, 40, 60])
def test_number_that_a_narrow_terminal_cuts_does_not_pass_for_another(width: int) -> None:
    shot = busy_snapshot()
    record = dataclasses.replace(shot.rounds.rounds[-1], round=12345)
    table = dataclasses.replace(shot.rounds, rounds=(record,))
    text = drawn("rounds", dataclasses.replace(shot, rounds=table), width=width)
    number = text.splitlines()[1].split()[0]
    assert number == "12345" or number.endswith("…")


def test_node_that_knows_nothing_yet_is_drawn() -> None:
    shot = snapshot(sources_of(core_of(A, head=GENESIS)), 0.0)
    assert "not up yet" in drawn("status", shot)
    assert "no peer is a member, linked or heard of yet" in drawn("peers", shot)
    assert "no round sealed since this node started" in drawn("rounds", shot)


def test_peers_are_a_row_each() -> None:
    lines = drawn("peers", busy_snapshot(), width=400).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [peer_id_text(peer)[-8:] for peer in (B, C)]


def test_rounds_are_a_row_each_and_the_newest_are_shown() -> None:
    board = board_at()
    for round_index in range(1, ROUNDS_SHOWN + 4):
        board.emit("sealed", **sealed(round_index))
    lines = drawn("rounds", snapshot(sources_of(core_of(A), board), 0.0)).splitlines()
    assert lines[1].split()[0] == "4"
    assert lines[-2].split()[0] == str(ROUNDS_SHOWN + 3)
    assert lines[-1] == "3 earlier rounds with --json"


@pytest.mark.net
@pytest.mark.parametrize("name", ["status", "peers", "rounds"])
async def test_json_is_one_object_on_one_line(tmp_path: Path, name: str) -> None:
    async with serving(run_folder(tmp_path)) as server:
        arguments = [name, "--json", "--state", str(tmp_path), "--run", RUN[:4]]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0
        assert result.stdout.count("\n") == 1
        expected = to_plain(getattr(server.board.current, name))
        assert isinstance(expected, dict)
        assert json.loads(result.stdout) | {"age_s": 0.0} == expected | {"age_s": 0.0}


@pytest.mark.net
async def test_tables_are_for_people(tmp_path: Path) -> None:
    async with serving(run_folder(tmp_path)):
        for name, part in [("status", "pushing"), ("peers", "linked"), ("rounds", "2 of 3")]:
            result = CliRunner().invoke(app, [name, "--state", str(tmp_path)])
            assert result.exit_code == 0
            assert part in result.stdout


def test_without_a_node_the_error_says_what_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["status", "--state", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "start one with barnraise run" in str(result.exception)


def test_watching_shows_each_second_and_goes_on_over_a_slow_node() -> None:
    bodies: list[object] = [{"n": 1}, NetworkError("slow"), {"n": 2}, ConfigError("gone")]
    seen: list[object] = []

    def look() -> object:
        body = bodies.pop(0)
        if isinstance(body, Exception):
            raise body
        return body

    with pytest.raises(ConfigError, match="gone"):
        look_again(look, seen.append, lambda reason: seen.append(reason), seen.append)
    assert seen == [{"n": 1}, WATCH_S, "slow", WATCH_S, {"n": 2}, WATCH_S]


@pytest.mark.net
async def test_command_is_quick_and_loads_nothing_heavy(tmp_path: Path) -> None:
    # Seconds of CPU and not on the wall: other tests may be running beside this one.
    code = f"""
import contextlib, sys, time
from node.cli import main
sys.argv = ["barnraise", "status", "--state", {str(tmp_path)!r}]
with contextlib.suppress(SystemExit):
    main()
print([name for name in {HEAVY!r} if name in sys.modules], time.process_time() < 0.8)
"""
    async with serving(run_folder(tmp_path)):
        done = subprocess.run(  # noqa: ASYNC221 - the server has its own thread
            [sys.executable, "-P", "-c", code],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[-1] == "[] True"
    assert "pushing in round 5" in done.stdout


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send SIGINT to one child alone")
async def test_watching_prints_a_line_a_second_until_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "node.cli", "status", "--json", "--watch"]
    async with serving(run_folder(tmp_path)):
        began_s = time.monotonic()
        with subprocess.Popen(  # noqa: ASYNC220 - the server has its own thread
            [*command, "--state", str(tmp_path)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            lines = [child.stdout.readline() for _ in range(2)]
            assert time.monotonic() - began_s >= WATCH_S
            child.send_signal(signal.SIGINT)
            assert child.wait(PATIENCE_S) == 130
            assert "Traceback" not in child.stderr.read()
    assert all(json.loads(line)["state"] == "pushing" for line in lines)
