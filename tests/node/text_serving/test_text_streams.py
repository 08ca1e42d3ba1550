"""Blocks of a text between nodes that serve them: fetched, kept, given, refused."""

import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from dht.transport.libp2p_transport import TransportConfig, open_transport
from node.holdings.text_blocks import BlockFolder, WholeText
from node.plane import text_streams
from node.plane.text_mirrors import MirrorError
from node.plane.text_streams import TEXT_PROTOCOL, TextOwner, TextStreams
from protocol import limits
from protocol.entry_kinds import HoldsText
from protocol.errors import CorpusError, StreamClosedError
from protocol.frames import BlockHeader, WantBlocks
from protocol.identity import PeerId
from protocol.serving_text.block_keeper import BlockKeeper, KeeperSettings
from protocol.serving_text.text_shape import DigestTree, TextShape, block_digest
from protocol.wire import decode, encode
from tests.memory_transport import MemoryNetwork

SIZE, COUNT = 1 << 16, 12
BLOCKS = [random.Random(n).randbytes(SIZE) for n in range(COUNT)]
DIGESTS = b"".join(map(block_digest, BLOCKS))
TREE = DigestTree(DIGESTS)
SHAPE = TextShape(TREE.root, COUNT, SIZE)


@pytest.fixture(name="autojump_clock")
def fixture_autojump_clock() -> trio.testing.MockClock:
    """One that waits for worker threads before it leaps."""
    return trio.testing.MockClock(autojump_threshold=0.01)


class TextNode:
    """One node as far as its text goes; `net` tells the others of it."""

    def __init__(self, transport, net: "TextNet", store, settings: dict[str, Any]) -> None:
        self.transport, self.net, self.store = transport, net, store
        self.me: PeerId = transport.peer_id
        self.faults: list[tuple[PeerId, str]] = []
        self.arrived: list[int] = []
        self.named: list[int] = []
        self.said: HoldsText | None = None
        keeper = BlockKeeper(
            self.me,
            SHAPE,
            KeeperSettings(
                **{"quota_blocks": COUNT, "has_mirrors": "mirrors" in settings} | settings["keeper"]
            ),
            store.held(),
        )
        owner = TextOwner(
            is_linked=lambda peer: peer in transport.connected(),
            announce=self._announce,
            fault=lambda peer, reason: self.faults.append((peer, reason)),
            arrived=self.arrived.append,
            named=lambda block, _: self.named.append(block),
            mirrors=settings.get("mirrors"),
        )
        self.streams = TextStreams(keeper, store, transport, owner)

    def _announce(self, said: HoldsText) -> None:
        self.said = said
        for node in self.net.nodes:
            if node is not self:
                node.streams.see(self.me, said)

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> float:
        """Seconds until it is so."""
        began_s = trio.current_time()
        with trio.fail_after(seconds):
            while not condition():
                await trio.lowlevel.checkpoint()
                with trio.move_on_after(0.4):
                    await trio.Event().wait()
        return trio.current_time() - began_s


class TextNet:
    """Nodes in memory, all linked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes = folder, list[TextNode]()
        self.network = MemoryNetwork()

    @asynccontextmanager
    async def node(
        self, number: int, blocks: Iterable[int] = (), **settings: Any
    ) -> AsyncIterator[TextNode]:
        store = settings.pop("store", None)
        if store is None:
            store = BlockFolder(self.folder / f"{number}", SHAPE)
            for block in blocks:
                store.write(block, (BLOCKS[block], b"".join(TREE.proof(block))))
        given = {"keeper": settings.pop("keeper", {}), **settings}
        async with self.network.open(signer_seed=bytes([number]) * 32) as transport:
            node = TextNode(transport, self, store, given)
            transport.serve(TEXT_PROTOCOL, node.streams.accept)
            async with trio.open_nursery() as nursery:
                await nursery.start(node.streams.run)
                for other in self.nodes:
                    await transport.connect(other.me, other.transport.addresses())
                    node.streams.see(other.me, other.said)
                    other.streams.see(node.me, node.said)
                self.nodes.append(node)
                yield node
                self.nodes.remove(node)
                nursery.cancel_scope.cancel()
        for other in self.nodes:
            other.streams.miss(node.me)


NO_ROOM = {"lease_blocks": COUNT}
"""Of a node that keeps nothing for others."""


def whole() -> WholeText:
    return WholeText(SHAPE, DIGESTS, lambda number: BLOCKS[number])


@pytest.fixture(name="net")
def fixture_net(tmp_path: Path) -> TextNet:
    return TextNet(tmp_path)


async def test_joiner_fetches_its_lease_and_keeps_it(net, autojump_clock):
    async with net.node(1, store=whole()), net.node(2) as joiner:
        joiner.streams.wanted([7, 2], [9])
        await joiner.until(lambda: len(joiner.arrived) == 3)
        for block in (7, 2, 9):
            assert joiner.store.read(block) == (BLOCKS[block], b"".join(TREE.proof(block)))
    # What is on the disk is there after a restart.
    async with net.node(2) as again:
        again.streams.wanted([2, 7])
        assert again.arrived == [2, 7]


async def test_members_seed_each_other_and_a_founder_that_goes_is_not_missed(net, autojump_clock):
    async with net.node(2) as one, net.node(3) as two, net.node(4) as three:
        async with net.node(1, store=whole(), keeper={"lease_blocks": COUNT}):
            settled = [
                lambda node=node: node.streams.keeper.is_settled for node in (one, two, three)
            ]
            for is_settled in settled:
                await one.until(is_settled)
        async with net.node(5, keeper={"lease_blocks": COUNT}) as joiner:
            joiner.streams.wanted(range(COUNT))
            await joiner.until(lambda: len(joiner.arrived) == COUNT)
            assert joiner.named == joiner.faults == []


async def test_giver_that_dies_midway_is_made_up_for(net, autojump_clock):
    async with net.node(1, store=whole()), net.node(9) as joiner:
        async with net.node(2, range(COUNT)) as dying:
            joiner.streams.wanted(range(COUNT))
            await joiner.until(lambda: joiner.arrived)
            for peer in dying.transport.connected():
                await dying.transport.disconnect(peer)
        await joiner.until(lambda: len(joiner.arrived) == COUNT)
        assert joiner.named == []


class Liar:
    """A store that gives what it likes."""

    def __init__(self, found) -> None:
        self.found = found

    def held(self):
        return range(COUNT)

    def read(self, number):
        return self.found(number)


LIES: dict[str, Callable[[int], tuple[bytes, bytes]]] = {
    "another block": lambda n: (BLOCKS[n - 1], b"".join(TREE.proof(n - 1))),
    "a flipped byte": lambda n: (b"x" + BLOCKS[n][1:], b"".join(TREE.proof(n))),
    "no proof": lambda n: (BLOCKS[n], b""),
    "a long proof": lambda n: (BLOCKS[n], b"".join(TREE.proof(n)) + bytes(32)),
    "a short block": lambda n: (BLOCKS[n][:-1], b"".join(TREE.proof(n))),
}


@pytest.mark.parametrize("lie", LIES)
async def test_liar_is_named_and_set_back_and_nothing_of_it_is_kept(net, lie, autojump_clock):
    async with net.node(1, store=Liar(LIES[lie])) as liar, net.node(9) as joiner:
        joiner.streams.wanted([5])
        await joiner.until(lambda: joiner.faults)
        assert joiner.arrived == joiner.store.held() == []
        assert {peer for peer, _ in joiner.faults} == {liar.me}
        async with net.node(2, [5]):
            await joiner.until(lambda: joiner.arrived == [5])
        assert joiner.store.read(5)[0] == BLOCKS[5]
        assert len(joiner.faults) == 1


async def raw(node: TextNode, peer: PeerId, frame: bytes) -> Any:
    stream = await node.transport.open_stream(peer, TEXT_PROTOCOL)
    await stream.send_frame(frame)
    return stream


async def answers(stream: Any, count: int) -> list[int]:
    """The lengths of so many answers."""
    found = []
    for _ in range(count):
        header = decode(BlockHeader, await stream.receive_frame(limits.TEXT_HEADER_BYTES_MAX))
        found.append(header.length)
        await stream.receive_exactly(header.length)
    return found


async def test_what_is_not_here_is_said_and_the_rest_given(net, autojump_clock):
    async with net.node(1, [2, 4]) as giver, net.node(2) as asker:
        want = WantBlocks(root=SHAPE.root, blocks=(2, 3, 4, 2**19))
        assert await answers(await raw(asker, giver.me, encode(want)), 4) == [SIZE, 0, SIZE, 0]
        other = WantBlocks(root=bytes(32), blocks=(2, 4))
        assert await answers(await raw(asker, giver.me, encode(other)), 2) == [0, 0]


async def test_block_that_the_disk_changed_is_not_given_and_is_gone(net, autojump_clock):
    async with net.node(1, [2, 4]) as giver, net.node(2) as asker:
        path = giver.store.path(2)
        path.write_bytes(path.read_bytes()[:-1])
        want = WantBlocks(root=SHAPE.root, blocks=(2, 4))
        assert await answers(await raw(asker, giver.me, encode(want)), 2) == [0, SIZE]
        assert not giver.streams.keeper.held[2]
        assert giver.store.held() == [4]


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xc0", bytes(100), encode(WantBlocks(root=bytes(32), blocks=(1, 2)))[:-1] + b"\x01"],
)
async def test_request_of_other_bytes_is_a_fault(net, frame, autojump_clock):
    async with net.node(1, [2]) as giver, net.node(2) as asker:
        stream = await raw(asker, giver.me, frame)
        with pytest.raises(StreamClosedError):
            await stream.receive_frame(limits.TEXT_HEADER_BYTES_MAX)
        assert [peer for peer, _ in giver.faults] == [asker.me]


async def test_stranger_gets_nothing(net, autojump_clock):
    async with net.node(1, [2]) as giver, net.node(2) as asker:
        stream = await asker.transport.open_stream(giver.me, TEXT_PROTOCOL)
        giver.transport.connected = lambda: ()
        await stream.send_frame(encode(WantBlocks(root=SHAPE.root, blocks=(2,))))
        with pytest.raises(StreamClosedError):
            await stream.receive_frame(limits.TEXT_HEADER_BYTES_MAX)
        assert giver.faults == []


async def test_streams_of_one_peer_are_few_and_one_that_says_nothing_ends(net, autojump_clock):
    async with net.node(1, [2]) as giver, net.node(2) as asker:
        open_ = [await asker.transport.open_stream(giver.me, TEXT_PROTOCOL) for _ in range(20)]
        await asker.until(lambda: sum(giver.streams._num_inbound.values()) > 0)
        most = text_streams.STREAMS_PER_PEER_MAX
        assert sum(giver.streams._num_inbound.values()) == most
        await asker.until(lambda: not giver.streams._num_inbound, 2 * text_streams.GRACE_S)
        assert len(open_) == 20


@pytest.mark.parametrize(
    "answer",
    [
        encode(BlockHeader(number=6, length=SIZE, proof=b"")),
        encode(BlockHeader(number=5, length=SIZE - 1, proof=b"")),
        b"\xc0",
        bytes(limits.TEXT_HEADER_BYTES_MAX + 1),
    ],
    ids=["another number", "another length", "garbage", "too long"],
)
async def test_answer_that_is_none_is_a_fault_before_a_byte_is_read(net, answer, autojump_clock):
    async with net.node(1, range(COUNT)) as giver, net.node(9) as joiner:

        async def accept(stream):
            await stream.receive_frame(limits.TEXT_WANT_BYTES_MAX)
            await stream.send_frame(answer)
            await trio.sleep_forever()

        giver.transport._handlers[TEXT_PROTOCOL] = accept
        joiner.streams.wanted([5])
        await joiner.until(lambda: joiner.faults)
        assert joiner.faults[0][0] == giver.me
        assert joiner.arrived == []


@pytest.mark.parametrize("sent", [0, SIZE // 2])
async def test_giver_that_stalls_is_left_and_the_block_is_named_and_comes_later(
    net, sent, autojump_clock
):
    async with net.node(1, range(COUNT)) as giver, net.node(9, keeper=NO_ROOM) as joiner:

        async def accept(stream):
            await stream.receive_frame(limits.TEXT_WANT_BYTES_MAX)
            if sent:
                await stream.send_frame(encode(BlockHeader(number=5, length=SIZE, proof=b"")))
                await stream.send_all(BLOCKS[5][:sent])
            await trio.sleep_forever()

        honest, giver.transport._handlers[TEXT_PROTOCOL] = giver.streams.accept, accept
        joiner.streams.wanted([5])
        took_s = await joiner.until(lambda: joiner.named)
        assert took_s <= 10.5
        assert joiner.faults == []
        giver.transport._handlers[TEXT_PROTOCOL] = honest
        await joiner.until(lambda: joiner.arrived == [5])


async def test_mirror_is_asked_where_no_peer_has_a_block_and_what_it_lies_is_not_kept(
    net, autojump_clock
):
    asked: list[int] = []

    class Mirrors:
        async def fetch(self, number, on_bytes):
            asked.append(number)
            on_bytes()
            if len(asked) == 1:
                raise MirrorError("away")
            payload = BLOCKS[0] if len(asked) == 2 else BLOCKS[number]
            return payload, TREE.proof(number)

    async with net.node(9, mirrors=Mirrors(), keeper=NO_ROOM) as joiner:
        joiner.streams.wanted([5])
        await joiner.until(lambda: joiner.arrived == [5], 120.0)
        assert asked == [5, 5, 5]
        assert joiner.store.read(5)[0] == BLOCKS[5]


async def test_quota_is_kept_on_the_disk(net, autojump_clock):
    few = {"quota_blocks": 4, "lease_blocks": 4}
    async with net.node(1, store=whole()), net.node(2, keeper=few) as small:
        for first in (0, 4, 8):
            blocks = range(first, first + 4)
            small.streams.wanted(blocks)
            await small.until(lambda blocks=blocks: set(small.arrived) >= set(blocks))
            await small.until(lambda blocks=blocks: small.store.held() == list(blocks))


async def test_full_disk_is_nobodys_fault(net, monkeypatch, autojump_clock):
    async with net.node(1, store=whole()), net.node(2) as joiner:
        write = joiner.store.write

        def full(number, block):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(joiner.store, "write", full)
        joiner.streams.wanted([5])
        await joiner.until(lambda: joiner.named)
        assert joiner.faults == []
        monkeypatch.setattr(joiner.store, "write", write)
        await joiner.until(lambda: joiner.arrived == [5], 120.0)


async def test_blocks_travel_over_libp2p(tmp_path):
    net = TextNet(tmp_path)
    here = TransportConfig(listen_host="127.0.0.1")
    async with (
        open_transport(here, signer_seed=b"a" * 32) as one,
        open_transport(here, signer_seed=b"b" * 32) as other,
        trio.open_nursery() as nursery,
    ):
        founder = TextNode(one, net, whole(), {"keeper": {}})
        joiner = TextNode(other, net, BlockFolder(tmp_path / "b", SHAPE), {"keeper": {}})
        for node in (founder, joiner):
            node.transport.serve(TEXT_PROTOCOL, node.streams.accept)
            await nursery.start(node.streams.run)
        await other.connect(founder.me, one.addresses())
        net.nodes += [founder, joiner]
        joiner.streams.see(founder.me, founder.said)
        joiner.streams.wanted(range(COUNT))
        await joiner.until(lambda: len(joiner.arrived) == COUNT)
        assert joiner.store.held() == list(range(COUNT))
        assert founder.faults == joiner.faults == []
        nursery.cancel_scope.cancel()


# The disk -----------------------------------------------------------------------------------------


def test_folder_knows_its_blocks_and_no_other_file(tmp_path):
    folder = BlockFolder(tmp_path / "text", SHAPE)
    block = (BLOCKS[3], b"".join(TREE.proof(3)))
    folder.write(3, block)
    for name in ("block-3.bin", "block-0000099.bin", "other", ".writing-block-0000004.bin"):
        (tmp_path / "text" / name).write_bytes(b"x")
    again = BlockFolder(tmp_path / "text", SHAPE)
    assert again.held() == [3]
    assert again.read(3) == block
    assert again.read(4) is None
    again.drop(3)
    again.drop(3)
    assert again.held() == []


@pytest.mark.parametrize("change", [b"", b"x", BLOCKS[3], BLOCKS[3] + bytes(32) * 40])
def test_torn_file_is_no_block(tmp_path, change):
    folder = BlockFolder(tmp_path, SHAPE)
    folder.path(3).write_bytes(change)
    assert folder.held() == [3]
    assert folder.read(3) is None
    assert folder.held() == []


def test_whole_text_with_other_digests_is_refused():
    with pytest.raises(CorpusError, match="do not lead"):
        WholeText(SHAPE, bytes(32) * COUNT, lambda n: BLOCKS[n])

    def changed(number: int) -> bytes:
        raise CorpusError("changed")

    assert WholeText(SHAPE, DIGESTS, changed).read(3) is None
