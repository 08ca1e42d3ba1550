"""One seed, one run: on every interpreter, under every hash seed, the traces are equal to the byte.

    OTHER_PYTHON=path/to/python3.13 python -m pytest -m slow tests/sim/trials/test_determinism.py

compares with another interpreter as well; it needs the lock of requirements, and no torch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
PURE = ("mixed", "power-off", "clock-skew", "duplicate-reorder-delay")


def swept(python: str, hash_seed: str, *arguments: str) -> dict[str, object]:
    """What a sweep in a process of its own says."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [python, "-P", "-m", "node.cli", "sim", "sweep", *arguments, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_sweeps_are_equal_under_other_hash_seeds_and_interpreters(seed):
    seeds = f"{seed % 1000}..{seed % 1000 + 3}"
    first = swept(sys.executable, "1", *PURE, "--seeds", seeds)
    pythons = [sys.executable, os.environ.get("OTHER_PYTHON", sys.executable)]
    for number, python in enumerate(pythons):
        again = swept(python, str(7 + number), *PURE, "--seeds", seeds)
        assert again["trace_hash"] == first["trace_hash"], python


@pytest.mark.parametrize("rounds", ["3", pytest.param("12", marks=pytest.mark.extended)])
def test_two_processes_with_two_hash_seeds_run_the_same_world(seed, rounds):
    world = ("mixed", "--seeds", str(seed % 1000), "--peers", "5", "--rounds", rounds)
    arguments = (*world, "--jobs", "1")
    first, again = (swept(sys.executable, hash_seed, *arguments) for hash_seed in ("1", "2"))
    assert first["trace_hash"] == again["trace_hash"]


@pytest.mark.extended
def test_worlds_of_two_seeds_have_two_traces(seed):
    seeds = (seed % 1000, seed % 1000 + 1)
    first, other = (
        swept(sys.executable, "1", "mixed", "--seeds", str(one), "--peers", "5") for one in seeds
    )
    assert other["trace_hash"] != first["trace_hash"]
