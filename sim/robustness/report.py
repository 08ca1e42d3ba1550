"""What a trial of attacks shows: a table, a picture, one object for scripts."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from sim.robustness.cases import CALM
from sim.robustness.game import Course, LyingStage
from sim.robustness.trial import Row

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
