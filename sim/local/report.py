"""What people see of a local run: its progress, then a table, a line of JSON, a plot of rounds."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from protocol.identity import PeerId, parse_peer_id, peer_id_text
from sim.local.options import LocalOptions
from sim.local.swarm import Story, StoryFault
from sim.local.verdict import Rechecked, SwarmVerdict
from sim.processes.sitting import rounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_FILE, RESULT_FILE = "rounds.png", "result.json"

_COLOURS = {
    "kill": "#b3261e",
    "freeze": "#2a7f9e",
    "churn": "#1b7a3d",
    "stall": "#8a5a00",
    "reset": "#7b3fa0",
    "partition": "#44546a",
}


_PLAIN_EVERY_S = 10.0
_MARKS = {
    "starting": "…",
    "running": "●",
    "frozen": "❄",
    "stalled": "‖",
    "apart": "◐",
    "down": "✕",
    "left": "○",
    "finished": "✓",
    "dead": "✝",
}


class StoryProgress:
    """Shows a story. `tick` it a few times a second; `tell` it what happened."""

    def __init__(self, console: Console, now_s: Callable[[], float]) -> None:
        self._console = console
        self._now_s = now_s
        self._live: Live | None = None
        self._told_s = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Takes the lower lines of a terminal, while the context lasts."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def tell(self, at_s: float, line: str) -> None:
        """Something happened."""
        self._console.print(Text(f"{at_s:6.1f} s  {line}"), soft_wrap=True)

    def tick(self, story: Story) -> None:
        """Show how things stand now."""
        if self._live is not None:
            self._live.update(Text(self._status(story)), refresh=True)
        elif self._now_s() - self._told_s >= _PLAIN_EVERY_S:
            self._told_s = self._now_s()
            self.tell(self._told_s, self._status(story))

    def _status(self, story: Story) -> str:
        nodes = " ".join(f"{n.name}{_MARKS[n.status]}{n.sealed}" for n in story.nodes.values())
        since = f", {self._now_s() - story.seals[-1][0]:.0f} s ago" if story.seals else ""
        last = f"; last fault: {story.dealt[-1].fault}" if story.dealt else ""
        return f"round {story.newest}{since}; {nodes}{last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that is reported of one run. `error` says why it failed; empty if it did not."""

    options: LocalOptions
    story: Story
    verdict: SwarmVerdict
    wall_s: float
    error: str
    weights: Mapping[PeerId, float] = field(default_factory=dict)
    """Of each peer in what was sealed, where there are liars."""

    rechecked: Rechecked | None = None
    """What a latecomer says of the bans, where there are liars."""

    @property
    def is_good(self) -> bool:
        """What the exit status says."""
        is_sound = not self.error and not self.story.deaths and self.verdict.is_good
        return is_sound and self.is_rechecked

    @property
    def is_rechecked(self) -> bool:
        """Whether somebody who was not there has checked every ban; so, too, where nobody lied."""
        if self.options.attack is None or not self.verdict.banned:
            return True
        return self.rechecked is not None and self.rechecked.is_complete

    @property
    def rounds_per_minute(self) -> float:
        """From the first seal to the last."""
        seals = self.story.seals
        if len(seals) < 2 or seals[-1][0] <= seals[0][0]:
            return 0.0
        return 60.0 * (seals[-1][1] - seals[0][1]) / (seals[-1][0] - seals[0][0])

    @property
    def loss_last(self) -> float | None:
        """The mean loss of the honest nodes, each on its own data, before their newest seal."""
        losses = [n.train_loss for n in self.story.nodes.values() if not n.is_liar]
        known = [loss for loss in losses if loss is not None]
        return sum(known) / len(known) if known else None

    @property
    def _fair_share(self) -> float:
        taking_part = sum(not node.is_checker for node in self.story.nodes.values())
        return round(1.0 / max(1, taking_part), 6)

    @property
    def liars(self) -> list[tuple[str, float]]:
        """Who lied, by name, and its share in what was sealed."""
        found = [n for n in self.story.nodes.values() if n.is_liar and n.peer]
        return [(n.name, self.weights.get(parse_peer_id(n.peer), 0.0)) for n in found]

    @property
    def banned(self) -> dict[str, str]:
        """Whom seals ban, by name, and the evidence in hexadecimal."""
        return {self._name_of(p): evidence for p, evidence in self.verdict.banned.items()}

    def _name_of(self, peer: PeerId) -> str:
        names = {parse_peer_id(n.peer): n.name for n in self.story.nodes.values() if n.peer}
        return names.get(peer, peer_id_text(peer))

    def as_json(self) -> dict[str, object]:
        """The line that `--json` ends with."""
        story, verdict = self.story, self.verdict
        recovered = [one.next_seal_s for one in story.dealt if one.next_seal_s is not None]
        return {
            "is_good": self.is_good,
            "error": self.error,
            "invariants": verdict.broken or "hold",
            "peers": self.options.peers,
            "nodes": len(story.nodes),
            "rounds_sealed": story.newest,
            "rounds_per_minute": round(self.rounds_per_minute, 2),
            "faults": [_dealt(one) for one in story.dealt],
            "faults_spared": story.num_spared,
            "recovered_median_s": rounded(statistics.median(recovered)) if recovered else None,
            "recovered_max_s": rounded(max(recovered)) if recovered else None,
            "deaths": [{"node": one.name, "why": one.why} for one in story.deaths],
            "checkpoints_equal": verdict.checkpoints_equal,
            "checkpoints": verdict.num_checkpoints,
            "ledgers": verdict.num_ledgers,
            "records": verdict.num_records,
            "signatures": verdict.num_signatures,
            "memory_max_bytes": verdict.memory_max_bytes,
            "pids": [pid for node in story.nodes.values() for pid in node.pids],
            "seed": self.options.seed,
            "loss_last": self.loss_last,
            "attack": self.options.attack.name if self.options.attack else None,
            "attackers": [
                {"node": name, "weight": round(weight, 6), "fair_share": self._fair_share}
                for name, weight in self.liars
            ],
            "banned": [
                {"node": name, "evidence": evidence} for name, evidence in self.banned.items()
            ],
            "rechecked": self._rechecked_json(),
            "wall_s": rounded(self.wall_s),
        }

    def _rechecked_json(self) -> dict[str, object] | None:
        one = self.rechecked
        if one is None:
            return None
        return {
            "by": one.node,
            "joined": one.joined,
            "signed_before_it_joined": one.num_before,
            "bans": {self._name_of(peer): is_shown for peer, is_shown in one.bans.items()},
        }

    def rechecked_text(self) -> str:
        """The same in words."""
        one = self.rechecked
        if one is None or one.joined < 0:
            return "by nobody: no latecomer came in time"
        missing = [self._name_of(peer) for peer, is_shown in one.bans.items() if not is_shown]
        said = f"all {len(one.bans)}" if not missing else f"NOT {', '.join(missing)}"
        return f"by {one.node}, which joined in round {one.joined}, alone: {said}"


def print_result(console: Console, result: Result) -> None:
    """The table, the faults, and the verdict."""
    story, verdict = result.story, result.verdict
    if story.dealt:
        console.print(_faults(story))
    table = Table(show_header=False, box=None, pad_edge=False)
    shape = result.options.shape
    rows = [
        ("nodes", f"{result.options.peers} at first, {len(story.nodes)} in all"),
        ("network", "loopback" if shape is None else str(shape)),
        ("rounds sealed", f"{story.newest}, {result.rounds_per_minute:.1f} a minute"),
        ("faults", f"{len(story.dealt)} dealt, {story.num_spared} spared for the quorum's sake"),
        ("records", f"{verdict.num_records}, of them {verdict.num_signatures} signatures"),
        ("memory", f"{verdict.memory_max_bytes / 2**20:.0f} MiB at most in a network process"),
        ("checkpoints", _checkpoints(verdict)),
        ("ledgers", f"{verdict.num_ledgers} checked"),
        ("invariants", verdict.broken or "hold"),
    ]
    if result.loss_last is not None:
        rows.append(("loss", f"{result.loss_last:.4f} of the honest nodes at the end"))
    if result.options.attack is not None:
        weights = [f"{name} {weight:.1%}" for name, weight in result.liars]
        rows.append(("attack", f"{result.options.attack.name}; weights: {', '.join(weights)}"))
        nobody = "nobody: what it signs does not contradict itself, and nobody audits its numbers"
        if result.options.audits:
            nobody = "nobody: no audit has found it yet"
        rows.append(("banned", ", ".join(result.banned) or nobody))
    if result.options.attack is not None and result.banned:
        rows.append(("bans checked", result.rechecked_text()))
    proofs = [evidence_path(result, name) for name, evidence in result.banned.items() if evidence]
    rows += [("", f"barnraise evidence verify {path}") for path in proofs]
    for name, text in rows:
        table.add_row(name, text)
    console.print(table, markup=False)
    for death in story.deaths:
        console.print(f"\n{death.name} died by itself: {death.why}", markup=False)
    if result.error:
        console.print(f"\nThe run failed: {result.error}", markup=False)


def write_report(result: Result, folder: Path) -> None:
    """The result, the evidence and the plot as files. Takes half a second."""
    seals = [[round(at_s, 3), index] for at_s, index in result.story.seals]
    body = result.as_json() | {"seals": seals}
    (folder / RESULT_FILE).write_text(json.dumps(body, indent=1) + "\n", "utf-8", newline="\n")
    for name, evidence in result.banned.items():
        if evidence:  # The nodes' own copies go with their folders.
            evidence_path(result, name).write_bytes(bytes.fromhex(evidence))
    if result.story.seals:
        drawn_plot(result).savefig(folder / PLOT_FILE, format="png")


def evidence_path(result: Result, name: str) -> Path:
    """Where the evidence against a banned node lies, for `barnraise evidence verify`."""
    return result.options.folder / f"{name}.evidence"


def drawn_plot(result: Result) -> "Figure":
    """Rounds over time, and where faults were dealt."""
    # matplotlib takes half a second to load, and only this needs it.
    from matplotlib.ticker import MaxNLocator

    from sim.processes.figures import BLUE, MUTED, new_figure, style_axes, title_axes

    figure = new_figure((9.6, 4.8), 150)
    axes = figure.add_subplot()
    # From the start on: of one seal alone there would be nothing to see.
    times, rounds = zip((0.0, 0), *result.story.seals, strict=True)
    axes.step(times, rounds, where="post", color=BLUE, linewidth=2)
    named = set()
    for one in result.story.dealt:
        kind = one.fault.kind
        label = None if kind in named else kind
        named.add(kind)
        axes.axvline(one.at_s, color=_COLOURS[kind], linewidth=1.1, linestyle=":", label=label)
        if one.undone_s is not None and one.fault.lasts_s:
            axes.axvspan(one.at_s, one.undone_s, color=_COLOURS[kind], alpha=0.08, linewidth=0)
    dealt = ", and faults dealt" if result.story.dealt else ""
    title_axes(axes, f"{result.options.peers} real nodes: rounds sealed{dealt}")
    style_axes(axes, "seconds")
    axes.set_ylabel("round", color=MUTED)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylim(bottom=0)
    if named:
        axes.legend(loc="upper left", frameon=False)
    return figure


def _faults(story: Story) -> Table:
    table = Table("at", "fault", "next seal", "back", box=None, pad_edge=False)
    for one in story.dealt:
        table.add_row(
            f"{one.at_s:.1f} s", str(one.fault), _seconds(one.next_seal_s), _seconds(one.back_s)
        )
    return table


def _checkpoints(verdict: SwarmVerdict) -> str:
    if not verdict.num_checkpoints:
        return "none to compare"
    what = "all are what was sealed" if verdict.checkpoints_equal else "DIFFER from what was sealed"
    return f"{verdict.num_checkpoints} compared, {what}"


def _dealt(one: StoryFault) -> dict[str, object]:
    return {
        "at_s": rounded(one.at_s),
        "fault": str(one.fault),
        "kind": one.fault.kind,
        "victim": one.fault.victim,
        "beside": one.fault.beside,
        "next_seal_s": rounded(one.next_seal_s),
        "back_s": rounded(one.back_s),
    }


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
