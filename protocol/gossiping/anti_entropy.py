"""Comparing what two nodes hold, and mending the difference both ways. Pure.

A asks B with one root over its 256 buckets. Equal roots end it: 40 bytes each way. Else B answers
with its digests, A sends the ids of the buckets that differ, and B sends what A lacks and asks for
what it lacks itself. Every frame can be answered alone, so a lost one costs its part: a moment
later A compares again, until both are equal or a few rounds are over. What the limit of an exchange
leaves over still differs the next time.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3

from protocol import limits
from protocol.gossip import BucketDigest, BucketIds, Compare, Digests
from protocol.gossiping.gossiped import Gossiped
from protocol.gossiping.settings import GossipSettings
from protocol.identity import PeerId

LOWEST, HIGHEST = bytes(32), b"\xff" * 32
ASKS = 3
"""A Compare that is not answered is sent so often."""

ASK_AGAIN_S = 1.0
ROUNDS = 3
"""So often two nodes compare in one exchange."""

MEND_S = 1.5
"""From sending ids to comparing again: for what is missing to come."""

ID_BYTES = 34

Said = Compare | Digests | BucketIds


@dataclass(slots=True, kw_only=True)
class ExchangeCounts:
    """What came of the exchanges that this node opened."""

    begun: int = 0
    equal: int = 0
    unequal: int = 0
    unanswered: int = 0


@dataclass(slots=True)
class _Open:
    """An exchange that this node opened. `is_asked` while its Compare has no answer."""

    peer: PeerId
    nonce: int
    due_s: float
    asks: int = 1
    rounds: int = 1
    left: int = limits.GOSSIP_EXCHANGE_BYTES_MAX
    is_asked: bool = True


class AntiEntropy:
    """Opens exchanges and takes part in those of others. What it says collects in `outbox`."""

    def __init__(
        self, book: Gossiped, rng: random.Random, settings: GossipSettings, *, now_s: float
    ) -> None:
        self._book = book
        self._rng = rng
        self._settings = settings
        self._open: _Open | None = None
        self._seen: tuple[tuple[bytes, ...], bytes] = ((), b"")
        self._due_s = now_s + rng.random() * settings.exchange_s
        self._hurried_s = float("-inf")
        self.outbox: list[tuple[PeerId, Said]] = []
        self.counts = ExchangeCounts()
        self.unanswered: list[PeerId] = []
        """Who did not answer since it was last looked at."""

    def wakeup_s(self) -> float:
        """When `is_due` or `tick` has something to do."""
        return min(self._due_s, self._open.due_s if self._open else self._due_s)

    def is_due(self, now_s: float, *, interval_s: float) -> bool:
        """Whether to open an exchange; if so, the next one is an interval away, more or less."""
        if now_s < self._due_s:
            return False
        jitter = 1.0 + self._settings.exchange_jitter * self._rng.uniform(-1.0, 1.0)
        self._due_s = now_s + interval_s * jitter
        return True

    def hurry(self, now_s: float) -> None:
        """There is reason to compare soon: who was lost is back. Once, however many come back."""
        if now_s - self._hurried_s >= self._settings.exchange_s:
            self._hurried_s = now_s
            self._due_s = min(self._due_s, now_s + self._rng.random())

    def begin(self, peer: PeerId, now_s: float) -> None:
        """Open an exchange with a peer; one that is still open is given up."""
        self.counts.begun += 1
        self._open = _Open(peer, self._rng.getrandbits(60), now_s + ASK_AGAIN_S)
        self._ask(self._open)

    def tick(self, now_s: float) -> None:
        """Ask again, compare again, or give up."""
        open_ = self._open
        if open_ is None or now_s < open_.due_s:
            return
        if not open_.is_asked:
            open_.nonce, open_.is_asked = self._rng.getrandbits(60), True
            open_.asks, open_.rounds = 0, open_.rounds + 1
        if open_.asks == ASKS:
            self._open = None
            self.counts.unanswered += 1
            self.unanswered.append(open_.peer)
            return
        open_.asks, open_.due_s = open_.asks + 1, now_s + ASK_AGAIN_S
        self._ask(open_)

    def _ask(self, open_: _Open) -> None:
        self.outbox.append((open_.peer, Compare(nonce=open_.nonce, root=self._root())))

    def _root(self) -> bytes:
        digests = self._book.bucket_digests()
        if digests != self._seen[0]:
            self._seen = digests, blake3(b"".join(digests)).digest()
        return self._seen[1]

    # Frames ---------------------------------------------------------------------------------------

    def compare(self, peer: PeerId, frame: Compare) -> None:
        """A peer opens an exchange."""
        buckets = () if self.is_equal(frame) else tuple(map(_cut, self._book.bucket_digests()))
        self.outbox.append((peer, Digests(nonce=frame.nonce, buckets=buckets)))

    def is_equal(self, frame: Compare) -> bool:
        """Whether a peer holds what this node holds."""
        return frame.root == self._root()

    def digests(self, peer: PeerId, frame: Digests, now_s: float) -> None:
        """The answer to our question; others are old or made up, and nothing is done for them."""
        open_ = self._open
        if open_ is None or open_.peer != peer or open_.nonce != frame.nonce or not open_.is_asked:
            return
        own = tuple(map(_cut, self._book.bucket_digests()))
        differing = [i for i, theirs in enumerate(frame.buckets) if theirs != own[i]]
        if not differing:
            self.counts.equal += 1
            self._open = None
            return
        self.counts.unequal += 1
        open_.is_asked, open_.due_s = False, now_s + MEND_S
        if open_.rounds == ROUNDS:
            self._open = None
        # Another order each time: where the limit ends one exchange, the next begins elsewhere.
        self._rng.shuffle(differing)
        for bucket in differing:
            for page in self._pages(frame.nonce, bucket):
                open_.left -= ID_BYTES * len(page.ids) + 100
                if open_.left < 0:
                    return
                self.outbox.append((peer, page))

    def _pages(self, nonce: int, bucket: int) -> Iterator[BucketIds]:
        ids = self._book.ids_in(bucket)
        first, most = LOWEST, limits.GOSSIP_IDS_MAX
        for start in range(0, max(1, len(ids)), most):
            page = tuple(ids[start : start + most])
            # The last page of a bucket reaches to its end, so that what is behind it is missing.
            last = HIGHEST if start + most >= len(ids) else page[-1]
            yield BucketIds(nonce=nonce, bucket=bucket, first=first, last=last, ids=page)
            first = _after(last)

    def compared(self, frame: BucketIds) -> tuple[list[bytes], list[bytes]]:
        """Of a range of a bucket: what the peer lacks, and what it has and we may lack."""
        theirs = set(frame.ids)
        lacking = [
            entry_id
            for entry_id in self._book.ids_in(frame.bucket)
            if frame.first <= entry_id <= frame.last and entry_id not in theirs
        ]
        return lacking, [entry_id for entry_id in frame.ids if self._book.get(entry_id) is None]


def _cut(digest: bytes) -> BucketDigest:
    return digest[: limits.BUCKET_DIGEST_BYTES]


def _after(entry_id: bytes) -> bytes:
    """The lowest id above one that is not the highest."""
    number = int.from_bytes(entry_id, "big") + 1
    return min(number, 2**256 - 1).to_bytes(32, "big")
