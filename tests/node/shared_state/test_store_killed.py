"""Real processes, killed at random moments, their files harmed in between."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocol.shared_state.store import DATABASE
from tests.node.shared_state import test_store, writer_child

ROOT = Path(__file__).parents[3]
HARMS = [None, None, "damage_log", None, "flip", None, "drop_database", "drop_log", None]


def run_and_kill(folder: Path, after_lines: int, pause_s: float) -> list[str]:
    """Start the writer, let it print so many lines and go on for a moment, kill it: its lines."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", writer_child.__name__, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after_lines)]
        end_s = time.monotonic() + pause_s
        while time.monotonic() < end_s:
            lines.append(process.stdout.readline())
        process.kill()
        lines += process.stdout.readlines()
    whole = [line.strip() for line in lines if line.endswith("\n") and line.strip()]
    assert len(whole) >= after_lines, "it ended by itself"
    return whole


@pytest.mark.slow
def test_no_number_is_used_twice_whenever_it_is_killed_and_whatever_is_harmed(tmp_path):
    rng = random.Random("killed")
    ids: dict[tuple[str, str], str] = {}
    num_asked = 0
    for harm in HARMS:
        lines = run_and_kill(tmp_path, rng.randrange(1, 40), rng.random() * 0.05)
        asked = lines[0] == "must ask"
        num_asked += asked
        for line in lines[asked:]:
            kind, sequence, entry_id = line.split()
            assert ids.setdefault((kind, sequence), entry_id) == entry_id, line
        if harm is not None:
            assert (tmp_path / DATABASE).exists()
            getattr(test_store, harm)(tmp_path, rng)
    assert len(ids) > 100
    assert num_asked >= 2, "what was harmed went unseen"
