"""`barnraise bench link`: two processes over our transport, the stock library, and raw sockets.

All kinds take turns in one run, so that a machine that is busy with other things is equally busy
for each; of several turns the medians count.

With `--shape`: a state over a line as homes have it, which breaks on the way. Two processes, each
with links, core and bulk streams of a node (`sim.bench.path_end`), and between them the network of
`barnraise local --shape`. The line is the giver's; what it has taken is counted there, with every
header and with what a broken connection loses.
"""

import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

import trio
from rich.console import Console
from rich.table import Table

from node.processes.children import JsonChild, JsonLine, first_error_nursery, open_json_child
from protocol.errors import StateError
from protocol.limits import CELLS_MAX, MIB
from sim.processes.shaper import HOST, Port, Shape, Shaper, free_port
from sim.processes.sitting import Tell, check_choice, check_range, rounded, run_until_signal
from sim.processes.usage import cpu_s

Stages = dict[str, float]
"""CPU seconds by stage."""

KINDS = ("ours", "stock", "tls", "tcp")
SECURITIES = ("noise", "tls")
MIB_MAX, REPEAT_MAX = 16 * 1024, 100
_ROUND_TRIPS, _BUSY_ROUND_TRIPS = 1000, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """`bench link`. `mib` is what one transfer moves."""

    mib: int = 256
    security: str = "noise"
    repeat: int = 5
    is_profiled: bool = False

    def __post_init__(self) -> None:
        check_range("--mib", self.mib, 1, MIB_MAX)
        check_choice("--security", self.security, SECURITIES)
        check_range("--repeat", self.repeat, 1, REPEAT_MAX)


@dataclass(slots=True)
class LinkTransfers:
    """The transfers of one kind."""

    wall_s: list[float] = field(default_factory=list)
    send_cpu_s: list[float] = field(default_factory=list)
    receive_cpu_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, found: JsonLine, *, is_warm: bool) -> None:
        """Take in what the giver says of a transfer; the first only warms up."""
        if "failed" in found:
            self.failed.append(found["failed"])
        elif is_warm:
            self.wall_s.append(found["wall_s"])
            self.send_cpu_s.append(found["send_cpu_s"])
            self.receive_cpu_s.append(found["receive_cpu_s"])

    def mib_s(self, mib: int) -> float | None:
        """The median rate; None if none came through."""
        return mib / statistics.median(self.wall_s) if self.wall_s else None

    def cpu_s_per_gib(self, mib: int) -> tuple[float, float] | None:
        """Of the sender and of the receiver, medians."""
        if not self.wall_s:
            return None
        scale = 1024 / mib
        return (
            scale * statistics.median(self.send_cpu_s),
            scale * statistics.median(self.receive_cpu_s),
        )


@dataclass(slots=True)
class LinkResult:
    """What was measured. Round trips in seconds; `stages` of sender and receiver, if asked."""

    transfers: dict[str, LinkTransfers] = field(
        default_factory=lambda: {kind: LinkTransfers() for kind in KINDS}
    )
    security: str = ""
    idle_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    stages: tuple[Stages, Stages] | None = None


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two processes of `sim.bench.link_ends`, and where the one that takes listens."""

    taker: JsonChild
    giver: JsonChild
    place: JsonLine

    async def ask(self, **task: object) -> JsonLine:
        """Have the giver do a task with the taker, and wait until it is done."""
        return await self.giver.ask(json.dumps(task | {"to": self.place}))


async def _measure_link(options: LinkOptions, result: LinkResult, tell: Tell) -> None:
    async with AsyncExitStack() as stack:
        pairs = {kind: await _open_pair(stack, kind, options) for kind in KINDS}
        ours = pairs["ours"]
        result.security = ours.place["security"]
        tell(f"{options.mib} MiB a transfer, {options.repeat} turns, {result.security}")
        for turn in range(options.repeat + 1):
            for kind in KINDS:
                found = await pairs[kind].ask(do="bulk", mib=options.mib)
                result.transfers[kind].add(found, is_warm=turn > 0)
            if turn:
                result.idle_s += await _round_trips(ours, "idle", _ROUND_TRIPS, options)
                result.busy_s += await _round_trips(ours, "busy", _BUSY_ROUND_TRIPS, options)
                last = {kind: o.wall_s[-1] for kind, o in result.transfers.items() if o.wall_s}
                rates = (f"{kind} {options.mib / s:.0f} MiB/s" for kind, s in last.items())
                tell(f"turn {turn}: {', '.join(rates)}")
        if options.is_profiled:
            for end in (ours.giver, ours.taker):
                await end.close_input()
            sending, taking = await ours.giver.hear(), await ours.taker.hear()
            result.stages = (sending["stages"], taking["stages"])


def bench_link(options: LinkOptions, tell: Tell) -> LinkResult:
    """Measure. Raises StateError when a process cannot go on, Interrupted."""
    result = LinkResult()
    run_until_signal(partial(_measure_link, options, result, tell))
    return result


async def _open_pair(stack: AsyncExitStack, kind: str, options: LinkOptions) -> _Pair:
    words = [sys.executable, "-P", "-m", "sim.bench.link_ends", kind, options.security]
    words += ["--profile"] if options.is_profiled else []
    what = "an end of the link"
    ends = [
        await stack.enter_async_context(open_json_child(words, what, is_killed=True))
        for _ in range(2)
    ]
    places = [await end.hear() for end in ends]
    return _Pair(taker=ends[0], giver=ends[1], place=places[0])


async def _round_trips(pair: _Pair, name: str, total: int, options: LinkOptions) -> list[float]:
    found = await pair.ask(do=name, count=math.ceil(total / options.repeat))
    if "failed" in found:
        raise StateError(f"round trips: {found['failed']}")
    times: list[float] = found["round_trips_s"]
    return times


# What is told ------------------------------------------------------------------------------------

_NAMES = {
    "ours": "ours",
    "stock": "libp2p as it comes",
    "tls": "TLS 1.3 sockets",
    "tcp": "TCP sockets",
}


def percentile_ms(values_s: Sequence[float], percent: float) -> float | None:
    """The smallest value that so many percent do not exceed, in milliseconds."""
    if not values_s:
        return None
    ordered = sorted(values_s)
    place = max(0, -int(-len(ordered) * percent // 100) - 1)
    return round(1000 * ordered[place], 3)


def link_json(options: LinkOptions, commit: str, result: LinkResult) -> dict[str, object]:
    """The line that `--json` ends with."""
    rates = {kind: one.mib_s(options.mib) for kind, one in result.transfers.items()}
    costs = {kind: one.cpu_s_per_gib(options.mib) for kind, one in result.transfers.items()}
    send_s, receive_s = costs["ours"] or (None, None)
    return {
        "stream_mib_s": rounded(rates["ours"]),
        "stock_libp2p_mib_s": rounded(rates["stock"]),
        "raw_tcp_mib_s": rounded(rates["tcp"]),
        "raw_tls_mib_s": rounded(rates["tls"]),
        "times_stock": _ratio(rates["ours"], rates["stock"]),
        "of_raw_tls": _ratio(rates["ours"], rates["tls"]),
        "send_cpu_s_per_gib": rounded(send_s),
        "receive_cpu_s_per_gib": rounded(receive_s),
        "cpu_s_per_gib": {
            kind: cost and [rounded(one) for one in cost] for kind, cost in costs.items()
        },
        "security": result.security,
        "rpc_p50_ms": percentile_ms(result.idle_s, 50),
        "rpc_p99_ms": percentile_ms(result.idle_s, 99),
        "rpc_p50_busy_ms": percentile_ms(result.busy_s, 50),
        "rpc_p99_busy_ms": percentile_ms(result.busy_s, 99),
        "mib": options.mib,
        "repeat": options.repeat,
        "failed": {kind: one.failed for kind, one in result.transfers.items() if one.failed},
        "stages": result.stages and {"send": result.stages[0], "receive": result.stages[1]},
        "commit": commit,
    }


def print_link(console: Console, options: LinkOptions, result: LinkResult) -> None:
    """A line per kind, the round trips, and the stages if they were asked for."""
    table = Table("", "MiB/s", "CPU s/GiB send", "receive", box=None, pad_edge=False)
    for kind, one in result.transfers.items():
        rate, cost = one.mib_s(options.mib), one.cpu_s_per_gib(options.mib)
        cells = (
            ["", "", ""]
            if rate is None or cost is None
            else [
                f"{rate:.0f}",
                f"{cost[0]:.2f}",
                f"{cost[1]:.2f}",
            ]
        )
        table.add_row(_NAMES[kind], *cells)
    console.print(table)
    for name, values_s in (("idle", result.idle_s), ("busy", result.busy_s)):
        half, most = percentile_ms(values_s, 50), percentile_ms(values_s, 99)
        console.print(f"round trip, {name}: {half} ms (p50), {most} ms (p99)", markup=False)
    for end, stages in zip(("send", "receive"), result.stages or (), strict=False):
        total_s = sum(stages.values()) or 1.0
        shares = sorted(stages.items(), key=lambda one: -one[1])
        told = ", ".join(f"{stage} {100 * spent_s / total_s:.0f} %" for stage, spent_s in shares)
        console.print(f"{end}: {told}", markup=False)
    for kind, one in result.transfers.items():
        for why in one.failed:
            console.print(f"{_NAMES[kind]}: {why}", style="bold red", markup=False)


def _ratio(value: float | None, other: float | None) -> float | None:
    return round(value / other, 3) if value and other else None


# Over a line ------------------------------------------------------------------------------------

BREAKS_MAX = 100
_PATIENCE_S = 60.0
"""Beyond ten times what the line takes."""

_NAME = "giver"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOptions:
    """`bench link --shape`. `breaks` are spread evenly over the bytes."""

    shape: Shape
    mib: int = 256
    security: str = "tls"
    breaks: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("--mib", self.mib, 1, CELLS_MAX)
        check_choice("--security", self.security, SECURITIES)
        check_range("--break", self.breaks, 0, BREAKS_MAX)


@dataclass(slots=True)
class PathResult:
    """`line_bytes` were taken by the line towards the taker; `wall_s` is from the first question
    to the last cell that was checked and kept."""

    wall_s: float = 0.0
    line_bytes: int = 0
    connections_broken: int = 0
    cpu_s: tuple[float, float] = (0.0, 0.0)
    """Of giver and taker, from the first question on."""

    faults: tuple[str, ...] = ()

    def mib_s(self, options: PathOptions) -> float:
        """The rate of what was wanted."""
        return options.mib / self.wall_s

    def line_share(self, options: PathOptions) -> float | None:
        """How much of what the line could have carried was wanted; None if it has no rate."""
        rate = options.shape.bits_per_s
        return None if rate is None else 8 * MIB * self.mib_s(options) / rate

    def more_bytes(self, options: PathOptions) -> float:
        """What the line took beyond what was wanted, as a share of that."""
        return self.line_bytes / (options.mib * MIB) - 1.0


def bench_path(options: PathOptions, tell: Tell) -> PathResult:
    """Measure. Raises StateError when an end fails or nothing comes through in time, Interrupted.

    No process is left.
    """
    result = PathResult()
    run_until_signal(partial(_play, options, tell, result))
    return result


async def _play(options: PathOptions, tell: Tell, result: PathResult) -> None:
    target = free_port(random.Random(options.seed))
    rate = options.shape.bits_per_s
    expected_s = options.mib * MIB * 8 / rate if rate else 0.0
    async with first_error_nursery() as nursery:
        shaper = Shaper(options.shape, seed=options.seed, nursery=nursery)
        port = await shaper.add_port(_NAME, target)
        address = f"/ip4/{HOST}/tcp/{port.listen}"
        with trio.move_on_after(_PATIENCE_S + 10 * expected_s) as patience:
            giving = {"is_giver": True, "listen": target, "announce": [address]}
            async with _open_end(options, giving) as giver:
                place = await giver.hear()
                taking = {"is_giver": False, "peer": place["peer"], "address": address}
                async with _open_end(options, taking) as taker:
                    await taker.hear()
                    before_s = [cpu_s([end.pid]) for end in (giver, taker)]
                    tell(f"{options.mib} MiB, {options.shape}, {options.breaks} breaks")
                    nursery.start_soon(_break, options, shaper, port, tell, result)
                    found = await taker.hear()
                    result.wall_s = float(found["wall_s"])
                    result.line_bytes = port.up.num_bytes
                    after_s = [cpu_s([end.pid]) for end in (giver, taker)]
                    result.cpu_s = (after_s[0] - before_s[0], after_s[1] - before_s[1])
                    result.faults = tuple(found["faults"])
        if patience.cancelled_caught:
            share = port.up.num_bytes / (options.mib * MIB)
            raise StateError(f"not through in time: the line took {share:.0%}")
        nursery.cancel_scope.cancel()


def _open_end(
    options: PathOptions, task: dict[str, object]
) -> AbstractAsyncContextManager[JsonChild]:
    words = json.dumps({"mib": options.mib, "security": options.security} | task)
    line = [sys.executable, "-P", "-m", "sim.bench.path_end", words]
    return open_json_child(line, "an end of the path")


async def _break(
    options: PathOptions, shaper: Shaper, port: Port, tell: Tell, result: PathResult
) -> None:
    """Break every connection each time another part of the bytes is through."""
    for number in range(1, options.breaks + 1):
        at_bytes = options.mib * MIB * number / (options.breaks + 1)
        await port.up.passed(at_bytes)
        result.connections_broken += shaper.reset(_NAME)
        tell(f"broken after {port.up.num_bytes / MIB:.0f} MiB")


def path_json(options: PathOptions, commit: str, result: PathResult) -> dict[str, object]:
    """The line that `--json` ends with."""
    share = result.line_share(options)
    return {
        "bench": "link",
        "commit": commit,
        "shape": str(options.shape),
        "mib": options.mib,
        "security": options.security,
        "breaks": options.breaks,
        "seed": options.seed,
        "connections_broken": result.connections_broken,
        "wall_s": round(result.wall_s, 3),
        "path_mib_s": round(result.mib_s(options), 3),
        "line_share": None if share is None else round(share, 4),
        "send_cpu_s": round(result.cpu_s[0], 2),
        "receive_cpu_s": round(result.cpu_s[1], 2),
        "line_bytes": result.line_bytes,
        "more_bytes": round(result.more_bytes(options), 5),
        "faults": list(result.faults),
    }


def path_text(options: PathOptions, result: PathResult) -> str:
    """The same for people."""
    share = result.line_share(options)
    of_line = "" if share is None else f", {share:.1%} of the line"
    return (
        f"{options.mib} MiB in {result.wall_s:.1f} s: {result.mib_s(options):.1f} MiB/s{of_line}; "
        f"{result.connections_broken} connections broken, {result.more_bytes(options):.2%} more "
        f"bytes than the state has"
    ) + "".join(f"\nfault: {fault}" for fault in result.faults)
