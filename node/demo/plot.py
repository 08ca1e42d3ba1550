"""The loss chart as a PNG, for READMEs and messages; the page has its own."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from node.demo.chart import Ending, endings, marks, scales
from node.demo.result import DemoResult

_INK, _MUTED, _LINE = "#1c1b19", "#66625b", "#e4dfd6"
_CURVES = {"swarm": ("#1f5fbf", "-"), "alone": ("#a8620c", "--")}
_MARKS = {"kill": "#b3261e", "late": "#1b7a3d"}
_INCHES, _DOTS_PER_INCH = (9.6, 4.8), 150


def draw_plot(result: DemoResult, path: Path) -> None:
    """Write the PNG; nothing where nothing was measured. Takes half a second, and a thread."""
    spans = scales(result.swarm, result.alone)
    if spans is None:
        return
    # No pyplot: it keeps global state and looks for a screen.
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)
    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_ylim(spans.loss_low, spans.loss_high)
    axes.set_xlim(0, spans.rounds * 1.17)
    axes.set_yticks(spans.ticks)
    _style(axes, result)
    # Both end close together: the upper label goes up a little, the lower down.
    for ending, shift in zip(endings(result), (5.0, -5.0), strict=False):
        _curve(axes, ending, shift)
    for row, mark in enumerate(found := marks(result)):
        colour = _MARKS[mark.kind]
        axes.axvline(mark.round, color=colour, linewidth=1.2, linestyle=":")
        is_last = row == len(found) - 1
        axes.annotate(
            mark.label,
            (mark.round, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(5 if is_last else -5, -12 - 14 * (row % 2)),
            textcoords="offset points",
            color=colour,
            ha="left" if is_last else "right",
        )
    figure.savefig(path, format="png")


def _style(axes: Axes, result: DemoResult) -> None:
    axes.set_title(
        f"{result.options.peers} nodes, one model: validation loss, nats per byte",
        loc="left",
        color=_INK,
        fontsize=12,
        fontweight="bold",
        pad=12,
    )
    axes.set_xlabel("rounds sealed", color=_MUTED)
    axes.grid(axis="y", color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_MUTED, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)


def _curve(axes: Axes, ending: Ending, shift: float) -> None:
    rounds, losses = zip(*ending.curve, strict=True)
    colour, dashes = _CURVES[ending.kind]
    axes.plot(rounds, losses, dashes, color=colour, linewidth=2)
    axes.annotate(
        ending.label,
        (rounds[-1], losses[-1]),
        xytext=(6, shift),
        textcoords="offset points",
        color=colour,
        va="center",
        fontweight="bold",
        annotation_clip=False,
    )
