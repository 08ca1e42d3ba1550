"""The page about one demo: one file, no script, nothing that is loaded from elsewhere."""

from collections.abc import Collection, Sequence
from html import escape
from importlib.resources import files
from string import Template

from sim.demo.chart import draw_chart
from sim.demo.display import megabytes
from sim.demo.result import DemoResult

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
