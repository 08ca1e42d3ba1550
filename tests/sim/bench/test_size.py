"""`bench size`: its numbers from what nodes told and took, and one small size with real nodes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.settings.check import costs_of
from node.settings.footprint import CHECKPOINT, MOMENTS
from protocol.errors import ConfigError
from sim.bench.size import (
    LOOK_S,
    NodeTold,
    RoundTold,
    SizeOptions,
    SizeRow,
    _watch_memory,
    row_of,
    size_json,
    steps_share,
)
from sim.processes.events import MethodChosen, RoundSealed, RoundTimed
from sim.processes.usage import PeakMemory
from tests.training.replicas import small_manifest
from training.loop.sums import MOMENTS_FILE

COSTS = costs_of(small_manifest(), 2)


def chosen(steps: int) -> MethodChosen:
    return MethodChosen(steps=steps, steps_max=steps)


def sealed(index: int, *, was_listed: bool) -> RoundSealed:
    return RoundSealed(
        round=index,
        digest="",
        listed=(),
        members=2,
        voters=2,
        attempt=0,
        was_listed=was_listed,
        wall_s=1.0,
        bytes_up=0,
        bytes_down=0,
    )


def timed(index: int, *, train_s: float, round_s: float) -> RoundTimed:
    """Of two steps; the rest of the time went into encoding."""
    rest = dict.fromkeys(("validate_s", "save_s", "audit_s", "wait_s", "exchange_s", "seal_s"), 0.0)
    return RoundTimed(
        round=index, steps=2, round_s=round_s, train_s=train_s, encode_s=round_s - train_s, **rest
    )


def test_share_in_steps_is_of_the_time_of_the_rounds_that_were_timed() -> None:
    rounds = [
        RoundTold(0.0, timed(1, train_s=2.0, round_s=10.0)),
        RoundTold(10.0, timed(2, train_s=8.0, round_s=10.0)),
        RoundTold(20.0),
    ]
    assert steps_share(rounds) == pytest.approx((2.0 + 8.0) / 20.0)
    assert steps_share([]) == 0.0


def node(*, listed: bool, written: int, memory: tuple[int, int] = (5, 7)) -> NodeTold:
    """One that had two rounds before two are measured."""
    told = NodeTold()
    for number in range(4):
        told.hear(chosen(2), 10.0 * number)
        told.hear(timed(number, train_s=4.0, round_s=10.0), 10.0 * number + 6.0)
        if number == 1:
            told.first, told.num_sealed = len(told.rounds) - 1, len(told.sealed)
        told.hear(sealed(number + 1, was_listed=listed or number < 2), 10.0 * number + 9.0)
    told.written_bytes = written
    told.network.take(memory[0], memory[0], 0)
    told.trainer.take(memory[1], memory[1], 0)
    return told


def test_row_is_of_the_node_that_took_most_and_of_the_measured_rounds_alone() -> None:
    row = row_of(
        "x",
        COSTS,
        [node(listed=True, written=100), node(listed=False, written=300, memory=(6, 3))],
    )
    assert (row.network_bytes, row.trainer_bytes, row.written_bytes) == (6, 7, 150.0)
    assert (row.round_s, row.step_s) == (10.0, 2.0)
    assert row.steps_share == pytest.approx(0.4)
    # Of its three seals behind the mark one names it: the round before was not over then.
    assert row.listed_share == pytest.approx((4 - 1 + 1) / 6)


def test_what_is_written_seldom_is_foretold_as_often_as_it_was(tmp_path: Path) -> None:
    costs = replace(COSTS, checkpoint_bytes=1000, moments_bytes=70)
    told = node(listed=True, written=10**9)
    run = tmp_path / "runs" / "run"
    (run / "checkpoints" / "round-000001").mkdir(parents=True)
    (run / "inner").mkdir()
    moments = run / "inner" / MOMENTS_FILE
    moments.write_bytes(b"")
    told.seldom.look(tmp_path)
    assert told.seldom.counts == {CHECKPOINT: 1, MOMENTS: 1}
    told.seldom.counts.clear()
    for second in (1, 2, 3):
        os.utime(moments, (second, second))
        told.seldom.look(tmp_path)
        told.seldom.look(tmp_path)
    (run / "checkpoints" / "round-000009").mkdir()
    told.seldom.look(tmp_path)
    # In two measured rounds one checkpoint, and moments three times.
    found = row_of("x", costs, [told, node(listed=True, written=1)])
    assert found.foretold_bytes == costs.written_bytes + (1000 + 3 * 70) / 2


def row(**changes: object) -> SizeRow:
    exact = SizeRow(
        name="x",
        costs=COSTS,
        network_bytes=COSTS.network_memory_bytes,
        trainer_bytes=COSTS.trainer_memory_bytes,
        written_bytes=COSTS.written_bytes,
        foretold_bytes=COSTS.written_bytes,
        disk_bytes=0,
        steps_share=0.5,
        listed_share=1.0,
        round_s=1.0,
        step_s=0.1,
    )
    return replace(exact, **changes)  # type: ignore[arg-type]


def test_error_of_check_is_the_largest_of_what_it_foretold() -> None:
    assert row().as_json()["check_error"] == 0.0
    found = row(written_bytes=COSTS.written_bytes / 1.25).as_json()
    assert found["check_error"] == pytest.approx(0.25, abs=1e-4)
    found = row(trainer_bytes=2 * COSTS.trainer_memory_bytes).as_json()
    assert found["check_error"] == pytest.approx(0.5, abs=1e-4)


def test_json_has_the_keys_that_are_promised(tmp_path: Path) -> None:
    options = SizeOptions(sizes=("120k",), folder=tmp_path)
    rows: Any = size_json(options, "abc", [row()])["rows"]
    promised = "parameters network_bytes_per_param trainer_bytes_per_param steps_share listed_share"
    promised += " written_bytes_per_param_round check_error"
    assert set(promised.split()) <= set(rows[0])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sizes": ("2b",)}, "--sizes '2b' is none of 120k, 10m"),
        ({"sizes": ()}, "--sizes names none"),
        ({"steps": 1}, "--steps 1"),
        ({"rounds": 0}, "--rounds 0"),
        ({"batch": 0}, "--batch 0"),
        ({"context": 5000}, "--context 5000"),
        ({"audits": 1.5}, "--audits 1.5"),
    ],
)
def test_option_that_makes_no_sense_is_refused(change, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        SizeOptions(**{"sizes": ("120k",), "folder": tmp_path, **change})


def test_run_of_a_size_is_what_init_writes_but_for_what_was_asked(tmp_path: Path) -> None:
    options = SizeOptions(sizes=("120k",), folder=tmp_path, steps=7, batch=3, context=32, seed=5)
    found = options.manifest("120k", small_manifest())
    assert (found.inner.inner_steps, found.inner.batch) == (7, 3)
    assert (found.model.setting("context"), found.model.seed) == (32, 5)
    assert (found.outer.preset, found.timing.deadline_floor_s) == ("diloco", 5.0)


def test_audits_make_the_run_an_open_one_and_fragments_cut_its_model(tmp_path: Path) -> None:
    options = SizeOptions(sizes=("120k",), folder=tmp_path, steps=8, fragments=4, audits=0.2)
    found = options.manifest("120k", small_manifest())
    assert (found.trust, found.audits.rate, found.outer.codec) == ("open", 0.2, "fp16")
    assert found.layout(0).num_fragments == 4


async def test_node_that_begins_to_tell_while_another_is_looked_at_stops_no_look(
    autojump_clock: trio.abc.Clock,
) -> None:
    class Peak(PeakMemory):
        def look(self, pid: int) -> None:
            told["B"] = NodeTold()

    told = {"A": NodeTold(network=Peak())}
    nodes = {name: SimpleNamespace(process=None, trainer_pid=None) for name in "AB"}
    nodes["A"].process = SimpleNamespace(pid=os.getpid())
    with trio.move_on_after(10 * LOOK_S):
        await _watch_memory(SimpleNamespace(nodes=nodes), told)  # type: ignore[arg-type]
    assert set(told) == {"A", "B"}


def bench(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "barnraise", "bench", "size", "--sizes", "120k"]
    return subprocess.Popen(
        [*command, "--json", "--out", str(folder), *words],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.skipif(sys.platform != "linux", reason="the system says it in /proc")
def test_two_real_nodes_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    told, said = (process := bench(tmp_path / "b", "--rounds", "2")).communicate(timeout=300)
    assert process.returncode == 0, said
    (found,) = json.loads(told.splitlines()[-1])["rows"]
    assert found["listed_share"] == 1.0
    assert 0.0 < found["steps_share"] < 1.0
    assert found["network_bytes"] > 40 << 20
    assert found["written_bytes_per_param_round"] > 5
    assert "round 2 of 2" in said
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_interrupt_leaves_neither_processes_nor_a_folder(tmp_path: Path) -> None:
    process = bench(tmp_path / "b", "--rounds", "900")
    assert process.stderr is not None
    assert "2 nodes" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "No process is left running" in said
    assert not (tmp_path / "b").exists()
