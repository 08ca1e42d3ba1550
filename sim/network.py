"""The made-up network of a world: when what is sent arrives, if it does, and how often.

One seeded stream per direction of a link, so that a new node changes no other pair's luck.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from protocol.identity import PeerId, short_id

FRAME_BYTES = 256
"""What a control frame counts as: small against a latency at any rate of interest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What every pair of nodes has between them; one-way latency is uniform in the range.

    `loss` and `duplication` are the shares of control frames and of bulk transfers that never
    arrive, or arrive a second time. A real stream does neither; a broken one that is opened again
    does both.
    """

    latency_s: tuple[float, float] = (0.01, 0.06)
    bytes_per_s: float = 10e6
    loss: float = 0.0
    duplication: float = 0.0


class Network:
    """Arrival times between nodes; `stream` gives the random stream of a readable path."""

    def __init__(self, link: Link, stream: Callable[[str], random.Random]) -> None:
        self._link = link
        self._stream = stream
        self._busy_s: dict[tuple[PeerId, PeerId], float] = {}
        self._cut: set[frozenset[PeerId]] = set()

    def cut(self, one: PeerId, other: PeerId) -> None:
        """Nothing passes between the two any more, in either direction."""
        self._cut.add(frozenset((one, other)))

    def heal(self, one: PeerId, other: PeerId) -> None:
        """They reach each other again."""
        self._cut.discard(frozenset((one, other)))

    def is_cut(self, one: PeerId, other: PeerId) -> bool:
        """Whether nothing passes between the two."""
        return frozenset((one, other)) in self._cut

    def latency_s(self, source: PeerId, target: PeerId) -> float:
        """One draw of the one-way latency."""
        return self._stream(f"link/{_path(source, target)}").uniform(*self._link.latency_s)

    def frame_arrivals(self, source: PeerId, target: PeerId, now_s: float) -> list[float]:
        """When a control frame sent now arrives: in order per direction, as on one stream."""
        sent_s = FRAME_BYTES / self._link.bytes_per_s
        arrival_s = now_s + self.latency_s(source, target) + sent_s
        arrival_s = max(arrival_s, self._busy_s.get((source, target), 0.0))
        self._busy_s[source, target] = arrival_s
        return [arrival_s] * self._copies(source, target)

    def bulk_arrivals(
        self, source: PeerId, target: PeerId, num_bytes: int, now_s: float
    ) -> list[float]:
        """When a bulk transfer begun now is through: each on a stream of its own."""
        stream = self._stream(f"bulk/{_path(source, target)}")
        delay_s = stream.uniform(*self._link.latency_s) + num_bytes / self._link.bytes_per_s
        return [now_s + delay_s] * self._copies(source, target)

    def _copies(self, source: PeerId, target: PeerId) -> int:
        if self.is_cut(source, target):
            return 0
        link = self._link
        if not link.loss and not link.duplication:
            return 1
        luck = self._stream(f"loss/{_path(source, target)}").random()
        if luck < link.loss:
            return 0
        return 2 if luck > 1.0 - link.duplication else 1


def _path(source: PeerId, target: PeerId) -> str:
    return f"{short_id(source)}->{short_id(target)}"
