"""Many runs on all cores, in processes with one thread each; what was played is kept in a file.

Each process (`python -P -m sim.robustness.crew`) plays runs, one after the other.

A trial that is broken off goes on from there: a line of the file is one run, with a digest of all
sources that it came from, and counts for nobody else.
"""

import json
import math
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from blake3 import blake3

import training
from node.processes.children import child_environment
from node.processes.interrupts import end_at_once_from_now_on
from protocol.errors import BarnraiseError, ConfigError
from sim.robustness.game import Course, LyingStage
from sim.robustness.trial import Take


def line_of_take(take: Take) -> str:
    """What a player is told."""
    return json.dumps(asdict(take), sort_keys=True)


def take_of(found: Mapping[str, Any]) -> Take:
    """The other way round. Raises ConfigError for what is no take."""
    try:
        stage = LyingStage(**found["stage"])
        return Take(stage, str(found["case"]), str(found["rule"]), int(found["seed"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"no take: {error}") from error


def line_of_course(course: Course) -> str:
    """What a player answers; JSON has no infinity, null stands for it."""
    losses = [loss if math.isfinite(loss) else None for loss in course.losses]
    return json.dumps(asdict(course) | {"losses": losses})


def course_of(found: Mapping[str, Any]) -> Course:
    """The other way round. Raises ConfigError for what is no course."""
    try:
        losses = tuple(math.inf if loss is None else float(loss) for loss in found["losses"])
        return Course(losses, float(found["kept_direction"]), float(found["triggered"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"no course: {error}") from error


_COMMAND = (sys.executable, "-P", "-m", "sim.robustness.crew")
_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_OF_SIM = ("attacks", "robustness", "world")
_NOT_PLAYED = ("commands.py",)
"""What of `sim/robustness` changes no course."""


def source_digest() -> str:
    """Over whatever a course depends on."""
    mine, theirs = Path(__file__).parents[1], Path(training.__path__[0])
    paths = [path for room in _OF_SIM for path in (mine / room).glob("*.py")]
    paths += theirs.rglob("*.py")
    hasher = blake3(f"{sys.version} {version('numpy')} {_torch_version()}".encode())
    for path in sorted(path for path in paths if path.name not in _NOT_PLAYED):
        hasher.update(f"{path.name} ".encode() + path.read_bytes())
    return hasher.hexdigest()[:16]


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


class KeptCourses:
    """Courses in a file, a line each; torn lines and those of other sources are passed over."""

    def __init__(self, path: Path, digest: str) -> None:
        self._path, self._digest = path, digest
        self.courses: dict[Take, Course] = {}
        for line in path.read_text("utf-8", "replace").splitlines() if path.exists() else ():
            try:
                found = json.loads(line)
                if found["sources"] == digest:
                    self.courses[take_of(found["take"])] = course_of(found["course"])
            except (ValueError, KeyError, TypeError, BarnraiseError):
                continue

    def add(self, take: Take, course: Course) -> None:
        """Remember it, on the disk first."""
        parts = f'{{"sources": "{self._digest}", "take": {line_of_take(take)}'
        with self._path.open("a", encoding="utf-8") as file:
            # In front: the last line may be torn.
            file.write(f'\n{parts}, "course": {line_of_course(course)}}}')
        self.courses[take] = course


Result = tuple[Take, Course] | Exception


def play_all(takes: Sequence[Take], jobs: int, came: Callable[[Take, Course], None]) -> None:
    """Play them all; `came` is told of each, in the order in which they end.

    Raises ConfigError where a process died of one. No process is left in any case.
    """
    left, results = deque(takes), SimpleQueue[Result]()
    crew = [_Player(left, results) for _ in range(min(jobs, len(takes)))]
    try:
        for player in crew:
            player.thread.start()
        for _ in takes:
            found = results.get()
            if isinstance(found, Exception):
                raise found
            came(*found)
    finally:
        left.clear()
        for player in crew:
            player.end()


class _Player:
    """A process, and the thread that gives it takes."""

    def __init__(self, left: deque[Take], results: SimpleQueue[Result]) -> None:
        self._left, self._results = left, results
        # A daemon: whoever is interrupted does not wait for it.
        self.thread = threading.Thread(target=self._work, daemon=True)
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment() | _SINGLE,
            text=True,
            encoding="utf-8",
        )

    def end(self) -> None:
        """Kill the process: what it works on is of no interest any more."""
        self._process.kill()
        self._process.wait()
        self.thread.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _work(self) -> None:
        try:
            while self._left:
                try:
                    take = self._left.popleft()
                except IndexError:
                    break  # Another one took the last.
                self._results.put((take, self._course(take)))
        except (OSError, ValueError, BarnraiseError) as error:
            self._results.put(error)

    def _course(self, take: Take) -> Course:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line_of_take(take) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            status = self._process.wait()
            raise ConfigError(f"{take.case}, seed {take.seed}: its process ended with {status}")
        return course_of(json.loads(line))


# One player, a process: a line of JSON in, a line of JSON out -------------------------------------


def main() -> None:
    """Play until there is nothing more to read."""
    # The command itself says what a Ctrl+C means.
    end_at_once_from_now_on()
    for line in sys.stdin:
        course = take_of(json.loads(line)).play()
        sys.stdout.write(line_of_course(course) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
