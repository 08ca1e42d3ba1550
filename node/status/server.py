"""The status server: HTTP on loopback, in a thread and an asyncio loop of its own.

    GET /v1/status   GET /v1/peers   GET /v1/rounds   GET /metrics

It reads the board's frozen snapshot and nothing else of the node. Who may read is whoever can read
the token in the run's `api.token`. A page in the user's browser is refused even with it: by a
foreign `Host` (DNS rebinding), and by any `Origin`. Every connection carries one request and ends
after some seconds, so that slow clients hold nothing for long.

Who has not shown the token gets no further than the door, for little: a connection is a few hundred
bytes of state until the head of its request is whole. With the token in it, it takes one of the
places that are for such alone, and is answered. Without, it is refused and ended. So strangers on
this machine, however many connections they hold, take no place from the owner, and leave nothing in
the log. Of those who have said nothing yet there are so many at most: one more, and the oldest
goes. It has had the most time to speak, and whoever has the token speaks at once.
"""

import asyncio
import dataclasses
import errno
import hmac
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import h11
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from node.state.folder import write_atomically
from node.status.board import StatusBoard
from node.status.records import (
    PHASES,
    STATES,
    TOKEN_FILE,
    Api,
    NodeStatus,
    PeerTable,
    RoundTable,
    Snapshot,
)
from node.text.shown import json_text
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from trio_typing import TaskStatus

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32

HEAD_BYTES_MAX = 4096
"""Of a request: some two hundred are enough."""

LINE_BYTES_MAX, HEADERS_MAX = 1024, 32

STOP_S = 0.3
TURNS_AT_END = 8

ACCEPTED_AT_ONCE = 16

BACKLOG = 128
"""Connections that the system holds for us: whoever comes while strangers come in crowds waits in
the queue, where there is one, and is not turned away."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
    "Connection": "close",
    "Server": "barnraise",
}
"""Of every answer."""

_MORE = {401: {"WWW-Authenticate": "Bearer"}, 405: {"Allow": "GET"}, 429: {"Retry-After": "1"}}
_END = b"\r\n\r\n"
_NO_REQUEST = "not a request of HTTP/1.1 within the limits"
_NO_TOKEN = f"the bearer token is in {TOKEN_FILE} of the run's folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What the server spends on its clients."""

    requests_per_s: float = 50.0
    """For those with the token, and as many again for all others together: strangers on this
    machine cannot lock the user out."""

    connections: int = 32
    """Of those who have shown the token; nobody else takes one of these."""

    strangers: int = 64
    """Connections on which nothing was shown yet. One who has the token needs its place here for
    milliseconds; one more than these, and the oldest ends. Several times as many as are accepted
    before anybody is heard, and few beside the files that a process may open."""

    stranger_s: float = 2.0
    """How long one of these may take to say its first words."""

    connection_s: float = 5.0
    """From the token to the last byte. The longest answer, 256 rounds of 64 listed peers, is 1 MiB.
    """


DEFAULT_LIMITS = ServerLimits()


async def serve_status(
    board: StatusBoard,
    folder: Path,
    *,
    port: int = 0,
    limits: ServerLimits = DEFAULT_LIMITS,
    task_status: "TaskStatus[Api]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the board's snapshots until cancelled; `api.token` in `folder` tells readers where.

    Start it with `nursery.start`. Port 0 takes a free one. Raises ConfigError if the port is taken,
    OSError if the token cannot be written. When it ends, STOP_S after its cancellation at most, its
    thread, its sockets and the file are gone.
    """
    token = secrets.token_hex(TOKEN_BYTES)
    path = folder / TOKEN_FILE
    with _listen(port) as listener:
        bound: int = listener.getsockname()[1]
        api = Api(url=f"http://{LOOPBACK}:{bound}", token=token, pid=os.getpid())
        server = _Server(listener, _Hall(_Desk(board, api, limits), limits))
        try:
            data = json.dumps(dataclasses.asdict(api)).encode()
            await trio.to_thread.run_sync(write_atomically, path, data)
            async with trio.open_nursery() as nursery:
                await _start(server, nursery)
                try:
                    logger.info("status served url=%s", api.url)
                    task_status.started(api)
                    await trio.sleep_forever()
                finally:
                    server.stop()
        finally:
            server.close()
            _forget(path, token)


async def _start(server: "_Server", nursery: trio.Nursery) -> None:
    """Run the server in a thread, until it accepts."""
    token, ready = trio.lowlevel.current_trio_token(), trio.Event()
    run = partial(server.run, lambda: token.run_sync_soon(ready.set))
    # A limiter of its own: this thread must not take the place of a worker for good.
    limiter = trio.CapacityLimiter(1)
    nursery.start_soon(partial(trio.to_thread.run_sync, run, limiter=limiter))
    try:
        await ready.wait()
    except trio.Cancelled:
        server.stop()
        raise


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port), backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"status_port: port {port} is in use: take another one, or 0 for any free one"
            ) from error
        raise ConfigError(f"status_port: cannot use port {port}: {error.strerror}") from error


def _forget(path: Path, token: str) -> None:
    """Remove the token file unless another node has replaced it."""
    with suppress(OSError):
        if token.encode() in path.read_bytes():
            path.unlink()


class _Server:
    """The asyncio side. `run` is the life of its thread; what ends it early is raised there."""

    def __init__(self, listener: socket.socket, hall: "_Hall") -> None:
        self._listener = listener
        self._hall = hall
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()

    def run(self, accepts: Callable[[], object]) -> None:
        """Serve until `stop`; called in a thread, once. Says by `accepts` when it has begun."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(accepts))

    def stop(self) -> None:
        """Have `run` end; from any thread, also before it began or after it ended."""
        with suppress(RuntimeError):  # The loop is closed: it has ended.
            self._loop.call_soon_threadsafe(self._stopping.set)

    def close(self) -> None:
        """Free what `run` would have freed, had it been called."""
        self._loop.close()

    async def _serve(self, accepts: Callable[[], object]) -> None:
        door = partial(_Door, self._hall)
        server = await self._loop.create_server(door, sock=self._listener, backlog=ACCEPTED_AT_ONCE)
        self._listener.listen(BACKLOG)  # To asyncio the two are one number.
        accepts()
        try:
            await self._stopping.wait()
        finally:
            # Nobody more is accepted; who was in this moment is let in, and out again, before the
            # server closes: asyncio would forget the connection half made.
            with suppress(NotImplementedError):  # Windows ends what it waits for by closing it.
                self._loop.remove_reader(self._listener)
            await self._hall.shutdown(STOP_S / 3)
            server.close()


class Bucket:
    """A token bucket: `per_s` a second, and as many at once."""

    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s = self._level = per_s
        self._looked_s = now_s

    def take(self, now_s: float) -> bool:
        """Whether one more is allowed now."""
        gained = (now_s - self._looked_s) * self._per_s
        self._level, self._looked_s = min(self._per_s, self._level + gained), now_s
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True


class _Hall:
    """All connections, and how many places there are for them; the server's loop owns it."""

    def __init__(self, desk: "_Desk", limits: ServerLimits) -> None:
        self.desk, self.limits = desk, limits
        self.patience_s = min(limits.stranger_s, limits.connection_s)
        self.refusals = Bucket(limits.requests_per_s, time.monotonic())
        self._strangers: dict[_Door, asyncio.Transport] = {}
        self._guests: dict[_Door, asyncio.Transport] = {}
        self._num_open = 0
        self._is_closed = False
        self._emptied = asyncio.Event()

    def enter(self, door: "_Door", transport: asyncio.Transport) -> None:
        """One more waits; who has waited longest makes room."""
        self._num_open += 1
        if self._is_closed:
            transport.abort()
            return
        while len(self._strangers) >= self.limits.strangers:
            self._strangers.pop(next(iter(self._strangers))).abort()
        self._strangers[door] = transport

    def welcome(self, door: "_Door", transport: asyncio.Transport) -> bool:
        """It has shown the token: a place of its own, if there is one."""
        if len(self._guests) >= self.limits.connections:
            return False
        self._strangers.pop(door, None)
        self._guests[door] = transport
        return True

    def leave(self, door: "_Door") -> None:
        """It is gone."""
        self._strangers.pop(door, None)
        self._guests.pop(door, None)
        self._num_open -= 1
        if self._is_closed and not self._num_open:
            self._emptied.set()

    async def shutdown(self, limit_s: float) -> None:
        """Cut off all, and who comes yet; until the loop has let go of them."""
        self._is_closed = True
        for transport in (*self._strangers.values(), *self._guests.values()):
            transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                # Who was accepted in this moment enters in one of the next.
                for _ in range(TURNS_AT_END):
                    await asyncio.sleep(0)
                if self._num_open:
                    await self._emptied.wait()


class _Door(asyncio.Protocol):
    """One connection."""

    def __init__(self, hall: _Hall) -> None:
        self._hall = hall
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the head, for a while."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._hall.enter(self, transport)
        self._give(self._hall.patience_s)

    def data_received(self, data: bytes) -> None:
        """Some of the head; once it is whole, the answer."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._head += data
        end = self._head.find(_END)
        if end < 0 and len(self._head) <= HEAD_BYTES_MAX:
            return
        head = bytes(self._head[: max(end, 0)])
        if not _is_request(head) or len(head) > HEAD_BYTES_MAX:
            self._refuse(400, _NO_REQUEST)
        elif not hmac.compare_digest(token_header(head), self._hall.desk.expected):
            self._refuse(401, _NO_TOKEN)
        elif not self._hall.welcome(self, self._transport):
            self._refuse(429, "too many requests at once")
        else:
            self._give(self._hall.limits.connection_s)
            self._end(self._hall.desk.answer(head))

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it out."""
        del exc
        self._hall.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def _give(self, seconds: float) -> None:
        """So much time from now on; that also ends whoever does not read the answer."""
        assert self._transport is not None
        if self._timer is not None:
            self._timer.cancel()
        # Not close, which would wait for a client that does not read.
        abort = self._transport.abort
        self._timer = asyncio.get_running_loop().call_later(seconds, abort)

    def _refuse(self, status: int, reason: str) -> None:
        if not self._hall.refusals.take(time.monotonic()):
            status, reason = 429, "too many requests a second"
        self._end(_refusal(status, reason))

    def _end(self, answer: bytes) -> None:
        assert self._transport is not None
        self._transport.write(answer)
        self._transport.close()


def token_header(head: bytes) -> bytes:
    """What the one Authorization header of a head says; empty if there is none, or are two."""
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    found = [value.strip() for name, _, value in lines if name.lower() == b"authorization"]
    return found[0] if len(found) == 1 else b""


def _is_request(head: bytes) -> bool:
    # The parser behind takes a bare line feed for the end of a line, or of the head; nobody else.
    if head.count(b"\n") != head.count(b"\r\n"):
        return False
    words = head.partition(b"\r\n")[0].split(b" ")
    return len(words) == 3 and words[2] in (b"HTTP/1.1", b"HTTP/1.0")


class _Desk:
    """Answers requests that show the token: how often, and what they get."""

    def __init__(self, board: StatusBoard, api: Api, limits: ServerLimits) -> None:
        self._board = board
        self.expected = f"Bearer {api.token}".encode()
        port = api.url.rpartition(":")[2]
        self._hosts = {f"{name}:{port}".encode() for name in (LOOPBACK, "localhost", "[::1]")}
        self._requests = Bucket(limits.requests_per_s, time.monotonic())
        self._rendered: dict[type, tuple[object, bytes]] = {}

    def answer(self, head: bytes) -> bytes:
        """The answer to a request with this head."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            parser.receive_data(head + _END)
            request, end = parser.next_event(), parser.next_event()
        except h11.RemoteProtocolError:
            return _refusal(400, _NO_REQUEST)
        lines = head.split(b"\r\n")
        if len(lines) > HEADERS_MAX + 1 or max(map(len, lines)) > LINE_BYTES_MAX:
            return _refusal(400, _NO_REQUEST)
        assert isinstance(request, h11.Request)
        hosts = [value.lower() for name, value in request.headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return _refusal(403, "this host name does not lead here: use 127.0.0.1 and the port")
        if any(name == b"origin" for name, _ in request.headers):
            return _refusal(403, "pages of other origins get nothing here")
        if not self._requests.take(time.monotonic()):
            return _refusal(429, "too many requests a second")
        if request.method != b"GET":
            return _refusal(405, "only GET")
        if not isinstance(end, h11.EndOfMessage):
            return _refusal(413, "a request without a body, please")
        snapshot = self._board.current
        if snapshot is None:
            return _refusal(503, "the node is only starting: ask again in a second")
        return self._route(request.target.partition(b"?")[0], snapshot)

    def _route(self, path: bytes, snapshot: Snapshot) -> bytes:
        age_s = max(0.0, round(time.monotonic() - snapshot.taken_s, 3))
        match path:
            case b"/v1/status":
                status = dataclasses.replace(snapshot.status, age_s=age_s)
                return _answer(200, json_text(status).encode())
            case b"/v1/peers":
                return _answer(200, self._render(snapshot.peers))
            case b"/v1/rounds":
                return _answer(200, self._render(snapshot.rounds))
            case b"/metrics":
                return _answer(200, render_metrics(snapshot, age_s=age_s), METRICS_TYPE)
        return _refusal(404, "there are /v1/status, /v1/peers, /v1/rounds and /metrics")

    def _render(self, table: PeerTable | RoundTable) -> bytes:
        """As JSON, once per snapshot: a megabyte takes milliseconds, and trio waits for the GIL."""
        known = self._rendered.get(type(table))
        if known is not None and known[0] == table:
            return known[1]
        body = json_text(table).encode()
        self._rendered[type(table)] = (table, body)
        return body


def _refusal(status: int, reason: str) -> bytes:
    return _answer(status, json.dumps({"error": reason}).encode())


def _answer(status: int, body: bytes, kind: str = "application/json") -> bytes:
    fields = {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}
    fields |= _MORE.get(status, {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode() + body


# Metrics for Prometheus. A registry per scrape: nothing global, nothing stale --------------------

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(snapshot: Snapshot, *, age_s: float) -> bytes:
    """The text that a scrape gets; `age_s` is how old the snapshot is."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot, age_s))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot, age_s: float) -> None:
        self._snapshot = snapshot
        self._age_s = age_s

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are only checked for clashes with other collectors, and there are none."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric; one whose value is not known yet is left out."""
        status = self._snapshot.status
        yield InfoMetricFamily(
            "barnraise_node",
            "Run and peer id of this node.",
            {"run": status.run, "peer": status.peer, "title": status.title},
        )
        state = GaugeMetricFamily(
            "barnraise_state", "1 for what the node is at, 0 for the others.", labels=["state"]
        )
        for each in STATES:
            state.add_metric([each], float(each == status.state))
        yield state
        for name, text, value in self._gauges(status):
            if value is not None:
                yield GaugeMetricFamily(f"barnraise_{name}", text, float(value))
        for name, text, count in _counters(status):
            yield CounterMetricFamily(f"barnraise_{name}", text, float(count))
        if (times := status.total_times) is not None:
            spent = CounterMetricFamily(
                "barnraise_phase_seconds",
                "Where the time of all rounds went; each moment counts for one phase.",
                labels=["phase"],
            )
            for phase in PHASES:
                spent.add_metric([phase], getattr(times, f"{phase}_s"))
            yield spent

    def _gauges(self, status: NodeStatus) -> Iterator[tuple[str, str, float | None]]:
        last, trainer = status.last_round, status.trainer
        suspected = sum(peer.is_suspected for peer in self._snapshot.peers.peers)
        age_text = "Age of these numbers; it grows if the node hangs."
        yield "snapshot_age_seconds", age_text, self._age_s
        yield "uptime_seconds", "Since the node's start.", status.uptime_s
        yield "resident_memory_bytes", "Memory of the network process.", status.rss_bytes
        yield "tasks", "Running tasks of the network process.", status.tasks
        yield "open_descriptors", "Open files and sockets.", status.descriptors
        yield "round", "The round under way.", status.round
        yield "attempt", "The attempt of the round under way.", status.attempt
        yield "members", "Members of the round under way.", status.members
        yield "voters", "Voters of the round under way.", status.voters
        yield "is_member", "Whether this node has a seat.", status.is_member
        yield "is_voter", "Whether this node votes.", status.is_voter
        yield "linked_peers", "Peers with an open control stream.", status.linked
        yield "suspected_peers", "Members that this node suspects.", suspected
        yield "warnings", "Things that need eyes; see barnraise status.", len(status.warnings)
        checkpoint_text = "The round that starts from the newest checkpoint."
        yield "checkpoint_round", checkpoint_text, status.checkpoint_round
        if last is not None:
            loss_text = "Own training loss of the last round."
            yield "sealed_round", "The last sealed round.", last.round
            yield "sealed_round_duration_seconds", "Wall time of the last round.", last.wall_s
            yield "sealed_round_contributions", "Contributions in the last seal.", len(last.listed)
            yield "train_loss_nats_per_byte", loss_text, last.train_loss
        if status.last_times is not None:
            yield "step_seconds", "What an inner step takes.", status.last_times.step_s
        if status.method is not None:
            share_text = "Share of the last rounds that was inner steps."
            yield "computing_share", share_text, status.method.computing
        held_out_text = "Last held-out loss that this node measured."
        yield "validation_loss_nats_per_byte", held_out_text, status.validation_loss
        yield "validation_round", "The round whose anchor was measured.", status.validation_round
        windows_text = "Windows of held-out text that it was measured over."
        yield "validation_windows", windows_text, status.validation_windows
        yield "trainer_step", "Global inner step of the trainer.", trainer.step
        yield "trainer_loss_nats_per_byte", "Training loss at that step.", trainer.loss
        yield "trainer_micro_batch_sequences", "Sequences per forward pass.", trainer.micro_batch


def _counters(status: NodeStatus) -> Iterator[tuple[str, str, float]]:
    yield "sent_bytes", "Payload bytes sent over all streams.", status.bytes_up
    yield "received_bytes", "Payload bytes received over all streams.", status.bytes_down
    yield "rounds_sealed", "Rounds sealed since the node's start.", status.num_sealed
    yield "faults", "Faults of peers since the node's start.", status.num_faults
    if (times := status.total_times) is not None:
        text = "Time from the first contribution's round to the last contribution."
        yield "trainer_rounds_seconds", text, times.round_s
        yield "trainer_steps", "Inner steps in that time.", times.steps
