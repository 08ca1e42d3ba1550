"""`barnraise local` with real processes: it holds under faults, and its checks can fail."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.reporting.trace_file import read_trace
from node.reporting.tracing import Adopted, Began, Signed
from protocol.messages import Kind
from tests.e2e.swarm import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.net]

COMMAND = (sys.executable, "-P", "-m", "node.cli", "local", "--json")
SMALL = ("--elements", "5000", "--train", "0.3s")


@dataclass(frozen=True)
class Ended:
    status: int
    report: dict[str, Any]
    said: str
    folder: Path


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "--out", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def end(folder: Path, process: subprocess.Popen[bytes]) -> Ended:
    stdout, stderr = process.communicate(timeout=240)
    report = json.loads(stdout.splitlines()[-1]) if stdout else {}
    return Ended(process.returncode, report, stderr.decode(errors="replace"), folder)


def run_local(folder: Path, *options: str) -> Ended:
    return end(folder, start(folder, *options))


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that still work in a folder."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            line = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and "pytest" not in line:
            found.append(line)
    return found


def test_four_nodes_keep_every_promise_under_kills_and_freezes(tmp_path):
    ended = run_local(
        tmp_path / "out",
        *("--peers", "4", "--duration", "40s", "--chaos", "kill,freeze", "--every", "6s"),
        *("--seed", "3", *SMALL),
    )
    report = ended.report
    assert ended.status == 0, ended.said[-4000:]
    assert (report["is_good"], report["invariants"], report["error"]) == (True, "hold", "")
    assert report["rounds_sealed"] > 5
    assert {fault["kind"] for fault in report["faults"]} == {"kill", "freeze"}
    assert any(fault["next_seal_s"] is not None for fault in report["faults"])
    assert (report["deaths"], report["checkpoints_equal"]) == ([], True)
    assert report["ledgers"] > 0
    assert report["checkpoints"] >= 4
    assert processes_of(ended.folder) == []
    kept = {path.name for path in ended.folder.iterdir()}
    assert {"traces", "logs", "rounds.png", "result.json"} <= kept
    assert "nodes" not in kept
    # A node that was killed went on in its file, and had signed before and behind it.
    lives = [[type(r) for r in read_trace(path)] for path in (ended.folder / "traces").iterdir()]
    assert any(kinds.count(Began) > 1 for kinds in lives)
    assert all(Signed in kinds for kinds in lives)


def test_more_nodes_than_seats_take_turns_under_kills(tmp_path):
    ended = run_local(
        tmp_path / "out",
        *("--peers", "5", "--seats", "3", "--duration", "30s", "--chaos", "kill", "--every", "6s"),
        *("--elements", "5000", "--train", "0.2s"),
    )
    report = ended.report
    assert ended.status == 0, ended.said[-4000:]
    assert (report["is_good"], report["invariants"]) == (True, "hold")
    committed = set()
    for path in (ended.folder / "traces").iterdir():
        records = list(read_trace(path))
        seals = [r.certificate.value for r in records if isinstance(r, Adopted)]
        assert all(len(value.roster.members) <= 3 for value in seals)
        signed = [r.message for r in records if isinstance(r, Signed)]
        committed |= {m.sender for m in signed if m.slot.kind is Kind.COMMIT}
    assert len(committed) >= 4, "nobody gave way"


def test_line_between_the_nodes_may_be_shaped_and_stand_still(tmp_path):
    ended = run_local(
        tmp_path / "out",
        *("--peers", "3", "--duration", "25s", "--shape", "20mbit,80ms,0.2%"),
        *("--chaos", "stall,reset", "--every", "5s", *SMALL),
    )
    assert ended.status == 0, ended.said[-4000:]
    assert ended.report["invariants"] == "hold"
    assert ended.report["rounds_sealed"] > 3
    assert ended.report["faults"]


def test_run_of_so_many_rounds_ends_by_itself_with_equal_checkpoints(tmp_path):
    ended = run_local(tmp_path / "out", "--peers", "3", "--rounds", "8", "--keep", *SMALL)
    assert ended.status == 0, ended.said[-4000:]
    assert ended.report["rounds_sealed"] == 8
    assert ended.report["checkpoints"] >= 3
    assert (ended.folder / "nodes" / "A" / "identity.key").exists()


@pytest.mark.parametrize(
    ("switch", "broken"), [("own-update", "I2, agreement"), ("flip-byte", "I6")]
)
def test_node_that_is_bent_is_found_by_its_trace(tmp_path, switch, broken):
    ended = run_local(
        tmp_path / "out", "--peers", "3", "--duration", "10s", "--test-switch", switch, *SMALL
    )
    if switch == "own-update":
        assert (ended.status, ended.report["is_good"]) == (1, False)
        assert ended.report["invariants"].startswith(broken)
        assert not ended.report["checkpoints_equal"]
    else:
        # Who flips a bit on purpose may be accused, and the round does without it.
        assert ended.report["checkpoints_equal"]
        assert any("Accused" in type(r).__name__ for r in all_records(ended.folder))


def all_records(folder: Path):
    return [record for path in (folder / "traces").iterdir() for record in read_trace(path)]


def test_ctrl_c_leaves_no_process_and_keeps_the_traces(tmp_path):
    folder = tmp_path / "out"
    process = start(folder, "--peers", "3", "--duration", "10m", *SMALL)
    assert process.stderr is not None
    for line in process.stderr:
        if b"round" in line and b"round 0" not in line:
            break
    process.send_signal(signal.SIGINT)
    ended = end(folder, process)
    assert ended.status == 128 + signal.SIGINT
    assert processes_of(folder) == []
    assert "Traceback" not in ended.said
    assert all_records(folder)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--shape", "fast"), "--shape: 'fast' is no number with a unit"),
        (("--chaos", "fire"), "--chaos: no fault 'fire'"),
        (("--every", "0s", "--chaos", "kill"), "--every: '0s' is no time above zero"),
    ],
)
def test_option_that_makes_no_sense_is_refused(tmp_path, options, why):
    ended = run_local(tmp_path / "out", *options)
    assert ended.status == 2
    assert why in ended.said
    assert not (tmp_path / "out").exists()


def audits_run(folder: Path) -> int:
    """How often a trainer ran again what another one had trained."""
    return sum(path.read_bytes().count(b"audited round=") for path in (folder / "logs").iterdir())


def verify(path: Path) -> int:
    command = [sys.executable, "-P", "-m", "node.cli", "evidence", "verify", str(path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.quick(1)
@pytest.mark.parametrize("fragments", ["4", "1"])
def test_liar_is_banned_by_audits_and_the_evidence_stands_alone(tmp_path, fragments):
    ended = run_local(
        tmp_path / "out",
        *("--peers", "5", "--rounds", "16", "--attack", "scale:0.25", "--audits", "1.0"),
        *("--seed", "5", "--fragments", fragments, *SMALL),
    )
    report = ended.report
    assert ended.status == 0, ended.said[-4000:]
    assert (report["is_good"], report["invariants"], report["deaths"]) == (True, "hold", [])
    assert [one["node"] for one in report["attackers"]] == ["E"]
    assert [one["node"] for one in report["banned"]] == ["E"]
    assert audits_run(ended.folder) > 0
    # A node that joined later says so by its own trace; and whoever was never in the run checks
    # the evidence, and nothing else.
    assert (report["rechecked"]["by"], report["rechecked"]["bans"]) == ("F", {"E": True})
    path = ended.folder / "E.evidence"
    assert verify(path) == 0
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert verify(path) != 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("fragments", ["3", "1"])
def test_audits_of_honest_nodes_ban_nobody_and_kills_leave_no_gap_in_the_chain(tmp_path, fragments):
    ended = run_local(
        tmp_path / "out",
        *("--peers", "4", "--duration", "40s", "--trust", "open", "--audits", "1.0"),
        *("--chaos", "kill", "--every", "8s", "--seed", "3", *SMALL),
        *("--fragments", fragments),
    )
    report = ended.report
    assert ended.status == 0, ended.said[-4000:]
    assert (report["is_good"], report["invariants"], report["banned"]) == (True, "hold", [])
    assert report["faults"]
    assert audits_run(ended.folder) > 0
    assert not any(
        isinstance(record, Signed) and record.message.slot.kind in (Kind.VERDICT, Kind.RETRACT)
        for path in (ended.folder / "traces").iterdir()
        for record in read_trace(path)
    )
