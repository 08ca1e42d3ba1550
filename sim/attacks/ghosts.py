"""Seats for keys that are nobody: a member signs SEATs for a hundred, each with a right proof.

Whoever holds a state can prove that any key of its own making holds it. Such a key says nothing
more once it is seated, and what a round waits for is its members.
"""

from collections.abc import Sequence
from functools import lru_cache

from node.cells.shard_store import ShardStore
from node.hooks import NodeHooks
from protocol.frames import Frame, Heartbeat, Messages
from protocol.identity import PeerId, Signer
from protocol.join_puzzle import solve
from protocol.messages import Kind, Seal, Seat, SignedMessage, Slot, decode_body, sign_message
from sim.attacks.crowds_out import PUZZLE_BITS, made_up
from sim.attacks.seam import Attack

KEYS = 100
PER_FRAME = 25


class Ghosts(Attack):
    """The vectors are honest; who else asks for a seat is nobody."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return SeatsGhosts()


class SeatsGhosts(NodeHooks):
    """Frames to each peer carry SEATs of all ghosts for the round behind the newest own SEAL, once
    this node holds the state that they prove."""

    name = "attack ghosts"
    bends_frames = True

    def __init__(self) -> None:
        self._signer: Signer | None = None
        self._slot: Slot | None = None
        self._store: ShardStore | None = None
        self._seats: list[SignedMessage] = []
        self._said: dict[PeerId, int] = {}
        """To each peer, of that round."""

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._signer = signer

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """See NodeHooks: what is contributed stands on the state that the next SEATs prove."""
        del fragment
        self._store = store
        self._prove()
        return payloads

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """See NodeHooks."""
        sent = frame.messages if isinstance(frame, Messages) else ()
        for message in sent:
            self._look(message)
        said = self._said.get(peer, 0)
        if not isinstance(frame, Messages | Heartbeat) or said >= len(self._seats):
            return frame
        self._said[peer] = said + PER_FRAME
        return Messages(messages=(*sent, *self._seats[said : said + PER_FRAME]))

    def _look(self, message: SignedMessage) -> None:
        signer, slot = self._signer, message.slot
        if signer is None or message.sender != signer.peer_id or slot.kind is not Kind.SEAL:
            return
        body = decode_body(message)
        assert isinstance(body, Seal)
        if self._slot is None or self._slot.basis != body.value:
            self._said.clear()
            self._seats.clear()
            self._slot = Slot(
                run=slot.run,
                shard=slot.shard,
                round=slot.round + 1,
                basis=body.value,
                attempt=0,
                kind=Kind.SEAT,
                subject=b"",
            )

    def _prove(self) -> None:
        signer, slot, store = self._signer, self._slot, self._store
        if signer is None or slot is None or store is None or self._seats:
            return
        for number in range(KEYS):
            ghost = made_up(signer, number)
            work = _work(slot.run, ghost.peer_id)
            seat = Seat(proof=store.seat_proof(ghost.peer_id, slot.basis), device="", work=work)
            self._seats.append(sign_message(ghost, slot, seat))


@lru_cache(maxsize=4096)
def _work(run: bytes, ghost: PeerId) -> bytes:
    return solve(run, ghost, PUZZLE_BITS)
