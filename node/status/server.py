"""The status server: HTTP on loopback, in a thread and an asyncio loop of its own.

    GET /v1/status   GET /v1/peers   GET /v1/rounds   GET /metrics

It reads the board's frozen snapshot and nothing else of the node. Who may read is whoever can read
the token in the run's `api.token`; whoever does not show it gets no further than the door
(`node.status.door`). A page in the user's browser is refused even with it: by a foreign `Host` (DNS
rebinding), and by any `Origin`. Every connection carries one request and ends after some seconds,
so that slow clients hold nothing for long.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from aiohttp import web

from node.reporting.json_text import to_plain
from node.state.folder import write_atomically
from node.status.board import StatusBoard
from node.status.door import HEADERS, Bucket, Hall
from node.status.metrics import CONTENT_TYPE, render_metrics
from node.status.records import TOKEN_FILE, Api, PeerTable, RoundTable, Snapshot
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from trio_typing import TaskStatus

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32

LINE_BYTES_MAX, FIELD_BYTES_MAX, HEADERS_MAX = 1024, 1024, 32

STOP_S = 0.3

ACCEPTED_AT_ONCE = 16

BACKLOG = 128
"""Connections that the system holds for us: whoever comes while strangers come in crowds waits in
the queue, where there is one, and is not turned away."""


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
        server = _Server(listener, _Desk(board, api, limits), limits)
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

    def __init__(self, listener: socket.socket, desk: "_Desk", limits: ServerLimits) -> None:
        self._listener = listener
        self._desk = desk
        self._limits = limits
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
        gate = _Gate(self._desk, self._limits)
        bounds = (
            self._limits.strangers,
            min(self._limits.stranger_s, self._limits.connection_s),
            self._limits.requests_per_s,
        )
        hall = Hall(self._desk.expected, gate.connection, bounds)
        server = await self._loop.create_server(hall, sock=self._listener, backlog=ACCEPTED_AT_ONCE)
        self._listener.listen(BACKLOG)  # To asyncio the two are one number.
        accepts()
        try:
            await self._stopping.wait()
        finally:
            # Nobody more is accepted; who was in this moment is let in, and out again, before the
            # server closes: asyncio would forget the connection half made.
            with suppress(NotImplementedError):  # Windows ends what it waits for by closing it.
                self._loop.remove_reader(self._listener)
            gate.abort()
            await hall.shutdown(STOP_S / 3)
            server.close()
            await gate.shutdown(STOP_S / 3)


class _Connection(web.RequestHandler):
    """One connection. Requests that are no HTTP are answered in our own words, and not logged."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what could not be parsed; a bug of ours is logged with its traceback."""
        if status >= 500:
            logger.error("status request failed", exc_info=exc)
            return _refusal(500, "the status server failed; see the node's log")
        return _refusal(400, "not a request of HTTP/1.1 within the limits")


class _Gate(web.Server):
    """Makes connections for those who have shown the token: so many at a time, each for so long."""

    def __init__(self, desk: "_Desk", limits: ServerLimits) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(desk.answer, loop=loop)
        self._clock = loop
        self._limits = limits
        self._open: dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def connection(self) -> web.RequestHandler | None:
        """One more connection; None where there is no place for it."""
        if len(self._open) >= self._limits.connections:
            return None
        return _Connection(
            self,
            loop=self._clock,
            access_log=None,  # type: ignore[arg-type]  # None is how aiohttp keeps none
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=HEADERS_MAX,
            read_bufsize=4 * LINE_BYTES_MAX,
            lingering_time=0.0,
            keepalive_timeout=self._limits.connection_s,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Give it its time."""
        super().connection_made(handler, transport)
        # Not close, which would wait for a client that does not read.
        timer = self._clock.call_later(self._limits.connection_s, transport.abort)
        self._open[handler] = (transport, timer)

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Count it out."""
        super().connection_lost(handler, exc)
        known = self._open.pop(handler, None)
        if known is not None:
            known[1].cancel()

    def abort(self) -> None:
        """Cut all connections."""
        for transport, timer in self._open.values():
            timer.cancel()
            transport.abort()


class _Desk:
    """Answers requests: who may ask, how often, and what they get. Lives in the server's thread."""

    def __init__(self, board: StatusBoard, api: Api, limits: ServerLimits) -> None:
        self._board = board
        self.expected = f"Bearer {api.token}".encode()
        port = api.url.rpartition(":")[2]
        self._hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost", "[::1]")}
        now_s = time.monotonic()
        self._known = Bucket(limits.requests_per_s, now_s)
        self._rendered: dict[type, tuple[object, bytes]] = {}

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The one handler of all requests."""
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return _refusal(403, "this host name does not lead here: use 127.0.0.1 and the port")
        if "Origin" in request.headers:
            return _refusal(403, "pages of other origins get nothing here")
        said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        # The door has seen the token; what aiohttp reads in the same bytes is what counts.
        if not hmac.compare_digest(said, self.expected):
            return _refusal(401, f"the bearer token is in {TOKEN_FILE} of the run's folder")
        if not self._known.take(time.monotonic()):
            return _refusal(429, "too many requests a second")
        if request.method != "GET":
            return _refusal(405, "only GET")
        if request.body_exists:
            return _refusal(413, "a request without a body, please")
        snapshot = self._board.current
        if snapshot is None:
            return _refusal(503, "the node is only starting: ask again in a second")
        return self._route(request.path, snapshot)

    def _route(self, path: str, snapshot: Snapshot) -> web.Response:
        age_s = max(0.0, round(time.monotonic() - snapshot.taken_s, 3))
        match path:
            case "/v1/status":
                return _json(200, _dump(dataclasses.replace(snapshot.status, age_s=age_s)))
            case "/v1/peers":
                return _json(200, self._render(snapshot.peers))
            case "/v1/rounds":
                return _json(200, self._render(snapshot.rounds))
            case "/metrics":
                body = render_metrics(snapshot, age_s=age_s)
                headers = {**HEADERS, "Content-Type": CONTENT_TYPE}
                return _closing(web.Response(body=body, headers=headers))
        return _refusal(404, "there are /v1/status, /v1/peers, /v1/rounds and /metrics")

    def _render(self, table: PeerTable | RoundTable) -> bytes:
        """As JSON, once per snapshot: a megabyte takes milliseconds, and trio waits for the GIL."""
        known = self._rendered.get(type(table))
        if known is not None and known[0] == table:
            return known[1]
        body = _dump(table)
        self._rendered[type(table)] = (table, body)
        return body


def _dump(record: object) -> bytes:
    return json.dumps(to_plain(record), allow_nan=False).encode()


def _json(status: int, body: bytes) -> web.Response:
    headers = {**HEADERS, "Content-Type": "application/json"}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 405:
        headers["Allow"] = "GET"
    if status == 429:
        headers["Retry-After"] = "1"
    return _closing(web.Response(status=status, body=body, headers=headers))


def _refusal(status: int, reason: str) -> web.Response:
    return _json(status, json.dumps({"error": reason}).encode())


def _closing(response: web.Response) -> web.Response:
    response.force_close()
    return response
