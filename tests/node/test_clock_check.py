"""A clock that cannot be right is told in one line, before anything else reads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.daemon.clock_check import LATEST_S, require_clock

ROOT = Path(__file__).parents[2]

YEAR_2262_S = 2**63 / 1e9

PRETEND = """
import time
def beyond():
    raise OverflowError("timestamp too large to convert to C _PyTime_t")
time.time = {clock}
import {module}
"""


@pytest.mark.parametrize("now_s", [0.0, 1.8e9, LATEST_S - 1.0])
def test_clock_that_can_be_right_is_let_pass(
    now_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    require_clock(lambda: now_s)
    assert capsys.readouterr().err == ""


def overflows() -> float:
    raise OverflowError


@pytest.mark.parametrize(
    ("clock", "where"),
    [
        (lambda: -1.0, "before 1970"),
        (lambda: LATEST_S, "beyond the year 2200"),
        (lambda: YEAR_2262_S, "beyond the year 2200"),
        (overflows, "beyond the year 2200"),
        (lambda: float("nan"), "beyond the year 2200"),
    ],
    ids=["negative", "2200", "2262", "overflow", "nan"],
)
def test_clock_that_cannot_be_right_ends_in_a_sentence(
    clock, where, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        require_clock(clock)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert where in said
    assert "set the date" in said


@pytest.mark.parametrize("clock", ["beyond", "lambda: -5.0"])
@pytest.mark.parametrize("module", ["node", "node.cli", "node.network_main"])
def test_command_and_package_look_at_the_clock_first(module: str, clock: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PRETEND.format(clock=clock, module=module)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("barnraise: the clock of this machine is")
    assert done.stderr.count("\n") == 1
