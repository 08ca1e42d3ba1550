"""The page about one demo: one file, no script, nothing that is loaded from elsewhere."""

import html
from importlib.resources import files
from string import Template

from node.demo.chart import draw_chart
from node.demo.pace import megabytes
from node.demo.result import DemoResult, NodeResult

_TEMPLATE = "page.html"


def render_page(result: DemoResult) -> str:
    """The page as text."""
    template = Template(files("node.demo").joinpath(_TEMPLATE).read_text("utf-8"))
    options = result.options
    return template.substitute(
        title=_text(f"Barnraise demo: {options.peers} nodes, {options.rounds} rounds"),
        heading=_text(f"{options.peers} nodes trained one model, without a coordinator"),
        story=_text(result.story or "Nobody was killed in this demo."),
        tiles="\n".join(_tiles(result)),
        chart=draw_chart(result),
        curve_rows="\n".join(_curve_rows(result)),
        node_rows="\n".join(_node_row(result, node) for node in result.nodes),
        sample=_text(result.sample or "(no sample was made)"),
        footer=_text(_footer(result)),
    )


def _tiles(result: DemoResult) -> list[str]:
    first_s = "-" if result.first_seal_s is None else f"{result.first_seal_s:.1f} s"
    sent = megabytes(sum(node.bytes_up for node in result.nodes))
    return [
        _tile("swarm", _loss(result.loss_last), "final loss of the swarm"),
        _tile("alone", _loss(result.loss_alone), "one node alone, same seed and steps"),
        _tile("", _loss(result.loss_first), "loss at genesis"),
        _tile(
            "bad" if result.anchors_equal is False else "",
            {True: "equal", False: "not equal", None: "not compared"}[result.anchors_equal],
            "the survivors' final weights, byte for byte",
        ),
        _tile("", f"{result.rounds_sealed} of {result.options.rounds}", "rounds sealed"),
        _tile("", first_s, "until the first seal"),
        _tile("", f"{result.wall_s:.0f} s", "in all"),
        _tile("", sent, "sent by all nodes"),
    ]


def _tile(kind: str, value: str, name: str) -> str:
    return f'<li class="{kind}"><b>{_text(value)}</b><span>{_text(name)}</span></li>'


def _curve_rows(result: DemoResult) -> list[str]:
    swarm, alone = dict(result.swarm), dict(result.alone)
    return [
        f'<tr><td class="text">{index}</td><td>{_loss(swarm.get(index))}</td>'
        f"<td>{_loss(alone.get(index))}</td></tr>"
        for index in sorted({*swarm, *alone})
    ]


def _node_row(result: DemoResult, node: NodeResult) -> str:
    cells = [
        (True, node.name),
        (True, node.peer[-8:]),
        (True, node.role),
        (True, node.status),
        (False, str(node.rounds_listed)),
        (False, megabytes(node.bytes_up)),
        (False, megabytes(node.bytes_down)),
        (True, " ".join(result.exchanges.get(node.name, ()))),
        (False, _loss(node.validation)),
    ]
    row = "".join(
        f'<td class="text">{_text(value)}</td>' if is_text else f"<td>{_text(value)}</td>"
        for is_text, value in cells
    )
    return f"<tr>{row}</tr>"


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


def _text(value: str) -> str:
    return html.escape(value)
