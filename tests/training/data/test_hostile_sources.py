"""Two hundred hostile files and tokenizers: a typed error or a counted skip, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.demo_command import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="links, named pipes and sparse files"),
]

MEMORY_GROWTH_MAX = 250_000_000
CPU_S_MAX = 60.0


@pytest.mark.parametrize("seed", [1])
def test_hostile_files_cost_neither_the_pack_nor_the_machine(tmp_path: Path, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.training.data.hostile_sources", tmp_path, str(seed)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    # A traceback is a bug, and so is whatever ends the process: there is a line for each case.
    assert done.returncode == 0, [*done.stdout.splitlines()[-1:], done.stderr[-2000:]]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    files = [row for row in rows if not row["case"].startswith("tokenizer")]
    assert len(files) >= 200
    assert len(rows) - len(files) >= 50
    for row in files:
        assert row.get("good"), row
        assert row["outside"] == [], row
    # Few of them are text by accident; all others are counted.
    assert sum(bool(row["skipped"]) for row in files) > 0.8 * len(files)
    assert sum("error" in row for row in rows[len(files) :]) > 0.6 * (len(rows) - len(files))
    assert max(row["cpu_s"] for row in rows) < CPU_S_MAX
    assert rows[-1]["peak_bytes"] - rows[0]["peak_bytes"] < MEMORY_GROWTH_MAX
