"""What the tests themselves stand on: coroutine tests really run, and failures name their seed."""

import os
import subprocess
import sys
from pathlib import Path

import trio
import trio.testing

ROOT = Path(__file__).parent.parent


async def test_coroutine_on_virtual_clock_sleeps_an_hour_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    start_s = autojump_clock.current_time()
    await trio.sleep(3600)
    assert autojump_clock.current_time() - start_s >= 3600


async def test_coroutine_without_a_clock_runs_on_the_real_one() -> None:
    assert isinstance(trio.lowlevel.current_clock(), trio.abc.Clock)
    assert not isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)


def test_failing_coroutine_fails_and_names_its_seed(tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text("async def test_a(seed):\n    assert seed == 0\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--seed", "41"]
    done = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "assert 41 == 0" in done.stdout
    assert "--seed 41" in done.stdout
    assert "1 failed" in done.stdout
