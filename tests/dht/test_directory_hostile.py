"""Nodes over a transport against peers that lie, flood or hide."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from dht.kademlia.keyspace import topic_key
from dht.kademlia.messages import PROTOCOL, FindNode, FindValue, Nodes, Ping, Store, Stored, Values
from dht.kademlia.records import StoreVerdict, sign_record
from dht.kademlia.routing import Contact
from protocol import limits
from protocol.errors import StreamClosedError
from protocol.identity import Ed25519Signer
from protocol.transport import Stream
from tests.dht.network import WALL_S
from tests.dht.nodes import TOPIC, Node, ask, exchange, found_values, open_node, open_nodes, seed_of
from tests.memory_transport import MemoryNetwork, MemoryTransport


async def told_contacts(asker: MemoryTransport, node: Node) -> tuple[Contact, ...]:
    reply = await ask(asker, node.contact, FindNode((), topic_key(TOPIC), 16))
    assert isinstance(reply, Nodes)
    return reply.contacts


def record_of(number: int, *, sequence: int = 1, value: bytes = b"v"):
    return sign_record(
        Ed25519Signer(seed_of(number)),
        topic_key(TOPIC),
        value,
        sequence=sequence,
        expires_unix_s=int(WALL_S) + 600,
    )


async def test_forged_record_is_neither_stored_nor_found(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_nodes(network, 3) as nodes, network.open(signer_seed=seed_of(66)) as attacker:
        await nodes[1].directory.announce(TOPIC, b"honest", ttl_s=60.0)
        newest = record_of(1, sequence=2**60)
        forged = replace(newest, value=b"forged")
        for node in nodes:
            reply = await ask(attacker, node.contact, Store((), forged))
            assert isinstance(reply, Stored)
            assert reply.verdict is StoreVerdict.REFUSED
            assert await found_values(node) == [b"honest"]


async def test_record_passed_on_by_somebody_else_is_stored(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as node, network.open(signer_seed=seed_of(9)) as courier:
        reply = await ask(courier, node.contact, Store((), record_of(2)))
        assert isinstance(reply, Stored)
        assert reply.verdict is StoreVerdict.STORED
        assert await found_values(node) == [b"v"]


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x00", b"\x02\x91\x90", b"\x01\x91\xc0", b"\x01\x91\x91\xa3abc", b"\x05" * 40],
)
async def test_garbage_ends_its_stream_and_nothing_else(
    autojump_clock: MockClock, frame: bytes
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as node, network.open(signer_seed=seed_of(9)) as attacker:
        await attacker.connect(node.contact.peer, node.contact.addresses)
        stream = await attacker.open_stream(node.contact.peer, PROTOCOL)
        await stream.send_frame(frame)
        with pytest.raises(StreamClosedError):
            await stream.receive_frame(1 << 16)
        assert await ask(attacker, node.contact, Ping(())) is not None


async def test_who_only_asked_is_told_to_others_after_answering_a_ping(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as node, network.open(signer_seed=seed_of(9)) as asker:
        async with network.open(signer_seed=seed_of(66)) as mute:
            # It states an address and serves no DHT: nobody ever proved that anything answers.
            await ask(mute, node.contact, Ping(mute.addresses()))
            await trio.sleep(10.0)
            assert await told_contacts(asker, node) == ()
        async with open_node(network, 2) as honest:
            await ask(honest.transport, node.contact, Ping(honest.transport.addresses()))
            await trio.sleep(10.0)
            assert await told_contacts(asker, node) == (honest.contact,)


async def test_node_without_addresses_asks_and_is_never_told_to_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_nodes(MemoryNetwork(), 3) as nodes:
        network = nodes[0].transport._network
        async with open_node(network, 50) as hidden:
            monkeypatch.setattr(hidden.directory.kademlia, "_addresses", tuple)
            await hidden.directory.join([nodes[0].contact])
            assert await hidden.directory.announce(TOPIC, b"hidden", ttl_s=60.0) == 3
            await trio.sleep(10.0)
            assert await found_values(nodes[2]) == [b"hidden"]
            assert not any(node.knows(hidden) for node in nodes)


async def test_address_where_somebody_else_answers_costs_the_contact_its_place(
    autojump_clock: MockClock,
) -> None:
    async with open_nodes(MemoryNetwork(), 3) as nodes:
        directory = nodes[1].directory
        lie = Contact(Ed25519Signer(seed_of(77)).peer_id, nodes[2].transport.addresses())
        assert await directory.join([lie]) == 0
        assert directory.kademlia.table.get(lie.peer) is None
        assert nodes[1].knows(nodes[2])


async def test_wrong_kind_of_reply_costs_the_peer_its_place(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()

    async def confused(stream: Stream) -> None:
        while True:
            await stream.receive_frame(1 << 16)
            await stream.send_frame(b"\x08\x92\x90\x01")

    async with open_nodes(network, 2) as nodes:
        for peer in nodes[0].transport.connected():
            await nodes[0].transport.disconnect(peer)
        nodes[0].transport._handlers[PROTOCOL] = confused
        assert await found_values(nodes[1]) == []
        assert not nodes[1].knows(nodes[0])


async def test_streams_of_one_peer_over_the_quota_are_closed(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as node, network.open(signer_seed=seed_of(9)) as greedy:
        await greedy.connect(node.contact.peer, node.contact.addresses)
        streams = [
            await greedy.open_stream(node.contact.peer, PROTOCOL)
            for _ in range(limits.DHT_STREAMS_PER_PEER_MAX + 1)
        ]
        for stream in streams[:-1]:
            await exchange(stream, Ping(()))
        with pytest.raises(StreamClosedError):
            await exchange(streams[-1], Ping(()))
        await streams[0].aclose()
        await trio.sleep(1.0)
        await ask(greedy, node.contact, Ping(()))


async def test_reply_to_a_crowded_key_fits_a_frame_and_says_that_there_is_more(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as node, network.open(signer_seed=seed_of(9)) as asker:
        value = bytes(limits.DHT_VALUE_BYTES_MAX)
        for number in range(20):
            node.directory.kademlia.keep(record_of(number, value=value), WALL_S)
        found = []
        after, has_more = b"", True
        while has_more:
            request = FindValue((), topic_key(TOPIC), 16, after)
            reply = await ask(asker, node.contact, request)
            assert isinstance(reply, Values)
            found += [record.writer for record in reply.records]
            after, has_more = found[-1], reply.has_more
        assert len(found) == 20
        assert found == sorted(found)
