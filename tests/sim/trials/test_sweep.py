"""Sweeps: every seed once, whatever becomes of a worker, and nobody left behind."""

import json
import os
import subprocess
from collections import deque
from queue import SimpleQueue

import pytest

from protocol.errors import ConfigError
from sim.compiled.builds import cores
from sim.trials import sweep as sweeping
from sim.trials.sweep import seeds_of, sweep
from sim.trials.trial import run_trial
from tests.sim.trials.scenarios import scenario

TINY = "rounds = 2\ncells = 1\n"
ENDLESS = "[limits]\nvirtual_s = 0.5"


@pytest.fixture
def workers(monkeypatch):
    """All processes that a sweep has started."""
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return started


def test_seeds_are_read():
    assert seeds_of("0..199") == range(200)
    assert seeds_of("7") == range(7, 8)
    for bad in ("", "..", "1..", "..3", "5..2", "a..b", "-1..3", "0..99999999999", "٣"):
        with pytest.raises(ConfigError, match="--seeds must be like"):
            seeds_of(bad)


def test_every_seed_of_every_scenario_runs_once_as_it_would_alone(workers):
    scenarios = {"a": scenario(TINY, name="a"), "b": scenario(TINY + ENDLESS, name="b")}
    came: list[object] = []
    swept = sweep(scenarios, range(3, 6), jobs=2, came=came.append)
    assert swept.is_whole
    assert (
        [o.seed for o in swept.outcomes["a"]] == [3, 4, 5] == [o.seed for o in swept.outcomes["b"]]
    )
    assert len([outcome for outcome in came if outcome is not None]) == 6
    assert {o.violation.name for o in swept.failures() if o.violation} == {"finishes"}
    assert len(swept.failures()) == 3
    alone = run_trial(scenarios["a"], 4)
    assert swept.outcomes["a"][1].trace_hash == alone.trace_hash
    assert len(workers) == 2
    assert all(worker.poll() is not None for worker in workers)


@pytest.mark.extended
def test_interrupt_leaves_what_there_is_and_no_process(workers):
    def came(outcome):
        if outcome is not None:
            raise KeyboardInterrupt

    swept = sweep({"a": scenario(TINY, name="a")}, range(1000), jobs=2, came=came)
    assert not swept.is_whole
    assert len(swept.outcomes["a"]) == 1
    assert workers
    assert all(worker.poll() is not None for worker in workers)


@pytest.mark.extended
def test_world_that_takes_its_process_with_it_costs_its_seed_alone(workers):
    killed: list[int] = []

    def came(outcome):
        if outcome is not None and not killed:
            killed.append(outcome.seed)
            workers[0].kill()

    swept = sweep({"a": scenario(TINY, name="a")}, range(4), jobs=1, came=came)
    assert [outcome.seed for outcome in swept.outcomes["a"]] == [0, 1, 2, 3]
    (lost,) = swept.failures()
    assert lost.violation is not None
    assert "its process ended with status -9" in lost.violation.text
    assert len(workers) == 2


@pytest.mark.extended
def test_worker_ends_with_its_input():
    worker = sweeping._Worker({"a": scenario(TINY, name="a")}, deque(), SimpleQueue())
    process = worker._started()
    out, _ = process.communicate(json.dumps(["a", 1]) + "\n", timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["seed"] == 1


def test_cores_are_those_that_this_process_may_use():
    assert 1 <= cores() <= (os.cpu_count() or 1)
