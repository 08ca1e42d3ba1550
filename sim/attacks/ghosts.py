"""Seats for keys that are nobody: a member signs SEATs for a hundred, each with a right proof.

Whoever holds a state can prove that any key of its own making holds it. Such a key says nothing
more once it is seated, and what a round waits for is its members.
"""

from collections.abc import Sequence
from functools import lru_cache

from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from protocol.identity import PeerId
from protocol.join_puzzle import solve
from protocol.messages import Seat, SignedMessage, sign_message
from sim.attacks.crowds_out import PUZZLE_BITS, SaysSeats, made_up
from sim.attacks.seam import Attack

KEYS = 100
PER_FRAME = 25


class Ghosts(Attack):
    """The vectors are honest; who else asks for a seat is nobody."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return SeatsGhosts()


class SeatsGhosts(SaysSeats):
    """SEATs of all ghosts, once this node holds the state that they prove."""

    name = "attack ghosts"

    def __init__(self) -> None:
        super().__init__()
        self._store: ShardStore | None = None
        self._seats: list[SignedMessage] = []

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """See NodeHooks: what is contributed stands on the state that the next SEATs prove."""
        del fragment
        self._store = store
        self._prove()
        return payloads

    def seats(self, said: int) -> Sequence[SignedMessage]:
        """See SaysSeats."""
        return self._seats[said : said + PER_FRAME]

    def new_round(self) -> None:
        """See SaysSeats."""
        self._seats.clear()

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
