"""Search and control streams of several nodes: the real directory over a memory transport."""

import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise

import pytest
import trio

from dht.directory import KademliaDirectory
from dht.kademlia.keyspace import topic_key
from dht.kademlia.records import SignedRecord, sign_record
from dht.kademlia.routing import Contact
from dht.reaching import dials
from dht.reaching.dials import DIALS_A_SECOND_MAX
from node.peers.dialling import DialContext, KnownProgress, Worth
from node.peers.entry_exchange import KNOWN_MAX
from node.peers.links import CONTROL_PROTOCOL, QUEUE_FRAMES, WRITE_S, YIELD_S, Announcement, Links
from node.state.config import PeerAddress
from protocol import events as ev
from protocol.core.budgets import SHARE, cost_s
from protocol.errors import BarnraiseError, ManifestMismatch
from protocol.frames import StatusAsk, encode_frame
from protocol.identity import PEER_ID_BYTES, Ed25519Signer, PeerId
from protocol.join_puzzle import solve
from protocol.limits import PUZZLE_BITS_MIN
from protocol.manifest import RunManifest
from protocol.transport import Stream
from protocol.wire import decode, encode
from tests.dht.liars import Liars
from tests.memory_transport import MemoryNetwork, MemoryTransport, most_a_second, stream_pair
from tests.node.edge import signed, toy_manifest

NOBODY_HERE = DialContext(connected=(), linked=(), standing=KnownProgress())


async def deaf(_stream: Stream) -> None:
    """A control stream of a peer that is in no run."""


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
        memory=directory.memory,
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
    async with AsyncExitStack() as stack:
        one = await party(stack, network, "a", finds_nobody=True)
        other = await party(stack, network, "b", finds_nobody=True)
        async with trio.open_nursery() as nursery:
            await start(nursery, one, None)
            await start(nursery, other, one)
            await trio.sleep(120.0)  # By now the directory is asked now and then only.
            assert other.links.linked() == (one.peer,)
            begun = other.transport.dials
            begun.clear()
            broken_s = trio.current_time()
            await one.transport.disconnect(other.peer)
            other.links.connection_changed()
            await trio.sleep(0.5)
            assert [at_s - broken_s < 0.3 for at_s, _ in begun] == [True]
            begun.clear()
            for _ in range(100):  # It takes every connection, and closes it.
                await one.transport.disconnect(other.peer)
                other.links.connection_changed()
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    assert 5 <= len(begun) <= 11


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
    value = Announcement(("/ip4/203.0.113.1/tcp/1",))
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
        one.links._note_record(named.peer, Announcement(()))
        assert one.links.addresses(named.peer) == (named.address,)
        for number in range(1, 2 * KNOWN_MAX):
            peer = PeerId(number.to_bytes(38, "big"))
            one.links.know(PeerAddress(peer, "/ip4/192.168.1.66/tcp/1"))
        assert len(one.links._known) == KNOWN_MAX
        assert named.peer in one.links._known


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


NEAR, FAR = "/ip4/192.168.1.17/tcp/4001", "/ip4/203.0.113.7/tcp/4001"


async def told_of(
    a: Party, b: Party, dialled: tuple[str, ...], autojump_clock: trio.abc.Clock
) -> tuple[Announcement, Contact | None, tuple[str, ...]]:
    """What `b` finds of `a` under the run's topic, in its table, and by the link."""
    async with trio.open_nursery() as nursery:
        await start(nursery, a, None)
        await nursery.start(b.directory.run)
        b.links.know(PeerAddress(a.peer, dialled[0]))
        await b.directory.join([Contact(a.peer, dialled)])
        nursery.start_soon(b.links.run)
        await trio.sleep(5.0)
        records = await b.directory.find(b"run/" + b.links.signed.manifest.digest)
        (said,) = [decode(Announcement, one.value) for one in records if one.writer == a.peer]
        found = said, b.directory.kademlia.table.get(a.peer), b.links.addresses(a.peer)
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize("trust", ["friends", "open"])
async def test_strangers_who_read_the_records_learn_nothing_of_a_home(
    autojump_clock: trio.abc.Clock, trust: str
) -> None:
    """In the run's topic, and in what the DHT keeps of the node; friends hear all at the hello."""
    network, manifest = MemoryNetwork(), replace(toy_manifest(), trust=trust)
    async with AsyncExitStack() as stack:
        a = await party(stack, network, "a", manifest=manifest)
        b = await party(stack, network, "b", manifest=manifest)
        dialled = a.transport.addresses()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(a.transport, "addresses", lambda: (NEAR, FAR))
            said, contact, heard = await told_of(a, b, dialled, autojump_clock)
    assert said.addresses == (FAR,)
    assert contact is not None
    assert NEAR not in contact.addresses
    assert (NEAR in heard) == (trust == "friends")
    assert FAR in heard


def made_up_records(run: RunManifest, num: int, *, work: bytes = b"") -> list[SignedRecord]:
    """Of writers that nobody has met, who say that they listen where nobody does."""
    records = []
    for number in range(num):
        said = Announcement((f"/ip4/45.{number >> 8}.{number & 255}.7/tcp/4001",), work)
        signer = Ed25519Signer(number.to_bytes(32, "big"))
        key = topic_key(b"run/" + run.digest)
        sign = partial(sign_record, sequence=1, expires_unix_s=int(1e9) + 3600)
        records.append(sign(signer, key, encode(said)))
    return records


def made_up_contacts() -> Iterator[tuple[Contact, ...]]:
    """Sixteen at a time, for ever."""
    rng = random.Random("made up")
    for number in count():
        hosts = (f"/ip4/46.{number >> 4 & 255}.{16 * number + at & 255}.7" for at in range(16))
        yield tuple(
            Contact(PeerId(rng.randbytes(PEER_ID_BYTES)), (f"{host}/tcp/4001",)) for host in hosts
        )


@pytest.mark.extended
@pytest.mark.parametrize("is_paced", [False, True])
async def test_newcomer_is_in_within_half_a_minute_whoever_else_is_announced(
    is_paced: bool, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_paced:
        monkeypatch.setattr(dials, "DIALS_A_SECOND_MAX", 10_000)
    network, run, named = MemoryNetwork(), toy_manifest(), made_up_contacts()
    async with AsyncExitStack() as stack:
        # Newcomers are told of the DHT alone, where made-up writers fill the run's topic, and of
        # peers that name others whom nobody has met.
        dht = await party(stack, network, "d", finds_nobody=True)
        member = await party(stack, network, "m")
        newcomer = await party(stack, network, "n")
        dht.transport._handlers[CONTROL_PROTOCOL] = deaf
        liars = Liars(made_up=lambda: next(named))
        await liars.open(stack, network, range(200, 203))
        async with trio.open_nursery() as nursery:
            await start(nursery, member, None)
            await nursery.start(dht.directory.run)
            await dht.directory.join([Contact(member.peer, member.transport.addresses())])
            await trio.sleep(3.0)
            for record in made_up_records(run, KNOWN_MAX):
                dht.directory.kademlia.keep(record, 1e9)
            await nursery.start(newcomer.directory.run)
            nursery.start_soon(newcomer.links.run)
            contact = Contact(dht.peer, dht.transport.addresses())
            nursery.start_soon(newcomer.directory.join, [contact, *liars.contacts])
            with trio.fail_after(30.0):
                await newcomer.links.met.wait()
            await trio.sleep(120.0)
            nursery.cancel_scope.cancel()
    made_up = [one for one in newcomer.transport.dials if one[1].startswith("/ip4/")]
    assert len(made_up) > 50
    assert (most_a_second(made_up) <= DIALS_A_SECOND_MAX) is is_paced
    for _, address in made_up:
        times = [at for at, one in made_up if one == address]
        assert all(later - before >= 60.0 for before, later in pairwise(times))


async def test_member_says_the_work_it_has_done_and_is_dialled_before_who_says_none() -> None:
    run = toy_manifest(admission=replace(toy_manifest().admission, puzzle_bits=PUZZLE_BITS_MIN))
    async with AsyncExitStack() as stack:
        one = await party(stack, MemoryNetwork(), "a", manifest=run)
        records = made_up_records(run, 40)
        honest = Ed25519Signer(b"h" * 32)
        work = solve(run.digest, honest.peer_id, PUZZLE_BITS_MIN)
        said = encode(Announcement(("/ip4/203.0.113.1/tcp/4001",), work))
        key = topic_key(b"run/" + run.digest)
        sign = partial(sign_record, sequence=1, expires_unix_s=int(1e9) + 3600)
        # Work that was done for somebody else is none.
        copied = made_up_records(run, 41, work=work)[40]
        one.links._note_records([*records, copied, sign(honest, key, said)])
        (first, *_) = one.links._dials.choose(NOBODY_HERE, 0.0)
        assert first.peer == honest.peer_id
        assert one.links._dials.worth(copied.writer, ()) is Worth.STRANGER


async def test_member_shows_its_work_in_its_record(autojump_clock: trio.abc.Clock) -> None:
    network, work = MemoryNetwork(), bytes(range(64))
    async with AsyncExitStack() as stack:
        one, other = await party(stack, network, "a"), await party(stack, network, "b")

        async def worked() -> bytes:
            return work

        one.links.work = worked
        members: set[PeerId] = set()
        one.links.standing = lambda: KnownProgress(frozenset(members), 1)
        topic = b"run/" + toy_manifest().digest
        async with trio.open_nursery() as nursery:
            await start(nursery, other, None)
            await start(nursery, one, other)
            await trio.sleep(5.0)

            async def shown() -> bytes:
                found = await other.directory.find(topic)
                (record,) = [record for record in found if record.writer == one.peer]
                return decode(Announcement, record.value).work

            assert await shown() == b""
            members.add(one.peer)
            await trio.sleep(5.0)
            assert await shown() == work
            nursery.cancel_scope.cancel()
