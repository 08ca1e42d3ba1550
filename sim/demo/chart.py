"""What is left of one demo: its loss chart and the page about it. It loads matplotlib.

The chart is an SVG in the page, and a PNG for READMEs and messages. The page is one file, with no
script and nothing that is loaded from elsewhere.
"""

import io
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.demo.display import megabytes
from sim.demo.result import Curve, DemoResult
from sim.processes.figures import (
    BLUE,
    BROWN,
    GREEN,
    INK,
    LINE,
    MUTED,
    RED,
    new_figure,
    style_axes,
    title_axes,
)

_WIDTH, _HEIGHT = 860, 400
_CURVES = {"swarm": (BLUE, "-"), "alone": (BROWN, "--")}
_MARKS = {"kill": RED, "late": GREEN}
_PAGE_COLOURS = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    BLUE: "swarm",
    BROWN: "alone",
    RED: "kill",
    GREEN: "late",
}
"""By the name of the page's own, which has others for dark screens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened in a round."""

    kind: str
    round: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A curve, and what stands at its end."""

    kind: str
    label: str
    curve: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What the axes span. The chart is cut off above `loss_high`, where every curve is steep."""

    rounds: int
    loss_low: float
    loss_high: float
    ticks: tuple[float, ...]


def scales(swarm: Curve, alone: Curve) -> Scales | None:
    """Axes that leave the difference at the end visible; None without a point."""
    points = [*swarm, *alone]
    if not points:
        return None
    rounds = max(1, max(index for index, _ in points))
    # Genesis guesses every byte alike: a loss so high that it would press all else flat.
    steep = max(1, round(rounds * 0.04))
    tail = [loss for index, loss in points if index >= steep] or [loss for _, loss in points]
    low, high = min(tail), max(tail)
    step = _nice_step((high - low) / 6 or 0.1)
    low = math.floor((low - 0.15 * step) / step) * step
    high = math.ceil((high + 0.15 * step) / step) * step
    count = round((high - low) / step)
    ticks = tuple(round(low + index * step, 6) for index in range(count + 1))
    return Scales(rounds=rounds, loss_low=low, loss_high=high, ticks=ticks)


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if rough <= power * factor * 1.0001)


def marks(result: DemoResult) -> list[Mark]:
    """The kill and the late arrival, by round."""
    found, killing, late = [], result.view.killing, result.view.latecomer
    if killing is not None:
        found.append(Mark(kind="kill", round=killing.round, label=f"{killing.name} killed"))
    if late is not None and result.late_round is not None:
        found.append(Mark(kind="late", round=result.late_round, label=f"{late.name} contributes"))
    return sorted(found, key=lambda mark: mark.round)


def endings(result: DemoResult) -> list[Ending]:
    """Both curves with what stands at their ends, the upper first; none without points."""
    found = [
        Ending(kind=kind, label=f"{kind} {curve[-1][1]:.3f}", curve=curve)
        for kind, curve in (("swarm", result.swarm), ("alone", result.alone))
        if curve
    ]
    return sorted(found, key=lambda ending: ending.curve[-1][1], reverse=True)


def write_chart(result: DemoResult, path: Path) -> None:
    """Write the PNG; nothing where nothing was measured. Takes half a second, and a thread."""
    spans = scales(result.swarm, result.alone)
    if spans is None:
        return
    figure = new_figure((9.6, 4.8), 150)
    axes = _draw(figure, result, spans)
    title_axes(axes, f"{result.options.peers} nodes, one model: validation loss, nats per byte")
    figure.savefig(path, format="png")


def draw_chart(result: DemoResult) -> str:
    """The chart as one `<svg>` in the page's colours; each point tells its numbers when the
    pointer rests on it."""
    spans = scales(result.swarm, result.alone)
    if spans is None:
        return '<p class="muted">Nothing was measured.</p>'
    target = io.StringIO()
    # Text stays text, in the page's font.
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 13}):
        figure = new_figure((_WIDTH / 72, _HEIGHT / 72), 72, pad=0.05)
        axes = _draw(figure, result, spans)
        figure.savefig(target, format="svg", transparent=True)
    dots = []
    for kind, name in (("alone", "one node alone"), ("swarm", "swarm")):
        for index, loss in getattr(result, kind):
            x, y = axes.transData.transform((index, loss))
            if loss <= spans.loss_high:
                dots.append(
                    f'<circle class="dot {kind}" r="3.5" cx="{x:.1f}" cy="{_HEIGHT - y:.1f}">'
                    f"<title>round {index}: {name} {loss:.3f}</title></circle>"
                )
    return _in_page(target.getvalue()).replace("</svg>", "\n".join([*dots, "</svg>"]))


def _draw(figure: Figure, result: DemoResult, spans: Scales) -> Axes:
    axes = figure.add_subplot()
    axes.set_ylim(spans.loss_low, spans.loss_high)
    axes.set_xlim(0, spans.rounds * 1.17)
    axes.set_yticks(spans.ticks)
    style_axes(axes, "rounds sealed")
    # Both end close together: the upper label goes up a little, the lower down.
    for ending, shift in zip(endings(result), (5.0, -5.0), strict=False):
        rounds, losses = zip(*ending.curve, strict=True)
        colour, dashes = _CURVES[ending.kind]
        axes.plot(rounds, losses, dashes, color=colour, linewidth=2, gid=f"line-{ending.kind}")
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
    for row, mark in enumerate(found := marks(result)):
        colour, is_last = _MARKS[mark.kind], row == len(found) - 1
        axes.axvline(mark.round, color=colour, linewidth=1.2, linestyle=":")
        axes.annotate(
            mark.label,
            (mark.round, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(5 if is_last else -5, -12 - 14 * (row % 2)),
            textcoords="offset points",
            color=colour,
            ha="left" if is_last else "right",
        )
    return axes


def _in_page(svg: str) -> str:
    """A drawing of matplotlib as a part of the page: no head, no size, no colours of its own, and
    nothing that it takes from elsewhere, such as the marks of ticks without length."""
    head = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="chart-title">'
        '<title id="chart-title">Validation loss by round: the swarm, and one node alone</title>'
    )
    body = re.sub(r"<svg[^>]*>", head, svg[svg.index("<svg") :], count=1)
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<use [^>]*/>|<defs>\s*(<path [^>]*/>)?\s*</defs>", "", body)
    body = re.sub(r"\bp[0-9a-f]{10}\b", "plot", body)
    body = re.sub(r'<g id="line-(\w+)">', r'<g class="line \1">', body)
    body = re.sub(r"font-family: [^;\"]*(; )?", "", body)
    for colour, name in _PAGE_COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    return body


# The page -----------------------------------------------------------------------------------------

_TEMPLATE = "page.html"


def render_page(result: DemoResult) -> str:
    """The page as text."""
    template = Template(files("sim.demo").joinpath(_TEMPLATE).read_text("utf-8"))
    options = result.options
    return template.substitute(
        title=escape(f"Barnraise demo: {options.peers} nodes, {options.rounds} rounds"),
        heading=escape(f"{options.peers} nodes trained one model, without a coordinator"),
        story=escape(result.story or "Nobody was killed in this demo."),
        tiles=_tiles(result),
        chart=draw_chart(result),
        curve_rows=_curve_rows(result),
        node_rows=_node_rows(result),
        sample=escape(result.measured.text or "(no sample was made)"),
        footer=escape(_footer(result)),
    )


def _tiles(result: DemoResult) -> str:
    """What is worth knowing at a glance: kind, value and name of each tile."""
    measured, seal_s = result.measured, result.view.first_seal_s
    equal = {True: "equal", False: "not equal", None: "not compared"}[result.anchors_equal]
    tiles = [
        ("swarm", _loss(measured.loss_last), "final loss of the swarm"),
        ("alone", _loss(measured.loss_alone), "one node alone, same seed and steps"),
        ("", _loss(measured.loss_first), "loss at genesis"),
        (
            "bad" if result.anchors_equal is False else "",
            equal,
            "the survivors' final weights, byte for byte",
        ),
        ("", f"{result.view.num_sealed} of {result.options.rounds}", "rounds sealed"),
        ("", "-" if seal_s is None else f"{seal_s:.1f} s", "until the first seal"),
        ("", f"{result.wall_s:.0f} s", "in all"),
        ("", megabytes(result.view.bytes_up), "sent by all nodes"),
    ]
    return "\n".join(
        f'<li class="{kind}"><b>{escape(value)}</b><span>{escape(name)}</span></li>'
        for kind, value, name in tiles
    )


def _row(cells: Sequence[str], words: Collection[int]) -> str:
    """A row of a table, in which the cells of these places hold words and the others numbers."""
    return "".join(
        [
            "<tr>",
            *(
                f'<td class="text">{escape(value)}</td>'
                if place in words
                else f"<td>{escape(value)}</td>"
                for place, value in enumerate(cells)
            ),
            "</tr>",
        ]
    )


def _curve_rows(result: DemoResult) -> str:
    swarm, alone = dict(result.swarm), dict(result.alone)
    return "\n".join(
        _row((str(index), _loss(swarm.get(index)), _loss(alone.get(index))), {0})
        for index in sorted({*swarm, *alone})
    )


def _node_rows(result: DemoResult) -> str:
    exchanges = result.view.exchanges()
    return "\n".join(
        _row(
            (
                *(node.name, node.peer[-8:], node.role, node.status, str(node.rounds_listed)),
                *(megabytes(node.bytes_up), megabytes(node.bytes_down)),
                *(" ".join(exchanges[node.name]), _loss(node.validation)),
            ),
            {0, 1, 2, 3, 7},
        )
        for node in result.nodes
    )


def _footer(result: DemoResult) -> str:
    options, manifest = result.options, result.manifest
    inner, outer = manifest.inner, manifest.outer
    settings = ", ".join(f"{setting.name} {setting.value}" for setting in manifest.model.settings)
    return (
        f"Made by: barnraise demo --peers {options.peers} --rounds {options.rounds} "
        f"--seed {options.seed}. Model: {manifest.model.name} ({settings}). "
        f"Text: {manifest.corpus.name}. A round is {inner.inner_steps} inner steps of batch "
        f"{inner.batch} on each node, then one step of {outer.optimizer} with rate "
        f"{outer.learning_rate} and momentum {outer.momentum}. All losses are measured on one "
        "fixed sample of held-out text. "
        f"Run {manifest.digest.hex()[:12]}."
    )


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
