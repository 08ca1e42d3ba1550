"""SEAM NodeHooks: where tests and attacks bend a real node. The default bends nothing.

A node that runs with hooks says so at start. Only `sim` and the tests make other hooks.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from node.holdings.shard_store import Item, ShardStore, State
from protocol.errors import ConfigError
from protocol.frames import Bulk, BulkHeader, Frame
from protocol.identity import PeerId, Signer
from protocol.messages import Body, Slot

if TYPE_CHECKING:
    from protocol.core.node_core import NodeCore


class NodeHooks:
    """Bends nothing."""

    name = ""
    bends_frames = False
    """Whether `outgoing` is to be asked."""

    floods = False
    """Whether `flood` is to be asked."""

    bends_anchor = False
    """Whether `adopted_anchor` is to be asked."""

    def began(self, signer: Signer) -> None:
        """The node has its key."""

    def runs(self, core: "NodeCore", now_s: Callable[[], float]) -> None:
        """The node is about to run on this core, in which a liar may look things up; `now_s` is
        the clock of its events."""

    def said(self, slot: Slot, body: Body) -> Body:
        """What the node signs in a slot in place of this body, which it believes in itself then."""
        del slot
        return body

    def outgoing(self, peer: PeerId, frame: Frame) -> Iterable[tuple[float, Frame]]:
        """What goes to a peer in place of a control frame, each after so many seconds."""
        return ((0.0, self.sent_frame(peer, frame)),)

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """A control frame on its way to a peer."""
        del peer
        return frame

    def cells_after_s(self, peer: PeerId, bulk: Bulk, subject: bytes) -> float:
        """How long cells that are due to a peer are held back; for ever if that is infinite."""
        del peer, bulk, subject
        return 0.0

    def sent_header(self, header: BulkHeader) -> BulkHeader:
        """What is said before cells of what they are."""
        return header

    def flood(self, core: "NodeCore", to: PeerId) -> Frame | None:
        """A frame more for that peer, which nothing asks for; None where there is none to say now.
        Asked again and again, as fast as the line takes them."""
        del core, to
        return None

    def sent_item(self, bulk: Bulk, item: Item) -> Item:
        """A cell on its way out, proof and all."""
        del bulk
        return item

    def adopted_anchor(
        self, anchor_N: NDArray[np.float32], before_N: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The sealed anchor, before trainer and checkpoint get it; `before_N` is the last one."""
        del before_N
        return anchor_N

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """What is contributed in place of these encoded cells; called in a worker thread."""
        del store, fragment
        return payloads

    def is_waiting(self, store: ShardStore, others: Collection[PeerId]) -> bool:
        """Whether a contribution that is made is held back a little longer, until more of the
        `others` who train have made theirs. A world alone asks."""
        del store, others
        return False

    def measuring(self, store: ShardStore) -> Callable[..., bytes]:
        """In the place of the store's `measure`; called in a worker thread."""
        return store.measure

    def reducing(self, store: ShardStore) -> Callable[..., bytes]:
        """In the place of the store's `reduce`; called in a worker thread."""
        return store.reduce

    def trained(
        self, segment: int, before_N: NDArray[np.float32], weights_N: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The weights behind a segment of the own training, in a run with audits."""
        del segment, before_N
        return weights_N

    def device_class(self, own: str) -> str:
        """The class that this node says its device is of, in a run with audits."""
        return own

    def opens_to(self, peer: PeerId) -> bool:
        """Whether a peer that may see work is shown it."""
        del peer
        return True

    @property
    def without(self) -> frozenset[str]:
        """Rules of its own that it does not keep: see RoundConfig."""
        return frozenset()

    def reran(self, found: bytes) -> bytes:
        """The end that a segment of somebody else's work was found to have."""
        return found

    def own_contribution(self, decode: Callable[[], NDArray[np.float32]]) -> None:
        """The own contribution of this round; `decode` gives the vector that it stands for: of the
        whole shard, zeros where it is of another fragment."""

    def synced_state(self, state: State) -> State:
        """A state that came from peers and has the sealed root."""
        return state

    @property
    def finds_nobody(self) -> bool:
        """Whether the directory's answers are thrown away."""
        return False


class OwnUpdate(NodeHooks):
    """The aggregate is replaced by one's own update: every node goes its own way."""

    name = "own-update"
    bends_anchor = True

    def __init__(self) -> None:
        self._update_N: NDArray[np.float32] | None = None
        self._own_N: NDArray[np.float32] | None = None

    def own_contribution(self, decode: Callable[[], NDArray[np.float32]]) -> None:
        """Remember it for the next adoption."""
        self._update_N = decode()

    def adopted_anchor(
        self, anchor_N: NDArray[np.float32], before_N: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The own anchor minus the own update."""
        own_N = before_N if self._own_N is None else self._own_N
        self._own_N = own_N if self._update_N is None else own_N - self._update_N
        return self._own_N


class FlipByte(NodeHooks):
    """One byte of the first part that leaves is flipped."""

    name = "flip-byte"

    def __init__(self) -> None:
        self._is_done = False

    def sent_item(self, bulk: Bulk, item: Item) -> Item:
        """Flip once."""
        if self._is_done or bulk is not Bulk.PART:
            return item
        self._is_done = True
        payload = bytearray(item.payload)
        payload[len(payload) // 2] ^= 1
        return Item(item.index, bytes(payload), item.proof)


class SkipOuterState(NodeHooks):
    """A latecomer takes the anchor and leaves the outer slots at zero."""

    name = "skip-outer-state"

    def synced_state(self, state: State) -> State:
        """Zero slots under the sealed root."""
        slots = {name: np.zeros_like(slot_N) for name, slot_N in state.slots.items()}
        return State(state.anchor_N, slots, state.cell_roots, state.root)


class FindsNobody(NodeHooks):
    """Directory.find is disabled."""

    name = "no-directory"

    @property
    def finds_nobody(self) -> bool:
        """Always True: the answers of the directory are ignored."""
        return True


def hooks_named(name: str) -> NodeHooks:
    """The hooks of a test switch. Raises ConfigError for an unknown name."""
    for kind in (NodeHooks, OwnUpdate, FlipByte, SkipOuterState, FindsNobody):
        if kind.name == name:
            return kind()
    raise ConfigError(f"no test switch {name!r}")
