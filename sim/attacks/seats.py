"""Attacks on admission: a member that asks for seats in the names of keys that it made up.

Each key has solved the run's puzzle, once for all rounds. The vectors are honest; who else asks for
a seat is nobody.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

from blake3 import blake3

from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from protocol.frames import Frame, Heartbeat, Messages
from protocol.identity import Ed25519Signer, KeyedHashSigner, PeerId, Signer
from protocol.join_puzzle import solve
from protocol.messages import Kind, Seal, Seat, SignedMessage, Slot, decode_body, sign_message

PUZZLE_BITS = 5
"""What worlds ask for (`sim.trials.trial`)."""


class SaysSeats(NodeHooks, ABC):
    """Frames to each peer carry SEATs of the round behind the newest own SEAL; the heartbeats in
    between are left out for them."""

    bends_frames = True

    def __init__(self) -> None:
        self._signer: Signer | None = None
        self._slot: Slot | None = None
        """Of the SEATs of the next round."""
        self._said: dict[PeerId, int] = {}
        """To each peer, of that round."""

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._signer = signer

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """See NodeHooks."""
        sent = frame.messages if isinstance(frame, Messages) else ()
        for message in sent:
            self._look(message)
        if not isinstance(frame, Messages | Heartbeat):
            return frame
        said = self._said.get(peer, 0)
        seats = self.seats(said)
        if not seats:
            return frame
        self._said[peer] = said + len(seats)
        return Messages(messages=(*sent, *seats))

    @abstractmethod
    def seats(self, said: int) -> Sequence[SignedMessage]:
        """A frame's worth of SEATs of this round, behind the first `said`; none are left: ()."""

    def new_round(self) -> None:
        """Another seal is the newest: its SEATs are to be made."""

    def _look(self, message: SignedMessage) -> None:
        signer, slot = self._signer, message.slot
        if signer is None or message.sender != signer.peer_id or slot.kind is not Kind.SEAL:
            return
        body = decode_body(message)
        assert isinstance(body, Seal)
        if self._slot is None or self._slot.basis != body.value:
            self._said.clear()
            self.new_round()
            self._slot = Slot(
                run=slot.run,
                shard=slot.shard,
                round=slot.round + 1,
                basis=body.value,
                attempt=0,
                kind=Kind.SEAT,
                subject=b"",
            )


class AsksUnderMadeUpKeys(SaysSeats):
    """One key after the other asks for every seat, and shows nothing: whoever asks honestly is to
    find no room. None holds the state that its SEAT claims, and a wrong proof takes as long to
    check as a right one."""

    name = "attack crowds_out"

    KEYS = 96
    """So many are worked for, in all: they are used again and again."""
    PER_FRAME = 32

    def seats(self, said: int) -> Sequence[SignedMessage]:
        """See SaysSeats."""
        slot = self._slot
        if slot is None or said >= self.KEYS:
            return ()
        return [self._seat(said + number, slot) for number in range(self.PER_FRAME)]

    def _seat(self, number: int, slot: Slot) -> SignedMessage:
        assert self._signer is not None
        key = made_up(self._signer, number)
        work = _work(slot.run, key.peer_id)
        return sign_message(key, slot, Seat(proof=bytes(32), device="", work=work))


class SeatsGhosts(SaysSeats):
    """A member signs SEATs for a hundred keys, each with a right proof: whoever holds a state can
    prove that any key of its own making holds it. Such a key says nothing more once it is seated,
    and what a round waits for is its members."""

    name = "attack ghosts"

    KEYS = 100
    PER_FRAME = 25

    def __init__(self) -> None:
        super().__init__()
        self._store: ShardStore | None = None
        self._seats: list[SignedMessage] = []

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """See NodeHooks: what is contributed stands on the state that the next SEATs prove."""
        self._store = store
        self._prove()
        return payloads

    def seats(self, said: int) -> Sequence[SignedMessage]:
        """See SaysSeats."""
        return self._seats[said : said + self.PER_FRAME]

    def new_round(self) -> None:
        """See SaysSeats."""
        self._seats.clear()

    def _prove(self) -> None:
        signer, slot, store = self._signer, self._slot, self._store
        if signer is None or slot is None or store is None or self._seats:
            return
        for number in range(self.KEYS):
            ghost = made_up(signer, number)
            work = _work(slot.run, ghost.peer_id)
            seat = Seat(proof=store.seat_proof(ghost.peer_id, slot.basis), device="", work=work)
            self._seats.append(sign_message(ghost, slot, seat))


def made_up(liar: Signer, number: int) -> Signer:
    """One of the keys that a liar makes up, of its own kind."""
    return _made_up(liar.peer_id, number, isinstance(liar, Ed25519Signer))


@lru_cache(maxsize=4096)
def _made_up(liar: PeerId, number: int, is_real: bool) -> Signer:
    seed = blake3(liar + number.to_bytes(4, "big")).digest()
    return Ed25519Signer(seed) if is_real else KeyedHashSigner(PeerId(seed))


@lru_cache(maxsize=4096)
def _work(run: bytes, key: PeerId) -> bytes:
    return solve(run, key, PUZZLE_BITS)
