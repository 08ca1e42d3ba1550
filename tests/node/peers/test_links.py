"""Search and control streams of several nodes: the real directory over a memory transport."""

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio

from dht.directory import KademliaDirectory
from dht.kademlia.routing import Contact
from node import events as ev
from node.config import PeerAddress
from node.peers.address_book import KNOWN_MAX
from node.peers.announcement import Announcement
from node.peers.budgets import SHARE, cost_s
from node.peers.links import CONTROL_PROTOCOL, QUEUE_FRAMES, WRITE_S, YIELD_S, Links
from protocol.errors import BarnraiseError, ManifestMismatch
from protocol.frames import StatusAsk, encode_frame
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import RunManifest
from protocol.wire import encode
from tests.memory_transport import MemoryNetwork, MemoryTransport, stream_pair
from tests.node.edge import signed, toy_manifest


@dataclass
class Party:
    """One node's links, and what they told it."""

    transport: MemoryTransport
    directory: KademliaDirectory
    links: Links
    told: list[object] = field(default_factory=list)

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id


async def party(
    stack: AsyncExitStack,
    network: MemoryNetwork,
    name: str,
    *,
    manifest: RunManifest | None = None,
    finds_nobody: bool = False,
) -> Party:
    seed = name.encode() * 32
    signer = Ed25519Signer(seed)
    transport = await stack.enter_async_context(network.open(signer_seed=seed))
    directory = KademliaDirectory(transport, signer, lambda: 1e9, rng=random.Random(name))
    told: list[object] = []

    async def tell(event: object) -> None:
        told.append(event)

    links = Links(
        transport=transport,
        directory=directory,
        signed=signed(manifest or toy_manifest()),
        signer=signer,
        tell=tell,
        finds_nobody=finds_nobody,
    )
    transport.serve(CONTROL_PROTOCOL, links.accept)
    return Party(transport, directory, links, told)


async def start(nursery: trio.Nursery, one: Party, first: Party | None) -> None:
    await nursery.start(one.directory.run)
    if first is not None:
        address = first.transport.addresses()[0]
        one.links.know(PeerAddress(first.peer, address))
        await one.directory.join([Contact(first.peer, (address,))])
    nursery.start_soon(one.links.run)


async def linked_after(
    seconds: float, autojump_clock: trio.abc.Clock, *, finds_nobody: bool
) -> list[tuple[PeerId, ...]]:
    """Three nodes of which two know only the first; who is linked to whom after a while."""
    network = MemoryNetwork()
    linked: list[tuple[PeerId, ...]] = []
    async with AsyncExitStack() as stack:
        make = partial(party, stack, network, finds_nobody=finds_nobody)
        parties = [await make("a"), await make("b"), await make("c")]
        async with trio.open_nursery() as nursery:
            for number, one in enumerate(parties):
                await start(nursery, one, parties[0] if number else None)
            await trio.sleep(seconds)
            linked += [one.links.linked() for one in parties]
            nursery.cancel_scope.cancel()
    return linked


async def test_nodes_told_only_one_peer_link_to_all_through_the_directory(
    autojump_clock: trio.abc.Clock,
) -> None:
    linked = await linked_after(5.0, autojump_clock, finds_nobody=False)
    assert [len(peers) for peers in linked] == [2, 2, 2]


@pytest.mark.parametrize("is_lower", [True, False])
async def test_whoever_dialled_opens_the_control_stream_at_once(
    autojump_clock: trio.abc.Clock, is_lower: bool
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        pair = [await party(stack, network, name, finds_nobody=True) for name in "ab"]
        dialler, dialled = sorted(pair, key=lambda one: one.peer, reverse=not is_lower)
        async with trio.open_nursery() as nursery:
            await start(nursery, dialled, None)
            await start(nursery, dialler, dialled)
            await trio.sleep(YIELD_S / 3)
            assert dialler.links.linked() == (dialled.peer,)
            assert dialled.links.linked() == (dialler.peer,)
            nursery.cancel_scope.cancel()


async def test_peer_whose_connection_breaks_is_dialled_at_once_and_not_over_and_over(
    autojump_clock: trio.abc.Clock,
) -> None:
    network = MemoryNetwork()
    dialled_s: list[float] = []
    async with AsyncExitStack() as stack:
        one = await party(stack, network, "a", finds_nobody=True)
        other = await party(stack, network, "b", finds_nobody=True)
        connect = other.transport.connect

        async def counted(peer: PeerId, addresses: Sequence[str]) -> None:
            dialled_s.append(trio.current_time())
            await connect(peer, addresses)

        other.transport.connect = counted  # type: ignore[method-assign]  # to see when
        async with trio.open_nursery() as nursery:
            await start(nursery, one, None)
            await start(nursery, other, one)
            await trio.sleep(120.0)  # By now the directory is asked now and then only.
            assert other.links.linked() == (one.peer,)
            dialled_s.clear()
            broken_s = trio.current_time()
            await one.transport.disconnect(other.peer)
            other.links.connection_changed()
            await trio.sleep(0.5)
            assert [at_s - broken_s < 0.3 for at_s in dialled_s] == [True]
            dialled_s.clear()
            for _ in range(100):  # It takes every connection, and closes it.
                await one.transport.disconnect(other.peer)
                other.links.connection_changed()
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    assert 5 <= len(dialled_s) <= 11


async def test_nodes_told_only_one_peer_link_to_nobody_else_without_the_directory(
    autojump_clock: trio.abc.Clock,
) -> None:
    linked = await linked_after(30.0, autojump_clock, finds_nobody=True)
    assert [len(peers) for peers in linked] == [2, 1, 1]


async def test_a_peer_of_another_run_is_told_which_field_differs(
    autojump_clock: trio.abc.Clock,
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        one = await party(stack, network, "a")
        other = await party(stack, network, "b", manifest=toy_manifest(rounds=9))
        async with trio.open_nursery() as nursery:
            await start(nursery, one, None)
            await start(nursery, other, one)
            await trio.sleep(3.0)
            nursery.cancel_scope.cancel()
    assert one.links.linked() == other.links.linked() == ()
    for told in (one.told, other.told):
        reasons = [event.reason for event in told if isinstance(event, ev.Fault)]
        assert reasons
        assert all("differs at rounds" in reason for reason in reasons)


async def test_a_peer_that_sends_garbage_is_a_fault_and_unlinked(
    autojump_clock: trio.abc.Clock,
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        low, high = sorted(
            [await party(stack, network, "a"), await party(stack, network, "b")],
            key=lambda one: one.peer,
        )
        async with trio.open_nursery() as nursery:
            await start(nursery, low, None)
            await start(nursery, high, low)
            await trio.sleep(3.0)
            assert high.peer in low.links.linked()
            low.links._queues[high.peer].send_nowait(b"\xffgarbage")
            await trio.sleep(0.5)
            faults = [event for event in high.told if isinstance(event, ev.Fault)]
            assert [fault.peer for fault in faults] == [low.peer]
            assert ev.Unlinked(low.peer) in high.told
            nursery.cancel_scope.cancel()


async def test_a_peer_that_reads_nothing_is_unlinked_and_nobody_waits(
    autojump_clock: trio.abc.Clock,
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        one = await party(stack, network, "a")
        send, _receive = trio.open_memory_channel[bytes](QUEUE_FRAMES)
        silent = Ed25519Signer(b"s" * 32).peer_id
        one.links._queues[silent] = send
        for nonce in range(QUEUE_FRAMES + 1):
            one.links.send(silent, StatusAsk(nonce=nonce))
        assert silent not in one.links.linked()
        with pytest.raises(trio.ClosedResourceError):
            send.send_nowait(b"")


@pytest.mark.parametrize("goes", [False, True])
async def test_a_flooder_is_read_at_its_share_and_told_of_and_not_read_on_once_it_is_gone(
    autojump_clock: trio.abc.Clock, goes: bool
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        one, other = await party(stack, network, "a"), await party(stack, network, "b")
        await other.transport.connect(one.peer, one.transport.addresses())
        far, near = stream_pair(other.transport, one.transport)
        data = encode_frame(StatusAsk(nonce=1))
        cost = cost_s(other.peer, StatusAsk(nonce=1), len(data))

        async def flood() -> None:
            with suppress(BarnraiseError):
                while True:
                    await far.send_frame(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            nursery.start_soon(one.links._read, near)
            await trio.sleep(20.0)
            read = sum(isinstance(event, ev.FrameArrived) for event in one.told)
            assert read * cost == pytest.approx(SHARE.burst + 20.0 * SHARE.per_s, rel=0.02)
            assert 10 <= one.told.count(ev.Overdrawn(other.peer)) <= 40
            if goes:
                await other.transport.disconnect(one.peer)
                await trio.sleep(1.0)
                one.told.clear()
            await trio.sleep(10.0)
            assert any(isinstance(event, ev.FrameArrived) for event in one.told) is not goes
            nursery.cancel_scope.cancel()


async def test_a_dropped_link_that_ends_late_does_not_end_the_newer_one() -> None:
    async with AsyncExitStack() as stack:
        one = await party(stack, MemoryNetwork(), "a")
        peer = Ed25519Signer(b"s" * 32).peer_id
        async with AsyncExitStack() as older:
            await older.enter_async_context(one.links._linked(peer))
            for nonce in range(QUEUE_FRAMES + 1):
                one.links.send(peer, StatusAsk(nonce=nonce))
            async with one.links._linked(peer):
                await older.aclose()
                assert one.links.linked() == (peer,)
                assert one.told == [ev.Linked(peer), ev.Linked(peer)]
    assert one.told[2:] == [ev.Unlinked(peer)]


async def test_a_writer_whose_peer_takes_no_frame_gives_up(
    autojump_clock: trio.abc.Clock,
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        one, other = await party(stack, network, "a"), await party(stack, network, "b")
        ours, _theirs = stream_pair(one.transport, other.transport)
        send, receive = trio.open_memory_channel[bytes](100)
        for _ in range(100):
            send.send_nowait(bytes(60_000))
        started_s = trio.current_time()
        with trio.fail_after(10 * WRITE_S):
            await one.links._write(ours, receive, scope := trio.CancelScope())
        assert scope.cancel_called
        assert trio.current_time() - started_s == pytest.approx(WRITE_S)


async def test_made_up_announcements_push_out_each_other_and_no_connected_peer() -> None:
    network = MemoryNetwork()
    value = encode(Announcement(("/ip4/203.0.113.1/tcp/1",)))
    async with AsyncExitStack() as stack:
        one, other = await party(stack, network, "a"), await party(stack, network, "b")
        await one.transport.connect(other.peer, other.transport.addresses())
        one.links._note_record(other.peer, value)
        for number in range(KNOWN_MAX + 50):
            one.links._note_record(PeerId(number.to_bytes(38, "big")), value)
        assert len(one.links._known) == KNOWN_MAX
        assert other.peer in one.links._known


async def test_named_peers_are_bounded_and_keep_what_was_named() -> None:
    async with AsyncExitStack() as stack:
        one = await party(stack, MemoryNetwork(), "a")
        named = PeerAddress(PeerId(bytes(38)), "/dns4/home.example.org/tcp/4001")
        one.links.know(named)
        one.links._note_record(named.peer, encode(Announcement(())))
        assert one.links.addresses(named.peer) == (named.address,)
        for number in range(1, 2 * KNOWN_MAX):
            peer = PeerId(number.to_bytes(38, "big"))
            one.links.know(PeerAddress(peer, "/ip4/192.168.1.66/tcp/1"))
        assert len(one.links._known) == KNOWN_MAX


async def test_a_linked_peer_is_known_by_the_addresses_of_its_hello(
    autojump_clock: trio.abc.Clock,
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        one, other = await party(stack, network, "a"), await party(stack, network, "b")
        async with trio.open_nursery() as nursery:
            await start(nursery, one, None)
            await start(nursery, other, one)
            with trio.fail_after(5.0):
                changes = await one.links.links_changed(0)
            assert one.links.acquaintances() == {other.peer: other.transport.addresses()}
            await other.transport.disconnect(one.peer)
            with trio.fail_after(1.0):
                await one.links.links_changed(changes)
            assert one.links.acquaintances() == {}
            nursery.cancel_scope.cancel()


async def test_a_peer_of_another_run_that_asks_again_and_again_is_told_of_once(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        one = await party(stack, network, "a")
        other = await party(stack, network, "b", manifest=toy_manifest(rounds=9))
        async with trio.open_nursery() as nursery:
            await start(nursery, one, None)
            await start(nursery, other, one)
            await trio.sleep(20.0)
            assert [isinstance(event, ev.Fault) for event in one.told] == [True]
            refusal = other.links.refusal(one.peer)
            nursery.cancel_scope.cancel()
    assert isinstance(refusal, ManifestMismatch)
    warnings = [record for record in caplog.records if "another run" in record.message]
    assert len(warnings) == 2  # One of each.


async def test_strangers_who_are_refused_take_bounded_memory() -> None:
    async with AsyncExitStack() as stack:
        one = await party(stack, MemoryNetwork(), "a")
        for number in range(2 * KNOWN_MAX):
            stranger = PeerId(number.to_bytes(32, "big"))
            assert one.links._note_refusal(stranger, ManifestMismatch("title", "a", "b"))
        assert len(one.links._refusals) == KNOWN_MAX
