"""Attacks on one's own work, and on what becomes of that of others: what a liar's node trains,
contributes, shows to auditors, sums and finds, bent by hooks.

Some are for worlds alone: hooks bend the network process, and a real trainer is another program.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from blake3 import blake3

from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from protocol import limits
from protocol.grid import Layout, cell_root
from protocol.identity import PeerId, Signer
from sim.attacks.seam import ATTACKS, Context, Vector

STANDS_BY_ITS_WORK = frozenset({"retract"})
"""What a liar's node does without: it takes nothing back."""

HISTORY_MAX = 16
_SHARE_OF_MOST = 0.5

Rule = Callable[[Vector], Vector]

# What is contributed ------------------------------------------------------------------------------


class Past:
    """What liars know of their earlier rounds, each fragment by itself."""

    def __init__(self) -> None:
        self._rounds: Counter[int] = Counter()
        self._history: dict[int, list[Vector]] = {}

    def context(
        self, layout: Layout, fragment: int, luck: np.random.Generator, rule: Rule
    ) -> Context:
        """What they know of the next round of a fragment."""
        cells = range(layout.num_cells(fragment))
        return Context(
            round=self._rounds[fragment],
            luck=luck,
            rule=rule,
            slices=tuple(slice(*layout.cell_range(fragment, cell)) for cell in cells),
            history=self._history.get(fragment, []),
        )

    def add(self, fragment: int, own_BN: Vector) -> None:
        """Record the attackers' own vectors of a finished round."""
        self._rounds[fragment] += 1
        self._history[fragment] = [*self._history.get(fragment, []), own_BN][-HISTORY_MAX:]


class Liar(NodeHooks):
    """Bends every contribution by an attack on values. What it draws follows from `seed` and its
    key."""

    def __init__(self, attack: str, seed: int = 0) -> None:
        self.name = f"attack {attack}"
        self._attack = ATTACKS[attack](blind=True)
        self._seed, self._me = seed, 0
        self._luck: np.random.Generator | None = None
        self._past = Past()

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._me = int.from_bytes(signer.peer_id, "big")

    @property
    def without(self) -> frozenset[str]:
        """See NodeHooks."""
        return STANDS_BY_ITS_WORK

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """What the attack makes of the own work."""
        own_1N = store.decode(payloads, fragment=fragment)[None]
        if self._luck is None:  # A process that starts again goes on drawing.
            self._luck = np.random.default_rng([self._seed, self._me])
        context = self._past.context(store.layout, fragment, self._luck, lambda rows_PN: rows_PN[0])
        sent_N = self._attack.send(own_1N, own_1N, context)[0]
        self._past.add(fragment, own_1N)
        return store.encode(bounded(sent_N), fragment=fragment)


def bounded(sent_N: Vector) -> Vector:
    """No longer than a COMMIT may say, or nobody would take it."""
    most = np.float32(_SHARE_OF_MOST * limits.CELL_NORM_MAX / np.sqrt(len(sent_N)))
    bounded_N: Vector = np.clip(np.nan_to_num(sent_N), -most, most)
    return bounded_N


# What is trained ----------------------------------------------------------------------------------


class BendsOneSegment(NodeHooks):
    """The step of one segment of each round is taken `FACTOR` times, backwards; another segment
    each round.

    What it says of that segment is not what comes of running it. All that is sent follows from what
    it shows, so all else of its COMMIT is in order.
    """

    name = "attack bent_segment"

    FACTOR = np.float32(-1000.0)
    EVERY = 9
    """No multiple of the usual 8 segments, so that each has its turn."""

    def __init__(self) -> None:
        self._count = 0

    def trained(self, segment: int, before_N: Vector, weights_N: Vector) -> Vector:
        """See NodeHooks."""
        self._count += 1
        if self._count % self.EVERY:
            return weights_N
        return before_N + self.FACTOR * (weights_N - before_N)


class TrainsAQuarter(NodeHooks):
    """Two segments of eight are trained, each counts four times; the others are said to be. What is
    sent is as long as honest work.

    The claim of tokens is in order, so no rule of leases minds; only who runs a segment again sees
    it.
    """

    name = "attack lazy"

    SEGMENTS = 8
    """Of a round, as in all worlds."""
    TRAINED = SEGMENTS // 4

    def trained(self, segment: int, before_N: Vector, weights_N: Vector) -> Vector:
        """See NodeHooks."""
        if segment % self.SEGMENTS >= self.TRAINED:
            return before_N
        return before_N + np.float32(self.SEGMENTS / self.TRAINED) * (weights_N - before_N)


class AloneAndBackwards(NodeHooks):
    """Training that nobody can run again: the liar says that its device is like no other, and
    every segment goes the other way, `FACTOR` times as far.

    What it sends is what its states lead to, so an audit of the encoding finds nothing.
    """

    name = "attack lone_class"

    FACTOR = np.float32(-3.0)

    def __init__(self) -> None:
        self._name = ""

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._name = signer.peer_id.hex()[:16]

    def device_class(self, own: str) -> str:
        """See NodeHooks."""
        return f"made up {self._name}"

    def trained(self, segment: int, before_N: Vector, weights_N: Vector) -> Vector:
        """See NodeHooks."""
        return before_N + self.FACTOR * (weights_N - before_N)


# What is shown and found --------------------------------------------------------------------------


class ShownToNobody(Liar):
    """What was trained is turned around, as by `sign_flip`, and no audit is answered: nobody can
    prove anything."""

    def __init__(self) -> None:
        super().__init__("sign_flip")

    def opens_to(self, peer: PeerId) -> bool:
        """See NodeHooks."""
        return False


class ShownToAllButOne(NodeHooks):
    """Work that is right is shown to all but one voter, the one that asked first: so that others
    find it in order, and the one that could not open it seems to make them work for nothing."""

    name = "attack shuts_out"

    def __init__(self) -> None:
        self._victim: PeerId | None = None

    def opens_to(self, peer: PeerId) -> bool:
        """See NodeHooks."""
        self._victim = self._victim or peer
        return peer != self._victim


class FindsWrong(NodeHooks):
    """An auditor that calls all work wrong that it is drawn for, so that its owner be banned: each
    end that it finds is said to be another. All that lie so find the same."""

    name = "attack lying_auditor"

    @property
    def without(self) -> frozenset[str]:
        """See NodeHooks."""
        return STANDS_BY_ITS_WORK

    def reran(self, found: bytes) -> bytes:
        """See NodeHooks."""
        return blake3(found).digest()


# What is summed -----------------------------------------------------------------------------------


class WrongSums(NodeHooks):
    """A reducer whose sums are off by a bit, and whose Gram matrices make one row far too long; it
    signs what it says of that once, as asked."""

    name = "attack lying_reducer"

    def measuring(self, store: ShardStore) -> Callable[..., bytes]:
        """See NodeHooks."""

        def measure(*arguments: object, **named: object) -> bytes:
            found: Callable[..., bytes] = store.measure
            return spoiled_gram(found(*arguments, **named))

        return measure

    def reducing(self, store: ShardStore) -> Callable[..., bytes]:
        """See NodeHooks."""

        def reduce(digest: bytes, *arguments: object, **named: int) -> bytes:
            found: Callable[..., bytes] = store.reduce
            found(digest, *arguments, **named)
            return spoiled_sum(store, digest, named["first"], named["stop"])

        return reduce


def spoiled_sum(store: ShardStore, digest: bytes, first: int, stop: int) -> bytes:
    """Flip the lowest bit of the first element of what was just summed of cells [first, stop); the
    root that its AGG names then."""
    held = store._results[digest]
    payload = held.get(first)
    assert payload is not None, "just summed"
    payload = bytes([payload[0] ^ 1]) + payload[1:]
    held.put(first, payload, cell_root(payload))
    return held.root(first, stop)


def spoiled_gram(stats: bytes) -> bytes:
    """The wire form of a Gram matrix with a first row that is a thousand times as long."""
    numbers = np.frombuffer(stats, dtype="<f8").copy()
    numbers[0] = 1e6 * numbers[0] + 1.0
    return numbers.tobytes()
