"""A bootstrap node as people run it: it serves, stays small, and leaves when asked."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sim.processes.usage import proportional_bytes
from tests.e2e.demo_command import environment
from tests.e2e.node_command import COMMAND, LOOPBACK, command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="sends signals"),
]

RESIDENT_KIB_MAX = 110 * 1024


def test_bootstrap_node_serves_stays_small_and_leaves(tmp_path: Path) -> None:
    line = [*COMMAND, "bootstrap", "--json", "--state", str(tmp_path / "a"), *LOOPBACK]
    with subprocess.Popen(
        line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            (address,) = json.loads(process.stdout.readline())["addresses"]
            there = command(tmp_path, "runs", "--bootstrap", address, "--state", "b", "--json")
            assert json.loads(there.stdout) == {"runs": []}
            if sys.platform == "linux":
                status = Path(f"/proc/{process.pid}/status").read_text()
                (resident,) = [text for text in status.splitlines() if text.startswith("VmRSS")]
                assert int(resident.split()[1]) < RESIDENT_KIB_MAX
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                assert proportional_bytes(rollup) < 1024 * RESIDENT_KIB_MAX
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    gone = command(tmp_path, "runs", "--bootstrap", address, "--state", "b")
    assert gone.returncode == 3
    assert f"no peer answers:\n  {address}\n" in gone.stderr
    nobody = command(tmp_path, "runs", "--state", "b")
    assert nobody.returncode == 2
    assert "--bootstrap" in nobody.stderr


@pytest.mark.parametrize("option", ["--relay-mbit", "--relay-gib"])
def test_limit_out_of_range_is_named_as_the_option_that_sets_it(
    tmp_path: Path, option: str
) -> None:
    done = command(tmp_path, "bootstrap", "--state", "a", option, "-1")
    assert done.returncode == 2
    assert f"{option} -1 is not within" in done.stderr
