"""Help for tests over loopback: a wire that can be held, and peers in processes of their own."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio
import trio.testing

from dht.transport.libp2p_transport import TransportConfig, open_transport
from protocol.identity import PeerId, parse_peer_id

ROOT = Path(__file__).parents[2]
ECHO = "/test/echo/1"
SILENCE = "/test/silence/1"
DEADLINE_S = 20.0
MIB = 1024 * 1024

CHILD = """
import trio
from protocol.identity import peer_id_text
from tests.dht.loopback import ECHO, SILENCE, echo, open_loopback, silence

async def main():
    async with open_loopback({ECHO: echo, SILENCE: silence}) as transport:
        print(peer_id_text(transport.peer_id), *transport.addresses(), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def echo(stream):
    while True:
        await stream.send_frame(await stream.receive_frame(16 * MIB))


async def silence(_stream):
    await trio.sleep_forever()


async def ask(stream, frame):
    """What the other end answers to one frame."""
    await stream.send_frame(frame)
    return await stream.receive_frame(len(frame))


async def until(condition):
    """Wait for something that no event tells; the caller sets the deadline."""
    while not condition():
        await trio.testing.wait_all_tasks_blocked(0.001)


async def wait(seconds):
    """For something that takes its time: a test that measures, or does wrong now and then."""
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


def only_link(transport):
    """The link to the one peer of a transport."""
    (link,) = transport._links.of(transport.connected()[0])
    return link


def open_loopback(handlers=None, **config):
    """A transport on 127.0.0.1 with a key of its own."""
    settings = TransportConfig(listen_host="127.0.0.1", **config)
    return open_transport(settings, signer_seed=os.urandom(32), handlers=handlers)


class Wire:
    """A TCP relay to one port. Held, it keeps what it is given, like a frozen or unplugged peer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free = trio.Event()
        self.free.set()

    def hold(self) -> None:
        self.free = trio.Event()

    def release(self) -> None:
        self.free.set()

    async def carry(self, near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(self.pump, near, far)
            nursery.start_soon(self.pump, far, near)

    async def pump(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(65_536):
                await self.free.wait()
                await sink.send_all(data)
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await sink.aclose()


@asynccontextmanager
async def open_wire(address: str) -> AsyncIterator[tuple[Wire, str]]:
    """A wire to the transport at `address`, and the address to dial instead."""
    wire = Wire(int(address.rpartition("/")[2]))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, wire.carry, listeners)
        port = listeners[0].socket.getsockname()[1]
        yield wire, f"/ip4/127.0.0.1/tcp/{port}"
        nursery.cancel_scope.cancel()


@contextmanager
def child_peer():
    """(process, peer id, addresses) of a peer that echoes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", CHILD]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            name, *addresses = process.stdout.readline().split()
            yield process, PeerId(parse_peer_id(name)), addresses
        finally:
            process.kill()
