"""`barnraise bench link --shape`: a state over a line as homes have it, which breaks on the way.

Two processes, each with links, core and bulk streams of a node (`sim.bench.path_end`), and between
them the network of `barnraise local --shape`. The line is the giver's; what it has taken is counted
there, with every header and with what a broken connection loses.
"""

import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from node.processes.children import child_environment, end_child
from node.processes.first_error import first_error_nursery
from protocol.errors import ConfigError, StateError
from protocol.limits import CELLS_MAX, MIB
from sim.bench.link import SECURITIES
from sim.bench.main import run_until_signal
from sim.bench.processes import cpu_s
from sim.bench.staging import Tell
from sim.local.shape import Shape
from sim.local.shaper import HOST, Port, Shaper, free_port

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
        if not 1 <= self.mib <= CELLS_MAX:
            raise ConfigError(f"--mib {self.mib} is not in 1..{CELLS_MAX}")
        if self.security not in SECURITIES:
            raise ConfigError(f"--security {self.security!r} is none of {', '.join(SECURITIES)}")
        if not 0 <= self.breaks <= BREAKS_MAX:
            raise ConfigError(f"--break {self.breaks} is not in 0..{BREAKS_MAX}")


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
    stream = random.Random(options.seed)
    target = free_port(stream)
    rate = options.shape.bits_per_s
    expected_s = options.mib * MIB * 8 / rate if rate else 0.0
    async with first_error_nursery() as nursery:
        shaper = Shaper(options.shape, seed=options.seed, nursery=nursery)
        port = await shaper.add_port(_NAME, target)
        address = f"/ip4/{HOST}/tcp/{port.listen}"
        common = {"mib": options.mib, "security": options.security}
        asked = common | {"is_giver": True, "listen": target, "announce": [address]}
        with trio.move_on_after(_PATIENCE_S + 10 * expected_s) as patience:
            async with _end(asked) as giver:
                place = await _answer(giver)
                asked = common | {"is_giver": False, "peer": place["peer"], "address": address}
                async with _end(asked) as taker:
                    await _answer(taker)
                    before_s = [cpu_s([process.pid]) for process in (giver, taker)]
                    tell(f"{options.mib} MiB, {options.shape}, {options.breaks} breaks")
                    nursery.start_soon(_break, options, shaper, port, tell, result)
                    found = await _answer(taker)
                    result.wall_s = float(str(found["wall_s"]))
                    result.line_bytes = port.up.num_bytes
                    after_s = [cpu_s([process.pid]) for process in (giver, taker)]
                    result.cpu_s = (after_s[0] - before_s[0], after_s[1] - before_s[1])
                    result.faults = tuple(found["faults"])  # type: ignore[arg-type]  # our child's
        if patience.cancelled_caught:
            share = port.up.num_bytes / (options.mib * MIB)
            raise StateError(f"not through in time: the line took {share:.0%}")
        nursery.cancel_scope.cancel()


async def _break(
    options: PathOptions, shaper: Shaper, port: Port, tell: Tell, result: PathResult
) -> None:
    """Break every connection each time another part of the bytes is through."""
    for number in range(1, options.breaks + 1):
        at_bytes = options.mib * MIB * number / (options.breaks + 1)
        await port.up.passed(at_bytes)
        result.connections_broken += shaper.reset(_NAME)
        tell(f"broken after {port.up.num_bytes / MIB:.0f} MiB")


@asynccontextmanager
async def _end(task: dict[str, object]) -> AsyncIterator[trio.Process]:
    """One end of the path, which does not outlive the block."""
    # Shielded: a cancelled start would leave a process that nobody knows.
    with trio.CancelScope(shield=True):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", "-m", "sim.bench.path_end", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # Ctrl+C is the parent's to understand.
        )
    try:
        yield process
    finally:
        await end_child(process)


async def _answer(process: trio.Process) -> dict[str, object]:
    """Its next line. Raises StateError when it has ended instead."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        data = await process.stdout.receive_some(1 << 16)
        if not data:
            raise StateError(f"an end of the path ended with status {await process.wait()}")
        line += data
    found: dict[str, object] = json.loads(line)
    return found


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
