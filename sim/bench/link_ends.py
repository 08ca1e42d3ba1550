"""One end of `barnraise bench link`, a process of its own: `python -P -m sim.bench.link_ends KIND`.

It says where it listens in one JSON line. Each line it is given is a task, answered by a line; it
ends with its input. Both ends of a kind are such processes; one of them is never given a task.
"""

import cProfile
import datetime
import json
import os
import pstats
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dht.transport.libp2p_host import securities
from dht.transport.libp2p_transport import TransportConfig, open_transport
from protocol.errors import BarnraiseError
from protocol.identity import parse_peer_id, peer_id_text
from protocol.limits import MIB
from sim.bench.libp2p_stock import open_stock, stock_stream
from sim.bench.link import Stages

BULK, CONTROL = "/barnraise/bulk/1", "/barnraise/control/1"
"""The protocols of a node, so that each travels over the connection that a node's would."""

PING_BYTES = 100
_COUNT = struct.Struct("!Q")
_CPU = struct.Struct("!d")
_TRANSFER_S_MAX = 120.0

Task = dict[str, Any]


class Channel(Protocol):
    """What a transfer needs of a stream."""

    async def send_all(self, data: bytes | bytearray | memoryview, /) -> None:
        """Send every byte."""
        ...

    async def receive_exactly(self, num_bytes: int) -> bytes:
        """Exactly so many."""
        ...

    async def aclose(self) -> None:
        """Close both directions."""
        ...


Open = Callable[[str], Awaitable[Channel]]


async def take_bulk(stream: Channel) -> None:
    """Receive a transfer, and answer how many CPU seconds it took this process."""
    left = _COUNT.unpack(await stream.receive_exactly(_COUNT.size))[0]
    began_s = time.process_time()
    while left:
        left -= len(await stream.receive_exactly(min(MIB, left)))
    await stream.send_all(_CPU.pack(time.process_time() - began_s))


async def echo(stream: Channel) -> None:
    """Send back what comes."""
    while True:
        await stream.send_all(await stream.receive_exactly(PING_BYTES))


async def send_bulk(open_stream: Open, num_bytes: int) -> Task:
    """Seconds of a transfer: wall, and CPU of both ends."""
    stream = await open_stream(BULK)
    data = memoryview(os.urandom(MIB))
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    await stream.send_all(_COUNT.pack(num_bytes))
    for start in range(0, num_bytes, MIB):
        await stream.send_all(data[: min(MIB, num_bytes - start)])
    answer = await stream.receive_exactly(_CPU.size)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    await stream.aclose()
    return {"wall_s": wall_s, "send_cpu_s": cpu_s, "receive_cpu_s": _CPU.unpack(answer)[0]}


async def round_trips(open_stream: Open, count: int) -> list[float]:
    """Seconds of each of so many round trips of a small frame, one after the other."""
    stream = await open_stream(CONTROL)
    frame, found = bytes(PING_BYTES), []
    for _ in range(count):
        began_s = time.perf_counter()
        await stream.send_all(frame)
        await stream.receive_exactly(PING_BYTES)
        found.append(time.perf_counter() - began_s)
    await stream.aclose()
    return found


async def busy_round_trips(open_stream: Open, count: int) -> list[float]:
    """The same while a transfer saturates the connection for bulk."""

    async def saturate() -> None:
        stream = await open_stream(BULK)
        await stream.send_all(_COUNT.pack(1 << 50))
        data = memoryview(bytes(MIB))
        while True:
            await stream.send_all(data)

    found: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(saturate)
        await trio.sleep(0.2)
        found = await round_trips(open_stream, count)
        nursery.cancel_scope.cancel()
    return found


# What plain sockets do, to compare with: blocking, one thread per end ---------------------------

_HOST = "127.0.0.1"


def _server_context() -> ssl.SSLContext:
    """For TLS 1.3, with a certificate that nobody has signed but itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "both.pem"
        path.write_bytes(pem)
        context.load_cert_chain(path)
    return context


def serve_raw(*, is_tls: bool) -> int:
    """Take transfers in threads of their own until the process ends; the port it listens on."""
    context = _server_context() if is_tls else None
    listener = socket.create_server((_HOST, 0))

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                _take(connection)

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def _take(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(MIB))
    head = b""
    while len(head) < 8:
        head += connection.recv(8 - len(head))
    left = int.from_bytes(head, "big")
    began_s = time.process_time()
    while left:
        received = connection.recv_into(buffer[: min(left, MIB)])
        if not received:
            return
        left -= received
    connection.sendall(struct.pack("!d", time.process_time() - began_s))


def send_raw(port: int, num_bytes: int, *, is_tls: bool) -> tuple[float, float, float]:
    """Send so many bytes; wall seconds, own CPU seconds, the taker's CPU seconds."""
    connection = socket.create_connection((_HOST, port))
    if is_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = context.wrap_socket(connection)
    with connection:
        data = memoryview(bytes(MIB))
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        connection.sendall(num_bytes.to_bytes(8, "big"))
        for start in range(0, num_bytes, MIB):
            connection.sendall(data[: min(MIB, num_bytes - start)])
        answer = b""
        while len(answer) < 8:
            answer += connection.recv(8 - len(answer))
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return wall_s, cpu_s, float(struct.unpack("!d", answer)[0])


# Which stage of a transfer the processor worked for: the functions of a profile, grouped ---------

WAITING = "waiting"
_STAGES = (
    (WAITING, ("epoll", "kqueue", "select")),
    ("cipher", ("encrypt", "decrypt", "_ssl", "noise/")),
    ("system calls", ("'send'", "'recv'", "sendmsg", "recv_into", "posix.")),
    ("copying", ("'join'", "'tobytes'", "'extend'", "'write' of '_io", "'getbuffer'")),
    ("scheduling", ("trio/", "contextvars", "outcome/", "'run' of '_contextvars")),
    (
        "framing",
        ("yamux", "libp2p_yamux", "libp2p_stream", "libp2p_session", "msgio", "net_stream"),
    ),
)
"""The first that fits has it. C functions are known by their names alone."""

OTHER = "other"


def stages_of(profile: cProfile.Profile) -> Stages:
    """Seconds by stage of all that was profiled so far; waiting costs no processor time."""
    found: Stages = {}
    entries: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = vars(
        pstats.Stats(profile)
    )["stats"]
    for (path, _, name), (_, _, own_s, *_) in entries.items():
        stage = stage_of(path.replace("\\", "/"), name)
        found[stage] = found.get(stage, 0.0) + own_s
    found.pop(WAITING, None)
    return found


def stage_of(path: str, name: str) -> str:
    """The stage that a function belongs to."""
    text = f"{path} {name}"
    return next((stage for stage, words in _STAGES if any(w in text for w in words)), OTHER)


# One end ----------------------------------------------------------------------------------------


@asynccontextmanager
async def _ours(security: str) -> AsyncIterator[tuple[Task, Callable[[Task], Awaitable[Open]]]]:
    config = TransportConfig(
        listen_host="127.0.0.1", security=security, bulk_protocols=frozenset({BULK})
    )
    handlers = {BULK: take_bulk, CONTROL: echo}
    async with open_transport(config, signer_seed=os.urandom(32), handlers=handlers) as transport:

        async def dial(place: Task) -> Open:
            peer = parse_peer_id(place["peer"])
            await transport.connect(peer, place["addresses"])
            return partial(transport.open_stream, peer)

        peer = peer_id_text(transport.peer_id)
        yield (
            {"peer": peer, "addresses": transport.addresses()}
            | {"security": securities(config)[0]},
            dial,
        )


@asynccontextmanager
async def _stock() -> AsyncIterator[tuple[Task, Callable[[Task], Awaitable[Open]]]]:
    async with open_stock(BULK, take_bulk) as (host, peer, addresses):

        async def dial(place: Task) -> Open:
            return partial(stock_stream, host, place["peer"], place["addresses"])

        yield {"peer": peer, "addresses": addresses}, dial


async def _do(open_stream: Open, task: Task) -> Task:
    match task["do"]:
        case "bulk":
            return await send_bulk(open_stream, task["mib"] * MIB)
        case "idle":
            return {"round_trips_s": await round_trips(open_stream, task["count"])}
        case _:
            return {"round_trips_s": await busy_round_trips(open_stream, task["count"])}


async def _run(kind: str, security: str, profile: cProfile.Profile | None) -> None:
    async with _stock() if kind == "stock" else _ours(security) as (place, dial):
        _say(place)
        lines = trio.wrap_file(sys.stdin)
        while line := await lines.readline():
            task = json.loads(line)
            try:
                with trio.fail_after(_TRANSFER_S_MAX):
                    answer = await _do(await dial(task["to"]), task)
            except (BarnraiseError, OSError, trio.TooSlowError) as error:
                answer = {"failed": f"{type(error).__name__}: {error}"}
            if profile is not None:
                answer["stages"] = _stages(profile)
            _say(answer)
        if profile is not None:
            _say({"stages": _stages(profile)})


def _run_raw(*, is_tls: bool) -> None:
    _say({"port": serve_raw(is_tls=is_tls)})
    for line in sys.stdin:
        task = json.loads(line)
        wall_s, send_s, receive_s = send_raw(task["to"]["port"], task["mib"] * MIB, is_tls=is_tls)
        _say({"wall_s": wall_s, "send_cpu_s": send_s, "receive_cpu_s": receive_s})


def _say(answer: Task) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _stages(profile: cProfile.Profile) -> Stages:
    profile.disable()
    found = stages_of(profile)
    profile.enable()
    return found


def main(words: Sequence[str]) -> None:
    """Be one end until the input ends."""
    kind, security, is_profiled = words[0], words[1], words[2:] == ["--profile"]
    if kind in ("tls", "tcp"):
        _run_raw(is_tls=kind == "tls")
        return
    profile = cProfile.Profile() if is_profiled else None
    if profile is not None:
        profile.enable()
    trio.run(_run, kind, security, profile)


if __name__ == "__main__":
    main(sys.argv[1:])
