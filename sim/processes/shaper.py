"""A network between real processes that is worse than loopback: a proxy in user space.

Each node listens on a port that nobody knows, and announces the proxy's. What passes is delayed by
half a round trip and by the lines of both ends; a line may also stand still (a half-open link: both
ends believe in it, nothing arrives), nothing may pass between two sides, and connections may be
reset.

Who dialled a connection is asked of the system where it tells (Linux); elsewhere only the line of
the node that was dialled counts.

Options say in little languages what a network is to be like, and how long things take.
"""

import math
import os
import random
import re
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from protocol.errors import ConfigError

SEGMENT_BYTES = 1448
"""What a TCP segment carries over Ethernet: the unit in which packets get lost."""

RETRANSMIT_S = 0.2
"""The least that TCP waits before it sends a lost segment again, besides a round trip."""

_PART = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>[a-z%]+)")
_BITS = {"kbit": 1e3, "mbit": 1e6}
_SECONDS = {"ms": 1e-3, "s": 1.0}
_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>ms|s|m|h)?")
_DURATIONS = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

RATE_MIN, RATE_MAX = 8e3, 1e10
ROUND_TRIP_S_MAX = 10.0
LOSS_MAX = 0.5
_EXAMPLE = "--shape 20mbit,80ms,1%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Each node's access line. The defaults shape nothing."""

    bits_per_s: float | None = None
    """Of a node's line, in each direction; all connections of the node share it."""

    round_trip_s: float = 0.0
    """Added to every connection, half of it in each direction."""

    loss: float = 0.0
    """Probability that a segment is lost. TCP repairs it: what is behind it waits."""

    def chance_of_loss(self, size: int) -> float:
        """That at least one of the segments of `size` bytes is lost."""
        return 1.0 - (1.0 - self.loss) ** math.ceil(size / SEGMENT_BYTES)

    @property
    def repair_s(self) -> float:
        """How long a lost segment holds up what is behind it."""
        return self.round_trip_s + RETRANSMIT_S

    def __str__(self) -> str:
        parts = []
        if self.bits_per_s is not None:
            parts.append(f"{self.bits_per_s / 1e6:g} Mbit/s")
        if self.round_trip_s:
            parts.append(f"{self.round_trip_s * 1000:g} ms round trip")
        if self.loss:
            parts.append(f"{self.loss:.2%} loss")
        return ", ".join(parts) or "as it is"


def shape_named(text: str) -> Shape:
    """`20mbit,80ms,1%` in any order, each at most once. Raises ConfigError saying what is wrong."""
    values: dict[str, float] = {}
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part.lower())
        if match is None:
            raise ConfigError(
                f"--shape: {part!r} is no number with a unit; write it like {_EXAMPLE}"
            )
        number, unit = float(match["number"]), match["unit"]
        if unit in _BITS:
            name, value = "rate", number * _BITS[unit]
        elif unit in _SECONDS:
            name, value = "round trip", number * _SECONDS[unit]
        elif unit == "%":
            name, value = "loss", number / 100.0
        else:
            units = ", ".join([*_BITS, *_SECONDS, "%"])
            raise ConfigError(f"--shape: {part!r} has an unknown unit; there are {units}")
        if name in values:
            raise ConfigError(f"--shape: the {name} is given twice")
        values[name] = value
    rate = values.get("rate")
    if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
        raise ConfigError(f"--shape: a rate is {RATE_MIN / 1e3:g}kbit to {RATE_MAX / 1e6:g}mbit")
    if values.get("round trip", 0.0) > ROUND_TRIP_S_MAX:
        raise ConfigError(f"--shape: a round trip is at most {ROUND_TRIP_S_MAX:g}s")
    if values.get("loss", 0.0) > LOSS_MAX:
        raise ConfigError(f"--shape: a loss is at most {LOSS_MAX:.0%}")
    return Shape(
        bits_per_s=rate,
        round_trip_s=values.get("round trip", 0.0),
        loss=values.get("loss", 0.0),
    )


def seconds_named(option: str, text: str) -> float:
    """`60s`, `2.5m`, `1h`, `500ms`, or a bare number of seconds.

    Raises ConfigError naming `option`.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = 0.0 if match is None else float(match["number"]) * _DURATIONS[match["unit"]]
    if seconds <= 0.0:
        raise ConfigError(f"{option}: {text!r} is no time above zero; write it like 60s or 5m")
    return seconds


HOST = "127.0.0.1"
CHUNK_BYTES = 16 * 1024
QUEUE_CHUNKS = 256
"""Under way in one direction of a connection; beyond it the sender waits."""

LINE_BUFFER_S = 0.05
"""What a line's own buffer holds. A longer one would hide from TCP how slow the line is."""

_CONNECT_S = 5.0
_PORTS = (20_000, 32_000)
"""Below those that systems give to outgoing connections: such a port of a node that is down for a
while could be gone when it comes back."""

_RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


class Line:
    """One direction of a node's access line: bytes go through one after the other."""

    def __init__(self, bits_per_s: float | None) -> None:
        self._bytes_per_s = None if bits_per_s is None else bits_per_s / 8.0
        self._free_s = 0.0
        self.num_bytes = 0
        """All that it has taken, also what a reset then lost on its way."""

        self._marks: list[tuple[float, trio.Event]] = []

    async def passed(self, num_bytes: float) -> None:
        """Until it has taken so many bytes in all."""
        mark = (num_bytes, trio.Event())
        self._marks.append(mark)
        if self.num_bytes < num_bytes:
            await mark[1].wait()
        self._marks.remove(mark)

    def take(self, size: int, now_s: float) -> float:
        """When the last of `size` bytes is through that come at `now_s`."""
        self.num_bytes += size
        for at_bytes, passed in self._marks:
            if self.num_bytes >= at_bytes:
                passed.set()
        if self._bytes_per_s is None:
            return now_s
        self._free_s = max(self._free_s, now_s) + size / self._bytes_per_s
        return self._free_s


@dataclass(slots=True, eq=False)
class Port:
    """A node's place at the proxy. `pid` is of the node's process, for who dials."""

    name: str
    target: int
    """Where the node listens."""

    up: Line
    down: Line
    listen: int = 0
    """What the node announces."""

    pid: int | None = None
    moves: trio.Event = field(default_factory=trio.Event)
    """Set while the line is not standing still."""

    links: set["_Link"] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Link:
    """One connection through the proxy: the stream of the dialler, and ours to the node."""

    client: trio.SocketStream
    server: trio.SocketStream
    ends: tuple[Port, ...]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Shaper:
    """All nodes' lines. Runs in the nursery that it is given; times are trio's."""

    def __init__(self, shape: Shape, *, seed: int, nursery: trio.Nursery) -> None:
        self.shape = shape
        self.ports: dict[str, Port] = {}
        self._seed = seed
        self._nursery = nursery
        self._num_links = 0
        self._parted: dict[frozenset[str], trio.Event] = {}
        """By one side of each partition: set once it is over."""

    async def add_port(self, name: str, target: int, bits_per_s: float | None = None) -> Port:
        """A listening port for the node `name`, which itself listens on `target`; its line may have
        another rate than the shape's."""
        rate = bits_per_s or self.shape.bits_per_s
        port = Port(name, target, Line(rate), Line(rate))
        port.moves.set()
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        port.listen = listeners[0].socket.getsockname()[1]
        self.ports[name] = port
        self._nursery.start_soon(trio.serve_listeners, partial(self._serve, port), listeners)
        return port

    def stall(self, name: str) -> None:
        """The node's line stands still: nothing is lost, nothing is refused, nothing arrives."""
        self.ports[name].moves = trio.Event()

    def go_on(self, name: str) -> None:
        """The line moves again."""
        self.ports[name].moves.set()

    def part(self, side: frozenset[str]) -> None:
        """Nothing passes between these nodes and all others until they `join`; nothing is lost."""
        self._parted[side] = trio.Event()

    def join(self, side: frozenset[str]) -> None:
        """That partition is over."""
        self._parted.pop(side).set()

    async def _joined(self, link: _Link) -> None:
        """Until no partition is between the ends; if one is unknown, until there is none."""
        while crossed := [
            over
            for side, over in self._parted.items()
            if len(link.ends) == 1 or (link.ends[0].name in side) != (link.ends[1].name in side)
        ]:
            await crossed[0].wait()

    def reset(self, name: str) -> int:
        """Break every connection of the node, as a router that restarts; how many there were."""
        links = list(self.ports[name].links)
        for link in links:
            for stream in (link.client, link.server):
                _break_on_close(stream)
            link.scope.cancel()
        return len(links)

    async def _serve(self, port: Port, client: trio.SocketStream) -> None:
        server: trio.SocketStream | None = None
        with suppress(OSError), trio.move_on_after(_CONNECT_S):
            server = await trio.open_tcp_stream(HOST, port.target)
        if server is None:
            # Nobody listens: a dialler is to see a refusal, not an end in good order.
            _break_on_close(client)
            await client.aclose()
            return
        by = dialler(client.socket.getpeername()[1], self._pids())
        ends = (port,) if by is None else (port, self.ports[by])
        link = _Link(client, server, ends)
        for end in ends:
            end.links.add(link)
        try:
            await self._relay(link)
        finally:
            for end in ends:
                end.links.discard(link)

    def _pids(self) -> dict[str, int]:
        return {name: port.pid for name, port in self.ports.items() if port.pid is not None}

    async def _relay(self, link: _Link) -> None:
        listener, *diallers = link.ends
        there = (*(end.up for end in diallers), listener.down)
        back = (listener.up, *(end.down for end in diallers))
        self._num_links += 1
        stream = random.Random(f"{self._seed}/shaper/{self._num_links}")
        try:
            with link.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, link, link.client, link.server, there, stream)
                    nursery.start_soon(self._pump, link, link.server, link.client, back, stream)
        finally:
            for one in (link.client, link.server):
                with trio.CancelScope(shield=True):
                    await one.aclose()

    async def _pump(
        self,
        link: _Link,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        lines: tuple[Line, ...],
        stream: random.Random,
    ) -> None:
        send, receive = trio.open_memory_channel[tuple[float, bytes]](QUEUE_CHUNKS)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, source, send, lines, stream)
                async for due_s, data in receive:
                    await trio.sleep_until(due_s)
                    for end in link.ends:
                        await end.moves.wait()
                    await self._joined(link)
                    await sink.send_all(data)
                await sink.send_eof()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            # One end is gone: the other hears of it at once, and not when it speaks next.
            for one in (source, sink):
                _break_on_close(one)
            link.scope.cancel()

    async def _read(
        self,
        source: trio.SocketStream,
        send: trio.MemorySendChannel[tuple[float, bytes]],
        lines: tuple[Line, ...],
        stream: random.Random,
    ) -> None:
        shape, last_s = self.shape, 0.0
        async with send:
            while data := await source.receive_some(CHUNK_BYTES):
                now_s = trio.current_time()
                through_s = max(line.take(len(data), now_s) for line in lines)
                due_s = through_s + shape.round_trip_s / 2
                if shape.loss and stream.random() < shape.chance_of_loss(len(data)):
                    due_s += shape.repair_s
                last_s = max(last_s, due_s)  # In order, as TCP delivers.
                await send.send((last_s, bytes(data)))
                await trio.sleep_until(through_s - LINE_BUFFER_S)


def _break_on_close(stream: trio.SocketStream) -> None:
    with suppress(OSError, trio.ClosedResourceError):
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def free_port(stream: random.Random, taken: Callable[[int], bool] = lambda _: False) -> int:
    """A port of this machine on which nobody listens now. Raises ConfigError if there is none."""
    for _ in range(200):
        port = stream.randrange(*_PORTS)
        if taken(port):
            continue
        with socket.socket() as tried, suppress(OSError):
            tried.bind((HOST, port))
            return port
    raise ConfigError(f"no free port between {_PORTS[0]} and {_PORTS[1]} on this machine")


def dialler(port: int, pids: Mapping[str, int], proc: Path = Path("/proc")) -> str | None:
    """Which of the named processes has the connection out of the local `port`; None if unknown."""
    inode = _inode(port, proc / "net" / "tcp")
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for name, pid in pids.items():
        folder = proc / str(pid) / "fd"
        with suppress(OSError):
            for descriptor in os.listdir(folder):
                # A descriptor may be closed between the two looks.
                with suppress(OSError):
                    if os.readlink(folder / descriptor) == wanted:
                        return name
    return None


def _inode(port: int, table: Path) -> str | None:
    """Of the socket that is connected out of a local port, as Linux lists them."""
    with suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            if int(columns[1].rpartition(":")[2], 16) == port:
                return columns[9]
    return None
