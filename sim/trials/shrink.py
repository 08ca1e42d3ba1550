"""Failures: the smallest scenario that still breaks the same promise, and files to see it again.

First faults go, by halves and then one by one, then nodes, rounds and cells. Each candidate is a
world that is run, so the search is bounded by their number.
"""

import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from node.processes.version import version as package_version
from node.state.folder import write_atomically
from sim.trials.faults import WorldFault, member_names
from sim.trials.scenario import Recorded, Scenario, settled
from sim.trials.scenario_file import scenario_text
from sim.trials.trial import Outcome

Run = Callable[[Scenario, int], Outcome]

# Shrinking ----------------------------------------------------------------------------------------

TRIES_MAX = 400

LEAST_WITH_LIARS = 3
"""Peers, of whom less than half lie."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest scenario that was found, its outcome, and how many worlds that took."""

    scenario: Scenario
    outcome: Outcome
    tries: int


class Shrinker:
    """One search. `run` runs a world; `told` hears of every scenario that fails, the first too."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        run: Run,
        told: Callable[[Shrunk], None],
        tries_max: int = TRIES_MAX,
    ) -> None:
        self._seed = seed
        self._run = run
        self._told = told
        self._tries_left = tries_max
        self._tries = 0
        self._best = settled(scenario, seed)
        self._outcome = run(self._best, seed)
        violation = self._outcome.violation
        self._name = violation.name if violation is not None else ""
        if violation is not None:
            told(self._found())

    @property
    def fails(self) -> bool:
        """Whether there is anything to shrink."""
        return bool(self._name)

    def shrink(self) -> Shrunk:
        """Search until nothing more can go, or all tries are spent."""
        assert self.fails
        size = None
        # Fewer nodes may make another fault superfluous, so all of it again until nothing moves.
        while size != (size := self._size()):
            self._drop_faults()
            self._lower_peers()
            best = self._best
            self._bisect(1, best.rounds, lambda value: _with_rounds(self._best, value))
            self._bisect(1, best.cells, lambda value: replace(self._best, cells=value))
        return self._found()

    def _found(self) -> Shrunk:
        return Shrunk(self._best, self._outcome, self._tries)

    def _size(self) -> tuple[int, int, int, int]:
        best = self._best
        return len(best.timetable or ()), best.peers[0], best.rounds, best.cells

    def _fails_too(self, candidate: Scenario) -> bool:
        """Whether it breaks the same promise; then it is the best from now on."""
        if self._tries_left <= 0:
            return False
        self._tries_left -= 1
        self._tries += 1
        outcome = self._run(candidate, self._seed)
        if outcome.violation is None or outcome.violation.name != self._name:
            return False
        self._best, self._outcome = candidate, outcome
        self._told(self._found())
        return True

    def _drop_faults(self) -> None:
        """Delta debugging: ever smaller pieces of the timetable are left out."""
        pieces = 2
        while faults := self._best.timetable or ():
            pieces = min(pieces, len(faults))
            for rest in _without_each_piece(faults, pieces):
                if self._fails_too(replace(self._best, timetable=rest)):
                    # The pieces before this one are needed; go on with those of the same size.
                    pieces = max(2, pieces - 1)
                    break
            else:
                if pieces >= len(faults):
                    return
                pieces = min(2 * pieces, len(faults))

    def _lower_peers(self) -> None:
        least = LEAST_WITH_LIARS if self._best.attack else 1
        self._bisect(least, self._best.peers[0], lambda peers: _with_peers(self._best, peers))

    def _bisect(self, least: int, most: int, candidate: Callable[[int], Scenario]) -> None:
        """The least value that still fails, as if all above it failed; then the next below."""
        lowest = least
        while least < most:
            middle = (least + most) // 2
            if self._fails_too(candidate(middle)):
                most = middle
            else:
                least = middle + 1
        while most > lowest and self._fails_too(candidate(most - 1)):
            most -= 1


def _without_each_piece(
    faults: Sequence[WorldFault], pieces: int
) -> Iterator[tuple[WorldFault, ...]]:
    """The timetable without its first piece, without its second, and so on."""
    bounds = [len(faults) * index // pieces for index in range(pieces + 1)]
    for first, stop in pairwise(bounds):
        yield (*faults[:first], *faults[stop:])


def _with_peers(scenario: Scenario, peers: int) -> Scenario:
    """The scenario with fewer members, and without the faults that were theirs alone."""
    gone = set(member_names(scenario.peers[0])[peers:])
    kept = []
    for fault in scenario.timetable or ():
        victims = tuple(name for name in fault.victims if name not in gone)
        against = tuple(name for name in fault.against if name not in gone)
        # Of a fault of a link whose other side is gone nothing is left.
        if victims and (against or not fault.against):
            kept.append(replace(fault, victims=victims, against=against))
    return replace(scenario, peers=(peers, peers), timetable=tuple(kept))


def _with_rounds(scenario: Scenario, rounds: int) -> Scenario:
    """The scenario with fewer rounds, and without the faults of those that are gone."""
    kept = tuple(fault for fault in scenario.timetable or () if fault.round <= rounds)
    return replace(scenario, rounds=rounds, timetable=kept)


# What one needs to see the same again -------------------------------------------------------------


def recorded(scenario: Scenario, outcome: Outcome, version: str) -> Scenario:
    """The scenario with what came of it, fit for a file that can be replayed."""
    violation = outcome.violation
    return replace(
        scenario,
        recorded=Recorded(
            seed=outcome.seed,
            trace_hash=outcome.trace_hash,
            violation="" if violation is None else violation.name,
            event=outcome.events if violation is None else violation.event,
            version=version,
        ),
    )


def version() -> str:
    """The commit that this code is checked out at, marked if it was changed; else the version."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],  # noqa: S607
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10.0,
            check=True,
        )
        return found.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass  # No git, or an installed package.
    return package_version()


def replay_command(named: str, outcome: Outcome, *, rounds: int | None, peers: int | None) -> str:
    """The one command that shows a failure again; `named` is what the scenario was called by."""
    options = f" --seed {outcome.seed}"
    options += f" --peers {peers}" if peers is not None else ""
    options += f" --rounds {rounds}" if rounds is not None else ""
    return f"barnraise sim replay {shlex.quote(named)}{options}"


def write_failure(folder: Path, scenario: Scenario, outcome: Outcome) -> Path:
    """Write a failure as a scenario file of its own, everything drawn; where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{outcome.scenario}-{outcome.seed}.toml"
    found = recorded(settled(scenario, outcome.seed), outcome, version())
    write_atomically(path, scenario_text(found).encode())
    return path
