"""Attacks by several who share what they know, in the rounds of real rules: `NAME:FRACTION`.

H honest peers, B liars, N elements of a fragment

A liar trains, and holds its contribution back until all others of its round are known to it, or its
patience is over; then all liars send what the attack makes of that. In a world nothing is hidden
from them. A real liar hears of the other liars alone, and takes their honest work for that of all.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from protocol.identity import PeerId
from sim.attacks.seam import Attack, Vector
from sim.attacks.work import HISTORY_MAX, STANDS_BY_ITS_WORK, Past, bounded

Made = Mapping[PeerId, Vector]
"""What peers made of the same state: (N,) each."""


class Crafting:
    """What all liars send in a round, from what was made in it; the same for the same."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._luck = np.random.default_rng(0)
        self._past = Past()

    def sent(
        self, honest: Made, own: Made, store: ShardStore, fragment: int
    ) -> dict[PeerId, Vector]:
        """By liar what it sends; called once for a round. `own` is their honest work, `store` says
        what the rule is, and where cells begin."""
        own_BN = _rows(own)
        context = self._past.context(
            store.layout, fragment, self._luck, lambda rows_PN: store.aggregator(rows_PN).value
        )
        sent_BN = self._attack.send(_rows(honest) if honest else own_BN, own_BN, context)
        self._past.add(fragment, own_BN)
        return {peer: bounded(row_N) for peer, row_N in zip(sorted(own), sent_BN, strict=True)}


def _rows(made: Made) -> Vector:
    return np.stack([made[peer] for peer in sorted(made)])


class Conspiracy:
    """The liars of a world, who hear of every contribution when it is made."""

    def __init__(self, attack: Attack, liars: Collection[PeerId]) -> None:
        self.liars = frozenset(liars)
        self._crafting = Crafting(attack)
        self._made: dict[bytes, dict[PeerId, Vector]] = {}
        """By the root of the state that they began from."""
        self._sent: dict[bytes, dict[PeerId, Vector]] = {}

    def made(self, peer: PeerId, root: bytes, vector_N: Vector) -> None:
        """A peer trained on the state of that root; an honest one is about to commit to it."""
        self._made.setdefault(root, {})[peer] = vector_N
        for kept in (self._made, self._sent):
            while len(kept) > HISTORY_MAX:
                del kept[next(iter(kept))]

    def knows(self, root: bytes, peers: Collection[PeerId]) -> bool:
        """Whether all of them have made theirs."""
        return self._made.get(root, {}).keys() >= set(peers)

    def sent(self, peer: PeerId, store: ShardStore, fragment: int) -> Vector:
        """What a liar, whose own work is known, sends. The first who asks settles it for all."""
        root = store.state.root
        made = self._made[root]
        if root not in self._sent:
            honest = {one: made[one] for one in made if one not in self.liars}
            own = {one: made[one] for one in made if one in self.liars}
            self._sent[root] = self._crafting.sent(honest, own, store, fragment)
        sent = self._sent[root]
        # Who trained later than that says what another one says.
        return sent.get(peer, next(iter(sent.values())))


class Accomplice(NodeHooks):
    """One liar of a conspiracy."""

    def __init__(self, name: str, peer: PeerId, conspiracy: Conspiracy) -> None:
        self.name = f"attack {name}"
        self._peer, self._conspiracy = peer, conspiracy

    @property
    def without(self) -> frozenset[str]:
        """See NodeHooks."""
        return STANDS_BY_ITS_WORK

    def is_waiting(self, store: ShardStore, others: Collection[PeerId]) -> bool:
        """See NodeHooks: until all are known."""
        return not self._conspiracy.knows(store.state.root, others)

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """What all of them send."""
        root = store.state.root
        self._conspiracy.made(self._peer, root, store.decode(payloads, fragment=fragment))
        return store.encode(self._conspiracy.sent(self._peer, store, fragment), fragment=fragment)
