"""Cells over streams: what fits is kept, all else is the sender's fault and keeps nothing."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.holdings.shard_store import Item
from node.plane import bulk
from node.plane.bulk_streams import BULK_PROTOCOL, OVERTAKEN_S, STALL_S, STALL_SPARE_S, put_off
from node.plane.hooks import FlipByte, NodeHooks
from protocol import events as ev
from protocol import limits
from protocol.errors import PeerError, StreamClosedError
from protocol.frames import Bulk, BulkHeader, BulkItem, BulkItems, Heartbeat
from protocol.identity import Ed25519Signer
from protocol.messages import Commit, Kind
from protocol.wire import encode
from tests.memory_transport import MemoryNetwork, MemoryStream, stream_pair
from tests.node.edge import FOUNDER_SEED, NUMEL, Desk, toy_manifest

MANIFEST = toy_manifest()
CELLS = (0, 1, 2, 3)
PIECE = limits.PIECE_BYTES_MIN


def committed(desk: Desk) -> tuple[bytes, Commit]:
    """Let the founder's desk commit a contribution; its COMMIT digest and body."""
    update_N = np.linspace(-1, 1, NUMEL, dtype=np.float32)
    payloads = [
        update_N[start : start + 1024].astype("<f2").tobytes() for start in range(0, NUMEL, 1024)
    ]
    root, norms = desk.store.contribute(payloads)
    contributed = ev.Contributed(
        round=1,
        root=root,
        cell_norms=norms,
        tokens=8,
        samples=8,
        steps=2,
        residual_before=bytes(32),
        residual_after=bytes(32),
    )
    actions = desk.core.handle(contributed, 1.0)
    message = next(
        a.message
        for a in actions
        if isinstance(a, ev.RecordSlot) and a.message.slot.kind is Kind.COMMIT
    )
    found = desk.core.views()[-1].ballots.commit_of(message.digest)
    assert found is not None
    return message.digest, found[1]


def hear_commit(source: Desk, target: Desk, digest: bytes) -> None:
    entry = source.core.views()[-1].ballots.find(digest)
    assert entry is not None
    target.core.handle(ev.Heard(entry.message, entry.body), 1.0)


async def pushed(
    hooks: NodeHooks | None = None,
    autojump_clock: trio.abc.Clock | None = None,
    *,
    source: Desk | None = None,
) -> tuple[Desk, Desk, bytes]:
    """A founder pushes all its parts to a second node over the memory transport.

    On the virtual clock the second node never hears the COMMIT.
    """
    heard = autojump_clock is None
    network = MemoryNetwork()
    source = source or Desk(FOUNDER_SEED, MANIFEST)
    target = Desk(b"t" * 32, MANIFEST)
    digest, _ = committed(source)
    if heard:
        hear_commit(source, target, digest)
    async with (
        network.open(signer_seed=FOUNDER_SEED) as near,
        network.open(signer_seed=b"t" * 32) as far,
    ):
        far.serve(BULK_PROTOCOL, target.streams(far).accept)
        await near.connect(far.peer_id, far.addresses())
        push = ev.Push(far.peer_id, Bulk.PART, digest, CELLS)
        await source.streams(near, hooks).push(push)
        await wait_all_tasks_blocked()
        if not heard:
            await trio.sleep(OVERTAKEN_S + 1)
    return source, target, digest


async def test_parts_of_a_known_commit_arrive_as_they_were_committed() -> None:
    source, target, digest = await pushed()
    _, commit = next((d, c) for _, d, c in source.core.views()[-1].commits())
    assert target.faults() == []
    assert target.store.parts(commit.root, CELLS) == source.store.parts(commit.root, CELLS)
    assert ev.CellsArrived(Bulk.PART, digest, CELLS) in target.told


async def test_parts_with_one_flipped_byte_are_a_fault_and_not_kept() -> None:
    source, target, _ = await pushed(FlipByte())
    _, commit = next((d, c) for _, d, c in source.core.views()[-1].commits())
    assert target.store.parts(commit.root, CELLS) == []
    assert ["Merkle" in reason for reason in target.faults()] == [True]
    assert not any(isinstance(event, ev.CellsArrived) for event in target.told)


async def test_parts_of_an_unknown_commit_are_dropped_after_a_while(
    autojump_clock: trio.abc.Clock,
) -> None:
    source, target, _ = await pushed(autojump_clock=autojump_clock)
    _, commit = next((d, c) for _, d, c in source.core.views()[-1].commits())
    assert target.store.parts(commit.root, CELLS) == []
    assert target.faults() == []


async def test_parts_that_came_too_early_are_sent_again_once_their_taker_is_in_that_round(
    autojump_clock: trio.abc.Clock,
) -> None:
    network = MemoryNetwork()
    source, target = Desk(FOUNDER_SEED, MANIFEST), Desk(b"t" * 32, MANIFEST)
    digest, _ = committed(source)
    async with (
        network.open(signer_seed=FOUNDER_SEED) as near,
        network.open(signer_seed=b"t" * 32) as far,
        trio.open_nursery() as nursery,
    ):
        far.serve(BULK_PROTOCOL, target.streams(far).accept)
        await near.connect(far.peer_id, far.addresses())
        streams = source.streams(near)
        push = ev.Push(far.peer_id, Bulk.PART, digest, CELLS)
        beat = Heartbeat(round=0, head=bytes(32), held=(), links=())
        await source.tell(ev.FrameArrived(far.peer_id, beat))
        for _ in range(100):
            nursery.start_soon(streams.push, push)
            await trio.sleep(OVERTAKEN_S + 1)
        assert len(streams._early) == 1
        assert len(nursery.child_tasks) == 1, "who takes nothing is waited for once"
        hear_commit(source, target, digest)
        await source.tell(ev.FrameArrived(far.peer_id, replace(beat, round=1)))
    assert ev.CellsArrived(Bulk.PART, digest, CELLS) in target.told
    assert not streams._early


def test_parts_of_others_are_kept_for_nobody_that_is_not_in_that_round() -> None:
    """One peer would keep a task for each COMMIT of a round by asking for all of them."""
    source, target = Desk(FOUNDER_SEED, MANIFEST), Desk(b"t" * 32, MANIFEST)
    digest, _ = committed(source)
    hear_commit(source, target, digest)
    push = ev.Push(Ed25519Signer(b"p" * 32).peer_id, Bulk.PART, digest, CELLS)
    for desk, is_own in ((source, True), (target, False)):
        beat = Heartbeat(round=0, head=bytes(32), held=(), links=())
        desk.core.handle(ev.FrameArrived(push.to, beat), 1.0)
        assert desk.core.views()[0].is_about(digest)
        assert bulk.is_early(desk.core, push) is is_own


async def received(target: Desk, *data: bytes, close: bool = True) -> None:
    """Let the target's streams read these bytes from the founder."""
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=FOUNDER_SEED) as near,
        network.open(signer_seed=b"t" * 32) as far,
    ):
        ours, theirs = stream_pair(near, far)
        streams = target.streams(far)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sent, ours, data, close)
            await streams.accept(theirs)


async def sent(stream: MemoryStream, data: tuple[bytes, ...], close: bool) -> None:
    for piece in data:
        await stream.send_all(piece)
    if close:
        await stream.aclose()


def frame(value: object) -> bytes:
    data = encode(value)
    return len(data).to_bytes(4, "big") + data


def good_transfer() -> tuple[Desk, Desk, BulkHeader, list[Item]]:
    source, target = Desk(FOUNDER_SEED, MANIFEST), Desk(b"t" * 32, MANIFEST)
    digest, commit = committed(source)
    hear_commit(source, target, digest)
    items = source.store.parts(commit.root, CELLS)
    header = BulkHeader(bulk=Bulk.PART, subject=digest, round=1, items=len(items))
    return source, target, header, items


def head(*items: Item, piece: int = PIECE, **changes: Any) -> BulkItems:
    """What is said of one item, or of some that come together; `changes` are of each."""
    said: list[dict[str, Any]] = [
        {"index": item.index, "length": len(item.payload), "proof": b"".join(item.proof), **changes}
        for item in items
    ]
    return BulkItems(items=tuple(BulkItem(**fields) for fields in said), piece=piece)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"length": 1 << 20}, "instead of"),
        ({"length": 0}, "instead of"),
        ({"index": 4}, "cell 4 of 4"),
        ({"index": 1}, "Merkle"),
        ({"proof": b""}, "Merkle"),
    ],
)
async def test_a_lying_item_header_is_a_fault(changes: dict[str, Any], reason: str) -> None:
    _, target, header, items = good_transfer()
    data = frame(header) + frame(head(items[0], **changes)) + items[0].payload
    with pytest.raises((PeerError, ExceptionGroup)):
        await received(target, data)
    assert [reason in fault for fault in target.faults()] == [True]


async def test_a_frame_that_claims_gigabytes_is_refused_unread() -> None:
    _, target, _, _ = good_transfer()
    with pytest.raises((PeerError, ExceptionGroup)):
        await received(target, b"\xff\xff\xff\xff", close=False)
    assert len(target.faults()) == 1


async def test_a_transfer_cut_short_is_no_fault_and_keeps_what_was_whole() -> None:
    _, target, header, items = good_transfer()
    data = frame(header) + frame(head(items[0])) + items[0].payload + frame(head(items[1]))
    with pytest.raises((StreamClosedError, ExceptionGroup)):
        await received(target, data)
    assert target.faults() == []
    (arrived,) = [event for event in target.told if isinstance(event, ev.CellsArrived)]
    assert arrived == ev.CellsArrived(Bulk.PART, header.subject, (0,))


async def test_a_sender_that_stops_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    _, target, header, items = good_transfer()
    started_s = trio.current_time()
    with pytest.raises((StreamClosedError, ExceptionGroup)):
        await received(target, frame(header) + frame(head(items[0])), close=False)
    assert trio.current_time() - started_s == pytest.approx(STALL_S)
    assert target.faults() == []


async def test_state_of_a_source_that_was_given_up_is_left_unread_and_nobodys_fault() -> None:
    _, target, header, items = good_transfer()
    header = replace(header, bulk=Bulk.STATE)
    await received(target, frame(header) + frame(head(items[0])))
    assert target.faults() == []
    assert target.told == []


async def test_a_payload_with_a_nan_is_a_fault_although_it_was_committed() -> None:
    source, target = Desk(FOUNDER_SEED, MANIFEST), Desk(b"t" * 32, MANIFEST)
    digest, commit = committed(source)
    hear_commit(source, target, digest)
    item = source.store.parts(commit.root, (0,))[0]
    poisoned = np.full(1024, np.nan, dtype="<f2").tobytes()
    with pytest.raises(PeerError):
        target.store.put_part(commit.root, replace(item, payload=poisoned))
    assert target.store.parts(commit.root, CELLS) == []


async def test_cells_of_a_peer_without_a_link_are_neither_sent_nor_taken() -> None:
    _, target, header, items = good_transfer()
    target.linked.clear()
    await received(target, frame(header) + frame(head(items[0])) + items[0].payload)
    assert target.told == []
    source = Desk(FOUNDER_SEED, MANIFEST)
    digest, _ = committed(source)
    source.linked.clear()
    network = MemoryNetwork()
    async with network.open(signer_seed=FOUNDER_SEED) as near:
        push = ev.Push(Ed25519Signer(b"t" * 32).peer_id, Bulk.PART, digest, CELLS)
        await source.streams(near).push(push)
        assert near.traffic() == (0, 0)


@pytest.mark.parametrize("kind", [Bulk.STATE, Bulk.STEP])
async def test_state_that_is_not_here_is_told_instead_of_sent(kind) -> None:
    source, joiner = Desk(FOUNDER_SEED, MANIFEST), Ed25519Signer(b"t" * 32).peer_id
    head = source.core.chain[0]
    gone = replace(head, value=replace(head.value, round=1, root=bytes(32), commits=(b"c" * 32,)))
    source.core.chain.append(gone)
    network = MemoryNetwork()
    async with network.open(signer_seed=FOUNDER_SEED) as near:
        for subject in (gone.value.digest, b"never sealed".ljust(32)):
            await source.streams(near).push(ev.Push(joiner, kind, subject, CELLS))
            assert source.told == [ev.NotServed(joiner, kind, subject)]
            source.told.clear()
        assert near.traffic() == (0, 0)


def test_a_want_that_names_a_cell_many_times_gets_it_once() -> None:
    source = Desk(FOUNDER_SEED, MANIFEST)
    digest, _ = committed(source)
    push = ev.Push(Ed25519Signer(b"t" * 32).peer_id, Bulk.PART, digest, (1,) * 12_288)
    assert [item.index for item in bulk.outgoing(source.core, source.store, push)] == [1]


async def test_wants_of_a_peer_that_reads_nothing_do_not_pile_up(
    autojump_clock: trio.abc.Clock,
) -> None:
    source = Desk(FOUNDER_SEED, MANIFEST)
    digest, _ = committed(source)
    push = ev.Push(Ed25519Signer(b"t" * 32).peer_id, Bulk.PART, digest, CELLS)
    opened = 0

    class Deaf:
        async def open_stream(self, peer, protocol):
            nonlocal opened
            opened += 1
            await trio.sleep_forever()

    streams = source.streams(Deaf())  # type: ignore[arg-type]  # only opens streams
    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(streams.push, push)
    assert opened == 1
    assert push.to not in streams._queue


async def test_parts_of_a_round_that_the_peer_has_left_are_not_sent() -> None:
    source = Desk(FOUNDER_SEED, MANIFEST)
    digest, _ = committed(source)
    to = Ed25519Signer(b"t" * 32).peer_id
    push = ev.Push(to, Bulk.PART, digest, CELLS)
    for at_round, is_of_use in ((1, True), (2, False)):
        beat = Heartbeat(round=at_round, head=bytes(32), held=(), links=())
        source.core.handle(ev.FrameArrived(to, beat), 1.0)
        assert bulk.is_of_use(source.core, push) is is_of_use


async def test_transfer_ends_where_its_taker_leaves_the_round_meanwhile(monkeypatch) -> None:
    source = Desk(FOUNDER_SEED, MANIFEST)
    sent_bytes, send_all = [], MemoryStream.send_all

    async def send(stream, *parts):
        sent_bytes.append(sum(map(len, parts)))
        await send_all(stream, *parts)
        if sum(size > 1000 for size in sent_bytes) == 2:  # Two cells are out.
            beat = Heartbeat(round=2, head=bytes(32), held=(), links=())
            source.core.handle(ev.FrameArrived(stream.peer, beat), 1.0)

    monkeypatch.setattr(MemoryStream, "send_all", send)
    _, target, digest = await pushed(source=source)
    assert sum(size > 1000 for size in sent_bytes) == 2
    assert [event.cells for event in target.told if isinstance(event, ev.CellsArrived)] == [(0, 1)]
    assert target.faults() == []
    assert source.core.views()[-1].is_about(digest)


def test_deadline_is_moved_seldom_and_never_gives_more_time_than_a_stall_may_take(seed):
    rng, scope, moves, now_s = random.Random(seed), trio.CancelScope(), 0, 0.0
    for _ in range(1000):
        now_s += rng.uniform(0.0, 0.02)
        before_s = scope.deadline
        put_off(scope, now_s)
        moves += scope.deadline != before_s
        assert STALL_S - STALL_SPARE_S <= scope.deadline - now_s <= STALL_S
    assert moves <= 1 + now_s / STALL_SPARE_S
    scope.deadline = now_s + 5 * STALL_S  # As after a long pause of a line that is held back.
    put_off(scope, now_s)
    assert scope.deadline == now_s + STALL_S
