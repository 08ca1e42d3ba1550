"""Many seeds of many scenarios, on all cores: workers that each run one world after the other.

A worker is a process of its own that takes its tasks by line, so that no seed pays for the start of
an interpreter, and a world that kills its process costs one seed.
"""

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from blake3 import blake3

from node.processes.children import child_environment
from protocol.errors import ConfigError
from sim.trials.outcome import Outcome, Violation
from sim.trials.scenario import Scenario, settled
from sim.trials.scenario_text import scenario_text

SEEDS_MAX = 10_000_000
LOOK_S = 0.2
"""How often the display moves although nothing has come."""

LAST_BY_SIZE = 8
"""So many worlds for each worker, at the end of a sweep, begin with the largest."""

_END_S = 2.0

Task = tuple[str, int]
"""A scenario's name and a seed."""


@dataclass(slots=True)
class Swept:
    """What came of a sweep: by scenario, in the order of seeds; `is_whole` unless interrupted."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    wall_s: float = 0.0
    is_whole: bool = True

    def failures(self) -> list[Outcome]:
        """All outcomes with a violation."""
        return [one for found in self.outcomes.values() for one in found if one.violation]

    @property
    def trace_hash(self) -> str:
        """A digest over the traces of all worlds: one text to compare two interpreters by."""
        hasher = blake3()
        for name, found in sorted(self.outcomes.items()):
            for one in found:
                hasher.update(f"{name} {one.seed} {one.trace_hash}\n".encode())
        return hasher.hexdigest()


def seeds_of(text: str) -> range:
    """The seeds of "0..199" or "7". Raises ConfigError."""
    first, dots, last = text.partition("..")
    if first.isdecimal() and first.isascii() and len(first) < 19:
        end = last if dots else first
        if end.isdecimal() and end.isascii() and len(end) < 19:
            found = range(int(first), int(end) + 1)
            if 0 < len(found) <= SEEDS_MAX:
                return found
    raise ConfigError(f"--seeds must be like 0..199 or 7, at most {SEEDS_MAX}, not {text[:40]!r}")


def sweep(
    scenarios: Mapping[str, Scenario],
    seeds: Sequence[int],
    *,
    jobs: int,
    came: Callable[[Outcome | None], None],
    build: Path | None = None,
) -> Swept:
    """Run every seed of every scenario. `came` is told of each outcome, and now and then of None.

    `build` is a folder with our packages that workers take in the place of those we run from.

    KeyboardInterrupt ends it early, with what there is; no worker is left in any case.
    """
    swept = Swept(outcomes={name: [] for name in scenarios})
    # Seed by seed over all scenarios: a sweep that is interrupted has seen some of each.
    given = [(name, seed) for seed in seeds for name in scenarios]
    # The last ones by size: no worker is to begin with a large world when the others are through.
    ends = LAST_BY_SIZE * jobs
    last = sorted(given[-ends:], key=lambda task: -settled(scenarios[task[0]], task[1]).peers[0])
    tasks = deque([*given[:-ends], *last])
    num_left = len(tasks)
    with _crew(scenarios, tasks, min(jobs, num_left), build) as results:
        try:
            while num_left:
                try:
                    outcome = results.get(timeout=LOOK_S)
                except Empty:
                    came(None)
                    continue
                if isinstance(outcome, OSError):
                    raise outcome
                num_left -= 1
                swept.outcomes[outcome.scenario].append(outcome)
                came(outcome)
        except KeyboardInterrupt:
            swept.is_whole = False
    for found in swept.outcomes.values():
        found.sort(key=lambda outcome: outcome.seed)
    return swept


Results = SimpleQueue[Outcome | OSError]


@contextmanager
def _crew(
    scenarios: Mapping[str, Scenario], tasks: deque[Task], jobs: int, build: Path | None
) -> Iterator[Results]:
    """Workers at work until the block ends; then all of them end, at once."""
    results: Results = SimpleQueue()
    workers = [_Worker(scenarios, tasks, results, build) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.thread.start()
        yield results
    finally:
        tasks.clear()
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.thread.join(_END_S)


class _Worker:
    """A process, and the thread that gives it tasks and takes what comes."""

    def __init__(
        self,
        scenarios: Mapping[str, Scenario],
        tasks: deque[Task],
        results: Results,
        build: Path | None = None,
    ) -> None:
        texts = {name: scenario_text(scenario) for name, scenario in scenarios.items()}
        self._first_line = json.dumps(texts) + "\n"
        self._tasks, self._results, self._build = tasks, results, build
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_ended = False
        # A daemon, so that a sweep that is killed in the middle of this ends all the same.
        self.thread = threading.Thread(target=self._work, daemon=True)

    def end(self) -> None:
        """Kill the process: what it works on is of no interest any more."""
        with self._lock:
            self._is_ended = True
            if self._process is not None:
                self._process.kill()

    def _work(self) -> None:
        try:
            while self._tasks:
                try:
                    task = self._tasks.popleft()
                except IndexError:
                    break  # Another one took the last.
                self._results.put(self._outcome(task))
        except OSError as error:
            self._results.put(error)
        finally:
            self._close()

    def _outcome(self, task: Task) -> Outcome:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return Outcome.of(json.loads(line))
        status = process.wait()
        self._close()
        return lost_outcome(task, f"its process ended with status {status}")

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._process is None:
                # -P: a file here that is called like a module of ours is not taken for it.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "sim.trials.sweep_worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=_worker_environment(self._build),
                    text=True,
                    encoding="utf-8",
                )
                assert self._process.stdin is not None
                self._process.stdin.write(self._first_line)
            if self._is_ended:
                self._process.kill()
            return self._process

    def _close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                # What was left in the buffer is for nobody.
                with suppress(BrokenPipeError):
                    pipe.close()


def lost_outcome(task: Task, why: str) -> Outcome:
    """Of a world that took its process with it."""
    name, seed = task
    return Outcome(
        scenario=name,
        seed=seed,
        peers=0,
        rounds_sealed=0,
        rounds_carried=0,
        honest_digests_equal=True,
        loss_last=None,
        banned=0,
        false_bans=0,
        virtual_s=0.0,
        wall_s=0.0,
        trace_hash="",
        events=0,
        faults=0,
        faults_missed=0,
        violation=Violation(name="error", text=why, at_s=0.0, event=0),
    )


def _worker_environment(build: Path | None = None) -> dict[str, str]:
    """One thread for each: the workers themselves fill the cores."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = child_environment() | single
    if build is not None:
        parts = [str(build), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    return environment
