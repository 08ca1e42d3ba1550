"""A real status server on loopback, and plain HTTP against it."""

import http.client
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from node.status.board import StatusBoard
from node.status.records import Api
from node.status.server import DEFAULT_LIMITS, ServerLimits, serve_status
from tests.node.status_scene import board_at, busy_snapshot

PATIENCE_S = 10.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def plain(self):
        return json.loads(self.body)


@dataclass
class Server:
    """A server under test. Its calls block the trio thread: the server must not need it."""

    api: Api
    board: StatusBoard
    folder: Path
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.api.url.rpartition(":")[2])

    def ask(self, path: str = "/v1/status", method: str = "GET", **headers: str | None) -> Answer:
        """One request, with the token; a header that is None is left out."""
        said: dict[str, str | None] = {
            "Host": f"127.0.0.1:{self.port}",
            "Authorization": f"Bearer {self.api.token}",
        }
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send(method, path, [(k, v) for k, v in said.items() if v is not None])

    def send(self, method: str, path: str, headers: list[tuple[str, str]]) -> Answer:
        """One request with these headers and no other."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        """A connection that nothing is said on yet."""
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        self.sockets.append(opened)
        return opened


@asynccontextmanager
async def serving(folder: Path, limits: ServerLimits = DEFAULT_LIMITS) -> AsyncIterator[Server]:
    """A server with a busy board."""
    board = board_at()
    board.current = busy_snapshot()
    async with trio.open_nursery() as nursery:
        api = await nursery.start(partial(serve_status, board, folder, limits=limits))
        server = Server(api, board, folder)
        try:
            yield server
        finally:
            for opened in server.sockets:
                opened.close()
            nursery.cancel_scope.cancel()


def read_all(opened: socket.socket) -> bytes:
    """Until the other end closes; a reset counts as that."""
    data = b""
    try:
        while piece := opened.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data
