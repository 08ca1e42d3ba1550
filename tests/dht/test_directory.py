"""Nodes over a transport: strangers meet, records are kept alive, silence costs little."""

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from dht.directory import Directory, KademliaDirectory
from dht.kademlia.keyspace import topic_key
from dht.kademlia.messages import PROTOCOL
from dht.kademlia.records import sign_record
from protocol import limits
from protocol.errors import StreamClosedError
from protocol.transport import Stream
from tests.dht.nodes import TOPIC, found_values, frozen, open_node, open_nodes, wall_clock
from tests.memory_transport import MemoryNetwork


async def test_nodes_told_of_one_peer_find_each_other_and_all_records(
    autojump_clock: MockClock,
) -> None:
    async with open_nodes(MemoryNetwork(), 6) as nodes:
        for number, node in enumerate(nodes):
            assert await node.directory.announce(TOPIC, b"%d" % number, ttl_s=60.0) == 5
        for node in nodes:
            records = await node.directory.find(TOPIC)
            assert {r.value for r in records} == {b"0", b"1", b"2", b"3", b"4", b"5"}
            assert [r.writer for r in records] == sorted(n.contact.peer for n in nodes)
        assert all(node.knows(other) for node in nodes for other in nodes if other is not node)


@pytest.mark.extended
async def test_40_nodes_keep_a_record_at_eight_and_find_it_from_everywhere(
    autojump_clock: MockClock,
) -> None:
    async with open_nodes(MemoryNetwork(), 40) as nodes:
        assert await nodes[7].directory.announce(TOPIC, b"here", ttl_s=60.0) == 8
        for node in nodes:
            assert await found_values(node) == [b"here"]


async def test_announcement_of_the_first_node_reaches_those_who_come_later(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as first, open_node(network, 2) as second:
        assert await first.directory.announce(TOPIC, b"first", ttl_s=60.0) == 0
        assert await second.directory.join([first.contact]) == 1
        assert await found_values(second) == [b"first"]
        await trio.sleep(5.0)
        # Now it has been stored with the second node, and outlives the first one's departure.
        assert second.directory.kademlia.store.num_records == 1


async def test_announcement_is_renewed_while_its_node_lives_and_expires_after(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as keeper:
        async with open_node(network, 2) as writer:
            await writer.directory.join([keeper.contact])
            await writer.directory.announce(TOPIC, b"alive", ttl_s=30.0)
            await trio.sleep(300.0)
            assert await found_values(keeper) == [b"alive"]
        await trio.sleep(32.0)
        assert await found_values(keeper) == []
        await trio.sleep(32.0)
        assert keeper.directory.kademlia.store.num_records == 0


async def test_second_announcement_replaces_the_first(autojump_clock: MockClock) -> None:
    async with open_nodes(MemoryNetwork(), 3) as nodes:
        await nodes[1].directory.announce(TOPIC, b"old", ttl_s=60.0)
        await nodes[1].directory.announce(TOPIC, b"new", ttl_s=60.0)
        await trio.sleep(200.0)
        assert await found_values(nodes[2]) == [b"new"]


async def test_record_of_no_value_takes_back_what_its_writer_said(
    autojump_clock: MockClock,
) -> None:
    async with open_nodes(MemoryNetwork(), 3) as nodes:
        await nodes[1].directory.announce(TOPIC, b"here", ttl_s=60.0)
        await nodes[2].directory.announce(TOPIC, b"there", ttl_s=60.0)
        expires_unix_s = int(wall_clock()) + 60
        sign = partial(sign_record, sequence=2**60, expires_unix_s=expires_unix_s)
        withdrawn = sign(nodes[1].signer, topic_key(TOPIC), b"")
        nodes[0].directory.kademlia.keep(withdrawn, wall_clock())
        assert await found_values(nodes[2]) == [b"there"]


@pytest.mark.parametrize(
    ("value", "ttl_s"),
    [(b"", 60.0), (bytes(limits.DHT_VALUE_BYTES_MAX + 1), 60.0), (b"v", 0.5), (b"v", 1e6)],
)
async def test_announcement_outside_the_limits_is_refused(value: bytes, ttl_s: float) -> None:
    async with open_node(MemoryNetwork(), 1) as node:
        with pytest.raises(ValueError, match=r"is outside|bytes"):
            await node.directory.announce(TOPIC, value, ttl_s=ttl_s)


async def test_death_of_the_first_node_changes_nothing_for_those_who_have_met(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 2) as second, open_node(network, 3) as third:
        async with open_node(network, 1) as first:
            await second.directory.join([first.contact])
            await third.directory.join([first.contact])
        await third.directory.announce(TOPIC, b"third", ttl_s=60.0)
        assert await found_values(second) == [b"third"]
        assert not second.knows(first)
        assert not third.knows(first)


async def test_join_before_the_first_node_listens_succeeds_once_it_does(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as early:
        async with open_node(network, 2) as gone:
            pass
        assert await early.directory.join([gone.contact]) == 0
        await trio.sleep(60.0)
        async with open_node(network, 2) as late:
            await trio.sleep(5.0)
            assert early.knows(late)
            assert late.knows(early)


async def test_silent_peers_cost_a_search_one_second_and_lose_their_place(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_nodes(network, 6) as nodes:
        await nodes[0].directory.announce(TOPIC, b"here", ttl_s=600.0)
        for node in nodes[1:4]:
            node.transport._handlers[PROTOCOL] = frozen
            for peer in node.transport.connected():
                await node.transport.disconnect(peer)
        start_s = trio.current_time()
        assert await found_values(nodes[5]) == [b"here"]
        assert trio.current_time() - start_s == pytest.approx(1.0)
        # They are not asked again for a while, though the others still tell of them.
        start_s = trio.current_time()
        assert await found_values(nodes[5]) == [b"here"]
        assert trio.current_time() == start_s
        await trio.sleep(5.0)
        assert [nodes[5].knows(node) for node in nodes[:5]] == [True, False, False, False, True]


async def test_late_answer_brings_back_a_peer_that_a_search_gave_up(
    autojump_clock: MockClock,
) -> None:
    async with open_nodes(MemoryNetwork(), 2) as nodes:
        await nodes[0].directory.announce(TOPIC, b"here", ttl_s=600.0)
        answer = nodes[0].transport._handlers[PROTOCOL]

        async def busy(stream: Stream) -> None:
            await trio.sleep(3.0)
            await answer(stream)

        nodes[0].transport._handlers[PROTOCOL] = busy
        await nodes[0].transport.disconnect(nodes[1].contact.peer)
        nodes[1].directory.kademlia.store._drop(topic_key(TOPIC), nodes[0].contact.peer)
        start_s = trio.current_time()
        assert await found_values(nodes[1]) == []
        assert trio.current_time() - start_s == pytest.approx(1.0)
        await trio.sleep(2.5)
        # On the stream that is open by now it answers at once.
        assert await found_values(nodes[1]) == [b"here"]


async def test_node_that_comes_back_is_known_again(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as first:
        async with open_node(network, 2) as second:
            await second.directory.join([first.contact])
        await first.directory.find(TOPIC)
        assert not first.knows(second)
        async with open_node(network, 2) as second:
            await second.directory.join([first.contact])
            await trio.sleep(1.0)
            assert first.knows(second)


async def test_requests_to_one_peer_share_a_stream(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_nodes(MemoryNetwork(), 2) as nodes:
        opened = []
        open_stream = nodes[1].transport.open_stream

        async def counted(*arguments):
            opened.append(arguments)
            return await open_stream(*arguments)

        await trio.sleep(1.0)
        monkeypatch.setattr(nodes[1].transport, "open_stream", counted)
        for _ in range(10):
            await nodes[1].directory.find(TOPIC)
        assert opened == []
        # Longer than either side keeps an idle stream: the other end of it is gone by now.
        await trio.sleep(1000.0)
        opened.clear()
        assert await found_values(nodes[1]) == []
        assert nodes[1].knows(nodes[0])
        assert len(opened) == 1


async def test_kept_stream_that_broke_is_replaced_by_a_fresh_one(autojump_clock: MockClock) -> None:
    async with open_nodes(MemoryNetwork(), 2) as nodes:
        await nodes[0].directory.announce(TOPIC, b"here", ttl_s=60.0)
        await nodes[0].transport.disconnect(nodes[1].contact.peer)
        assert await found_values(nodes[1]) == [b"here"]
        assert nodes[1].knows(nodes[0])


async def test_late_comer_is_given_the_record_of_a_node_long_alone(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with open_node(network, 1) as first, open_node(network, 2) as second:
        await first.directory.announce(TOPIC, b"first", ttl_s=600.0)
        # By now it tries to find more replicas once a minute only.
        await trio.sleep(300.0)
        await second.directory.join([first.contact])
        await trio.sleep(2.0)
        assert second.directory.kademlia.store.num_records == 1


async def test_records_are_said_again_soon_after_the_machine_slept(
    autojump_clock: MockClock,
) -> None:
    async with open_nodes(MemoryNetwork(), 2) as nodes:
        await nodes[0].directory.announce(TOPIC, b"here", ttl_s=600.0)
        # It tries to find more replicas once a minute, and has just done so.
        await trio.sleep(305.0)
        assert await found_values(nodes[1]) == [b"here"]
        # Timers stood still for an hour.
        for node in nodes:
            node.directory._wall_clock = lambda: wall_clock() + 3600.0
        assert await found_values(nodes[1]) == []
        await trio.sleep(nodes[0].directory.config.check_s + 1.0)
        assert await found_values(nodes[1]) == [b"here"]


async def test_stream_of_an_unanswered_request_is_closed(autojump_clock: MockClock) -> None:
    ended = trio.Event()

    async def frozen_until_closed(stream: Stream) -> None:
        await stream.receive_frame(1 << 16)
        with pytest.raises(StreamClosedError):
            await stream.receive_frame(1 << 16)
        ended.set()

    async with open_nodes(MemoryNetwork(), 2) as nodes:
        nodes[0].transport._handlers[PROTOCOL] = frozen_until_closed
        await nodes[0].transport.disconnect(nodes[1].contact.peer)
        assert await found_values(nodes[1]) == []
        with trio.fail_after(10.0):
            await ended.wait()


async def test_cancelled_find_leaves_the_directory_usable(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_nodes(network, 3) as nodes:
        await nodes[0].directory.announce(TOPIC, b"here", ttl_s=60.0)
        for ticks in range(12):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(nodes[2].directory.find, TOPIC)
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert await found_values(nodes[2]) == [b"here"]


def test_kademlia_directory_is_a_directory() -> None:
    kind: type[Directory] = KademliaDirectory  # Here the type checker compares it with the seam.
    members = [name for name in vars(Directory) if not name.startswith("_")]
    assert members == ["announce", "find"]
    assert all(callable(getattr(kind, name)) for name in members)
