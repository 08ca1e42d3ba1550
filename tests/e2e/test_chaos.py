"""Twelve real nodes, a victim every ten seconds: what was promised holds, and rounds go on.

    python -m pytest -m slow tests/e2e/test_chaos.py      a few minutes
    make chaos                                            ten minutes of chaos, five of calm

CHAOS_S and CALM_S say how many seconds. Kills (SIGKILL of both processes or one), freezes (SIGSTOP,
SIGCONT), restarts, leaving, coming back and late joins come from a seed; the moments are whatever
the rounds are at. The invariants of `barnraise local` are read from the traces: no two digests of
a final seal, no state that was not sealed, nothing that hangs, dies by itself or grows.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.swarm import ROOT
from tests.e2e.test_local import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.net]

CHAOS_S, CALM_S = int(os.environ.get("CHAOS_S", "90")), int(os.environ.get("CALM_S", "45"))
PEERS = 12
SWARM = ("--peers", str(PEERS), "--elements", "20000", "--train", "1s", "--json")
CHAOS = ("--chaos", "kill,freeze,churn", "--every", "10s")
COMMAND = (sys.executable, "-P", "-m", "node.cli", "local")
SLACK_S = 400
"""For the start of twelve nodes, the settling behind the last fault, and the verdict."""


def local(folder: Path, seconds: int, *options: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [*COMMAND, *SWARM, "--duration", f"{seconds}s", "--out", str(folder), *options],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=seconds + SLACK_S,
        check=False,
    )
    report = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return done.returncode, report, done.stderr.decode(errors="replace")


def test_chaos_breaks_no_promise_and_halves_no_pace(tmp_path):
    status, calm, said = local(tmp_path / "calm", CALM_S)
    assert status == 0, said[-4000:]
    status, chaos, said = local(tmp_path / "chaos", CHAOS_S, *CHAOS)
    assert status == 0, said[-4000:]
    assert (chaos["is_good"], chaos["invariants"], chaos["error"]) == (True, "hold", "")
    assert (chaos["deaths"], chaos["checkpoints_equal"]) == ([], True)
    assert len(chaos["faults"]) + chaos["faults_spared"] >= CHAOS_S // 10 - 2
    assert len(chaos["faults"]) >= CHAOS_S // 20
    if CHAOS_S >= 300:
        assert {fault["kind"] for fault in chaos["faults"]} == {"kill", "freeze", "churn"}
    pace = chaos["rounds_per_minute"] / calm["rounds_per_minute"]
    told = f"{chaos['rounds_per_minute']} rounds a minute, {calm['rounds_per_minute']} when calm"
    sys.stdout.write(f"{told}; {len(chaos['faults'])} faults\n")
    assert pace > 0.5
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    "trainer", [("--elements", "20000"), ("--trainer", "real", "--steps", "20")]
)
def test_two_rounds_in_flight_survive_the_same(tmp_path, trainer):
    """Killed, frozen, joining late while a round is trained for and another one is sealed (R5)."""
    fewer = ("--peers", "4", "--lag", "2", "--preset", "streaming_diloco", *trainer)
    status, chaos, said = local(tmp_path, CHAOS_S, *CHAOS, *fewer)
    assert status == 0, said[-4000:]
    assert (chaos["is_good"], chaos["invariants"], chaos["error"]) == (True, "hold", "")
    assert (chaos["deaths"], chaos["checkpoints_equal"]) == ([], True)
    assert chaos["faults"]


def test_streams_with_feedback_survive_partitions_too(tmp_path):
    """Real training, two rounds in flight, four bits with feedback; who is killed, who comes late,
    and nothing that passes between two sides."""
    method = ("--trainer", "real", "--preset", "streaming_diloco", "--steps", "20")
    faults = ("--chaos", "kill,churn,partition", "--every", "8s", "--seed", "10")
    status, chaos, said = local(tmp_path, CHAOS_S, "--peers", "5", *method, *faults)
    assert status == 0, said[-4000:]
    assert (chaos["is_good"], chaos["invariants"], chaos["error"]) == (True, "hold", "")
    assert (chaos["deaths"], chaos["checkpoints_equal"]) == ([], True)
    assert {fault["kind"] for fault in chaos["faults"]} >= {"kill", "partition"}
    assert chaos["nodes"] > 5, "somebody came who was not there before"


def test_halves_that_do_not_hear_each_other_survive(tmp_path):
    """Two of four on either side, with the eldest and without: they meet, and agree on all."""
    faults = ("--peers", "4", "--chaos", "partition", "--reckless", "--every", "9s", "--seed", "2")
    status, chaos, said = local(tmp_path, CHAOS_S, *faults)
    assert status == 0, said[-4000:]
    assert (chaos["is_good"], chaos["invariants"], chaos["error"]) == (True, "hold", "")
    assert (chaos["deaths"], chaos["checkpoints_equal"]) == ([], True)
    assert any(fault["beside"] for fault in chaos["faults"]), "two against two"


def test_fragments_synced_in_turn_survive_the_same(tmp_path):
    """A kill, a freeze, who leaves, comes back or joins late, while residuals are of fragments."""
    fewer = ("--peers", "5", "--fragments", "3")
    status, chaos, said = local(tmp_path, CHAOS_S, *CHAOS, *fewer)
    assert status == 0, said[-4000:]
    assert (chaos["is_good"], chaos["invariants"], chaos["error"]) == (True, "hold", "")
    assert (chaos["deaths"], chaos["checkpoints_equal"]) == ([], True)
    assert chaos["faults"]
