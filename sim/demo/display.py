"""What people see while a demo runs, and at its end: a picture in a terminal, lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sim.demo.result import DemoResult
from sim.demo.swarm_view import ShownRound, SwarmView

TOLD_LINES_SHOWN = 6
_SPARKLINE_WIDTH = 32
_ROUNDS_AVERAGED = 10

MEASURING_SHARE = 0.25
"""Measuring takes about this share of the time that the swarm took: one node's work instead of
four's, on two cores."""

_STATUS_STYLES = {"training": "green", "finished": "cyan", "killed": "red", "starting": "yellow"}


@dataclass(slots=True, kw_only=True)
class Scene:
    """What a display shows. `measured` is the share of the yardstick's work; None before it."""

    view: SwarmView
    now_s: Callable[[], float]
    measured: float | None = None
    measuring_since_s: float = 0.0

    def start_measuring(self) -> None:
        """The swarm is done; the yardstick begins."""
        self.measured, self.measuring_since_s = 0.0, self.now_s()

    def tell_measured(self, share: float) -> None:
        """So much of the yardstick's work is done."""
        self.measured = share


def time_left_s(scene: Scene) -> float | None:
    """Seconds to go, guessed from the rounds so far; None before there are two."""
    if scene.measured is not None:
        if scene.measured <= 0.02:
            return None
        spent_s = scene.now_s() - scene.measuring_since_s
        return spent_s * (1.0 - scene.measured) / scene.measured
    times_s = [sealed.at_s for sealed in scene.view.rounds.values()]
    recent_s = times_s[-_ROUNDS_AVERAGED:]
    if len(recent_s) < 2:
        return None
    per_round_s = (recent_s[-1] - recent_s[0]) / (len(recent_s) - 1)
    left_s = per_round_s * (scene.view.num_rounds - len(times_s))
    # The guess falls while nothing is sealed, but not below what is certain to come.
    left_s = max(left_s - (scene.now_s() - recent_s[-1]), left_s - per_round_s, 0.0)
    return left_s + MEASURING_SHARE * per_round_s * scene.view.num_rounds


def tell_duration(seconds: float | None) -> str:
    """About how long, for people."""
    if seconds is None:
        return "time left: not known yet"
    if seconds < 10:
        return "a few seconds left"
    if seconds < 90:
        return f"about {5 * round(seconds / 5)} s left"
    return f"about {round(seconds / 60)} min left"


def megabytes(num_bytes: int) -> str:
    """Bytes as decimal megabytes."""
    return f"{num_bytes / 1e6:.1f} MB"


def sparkline(values: list[float], width: int) -> str:
    """The last `width` values as a row of bars; a lower value is a lower bar."""
    bars = "▁▂▃▄▅▆▇█"
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((value - low) * scale)] for value in shown)


class Display:
    """Shows a scene: `changed` after every event, `tick` a few times a second, `finish` once."""

    def changed(self, scene: Scene) -> None:
        """Something happened."""

    def tick(self, scene: Scene) -> None:
        """Time has passed."""

    def finish(self, scene: Scene) -> None:
        """Nothing more will happen."""


@contextmanager
def open_display(console: Console) -> Iterator[Display]:
    """The display that fits the console; the picture goes away when it closes."""
    if not console.is_terminal:
        yield LineDisplay(console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveDisplay(live)


class LineDisplay(Display):
    """One line per sealed round, and one for each thing out of the ordinary."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds_told = 0
        self._last_told_s = -1.0
        self._is_measuring = False

    def changed(self, scene: Scene) -> None:
        """Tell what is new; a round once its loss is known, and what is later after it."""
        for at_s, told in self._untold(scene.view):
            if isinstance(told, ShownRound) and self._awaits_loss(scene, told):
                return
            self._tell(scene, at_s, told)
        if scene.measured is not None and not self._is_measuring:
            self._is_measuring = True
            self._say(scene.now_s(), "training one node alone, to compare")

    def finish(self, scene: Scene) -> None:
        """Tell what still waits."""
        for at_s, told in self._untold(scene.view):
            self._tell(scene, at_s, told)

    def _untold(self, view: SwarmView) -> list[tuple[float, ShownRound | str]]:
        found: list[tuple[float, ShownRound | str]]
        found = [
            (sealed.at_s, sealed) for sealed in list(view.rounds.values())[self._rounds_told :]
        ]
        found += [(at_s, line) for at_s, line in view.told if at_s > self._last_told_s]
        # A round comes before what it brought about at the same moment.
        return sorted(found, key=lambda one: (one[0], isinstance(one[1], str)))

    def _awaits_loss(self, scene: Scene, sealed: ShownRound) -> bool:
        newest = scene.view.last_sealed
        assert newest is not None
        # Nodes measure it while they wait for the next seal, and tell it behind that.
        may_come = sealed.round > newest.round - 2
        return may_come and scene.measured is None and sealed.round not in scene.view.losses

    def _tell(self, scene: Scene, at_s: float, told: ShownRound | str) -> None:
        if isinstance(told, ShownRound):
            self._rounds_told += 1
            self._say(at_s, _sealed_line(scene, told))
        else:
            self._last_told_s = at_s
            self._say(at_s, told)

    def _say(self, at_s: float, line: str) -> None:
        print_line(self._console, f"[{at_s:6.1f} s] {line}")


def _sealed_line(scene: Scene, sealed: ShownRound) -> str:
    view, event = scene.view, sealed.event
    loss = view.losses.get(sealed.round)
    shown = "" if loss is None else f"  loss {loss:.3f}"
    return (
        f"round {sealed.round:2d} of {view.num_rounds} sealed: "
        f"{len(event.listed)} of {event.members} listed, attempt {event.attempt}, "
        f"{event.wall_s:.1f} s{shown}  up {megabytes(view.bytes_up)}  "
        f"down {megabytes(view.bytes_down)}  {tell_duration(time_left_s(scene))}"
    )


class LiveDisplay(Display):
    """The picture, drawn anew at every tick."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def tick(self, scene: Scene) -> None:
        """Draw."""
        self._live.update(draw_scene(scene), refresh=True)


def draw_scene(scene: Scene) -> Group:
    """The whole picture, some twenty lines of eighty columns."""
    view = scene.view
    title = Text("Barnraise", style="bold")
    title.append(f"  {len(view.nodes)} real nodes on this machine", style="not bold dim")
    return Group(
        title,
        Text(),
        _progress(scene),
        Text(),
        _node_table(view),
        Text(),
        *[
            Text(f"  {at_s:6.1f} s  {line}", style="dim", no_wrap=True, overflow="ellipsis")
            for at_s, line in list(view.told)[-TOLD_LINES_SHOWN:]
        ],
    )


def _progress(scene: Scene) -> Table:
    view = scene.view
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=8)
    table.add_column(width=_SPARKLINE_WIDTH)
    table.add_column()
    bar = ProgressBar(total=view.num_rounds, completed=view.num_sealed, width=_SPARKLINE_WIDTH)
    left = "" if scene.measured is not None else tell_duration(time_left_s(scene))
    table.add_row("rounds", bar, f"{view.num_sealed} of {view.num_rounds} sealed   {left}")
    losses = list(view.losses.values())
    now = f"{losses[-1]:.3f} nats per byte" if losses else "not measured yet"
    # The first value is so much higher that the rest would be one flat line.
    curve = sparkline(losses[1:], _SPARKLINE_WIDTH)
    table.add_row("loss", Text(curve, style="blue"), now)
    table.add_row("bytes", f"up {megabytes(view.bytes_up)}, down {megabytes(view.bytes_down)}", "")
    if scene.measured is not None:
        bar = ProgressBar(total=1.0, completed=scene.measured, width=_SPARKLINE_WIDTH)
        table.add_row("alone", bar, tell_duration(time_left_s(scene)))
    return table


def _table(left: str, right: str, style: str) -> Table:
    """A table with these columns, words to the left and numbers to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=style)
    for header in left.split(","):
        table.add_column(header)
    for header in right.split(","):
        table.add_column(header, justify="right")
    return table


def _node_table(view: SwarmView) -> Table:
    table = _table("node,peer id,status,round,phase", "links,listed,up,down", "dim")
    for node in view.nodes.values():
        table.add_row(
            node.name,
            Text(node.peer[-8:], style="dim"),
            Text(node.status, style=_STATUS_STYLES[node.status]),
            str(min(node.round, view.num_rounds)),
            node.phase if node.status == "training" else "",
            str(0 if node.status == "killed" else len(node.linked)),
            str(len(view.rounds_listed(node.name))),
            megabytes(node.bytes_up),
            megabytes(node.bytes_down),
        )
    return table


def print_result(console: Console, result: DemoResult) -> None:
    """The end of a demo: table, losses, the sample."""
    console.print()
    console.print(_result_table(result))
    console.print()
    for line in result_lines(result):
        print_line(console, line)
    if result.measured.text is not None:
        print_line(console, "\nThe trained model writes:\n")
        for line in result.measured.text.splitlines():
            print_line(console, f"    {line}".rstrip())


def print_line(console: Console, line: str) -> None:
    """A line as it is: text of nodes and models is never taken for markup.

    A terminal gets it wrapped between words, a file whole.
    """
    console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def result_lines(result: DemoResult) -> list[str]:
    """The findings in sentences, one per line."""
    lines = [result.story] if result.story else []
    measured = result.measured
    if measured.loss_last is not None and measured.loss_first is not None:
        lines.append(
            f"Loss on held-out text: {measured.loss_first:.3f} at genesis, "
            f"{measured.loss_last:.3f} at the end, nats per byte."
        )
    if result.ahead is not None:
        than = "better" if result.ahead > 0 else "worse"
        lines.append(
            f"One node alone, same seed and steps: {measured.loss_alone:.3f}; "
            f"the swarm is {abs(result.ahead):.3f} {than}."
        )
    equal = {True: "equal to the bit", False: "NOT EQUAL", None: "not compared"}[
        result.anchors_equal
    ]
    lines.append(f"The surviving nodes' final weights, read from their checkpoints: {equal}.")
    lines.append(f"{result.view.num_sealed} rounds sealed; {result.wall_s:.0f} s in all.")
    return lines


def _result_table(result: DemoResult) -> Table:
    table = _table("node,peer id,role,end", "listed,sent,received,last loss", "bold")
    for node in result.nodes:
        table.add_row(
            node.name,
            node.peer[-8:],
            node.role,
            node.status,
            str(node.rounds_listed),
            megabytes(node.bytes_up),
            megabytes(node.bytes_down),
            "" if node.validation is None else f"{node.validation:.3f}",
        )
    return table
