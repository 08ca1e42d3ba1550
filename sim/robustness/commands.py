"""What `barnraise sim sweep robustness` does: the request, the table, the files."""

from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console

from node.exit_codes import EXIT_DONE, EXIT_FAILED
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from sim.robustness.game import Stage
from sim.robustness.learners import manifest_of
from sim.robustness.report import trial_json, trial_table, write_plot
from sim.robustness.trial import Row, run_trial
from sim.trials.sweep import seeds_of

PICTURE, TABLE = "robustness.png", "robustness.txt"
_TABLE_WIDTH = 120


def seeds_named(text: str) -> range:
    """As `seeds_of`; a number alone is how many, from seed 0. Raises ConfigError."""
    found = seeds_of(text)
    return found if ".." in text else range(found.start)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command."""

    seeds: str
    peers: int | None
    rounds: int | None
    model: str = "text"


def sweep_robustness(
    asked: Asked, out: Path | None, *, to_stderr: bool
) -> tuple[dict[str, object], int]:
    """Run all attacks and tell of them; the object for scripts, and the exit status."""
    seeds = seeds_named(asked.seeds)
    if not seeds:
        raise ConfigError("--seeds 0: there is nothing to run")
    manifest_of(asked.model)  # A name that there is not is told before anything runs.
    count = Stage().peers if asked.peers is None else asked.peers
    rounds = asked.rounds or Stage().rounds
    stage = Stage(peers=count, liars=count // 4, rounds=rounds, model=asked.model)
    if stage.rounds <= stage.attacked_from:
        raise ConfigError(f"--rounds {stage.rounds}: liars begin in round {stage.attacked_from}")
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _TABLE_WIDTH)  # A file has no edge.
    with console.status("attacks") as shown:

        def tell(row: Row) -> None:
            shown.update(f"{row.attack}: {'kept' if row.is_kept else 'BROKEN'}")

        rows = run_trial(stage, seeds, tell)
    console.print(trial_table(rows))
    folder = Path() if out is None else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_plot(rows, stage, folder / PICTURE)
        text = StringIO()
        Console(file=text, width=_TABLE_WIDTH).print(trial_table(rows))
        write_atomically(folder / TABLE, text.getvalue().encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"--out: cannot write to {folder}: {error.strerror}") from error
    console.print(f"{PICTURE} and {TABLE} are in {folder.resolve()}", soft_wrap=True)
    status = EXIT_DONE if all(row.is_kept for row in rows) else EXIT_FAILED
    return trial_json(rows, stage, seeds), status
