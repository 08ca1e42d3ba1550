"""Directories over a transport in memory, for tests on the virtual clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from dht.directory import DirectoryConfig, KademliaDirectory
from dht.kademlia.messages import PROTOCOL, Reply, Request, decode_reply, encode_message
from dht.kademlia.routing import Contact
from protocol.identity import Ed25519Signer
from protocol.transport import Stream
from tests.dht.network import WALL_S
from tests.memory_transport import MemoryNetwork, MemoryTransport

TOPIC = b"barnraise/run/1234"


def wall_clock() -> float:
    return WALL_S + trio.current_time()


def seed_of(number: int) -> bytes:
    return number.to_bytes(32, "big")


@dataclass
class Node:
    transport: MemoryTransport
    directory: KademliaDirectory
    signer: Ed25519Signer

    @property
    def contact(self) -> Contact:
        return Contact(self.transport.peer_id, self.transport.addresses())

    def knows(self, other: "Node") -> bool:
        return self.directory.kademlia.table.get(other.contact.peer) is not None


@asynccontextmanager
async def open_node(
    network: MemoryNetwork, number: int, *, config: DirectoryConfig | None = None
) -> AsyncIterator[Node]:
    """A node that runs until the context ends, then is gone."""
    signer = Ed25519Signer(seed_of(number))
    async with network.open(signer_seed=signer.seed) as transport:
        directory = KademliaDirectory(transport, signer, wall_clock, config=config)
        async with trio.open_nursery() as nursery:
            await nursery.start(directory.run)
            yield Node(transport, directory, signer)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_nodes(network: MemoryNetwork, count: int) -> AsyncIterator[list[Node]]:
    """Nodes that were all told of the first one only."""
    nodes: list[Node] = []
    async with trio.open_nursery() as nursery:
        for number in range(count):
            node: Node = await nursery.start(_hold, network, number)
            if nodes:
                assert await node.directory.join([nodes[0].contact]) == 1
            nodes.append(node)
        yield nodes
        nursery.cancel_scope.cancel()


async def _hold(network: MemoryNetwork, number: int, *, task_status) -> None:
    async with open_node(network, number) as node:
        task_status.started(node)
        await trio.sleep_forever()


async def ask(transport: MemoryTransport, contact: Contact, request: Request) -> Reply:
    """One request from a transport that need not belong to a node."""
    await transport.connect(contact.peer, contact.addresses)
    stream = await transport.open_stream(contact.peer, PROTOCOL)
    try:
        return await exchange(stream, request)
    finally:
        await stream.aclose()


async def exchange(stream: Stream, request: Request) -> Reply:
    await stream.send_frame(encode_message(request))
    return decode_reply(await stream.receive_frame(1 << 16), request)


async def found_values(node: Node, topic: bytes = TOPIC) -> list[bytes]:
    return [record.value for record in await node.directory.find(topic)]


async def frozen(stream: Stream) -> None:
    """A peer that accepts and then says nothing."""
    await trio.sleep_forever()
