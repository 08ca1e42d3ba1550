"""Peers that speak the DHT's language and lie in it."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from dht.kademlia.keyspace import Key
from dht.kademlia.messages import (
    PROTOCOL,
    FindNode,
    FindValue,
    Nodes,
    Ping,
    Pong,
    Reply,
    Request,
    Stored,
    Values,
    decode_request,
    encode_message,
)
from dht.kademlia.records import SignedRecord, StoreVerdict
from dht.kademlia.routing import Contact
from protocol.transport import Stream
from tests.dht.nodes import Node, ask, seed_of
from tests.memory_transport import MemoryNetwork, MemoryTransport


@dataclass
class Liars:
    """They know only each other, keep nothing, and say under each key what `records` makes up."""

    records: Callable[[Key], Sequence[SignedRecord]] = lambda _: ()
    made_up: Callable[[], tuple[Contact, ...]] | None = None
    """Others whom each answer names in place of themselves."""

    transports: list[MemoryTransport] = field(default_factory=list)

    @property
    def contacts(self) -> tuple[Contact, ...]:
        return tuple(Contact(one.peer_id, one.addresses()) for one in self.transports)

    async def open(
        self, stack: AsyncExitStack, network: MemoryNetwork, numbers: Sequence[int]
    ) -> None:
        for number in numbers:
            opened = network.open(signer_seed=seed_of(number))
            transport = await stack.enter_async_context(opened)
            transport.serve(PROTOCOL, partial(self._serve, transport))
            self.transports.append(transport)

    async def _serve(self, transport: MemoryTransport, stream: Stream) -> None:
        while True:
            request = decode_request(await stream.receive_frame(1 << 16))
            await stream.send_frame(encode_message(self._reply(transport.addresses(), request)))

    def _reply(self, own: tuple[str, ...], request: Request) -> Reply:
        named = self.contacts[:16] if self.made_up is None else self.made_up()
        match request:
            case Ping():
                return Pong(own)
            case FindNode():
                return Nodes(own, named)
            case FindValue():
                return Values(own, named, tuple(self.records(request.key)), False)
            case _:
                return Stored(own, StoreVerdict.STORED)

    async def push_in(self, nodes: Sequence[Node]) -> None:
        """Make themselves known to all these nodes."""
        for transport in self.transports:
            for node in nodes:
                await ask(transport, node.contact, Ping(transport.addresses()))
