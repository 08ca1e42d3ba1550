"""What `barnraise sim sweep robustness` shows and does: a table, a picture, one object for scripts;
the request, the files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table

from node.processes.exit_codes import EXIT_DONE, EXIT_FAILED
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from sim.compiled.builds import cores
from sim.robustness.crew import KeptCourses, play_all, source_digest
from sim.robustness.game import Course, LyingStage, manifest_of
from sim.robustness.trial import CALM, CASES, Row, Take, rows_of, takes_of
from sim.trials.sweep import seeds_of

# What is shown ------------------------------------------------------------------------------------

_INK, _MUTED, _LINE = "#1c1b19", "#66625b", "#e4dfd6"
_CLEAN, _DEFENDED, _BARE = "#8d8980", "#1f5fbf", "#b3261e"
_COLUMNS, _TILE_INCHES, _DOTS_PER_INCH = 6, (2.3, 1.9), 130
_STYLES = {"kept": "green", "told": "dim", "BROKEN": "bold red"}
_HEADROOM, _FOOTROOM = 1.6, 0.15
"""A curve that leaves the picture goes up this far above the clean one; some end below it."""


def trial_table(rows: Sequence[Row], stage: LyingStage) -> Table:
    """A line per attack, with its verdict."""
    title = f"{_liars_of(stage)}, {stage.rounds} rounds"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.caption, table.caption_justify = _summary(rows), "left"
    table.add_column("attack", no_wrap=True)
    for head in ("loss above clean", "limit", "damage", "bare mean", "right way"):
        table.add_column(head, justify="right")
    table.add_column("verdict")
    for row in rows:
        table.add_row(
            row.attack,
            _percent(row.loss_percent),
            "-" if row.limit is None else f"{row.limit:g} %",
            f"{row.damage:+.2f}",
            "-" if row.bare_percent is None else _percent(row.bare_percent),
            f"{100 * row.kept_direction:.0f} %",
            f"[{_STYLES[row.verdict]}]{row.verdict}[/]",
        )
    return table


def _telling(rows: Sequence[Row]) -> list[Row]:
    """Attacks that say anything of the defence."""
    return [row for row in rows if row.attack != CALM and row.verdict != "told"]


def _summary(rows: Sequence[Row]) -> str:
    if not any(row.bare for row in rows):
        return "which attacks do harm without a defence was not played"
    return (
        f"{len(_telling(rows))} of {len(rows) - 1} attacks tell: the others harm nobody undefended"
    )


def trial_json(rows: Sequence[Row], stage: LyingStage, seeds: Sequence[int]) -> dict[str, object]:
    """The line that `--json` ends with."""
    return {
        "peers": stage.peers,
        "liars": stage.liars,
        "f": stage.faults,
        "rounds": stage.rounds,
        "seeds": len(seeds),
        "model": stage.model,
        "skew": stage.skew,
        "telling": [row.attack for row in _telling(rows)],
        "broken": [row.attack for row in rows if not row.is_kept],
        "attacks": {row.attack: row.as_json() for row in rows},
    }


def write_plot(rows: Sequence[Row], stage: LyingStage, path: Path) -> None:
    """A PNG with a small chart per attack: clean, with the default rule, with the bare mean."""
    lines = -(-len(rows) // _COLUMNS)
    size = (_COLUMNS * _TILE_INCHES[0], lines * _TILE_INCHES[1] + 0.7)
    figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)  # No pyplot: it keeps global state and looks for a screen.
    grid = figure.subplots(lines, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    # From the last round before liars begin: what was learned before would flatten all the rest.
    clean = _middle(rows[0].clean)[stage.attacked_from - 1 :]
    low, high = min(clean), max(clean)
    top = low + _HEADROOM * (high - low)
    for number, axes in enumerate(grid.flat):
        if number >= len(rows):
            axes.set_visible(False)
            continue
        row = rows[number]
        _tile(axes, row, stage, top)
        axes.set_ylim(low - _FOOTROOM * (high - low), top)
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(),
        loc="outside lower right",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    skew = "" if stage.skew is None else f", data skewed by Dirichlet {stage.skew:g}"
    with_bare = " / bare mean" if rows[0].bare else ""
    title = (
        f"{_liars_of(stage)}{skew}: loss by round, from the last without lies on;"
        f" at the end above clean: default rule{with_bare}"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=_INK, fontweight="bold")
    figure.savefig(path, format="png")


def _tile(axes: Axes, row: Row, stage: LyingStage, top: float) -> None:
    curves = (
        ("clean", row.clean, _CLEAN, 3.0, "-"),
        ("bare mean", row.bare, _BARE, 1.5, "-"),
        ("default rule", row.defended, _DEFENDED, 1.5, "--"),
    )
    for label, courses, colour, width, dashes in curves:
        if not courses:
            continue
        # What is beyond the picture ends at its upper edge, where one sees that it left.
        first = stage.attacked_from
        shown = [min(loss, top) for loss in _middle(courses)][first - 1 :]
        rounds = range(first, first + len(shown))
        axes.plot(rounds, shown, dashes, color=colour, lw=width, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_title(row.attack, fontsize=9, color=_INK if row.is_kept else _BARE, loc="left")
    text = _percent(row.loss_percent)
    if row.bare_percent is not None:
        text += f" / {_percent(row.bare_percent)}"
    axes.annotate(
        text, (0.97, 0.93), xycoords="axes fraction", ha="right", va="top", fontsize=7, color=_MUTED
    )
    axes.grid(axis="y", color=_LINE, lw=0.6)
    axes.tick_params(colors=_MUTED, length=0, labelsize=7)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _middle(courses: Sequence[Course]) -> list[float]:
    """By round the median over seeds."""
    return [median(losses) for losses in zip(*(one.losses for one in courses), strict=True)]


def _liars_of(stage: LyingStage) -> str:
    return f"{stage.liars} liars of {stage.peers}, rule with f = {stage.faults}"


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return "diverged"
    return f"{value:+.1f} %" if abs(value) < 100 else f"{value:+.0f} %"


# What is done -------------------------------------------------------------------------------------

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
