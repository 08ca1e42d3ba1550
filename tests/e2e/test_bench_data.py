"""`barnraise bench data` on small sets: figures of everything, and bars that can be missed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sim.bench.token_stores import data_faults
from tests.e2e.demo_command import environment
from tests.e2e.node_command import COMMAND

HELD = {
    "share_of_encode_batch": 0.6,
    "digests": 1,
    "tokens_read_per_s": 20_000_000,
    "read_p99_ms": 1.0,
    "open_s": 2.0,
    "peak_bytes": 300_000_000,
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system tells the memory of a process")
def test_bench_measures_everything_and_ends_by_its_bars(tmp_path: Path) -> None:
    words = ("bench", "data", "--mib", "1", "--large-mib", "8", "--kills", "1", "--out", "b")
    done = subprocess.run(
        [*COMMAND, *words, "--json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() >= HELD.keys()
    assert found["digests"] == 1
    assert 0 < found["of_tokens"] < 1_000_000
    assert found["peak_bytes"] > 30_000_000
    assert found["missed"] == data_faults(found)
    assert done.returncode == bool(found["missed"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share_of_encode_batch", 0.59),
        ("digests", 2),
        ("tokens_read_per_s", 19_999_999),
        ("read_p99_ms", 1.01),
        ("open_s", 2.1),
        ("peak_bytes", 300_000_001),
    ],
)
def test_each_bar_can_be_missed(name: str, value: float) -> None:
    assert data_faults(HELD) == []
    assert data_faults(HELD | {name: value}) == [name]
