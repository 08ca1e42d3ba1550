"""`barnraise bench link`: two processes over our transport, the stock library, and raw sockets.

All kinds take turns in one run, so that a machine that is busy with other things is equally busy
for each; of several turns the medians count.
"""

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from node.processes.children import child_environment
from protocol.errors import ConfigError, StateError
from sim.bench.link_profile import Stages
from sim.bench.main import Teller

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
        if not 1 <= self.mib <= MIB_MAX:
            raise ConfigError(f"--mib {self.mib} is not in 1..{MIB_MAX}")
        if self.security not in SECURITIES:
            raise ConfigError(f"--security {self.security!r} is none of {', '.join(SECURITIES)}")
        if not 1 <= self.repeat <= REPEAT_MAX:
            raise ConfigError(f"--repeat {self.repeat} is not in 1..{REPEAT_MAX}")


@dataclass(slots=True)
class LinkTransfers:
    """The transfers of one kind."""

    wall_s: list[float] = field(default_factory=list)
    send_cpu_s: list[float] = field(default_factory=list)
    receive_cpu_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

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

    transfers: dict[str, LinkTransfers]
    security: str = ""
    idle_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    stages: tuple[Stages, Stages] | None = None


class _End:
    """A child process of `sim.bench.link_ends`."""

    def __init__(self, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sim.bench.link_ends", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
            start_new_session=True,  # Ctrl+C is the parent's to understand.
        )
        self.place: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def ask(self, **task: object) -> dict[str, Any]:
        """Have it do a task, and wait until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def last_words(self) -> dict[str, Any]:
        """What it says when its input ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Its next line. Raises StateError when it has ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise StateError(f"an end of the link ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


def bench_link(options: LinkOptions, tell: Teller) -> LinkResult:
    """Measure. Raises StateError when a process cannot go on."""
    result = LinkResult({kind: LinkTransfers() for kind in KINDS})
    with ExitStack() as stack:
        ends = {kind: _pair(stack, kind, options) for kind in KINDS}
        result.security = ends["ours"][1].place["security"]
        tell(f"{options.mib} MiB a transfer, {options.repeat} turns, {result.security}")
        for turn in range(options.repeat + 1):
            for kind in KINDS:
                _transfer(ends[kind], options.mib, result.transfers[kind], is_warm=turn > 0)
            if turn:
                _round_trips(ends["ours"], options, result)
                tell(f"turn {turn}: " + _turn(result, options.mib))
        if options.is_profiled:
            taker, giver = ends["ours"]
            sending = giver.last_words()["stages"]
            result.stages = (sending, taker.last_words()["stages"])
    return result


def _pair(stack: ExitStack, kind: str, options: LinkOptions) -> tuple[_End, _End]:
    words = [kind, options.security, *(["--profile"] if options.is_profiled else [])]
    taker, giver = stack.enter_context(_End(words)), stack.enter_context(_End(words))
    # Inside of the stack: who is interrupted while it waits for this ends both.
    for end in (taker, giver):
        end.place = end.answer()
    return taker, giver


def _transfer(ends: tuple[_End, _End], mib: int, kept: LinkTransfers, *, is_warm: bool) -> None:
    taker, giver = ends
    found = giver.ask(do="bulk", mib=mib, to=taker.place)
    if "failed" in found:
        kept.failed.append(found["failed"])
    elif is_warm:
        kept.wall_s.append(found["wall_s"])
        kept.send_cpu_s.append(found["send_cpu_s"])
        kept.receive_cpu_s.append(found["receive_cpu_s"])


def _round_trips(ends: tuple[_End, _End], options: LinkOptions, result: LinkResult) -> None:
    taker, giver = ends
    for name, total, kept in (
        ("idle", _ROUND_TRIPS, result.idle_s),
        ("busy", _BUSY_ROUND_TRIPS, result.busy_s),
    ):
        count = math.ceil(total / options.repeat)
        found = giver.ask(do=name, count=count, to=taker.place)
        if "failed" in found:
            raise StateError(f"round trips: {found['failed']}")
        kept += found["round_trips_s"]


def _turn(result: LinkResult, mib: int) -> str:
    last = {kind: one.wall_s[-1] for kind, one in result.transfers.items() if one.wall_s}
    return ", ".join(f"{kind} {mib / seconds:.0f} MiB/s" for kind, seconds in last.items())
