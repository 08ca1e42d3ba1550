"""`barnraise bench homes`: does joining help?

Homes of given speeds and lines train one model, first each by itself and then together, for the
same time on the clock. A home's trainer gets the share of a core that its speed says: it is stopped
and continued many times a second. Its line is the shaper's. Of a home alone the steps in that time
follow from its measured speed, and the loss from one curve of a node that trains by itself, so
that nothing is paid for measuring it.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from node.processes.children import (
    JsonLine,
    first_error_nursery,
    number,
    open_json_child,
)
from protocol.errors import ConfigError, StateError
from protocol.manifest import RunManifest
from sim.bench.overlap import STEPPING_COMMAND
from sim.bench.staging import START_S, STUCK_S
from sim.demo.result import YARDSTICK_COMMAND
from sim.local.options import LocalOptions, found_run
from sim.local.swarm import LocalSwarm, Story
from sim.processes.node_process import node_name
from sim.processes.shaper import RATE_MAX, RATE_MIN, Shape, shape_named
from sim.processes.sitting import (
    Tell,
    check_range,
    check_signal,
    claim_folder,
    clear_nodes,
    clock,
    rounded,
)
from training.files.state import checkpoint_folders, round_of
from training.methods.presets import PRESETS, SHORT_RUN_ROUNDS

HOMES_MIN, HOMES_MAX = 2, 8
SPEED_MIN = 0.05
STEPPING_S = 12.0
"""How long each speed is measured alone."""

TURN_S = 0.1
"""In each turn a trainer runs for the share of it that its speed says. Short: an inner step of the
small model takes a few hundredths of a second."""

_LOOK_EVERY_S = 0.5
PLOT_FILE = "homes.png"


def speeds_named(text: str) -> tuple[float, ...]:
    """`0.4,0.4,0.2`. Raises ConfigError saying what is wrong."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--speeds {text!r} is no list of numbers such as 0.4,0.4,0.2") from None


def rates_named(text: str) -> tuple[float, ...]:
    """`20mbit,5mbit`, in bits per second. Raises ConfigError saying what is wrong."""
    rates: list[float | None] = [None]
    with suppress(ConfigError):  # It names another option.
        rates = [shape_named(part).bits_per_s for part in text.split(",")]
    if None in rates:
        raise ConfigError(
            f"--lines {text!r} is no list of rates such as 20mbit,5mbit, each"
            f" {RATE_MIN / 1e3:g}kbit to {RATE_MAX / 1e6:g}mbit"
        )
    return tuple(rate for rate in rates if rate is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomesOptions:
    """What is measured. `speeds` are shares of a core, `rates` bits per second, one for each
    home, or one rate for all."""

    speeds: tuple[float, ...]
    rates: tuple[float, ...]
    round_trip_s: float
    seconds: float
    folder: Path
    preset: str = "diloco"
    steps: int = 20
    """Inner steps of a round at most; a preset whose rounds are not paced takes as many."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_signal("bench homes", "SIGSTOP")
        check_range("the number of --speeds", len(self.speeds), HOMES_MIN, HOMES_MAX)
        if len(self.rates) not in (1, len(self.speeds)):
            raise ConfigError(
                f"--lines has {len(self.rates)} rates for {len(self.speeds)} homes: give one for"
                " all, or one for each"
            )
        for speed in self.speeds:
            check_range("--speeds", speed, SPEED_MIN, 1.0)
        check_range("--seconds", self.seconds, 10.0, 86_400.0)
        self.local(len(self.speeds))  # Checks the preset, before a folder is made.

    @property
    def counts(self) -> tuple[int, ...]:
        """How many homes train together, the first so many of them: 2, 4 and all."""
        most = len(self.speeds)
        return tuple(sorted({count for count in (2, 4, most) if 2 <= count <= most}))

    def local(self, count: int) -> LocalOptions:
        """The swarm of the first homes."""
        rates = self.rates if len(self.rates) > 1 else self.rates * count
        return LocalOptions(
            peers=max(count, 2),
            folder=self.folder / f"{count}-homes",
            shape=Shape(bits_per_s=rates[0], round_trip_s=self.round_trip_s),
            rates=rates[:count],
            seed=self.seed,
            trainer="real",
            preset=self.preset,
            steps=self.steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HomesRow:
    """So many homes together, or one alone. Losses are nats per byte of held-out text, behind
    `seconds` on the clock."""

    homes: int
    tokens_per_s: float
    loss: float
    seconds: float


@dataclass(slots=True, kw_only=True)
class HomesFound:
    """All that was measured; filled in as it comes."""

    loss_first: float = 0.0
    alone: list[HomesRow] = field(default_factory=list)
    """A row for each home, in their order."""

    together: list[HomesRow] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(inner step, loss) of a node that trains by itself."""

    tokens_per_step: int = 0

    def best_alone(self, homes: int) -> HomesRow:
        """The fastest of the first so many homes, by itself."""
        return max(self.alone[:homes], key=lambda row: row.tokens_per_s)

    def seconds_alone(self, loss: float, tokens_per_s: float) -> float | None:
        """How long a home of that speed takes by itself to a loss; None if beyond its curve."""
        step = next((step for step, seen in self.curve if seen <= loss), None)
        return None if step is None else step * self.tokens_per_step / tokens_per_s


def loss_at(curve: Sequence[tuple[int, float]], step: float) -> float:
    """The loss of a curve at a step, between its points by a straight line."""
    before = curve[0]
    for at in curve[1:]:
        if at[0] >= step:
            share = (step - before[0]) / (at[0] - before[0])
            return before[1] + share * (at[1] - before[1])
        before = at
    return before[1]


def homes_json(
    options: HomesOptions, found: HomesFound, about: Mapping[str, object]
) -> dict[str, object]:
    """The line that `--json` ends with."""

    def row(one: HomesRow) -> dict[str, object]:
        best = found.best_alone(one.homes)
        alone_s = found.seconds_alone(one.loss, best.tokens_per_s)
        return {
            "homes": one.homes,
            "tokens_per_s": round(one.tokens_per_s, 1),
            "loss": round(one.loss, 4),
            "loss_per_hour": rounded((found.loss_first - one.loss) / one.seconds * 3600.0, 2),
            "seconds": round(one.seconds, 1),
            "best_alone_tokens_per_s": round(best.tokens_per_s, 1),
            "best_alone_loss": round(best.loss, 4),
            "times_as_fast": rounded(alone_s and alone_s / one.seconds, 2),
        }

    return {
        "speeds": list(options.speeds),
        "lines_mbit": [rate / 1e6 for rate in options.rates],
        "round_trip_ms": round(options.round_trip_s * 1e3, 1),
        "preset": options.preset,
        "seed": options.seed,
        "loss_first": round(found.loss_first, 4),
        "alone": [
            {"speed": speed, "tokens_per_s": round(one.tokens_per_s, 1), "loss": round(one.loss, 4)}
            for speed, one in zip(options.speeds, found.alone, strict=True)
        ],
        "rows": [row(one) for one in (found.best_alone(1), *found.together)],
        **about,
    }


def print_homes(console: Console, options: HomesOptions, found: HomesFound) -> None:
    """The table for people."""
    table = Table(box=None, pad_edge=False)
    titles = ("homes", "tokens/s", "loss", "best alone: tokens/s", "loss", "reaches it")
    for title in titles:
        table.add_column(title, justify="right")
    for one in found.together:
        best = found.best_alone(one.homes)
        alone_s = found.seconds_alone(one.loss, best.tokens_per_s)
        times = f"{alone_s / one.seconds:.2f} times as fast" if alone_s else "beyond its curve"
        table.add_row(
            str(one.homes),
            f"{one.tokens_per_s:,.0f}",
            f"{one.loss:.3f}",
            f"{best.tokens_per_s:,.0f}",
            f"{best.loss:.3f}",
            times,
        )
    table.caption = (
        f"loss: nats per byte of held-out text behind {options.seconds:.0f} s on the clock; it"
        f" begins at {found.loss_first:.3f}. Reaches it: against the best home alone"
    )
    console.print(table)


# Speeds -------------------------------------------------------------------------------------------


async def hold_speed(pid_of: Callable[[], int | None], share: float) -> None:
    """Let a process run for that share of the time, until cancelled; then it runs freely."""
    if share >= 1.0:
        return
    pid: int | None = None
    try:
        while True:
            pid = pid_of()
            _signal(pid, signal.SIGSTOP)
            await trio.sleep(TURN_S * (1.0 - share))
            _signal(pid, signal.SIGCONT)
            await trio.sleep(TURN_S * share)
    finally:
        _signal(pid, signal.SIGCONT)


def _signal(pid: int | None, sent: int) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, sent)


# The bench ----------------------------------------------------------------------------------------


class HomesRun:
    """Plays all parts. `play` it once; `found` is what was found."""

    def __init__(self, options: HomesOptions, tell: Tell) -> None:
        self.found = HomesFound()
        self._options, self._tell, self._now_s = options, tell, clock()

    async def play(self) -> None:
        """No process is left, however it ends. Raises ConfigError for a folder that cannot be used,
        StateError when a swarm is stuck."""
        options, is_kept = self._options, False
        claim_folder(options.folder)
        try:
            await self._alone()
            for count in options.counts:
                self._tell(f"{count} homes train together for {options.seconds:.0f} s")
                self.found.together.append(await self._together(count))
        except StateError:
            is_kept = True
            raise
        finally:
            # Keys and checkpoints; what did not go well keeps them, what was stopped does not.
            for count in () if is_kept else (1, *options.counts):
                clear_nodes(options.local(count).folder)

    def _found_run(self, count: int) -> tuple[LocalOptions, RunManifest, Path]:
        local = self._options.local(count)
        claim_folder(local.folder, "nodes", "logs", "traces")
        path = local.folder / "manifest.msgpack"
        manifest = found_run(
            local, state=local.folder / "nodes" / "A", manifest_path=path, amend=self._amended
        )
        return local, manifest, path

    def _amended(self, manifest: RunManifest) -> RunManifest:
        """With the momentum of a run of few rounds, which these are."""
        momentum = PRESETS[self._options.preset](SHORT_RUN_ROUNDS - 1).momentum
        return replace(manifest, outer=replace(manifest.outer, momentum=momentum))

    async def _alone(self) -> None:
        _, manifest, path = self._found_run(1)
        found, options = self.found, self._options
        context = next(int(one.value) for one in manifest.model.settings if one.name == "context")
        found.tokens_per_step = manifest.inner.batch * context
        step_s: dict[float, float] = {}
        for speed in sorted(set(options.speeds)):
            self._tell(f"a home of {speed:g} of a core steps alone for {STEPPING_S:.0f} s")
            step_s[speed] = await self._step_s(manifest, path, speed)
        steps = int(options.seconds / min(step_s.values())) + 1
        self._tell(f"one node trains {steps} steps by itself, for the curve")
        await self._draw_curve(manifest, path, steps)
        found.loss_first = found.curve[0][1]
        for speed in options.speeds:
            row = HomesRow(
                homes=1,
                tokens_per_s=found.tokens_per_step / step_s[speed],
                loss=loss_at(found.curve, options.seconds / step_s[speed]),
                seconds=options.seconds,
            )
            found.alone.append(row)

    async def _step_s(self, manifest: RunManifest, path: Path, speed: float) -> float:
        words = ["--manifest", str(path), "--run", manifest.digest.hex(), "--child"]
        words += ["--threads", "1", "--seconds", str(STEPPING_S)]
        heard: JsonLine = {}
        async with (
            open_json_child([*STEPPING_COMMAND, *words], "a home alone") as child,
            first_error_nursery() as nursery,
        ):
            nursery.start_soon(hold_speed, lambda: child.pid, speed)
            heard = await child.hear(STUCK_S)
            nursery.cancel_scope.cancel()
        return number(heard["step_s"])

    async def _draw_curve(self, manifest: RunManifest, path: Path, steps: int) -> None:
        line = [*YARDSTICK_COMMAND, "--manifest", str(path), "--run", manifest.digest.hex()]
        line += ["--threads", "1", "--child", "alone"]
        curve = self.found.curve
        async with open_json_child(line, "the node by itself", is_killed=True) as child:
            while not curve or curve[-1][0] < steps:
                point = await child.hear(STUCK_S)
                curve.append((int(number(point["step"])), number(point["loss"])))

    async def _together(self, count: int) -> HomesRow:
        local, manifest, path = self._found_run(count)
        story = Story(count, lambda at_s, line: None)
        swarm = LocalSwarm(local, story, self._now_s)
        began_s = 0.0
        try:
            async with first_error_nursery() as nursery:
                for number_, speed in enumerate(self._options.speeds[:count]):
                    pid_of = partial(_trainer_pid, story, node_name(number_))
                    nursery.start_soon(hold_speed, pid_of, speed)
                # From when the first trains: what it waits for the others is theirs to pay.
                nursery.start_soon(partial(swarm.begin, nursery, within_s=START_S))
                with trio.move_on_after(START_S):
                    await swarm.until(lambda: bool(story.deaths) or _has_begun(story))
                if not _has_begun(story):
                    raise StateError(
                        f"none of the {count} homes has begun to train; see {local.folder}"
                    )
                began_s = self._now_s()
                while self._now_s() < began_s + self._options.seconds:
                    last_s = story.seals[-1][0] if story.seals else began_s
                    if story.deaths or self._now_s() - last_s > STUCK_S:
                        raise StateError(f"the swarm of {count} homes is stuck; see {local.folder}")
                    await trio.sleep(_LOOK_EVERY_S)
                nursery.cancel_scope.cancel()
        finally:
            await swarm.end_all()
        return await self._measured(local, manifest, path, story, began_s)

    async def _measured(
        self, local: LocalOptions, manifest: RunManifest, path: Path, story: Story, began_s: float
    ) -> HomesRow:
        """What the newest checkpoint comes to whose seal was heard; others came while all ended."""
        last = max((index for _, index in story.seals), default=0)
        checkpoint = newest_checkpoint(local.folder / "nodes" / "A", last)
        line = [*YARDSTICK_COMMAND, "--manifest", str(path), "--run", manifest.digest.hex()]
        line += ["--threads", "1", "--child", "measure", str(checkpoint)]
        async with open_json_child(line, "the yardstick") as child:
            said = await child.hear(STUCK_S)
        (measured,) = said["checkpoints"]
        made_by = int(number(measured["round"])) - 1
        seconds = seconds_to(made_by, story.seals, began_s)
        return HomesRow(
            homes=local.peers,
            tokens_per_s=number(measured["tokens"]) / seconds,
            loss=number(measured["loss"]),
            seconds=seconds,
        )


def seconds_to(round_index: int, seals: Sequence[tuple[float, int]], began_s: float) -> float:
    """How long after `began_s` that round was sealed; `seals` are (seconds, round). Raises
    StateError unless it was later."""
    sealed_s = next((at_s for at_s, index in seals if index >= round_index), began_s)
    if sealed_s <= began_s:
        raise StateError("no round was sealed in that time: give more --seconds, or fewer --steps")
    return sealed_s - began_s


def _has_begun(story: Story) -> bool:
    return any(node.paces for node in story.nodes.values())


def _trainer_pid(story: Story, name: str) -> int | None:
    """None until it has something to train."""
    node = story.nodes.get(name)
    return node.trainer_pid if node is not None and node.paces else None


def newest_checkpoint(state: Path, sealed: int) -> Path:
    """The newest that a round up to `sealed` made. Raises StateError where there is none."""
    for folder in state.glob("runs/*/checkpoints"):
        for path in checkpoint_folders(folder):
            if round_of(path) <= sealed + 1:
                return path
    raise StateError(f"nothing was sealed in that time: there is no checkpoint in {state}")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.2f}"


def draw_homes(options: HomesOptions, found: HomesFound, path: Path) -> None:
    """Write the PNG: tokens per second and loss, together and of the best home alone."""
    # matplotlib takes half a second to load.
    from sim.processes.figures import BLUE, BROWN, MUTED, new_figure, style_axes, title_axes

    rows = [found.best_alone(1), *found.together]
    best = [found.best_alone(one.homes) for one in rows]
    figure = new_figure((9.6, 4.2), 130)
    panes = figure.subplots(1, 2)
    values: tuple[tuple[str, Callable[[HomesRow], float]], ...] = (
        ("tokens per second", lambda row: row.tokens_per_s),
        (f"loss behind {options.seconds:.0f} s, nats per byte", lambda row: row.loss),
    )
    places = range(len(rows))
    for axes, (title, value) in zip(panes, values, strict=True):
        for shift, label, colour, shown in (
            (-0.2, "together", BLUE, rows),
            (0.2, "the best of them alone", BROWN, best),
        ):
            bars = axes.bar([at + shift for at in places], [value(r) for r in shown], 0.38)
            for bar in bars:
                bar.set_color(colour)
            bars.set_label(label)
            axes.bar_label(bars, fmt=_figure, fontsize=7, color=MUTED, padding=2)
        axes.set_xticks(list(places), [str(row.homes) for row in rows])
        style_axes(axes, "homes")
        title_axes(axes, title)
    losses = [row.loss for row in (*rows, *best)]
    panes[1].set_ylim(min(losses) * 0.95, max(losses) * 1.02)
    figure.legend(
        *panes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    figure.savefig(path, format="png")
