"""What liars put into the DHT: none of it is believed, and what honest nodes say is still found."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from dht.kademlia.keyspace import Key, topic_key
from dht.kademlia.lookup import Lookup, LookupConfig
from dht.kademlia.messages import PROTOCOL, Store, Stored, Values
from dht.kademlia.records import SignedRecord, StoreVerdict, Verdict, sign_record
from protocol import limits
from protocol.errors import StreamClosedError
from protocol.identity import Ed25519Signer
from protocol.wire import encode
from tests.dht.liars import Liars
from tests.dht.network import contact, peer_id
from tests.dht.nodes import TOPIC, Node, ask, exchange, open_node, open_nodes, seed_of, wall_clock
from tests.memory_transport import MemoryNetwork

NODES, WRITERS, LIARS = 14, 6, 4
HONEST, LIAR = 1, 900
"""The numbers of an honest writer and of a liar."""

FOUND_SHARE = 0.99

Make = Callable[[Key], SignedRecord]


def signed(
    number: int,
    key: Key,
    *,
    value: bytes = b"poison",
    sequence: int = 2**60,
    lives_s: float = 600.0,
) -> SignedRecord:
    expires_unix_s = int(wall_clock() + lives_s)
    signer = Ed25519Signer(seed_of(number))
    return sign_record(signer, key, value, sequence=sequence, expires_unix_s=expires_unix_s)


def forged(key: Key) -> SignedRecord:
    return replace(signed(HONEST, key, value=b"old"), value=b"poison")


def foreign_writer(key: Key) -> SignedRecord:
    return replace(signed(LIAR, key), writer=Ed25519Signer(seed_of(HONEST)).peer_id)


def foreign_key(key: Key) -> SignedRecord:
    return replace(signed(LIAR, topic_key(b"another")), key=key)


def expired(key: Key) -> SignedRecord:
    return signed(LIAR, key, lives_s=-1.0)


def far_future(key: Key) -> SignedRecord:
    return signed(LIAR, key, lives_s=limits.DHT_RECORD_LIFETIME_S_MAX + 3600.0)


def older(key: Key) -> SignedRecord:
    return signed(HONEST, key, sequence=1)


POISONS: dict[str, Make] = {
    make.__name__: make
    for make in (forged, foreign_writer, foreign_key, expired, far_future, older)
}


async def found_share(nodes: list[Node], expected: set[bytes]) -> float:
    """Of what honest writers say, how much every node finds; nothing else is found."""
    found = 0
    for node in nodes:
        values = {record.value for record in await node.directory.find(TOPIC)}
        assert b"poison" not in values
        found += len(values & expected)
    return found / (len(nodes) * len(expected))


async def announce_all(nodes: list[Node]) -> set[bytes]:
    for number, node in enumerate(nodes):
        await node.directory.announce(TOPIC, b"honest %d" % number, ttl_s=600.0)
    return {b"honest %d" % number for number in range(len(nodes))}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", POISONS)
async def test_poison_is_not_stored_and_honest_records_are_found(
    autojump_clock: MockClock, name: str
) -> None:
    network, make = MemoryNetwork(), POISONS[name]
    async with open_nodes(network, NODES) as nodes, AsyncExitStack() as stack:
        expected = await announce_all(nodes[:WRITERS])
        liars = Liars(lambda key: [make(key)])
        await liars.open(stack, network, range(LIAR, LIAR + LIARS))
        await liars.push_in(nodes)
        await trio.sleep(5.0)
        poison = make(topic_key(TOPIC))
        for node in nodes:
            reply = await ask(liars.transports[0], node.contact, Store((), poison))
            assert isinstance(reply, Stored)
            is_held = node.directory.kademlia.store.held(poison.key, poison.writer) == poison
            # A replay of what the writer did say is only news to nodes that hold nothing newer.
            assert not is_held or name == "older"
            assert name == "older" or reply.verdict is StoreVerdict.REFUSED
        assert await found_share(nodes, expected) >= FOUND_SHARE


async def test_oversized_record_ends_its_stream_and_is_not_stored(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as node, network.open(signer_seed=seed_of(LIAR)) as liar:
        small = Store((), signed(LIAR, topic_key(TOPIC), value=b"x" * 64))
        header = encode(small)
        large = header.replace(b"\xc4\x40" + b"x" * 64, b"\xc5\x10\x00" + b"x" * 4096)
        assert len(large) > len(header) + 4000
        await liar.connect(node.contact.peer, node.contact.addresses)
        stream = await liar.open_stream(node.contact.peer, PROTOCOL)
        await stream.send_frame(b"\x07" + large)
        with pytest.raises(StreamClosedError):
            await stream.receive_frame(1 << 16)
        assert node.directory.kademlia.store.num_records == 0
        await exchange(await liar.open_stream(node.contact.peer, PROTOCOL), small)
        assert node.directory.kademlia.store.num_records == 1


@pytest.mark.extended
async def test_flood_of_made_up_writers_crowds_nobody_out(autojump_clock: MockClock) -> None:
    network, key = MemoryNetwork(), topic_key(TOPIC)
    flood = [signed(10_000 + number, key, value=b"flood") for number in range(300)]
    async with open_nodes(network, NODES) as nodes, AsyncExitStack() as stack:
        liars = Liars(lambda _: sorted(flood[:100], key=lambda record: record.writer))
        await liars.open(stack, network, range(LIAR, LIAR + LIARS))
        await liars.push_in(nodes)
        for node in nodes[:2]:
            for number, record in enumerate(flood):
                await ask(liars.transports[number % LIARS], node.contact, Store((), record))
            store = node.directory.kademlia.store
            assert store.num_records <= LIARS * limits.DHT_RECORDS_PER_COURIER_MAX
        expected = await announce_all(nodes[:WRITERS])
        assert await found_share(nodes, expected) >= FOUND_SHARE


def test_pages_end_where_a_peer_shows_more_records_than_a_key_holds() -> None:
    key = topic_key(TOPIC)
    flood = [SignedRecord(key, peer_id(n), 1, 2**31, b"", bytes(64)) for n in range(257)]
    flood.sort(key=lambda record: record.writer)
    search = Lookup(
        key, LookupConfig(), known=[contact(7)], avoid=set(), judge=lambda _: Verdict.VALID
    )
    search.start(0.0)
    search.replied(peer_id(7), Values((), (), tuple(flood[:150]), True), 0.1)
    assert len(search.result().records) == 150
    # Writers come and go between pages: it may be honest.
    more = search.replied(peer_id(7), Values((), (), tuple(flood[150:]), False), 0.2)
    assert more == []
    assert search.result().liars == frozenset()
    assert search.is_done


async def test_node_whose_only_bootstrap_lies_notices_with_a_second_origin(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_nodes(network, NODES) as nodes, AsyncExitStack() as stack:
        expected = await announce_all(nodes[:WRITERS])
        liars = Liars()
        await liars.open(stack, network, range(LIAR, LIAR + 16))
        async with open_node(network, 500) as newcomer:
            assert await newcomer.directory.join(liars.contacts[:1]) == 1
            assert await newcomer.directory.find(TOPIC) == ()
            assert not newcomer.directory.doubts
            assert await newcomer.directory.join([nodes[3].contact]) == 1
            assert {peer for doubt in newcomer.directory.doubts for peer in doubt} == {
                liars.contacts[0].peer,
                nodes[3].contact.peer,
            }
            assert await found_share([newcomer], expected) >= FOUND_SHARE


async def test_origins_in_one_network_raise_no_doubt(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_nodes(network, NODES) as nodes, open_node(network, 500) as newcomer:
        origins = [node.contact for node in nodes[::3]]
        assert await newcomer.directory.join(origins) == len(origins)
        assert not newcomer.directory.doubts


@pytest.mark.extended
async def test_two_networks_that_had_never_met_are_one_once_somebody_knows_both(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        halves: list[list[Node]] = [[], []]
        for number in range(24):
            node = await stack.enter_async_context(open_node(network, number))
            half = halves[number % 2]
            if half:
                await node.directory.join([half[0].contact])
            half.append(node)
            await node.directory.announce(TOPIC, b"honest %d" % number, ttl_s=600.0)
        assert len(await halves[0][3].directory.find(TOPIC)) == 12
        async with open_node(network, 500) as both:
            await both.directory.join([halves[0][0].contact, halves[1][0].contact])
            assert both.directory.doubts
            await trio.sleep(60.0)
            assert not list(both.directory.doubts)
            expected = {b"honest %d" % number for number in range(24)}
            assert await found_share(halves[0] + halves[1], expected) == 1.0
