"""The text on its way: carries out what a BlockKeeper decides, over streams, mirrors and the disk.

Whoever wants blocks opens a stream, names them, and reads what comes: so nothing arrives that was
not asked for. Each block is checked against the root before it is written.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import trio

from node.holdings.text_blocks import BlockStore, proof_nodes
from node.plane.bulk_queue import LineLimits
from node.plane.text_mirrors import TextMirrors
from protocol import limits
from protocol.entry_kinds import HoldsText
from protocol.errors import NetworkError, PeerError, ProofError
from protocol.frames import BlockHeader, WantBlocks
from protocol.identity import PeerId, short_id
from protocol.serving_text import block_events as ev
from protocol.serving_text.block_keeper import TICK_S, BlockKeeper
from protocol.serving_text.placement import place_blocks
from protocol.serving_text.text_shape import MIRROR
from protocol.transport import Stream, Transport
from protocol.wire import decode, encode

if TYPE_CHECKING:
    from trio_typing import TaskStatus

logger = logging.getLogger(__name__)

TEXT_PROTOCOL = "/barnraise/text/1"

STREAMS_MAX, STREAMS_PER_PEER_MAX = 64, 6
"""Inbound at once; one peer that is fast has four requests under way."""

PIECE_BYTES = 16 * limits.KIB
BYTES_PER_S_MIN = 16 * limits.KIB
"""A block that comes more slowly is given up, and asked of another peer."""

GRACE_S = 10.0
WAIT_S_MAX = 30.0
"""Who is further over its share is given nothing: its stream ends."""

MOVES_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOwner:
    """What is needed of the node, and what it is told.

    The trainer's side hears `arrived` for each block of its leases that is here, and `named` for
    one that nobody has given for so many seconds.
    """

    is_linked: Callable[[PeerId], bool]
    announce: Callable[[HoldsText], object]
    fault: Callable[[PeerId, str], object]
    arrived: Callable[[int], object] = lambda _: None
    named: Callable[[int, float], object] = lambda _block, _seconds: None
    line: LineLimits = field(default_factory=LineLimits)
    mirrors: TextMirrors | None = None


class TextStreams:
    """Fetches, keeps and gives the blocks of one text. `run` must be under way."""

    def __init__(
        self, keeper: BlockKeeper, store: BlockStore, transport: Transport, owner: TextOwner
    ) -> None:
        self.keeper = keeper
        self._store, self._transport, self._owner = store, transport, owner
        self._disk = trio.CapacityLimiter(1)
        """One after the other, in the order in which it was asked for."""

        self._asking: dict[PeerId, set[trio.CancelScope]] = {}
        self._num_inbound: Counter[PeerId] = Counter()
        self._num_placed = 0
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: "TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Carry out what is decided, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._tell(ev.TextTick())
            task_status.started()
            while True:
                await trio.sleep(TICK_S)
                self._tell(ev.TextTick())

    # What the node tells -------------------------------------------------------------------------

    def wanted(self, blocks: Iterable[int], next_blocks: Iterable[int] = ()) -> None:
        """The blocks of the own lease, in the order in which they are needed, and of the next."""
        self._tell(ev.LeaseTaken(tuple(blocks), tuple(next_blocks)))

    def used(self, block: int) -> None:
        """The trainer is through with a block."""
        self._tell(ev.BlockUsed(block))

    def see(self, peer: PeerId, said: HoldsText | None) -> None:
        """A peer is in reach; `said` is its newest announcement, if there is one."""
        self._tell(ev.MemberSeen(peer, said))

    def miss(self, peer: PeerId) -> None:
        """A peer left, or is taken for dead."""
        self._tell(ev.MemberGone(peer))

    def _tell(self, event: ev.TextEvent) -> list[ev.GiveBlocks]:
        """Hand an event over and begin what is to be done; what is to be given is given back."""
        gives = []
        for action in self.keeper.handle(event, trio.current_time()):
            if isinstance(action, ev.GiveBlocks):
                gives.append(action)
            else:
                self._begin(action)
        return gives

    def _begin(self, action: ev.TextAction) -> None:
        assert self._nursery is not None, "told before it runs"
        match action:
            case ev.AskForBlocks(peer, blocks):
                ask = self._ask_mirrors if peer == MIRROR else partial(self._ask, peer)
                self._nursery.start_soon(self._asked, peer, ask, blocks)
            case ev.StopAsking(peer):
                for scope in self._asking.get(peer, ()):
                    scope.cancel()
            case ev.DropBlock(block):
                self._nursery.start_soon(self._drop, block)
            case ev.PlaceBlocks():
                self._num_placed += 1
                self._nursery.start_soon(self._place, action, self._num_placed)
            case ev.AnnounceText(said):
                self._owner.announce(said)
            case ev.BlockArrived(block):
                self._owner.arrived(block)
            case ev.BlockNamed(block, sought_s):
                logger.warning("nobody gives a block of the text block=%d s=%.0f", block, sought_s)
                self._owner.named(block, sought_s)
            case ev.GiverSetBack(peer, reason):
                if peer != MIRROR:
                    self._owner.fault(peer, f"text: {reason}")
            case ev.GiveBlocks():
                raise AssertionError("given by whoever was asked")

    async def _place(self, action: ev.PlaceBlocks, number: int) -> None:
        shape, copies = self.keeper.shape, self.keeper.settings.copies
        placing = partial(place_blocks, shape.root, shape.num_blocks, action.rooms, copies)
        placement = await trio.to_thread.run_sync(placing)
        if number == self._num_placed:  # Else a newer one is on its way.
            self._tell(ev.PlacementMade(placement))

    async def _drop(self, block: int) -> None:
        async with self._disk:
            if self.keeper.held[block]:
                return  # It came back before it went.
            try:
                await trio.to_thread.run_sync(self._store.drop, block)
            except OSError as error:
                logger.warning("block of the text not removed block=%d reason=%s", block, error)

    # Asking --------------------------------------------------------------------------------------

    async def _asked(
        self,
        peer: PeerId,
        ask: Callable[[list[int]], Awaitable[None]],
        blocks: tuple[int, ...],
    ) -> None:
        """One request. `left` are the blocks of which nothing is known yet."""
        left, scope = list(blocks), trio.CancelScope()
        self._asking.setdefault(peer, set()).add(scope)
        try:
            with scope:
                await ask(left)
        except NetworkError as error:
            logger.info("text not given peer=%s reason=%s", short_id(peer), error)
        except PeerError as error:
            logger.info("text is wrong peer=%s reason=%s", short_id(peer), error)
            self._tell(ev.BlockWrong(peer, left.pop(0)))
        finally:
            self._asking[peer].discard(scope)
            if not self._asking[peer]:
                del self._asking[peer]
        if left:
            self._tell(ev.BlocksNotGiven(peer, tuple(left), is_lacking=False))

    async def _ask(self, peer: PeerId, left: list[int]) -> None:
        """Raises NetworkError, and PeerError for anything but the first block that is left."""
        with trio.move_on_after(GRACE_S) as scope:
            stream = await self._transport.open_stream(peer, TEXT_PROTOCOL)
            try:
                want = WantBlocks(root=self.keeper.shape.root, blocks=tuple(left))
                await stream.send_frame(encode(want))
                while left:
                    await self._take(stream, left, scope)
            finally:
                with trio.CancelScope(shield=True):  # It never waits for the peer.
                    await stream.aclose()

    async def _take(self, stream: Stream, left: list[int], scope: trio.CancelScope) -> None:
        """The answer for the first block that is left."""
        peer, number, size = stream.peer, left[0], self.keeper.shape.block_bytes
        data = await stream.receive_frame(limits.TEXT_HEADER_BYTES_MAX)
        header = decode(BlockHeader, data, max_bytes=limits.TEXT_HEADER_BYTES_MAX)
        if header.number != number:
            raise ProofError(f"block {header.number} in place of {number}")
        if not header.length:
            left.pop(0)
            self._tell(ev.BlocksNotGiven(peer, (number,), is_lacking=True))
            return
        if header.length != size:
            raise ProofError(f"block {number} of {header.length} bytes in place of {size}")
        payload, moved_s = bytearray(size), trio.current_time()
        ends_s = moved_s + GRACE_S + size / BYTES_PER_S_MIN
        for start in range(0, size, PIECE_BYTES):
            scope.deadline = ends_s
            piece = memoryview(payload)[start : start + PIECE_BYTES]
            await stream.receive_into(piece)
            now_s = trio.current_time()
            if now_s >= moved_s + MOVES_EVERY_S:
                moved_s = now_s
                self._tell(ev.BlockMoves(peer, number))
            await self._owner.line.after_receiving(len(piece), scope)
        await self._keep(peer, bytes(payload), header.proof, left)
        scope.deadline = trio.current_time() + GRACE_S

    async def _ask_mirrors(self, left: list[int]) -> None:
        mirrors = self._owner.mirrors
        assert mirrors is not None, "asked mirrors of which there are none"
        while left:
            number, moved_s = left[0], trio.current_time() - MOVES_EVERY_S

            def move(number: int = number) -> None:
                nonlocal moved_s
                if (now_s := trio.current_time()) >= moved_s + MOVES_EVERY_S:
                    moved_s = now_s
                    self._tell(ev.BlockMoves(MIRROR, number))

            payload, proof = await mirrors.fetch(number, move)
            await self._keep(MIRROR, payload, b"".join(proof), left)

    async def _keep(self, peer: PeerId, payload: bytes, proof: bytes, left: list[int]) -> None:
        """Check the first block that is left, and write it. Raises ProofError.

        Once it is checked it is written and told of, whoever is cancelled meanwhile.
        """
        number, shape = left[0], self.keeper.shape
        check = partial(shape.check, number, payload, proof_nodes(proof))
        await trio.to_thread.run_sync(check)
        with trio.CancelScope(shield=True):
            async with self._disk:
                left.pop(0)
                try:
                    await trio.to_thread.run_sync(self._store.write, number, (payload, proof))
                except OSError as error:
                    # Nobody else's fault, and not to be tried again at once.
                    logger.warning("block of the text not kept block=%d reason=%s", number, error)
                    self._tell(ev.BlocksNotGiven(peer, (number,), is_lacking=True))
                else:
                    self._tell(ev.BlockCame(peer, number))

    # Giving --------------------------------------------------------------------------------------

    async def accept(self, stream: Stream) -> None:
        """Handler of inbound streams. Raises PeerError for what is no request."""
        peer = stream.peer
        if not self._owner.is_linked(peer):
            logger.debug("text is asked for by a peer without a link peer=%s", short_id(peer))
            return
        is_full = sum(self._num_inbound.values()) >= STREAMS_MAX
        if is_full or self._num_inbound[peer] >= STREAMS_PER_PEER_MAX:
            logger.info("too many streams for text at once peer=%s", short_id(peer))
            return
        self._num_inbound[peer] += 1
        try:
            with trio.move_on_after(GRACE_S) as scope:
                await self._give(stream, scope)
        except PeerError as error:
            self._owner.fault(peer, f"text: {error}")
            raise
        finally:
            self._num_inbound[peer] -= 1
            self._num_inbound += Counter()  # Forgets the zeros: a peer may come under many names.

    async def _give(self, stream: Stream, scope: trio.CancelScope) -> None:
        data = await stream.receive_frame(limits.TEXT_WANT_BYTES_MAX)
        want = decode(WantBlocks, data, max_bytes=limits.TEXT_WANT_BYTES_MAX)
        is_ours = want.root == self.keeper.shape.root
        (give,) = self._tell(ev.BlocksWanted(stream.peer, want.blocks if is_ours else ()))
        if give.wait_s > WAIT_S_MAX:
            return
        scope.deadline += give.wait_s
        await trio.sleep(give.wait_s)
        for number in want.blocks:
            await self._send(stream, number, scope, is_here=number in give.blocks)

    async def _send(
        self, stream: Stream, number: int, scope: trio.CancelScope, *, is_here: bool
    ) -> None:
        found = None
        if is_here:
            found = await trio.to_thread.run_sync(self._store.read, number)
            if found is None:
                self._tell(ev.BlockLost(number))
        payload, proof = found or (b"", b"")
        scope.deadline = trio.current_time() + GRACE_S + len(payload) / BYTES_PER_S_MIN
        header = BlockHeader(number=number, length=len(payload), proof=proof)
        await stream.send_frame(encode(header))
        for start in range(0, len(payload), PIECE_BYTES):
            piece = memoryview(payload)[start : start + PIECE_BYTES]
            await self._owner.line.before_sending(len(piece), scope)
            await stream.send_all(piece)
