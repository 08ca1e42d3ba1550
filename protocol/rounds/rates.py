"""How fast bytes come from each peer, as this node measures it (R8). Pure.

Only ever said to others: in a COMMIT, as a level. What comes of it, the median of all says.
"""

from collections.abc import Collection, Sequence

from protocol.identity import PeerId
from protocol.rounds.reducers import level_of

SAMPLE_S = 0.05
SAMPLE_BYTES = 128 * 1024
"""Of less than both, what was measured is the noise of a scheduler: nothing is said of it."""

KEPT_SHARE = 0.5
"""What is past counts half per round of the own."""

PEERS_MAX = 256
"""A peer may come under many names; beyond it those who are not linked are forgotten."""


class Rates:
    """Bytes and seconds of bulk transfers, by sender; and who is linked."""

    def __init__(self) -> None:
        self.linked: Collection[PeerId] = ()
        """Peers with an open control stream: set by whoever knows."""
        self._sums: dict[PeerId, tuple[float, float]] = {}

    def took(self, peer: PeerId, num_bytes: int, seconds: float) -> None:
        """So many bytes came from a peer in so much time of one transfer."""
        if seconds <= 0.0 or num_bytes <= 0:
            return
        if peer not in self._sums and len(self._sums) >= PEERS_MAX:
            self._sums = {p: sums for p, sums in self._sums.items() if p in self.linked}
        had_bytes, had_s = self._sums.get(peer, (0.0, 0.0))
        self._sums[peer] = (had_bytes + num_bytes, had_s + seconds)

    def level(self, peer: PeerId) -> int:
        """The level of a peer's rate; 0 while too little is known."""
        num_bytes, seconds = self._sums.get(peer, (0.0, 0.0))
        if seconds < SAMPLE_S and num_bytes < SAMPLE_BYTES:
            return 0
        return level_of(num_bytes / seconds)

    def bytes_per_s(self, peer: PeerId) -> float | None:
        """What was measured; None while too little is known."""
        num_bytes, seconds = self._sums.get(peer, (0.0, 0.0))
        return num_bytes / seconds if self.level(peer) else None

    def report(self, members: Sequence[PeerId], me: PeerId) -> bytes:
        """A byte for each member, as a COMMIT has them (`seen`)."""
        near = {me, *self.linked}
        return bytes([1 + self.level(peer) if peer in near else 0 for peer in members])

    def fade(self) -> None:
        """A round is over: what was measured in it counts less in the next."""
        self._sums = {
            peer: (num_bytes * KEPT_SHARE, seconds * KEPT_SHARE)
            for peer, (num_bytes, seconds) in self._sums.items()
        }
