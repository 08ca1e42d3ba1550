"""What `barnraise sim sweep robustness` does: the request, the table, the files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console

from node.processes.exit_codes import EXIT_DONE, EXIT_FAILED
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from sim.compiled.builds import cores
from sim.robustness.cases import CASES
from sim.robustness.crew import KeptCourses, play_all, source_digest
from sim.robustness.game import Course, LyingStage
from sim.robustness.learners import manifest_of
from sim.robustness.report import trial_json, trial_table, write_plot
from sim.robustness.trial import Take, rows_of, takes_of
from sim.trials.sweep import seeds_of

PICTURE, TABLE, COURSES = "robustness.png", "robustness.txt", "robustness.jsonl"
_TABLE_WIDTH = 120


def seeds_named(text: str) -> range:
    """As `seeds_of`; a number alone is how many, from seed 0. Raises ConfigError."""
    found = seeds_of(text)
    return found if ".." in text else range(found.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command."""

    seeds: str
    peers: int | None = None
    liars: int | None = None
    rounds: int | None = None
    model: str = "text"
    skew: float | None = None
    with_bare: bool = True
    jobs: int | None = None

    def stage(self) -> LyingStage:
        """What is to be played. Raises ConfigError for an option that makes no sense."""
        manifest_of(self.model)  # A name that there is not is told before anything runs.
        peers = LyingStage().peers if self.peers is None else self.peers
        stage = LyingStage(
            peers=peers,
            liars=peers // 4 if self.liars is None else self.liars,
            rounds=LyingStage().rounds if self.rounds is None else self.rounds,
            model=self.model,
            skew=self.skew,
        )
        if stage.rounds <= stage.attacked_from:
            raise ConfigError(
                f"--rounds {stage.rounds}: liars begin in round {stage.attacked_from}"
            )
        # Written so that what is not a number does not pass.
        if stage.skew is not None and not 0.01 <= stage.skew <= 1000.0:
            raise ConfigError(f"--skew {stage.skew}: from 0.01, all differ, to 1000, none does")
        return stage


def sweep_robustness(
    asked: Asked, out: Path | None, *, to_stderr: bool
) -> tuple[dict[str, object], int]:
    """Run all attacks and tell of them; the object for scripts, and the exit status."""
    seeds = seeds_named(asked.seeds)
    if not seeds:
        raise ConfigError("--seeds 0: there is nothing to run; a number is how many")
    stage, cases = asked.stage(), tuple(CASES)
    takes = takes_of(stage, seeds, cases, with_bare=asked.with_bare)
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _TABLE_WIDTH)  # A file has no edge.
    folder = Path() if out is None else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        courses = _played(takes, asked.jobs or cores(), folder / COURSES, console)
        rows = rows_of(stage, seeds, cases, courses)
        console.print(trial_table(rows, stage))
        write_plot(rows, stage, folder / PICTURE)
        text = StringIO()
        Console(file=text, width=_TABLE_WIDTH).print(trial_table(rows, stage))
        write_atomically(folder / TABLE, text.getvalue().encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"--out: cannot write to {folder}: {error.strerror}") from error
    console.print(f"{PICTURE} and {TABLE} are in {folder.resolve()}", soft_wrap=True)
    status = EXIT_DONE if all(row.is_kept for row in rows) else EXIT_FAILED
    return trial_json(rows, stage, seeds), status


def _played(
    takes: Sequence[Take], jobs: int, path: Path, console: Console
) -> Mapping[Take, Course]:
    """What came of all of them; what is in the file already is not played again."""
    kept = KeptCourses(path, source_digest())
    missing = [take for take in takes if take not in kept.courses]
    if len(missing) < len(takes):
        console.print(f"{len(takes) - len(missing)} of {len(takes)} runs are in {path}")
    with console.status("attacks") as shown:

        def came(take: Take, course: Course) -> None:
            kept.add(take, course)
            done = len(takes) - len(missing) + len(came_now)
            came_now.append(take)
            shown.update(f"{done + 1} of {len(takes)}: {take.case}, {take.rule}, seed {take.seed}")

        came_now: list[Take] = []
        play_all(missing, jobs, came)
    return kept.courses
