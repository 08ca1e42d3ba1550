"""Loss of each preset against steps, bytes and time, as a PNG."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from sim.compare.main import LINE, Compared, step_s_of
from sim.processes.figures import BLUE, BROWN, GREEN, INK, MUTED, RED, new_figure, style_axes

_COLOURS = (
    *(BLUE, BROWN, GREEN, RED, "#6b3fa0", "#0f7f8c"),
    *("#8c5a2b", "#d0459b", "#5b6b1f", "#44546a", "#c98a00", "#2f2f2f"),
)
_FIRST_SHOWN = 0.12
"""Of the curve; before it everything falls alike, and the differences behind would be invisible."""

_DECADES_LABELLED = 2.5


def draw_plot(runs: Sequence[Compared], path: Path) -> None:
    """Write the PNG; nothing where nothing was measured."""
    shown = [run for run in runs if len(run.points) > 1]
    if not shown:
        return
    step_s = step_s_of(shown)
    panels: list[tuple[str, Callable[[Compared, int], float]]] = [
        ("inner steps of each peer", lambda run, step: float(step)),
        ("MB that leave a peer", lambda run, step: run.wire_bytes_at(step) / 1e6),
        (f"seconds, peers on {LINE.name}", lambda run, step: run.line_s_at(step, step_s)),
    ]
    figure = new_figure((14.4, 5.0), 130, pad=0.1)
    panes = figure.subplots(1, len(panels), sharey=True)
    for axes, (label, place) in zip(panes, panels, strict=True):
        for number, run in enumerate(shown):
            first = int(len(run.points) * _FIRST_SHOWN) + 1
            steps = [point.step for point in run.points[first:]]
            losses = [point.loss for point in run.points[first:]]
            axes.plot(
                [place(run, step) for step in steps],
                losses,
                color=_COLOURS[number % len(_COLOURS)],
                linestyle="-" if number < len(_COLOURS) // 2 else "--",
                linewidth=1.8,
                label=run.preset,
            )
        style_axes(axes, label)
    if any(run.wire_bytes for run in shown):  # Of one peer nothing leaves.
        scale_bytes(panes[1])
    panes[0].set_ylabel("validation loss, nats per byte", color=MUTED)
    figure.legend(*panes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    rounds = sorted({run.manifest.rounds for run in shown})
    num_peers = shown[0].costs.peers
    peers = "1 peer" if num_peers == 1 else f"{num_peers} peers"
    few = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    figure.suptitle(
        f"{peers}, {shown[0].costs.parameters:,} parameters, {few} rounds",
        x=0.01,
        ha="left",
        color=INK,
        fontsize=12,
        fontweight="bold",
    )
    figure.savefig(path, format="png")


def scale_bytes(axes: Axes) -> None:
    """A logarithmic axis: of a decade or more with the powers of ten, and 2 and 5 between them if
    there is room for their labels; of less with round numbers."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 10 * low:
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        is_short = high < low * 10**_DECADES_LABELLED
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)) if is_short else NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
