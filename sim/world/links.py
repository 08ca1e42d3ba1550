"""The made-up network of a world: when what is sent arrives, if it does, and how often.

One seeded stream per direction of a link, so that a new node changes no other pair's luck. A
direction knows nothing of conversations: those are `sim.world.traffic`.
"""

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Literal

from protocol.identity import PeerId, short_id

FRAME_BYTES = 256
"""What a control frame counts as: small against a latency at any rate of interest."""

LOGNORMAL_SIGMAS = 4.0
"""The range of a lognormal latency is so many deviations wide: 95 in 100 draws lie in it."""

LOGNORMAL_MAX = 20.0
"""No draw is beyond so many times the upper end of the range."""

_TURN = 2.0 * math.pi


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction between two nodes.

    The one-way latency is uniform in the range, or lognormal around it with a long tail. Shares:
    `loss` and `duplication` of control frames and bulk transfers that never arrive, or arrive a
    second time; a real stream does neither, a broken one that is opened again does both.
    `reordering` of frames that may overtake those before them. `clog` of all that is sent, behind
    which the direction stands still for `clog_s`; then everything comes.

    `break_s` is how long a direction must be silent before both ends learn that their link is
    broken: nobody tells them earlier. The default is what a node waits for a peer that takes
    nothing.
    """

    latency_s: tuple[float, float] = (0.01, 0.06)
    spread: Literal["uniform", "lognormal"] = "uniform"
    bytes_per_s: float = 10e6
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    clog: float = 0.0
    clog_s: float = 2.0
    break_s: float = 30.0

    def __post_init__(self) -> None:
        low, high = self.latency_s
        if not 0.0 <= low <= high or (self.spread == "lognormal" and not low):
            raise ValueError(f"latency_s: {low}..{high} is no range of seconds")
        for name in ("loss", "duplication", "reordering", "clog"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: {getattr(self, name)} is no share")
        if self.bytes_per_s <= 0.0 or self.clog_s < 0.0 or self.break_s <= 0.0:
            raise ValueError("bytes_per_s, clog_s and break_s are positive")


class Luck:
    """One stream of luck, and standard normal draws from it: the very ones of `random.gauss`, two
    at a time (Box and Muller 1958). Every frame draws one, and that of Python is not native code.
    """

    __slots__ = ("_has_spare", "_spare", "random")

    def __init__(self, stream: random.Random) -> None:
        self.random: Callable[[], float] = stream.random
        self._spare, self._has_spare = 0.0, False

    def normal(self) -> float:
        """The next draw with mean 0 and deviation 1."""
        self._has_spare = not self._has_spare
        if not self._has_spare:
            return self._spare
        angle = self.random() * _TURN
        radius = math.sqrt(-2.0 * math.log(1.0 - self.random()))
        self._spare = math.sin(angle) * radius
        return math.cos(angle) * radius


class Direction:
    """What is on its way from `source` to `target`, and the luck it has."""

    __slots__ = (
        "_bulk_luck",
        "_bulk_stream",
        "_delay_s",
        "_frame_luck",
        "_free_s",
        "_last_s",
        "_least_s",
        "_link",
        "_median_s",
        "_most_s",
        "_sigma",
        "_span_s",
        "_stuck_s",
        "held",
        "is_blocked",
        "is_plain",
        "silent_since_s",
        "source",
        "target",
    )

    def __init__(
        self, source: PeerId, target: PeerId, link: Link, stream: Callable[[str], random.Random]
    ) -> None:
        path = f"{short_id(source)}->{short_id(target)}"
        self.source, self.target = source, target
        self._frame_luck = Luck(stream(f"link/{path}"))
        self._bulk_stream = partial(stream, f"bulk/{path}")
        self._bulk_luck: Luck | None = None
        self._last_s = 0.0
        """When the latest frame arrives: frames of one stream keep their order."""
        self._free_s = 0.0
        """When the bytes that are under way are through: transfers share the rate."""
        self._stuck_s = 0.0
        self.is_blocked = False
        self.silent_since_s = 0.0
        self.held: list[Callable[[], object]] | None = None
        self.link = link

    @property
    def link(self) -> Link:
        """How it is at present."""
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        self._link = link
        self.is_plain = not (link.loss or link.duplication or link.reordering or link.clog)
        low, high = link.latency_s
        self._delay_s = FRAME_BYTES / link.bytes_per_s
        self._least_s, self._span_s = low, high - low
        self._most_s = LOGNORMAL_MAX * high
        is_uniform = link.spread == "uniform"
        self._sigma = 0.0 if is_uniform else math.log(high / low) / LOGNORMAL_SIGMAS
        self._median_s = math.sqrt(low * high)

    def latency_s(self, luck: Luck) -> float:
        """One draw of the one-way latency."""
        if not self._sigma:
            return self._least_s + self._span_s * luck.random()
        drawn_s = self._median_s * math.exp(self._sigma * luck.normal())
        return min(self._most_s, drawn_s)

    def stick(self, until_s: float) -> None:
        """Nothing that is sent from now on arrives before that time."""
        self._stuck_s = max(self._stuck_s, until_s)

    def ordered_s(self, now_s: float) -> float:
        """When what the stream itself says arrives, such as its end: never lost, never early."""
        # Once per frame: what `latency_s` says, without the call.
        if self._sigma:
            sent_s = now_s + self._delay_s + self.latency_s(self._frame_luck)
        else:
            latency_s = self._least_s + self._span_s * self._frame_luck.random()
            sent_s = now_s + self._delay_s + latency_s
        if sent_s < self._last_s:
            sent_s = self._last_s
        if sent_s < self._stuck_s:
            sent_s = self._stuck_s
        self._last_s = sent_s
        return sent_s

    def frame_times(self, now_s: float) -> tuple[float, ...]:
        """When a control frame sent now arrives: in order, but for those that may overtake."""
        if self.is_plain:
            return (self.ordered_s(now_s),)
        link, random_ = self._link, self._frame_luck.random
        drawn = random_()
        times: tuple[float, ...] = ()
        if drawn >= link.loss:
            times = (self._arrives_s(now_s, random_()),)
            if drawn > 1.0 - link.duplication:
                times += (self._arrives_s(now_s, random_()),)
        if random_() < link.clog:
            self.stick(now_s + link.clog_s)
        return times

    def _arrives_s(self, now_s: float, drawn: float) -> float:
        """When a frame arrives, in order unless it is drawn to overtake."""
        return (
            self.ordered_s(now_s) if drawn >= self._link.reordering else self._overtaking_s(now_s)
        )

    def _overtaking_s(self, now_s: float) -> float:
        """When a frame arrives that keeps no order."""
        sent_s = now_s + self._delay_s + self.latency_s(self._frame_luck)
        return max(sent_s, self._stuck_s)

    def bulk_times(self, num_bytes: int, now_s: float) -> tuple[tuple[float, float], ...]:
        """When a bulk transfer begun now begins and ends to arrive: each on a stream of its own.

        Transfers of one direction share its rate, first come, first served.
        """
        # Most directions never carry cells, and to seed a stream takes time.
        if self._bulk_luck is None:
            self._bulk_luck = Luck(self._bulk_stream())
        link, luck = self._link, self._bulk_luck
        num_copies = 1 if self.is_plain else self._copies(luck)
        times = []
        for _ in range(num_copies):
            begin_s = max(now_s, self._free_s)
            self._free_s = begin_s + num_bytes / link.bytes_per_s
            delay_s = self.latency_s(luck)
            first_s = max(begin_s + delay_s, self._stuck_s)
            times.append((first_s, max(self._free_s + delay_s, self._stuck_s)))
        if not self.is_plain:
            self._clog(luck, now_s)
        return tuple(times)

    def _copies(self, luck: Luck) -> int:
        drawn = luck.random()
        if drawn < self._link.loss:
            return 0
        return 2 if drawn > 1.0 - self._link.duplication else 1

    def _clog(self, luck: Luck, now_s: float) -> None:
        if luck.random() < self._link.clog:
            self.stick(now_s + self._link.clog_s)


class Network:
    """All directions between the nodes of a world; `stream` gives the stream of a readable path."""

    def __init__(self, link: Link, stream: Callable[[str], random.Random]) -> None:
        self._link = link
        self._stream = stream
        self._directions: dict[tuple[PeerId, PeerId], Direction] = {}
        self._cut: set[frozenset[PeerId]] = set()
        self._neighbours: dict[PeerId, frozenset[PeerId]] = {}

    def settle(self, peer: PeerId, neighbours: Collection[PeerId] | None) -> None:
        """A peer only ever links with these, and with those who name it; None: with everybody."""
        if neighbours is not None:
            self._neighbours[peer] = frozenset(neighbours)

    def are_neighbours(self, one: PeerId, other: PeerId) -> bool:
        """Whether the two ever link: everybody does, but for those who named their neighbours."""
        if not self._neighbours:
            return True
        of_one, of_other = self._neighbours.get(one), self._neighbours.get(other)
        if of_one is None and of_other is None:
            return True
        return (of_one is not None and other in of_one) or (
            of_other is not None and one in of_other
        )

    def direction(self, source: PeerId, target: PeerId) -> Direction:
        """The one direction from `source` to `target`; always the same object."""
        found = self._directions.get((source, target))
        if found is None:
            found = Direction(source, target, self._link, self._stream)
            self._directions[source, target] = found
        return found

    @property
    def least_bytes_per_s(self) -> float:
        """What the slowest of all lines carries."""
        lines = (direction.link.bytes_per_s for direction in self._directions.values())
        return min((self._link.bytes_per_s, *lines))

    def directions(self) -> list[Direction]:
        """All that were ever used, by source and target."""
        return [self._directions[pair] for pair in sorted(self._directions)]

    def set_link(self, source: PeerId, target: PeerId, link: Link) -> None:
        """One direction gets another quality; the way back keeps its own."""
        self.direction(source, target).link = link

    def cut(self, one: PeerId, other: PeerId) -> None:
        """No link of the two can come about any more."""
        self._cut.add(frozenset((one, other)))

    def heal(self, one: PeerId, other: PeerId) -> None:
        """They can reach each other again."""
        self._cut.discard(frozenset((one, other)))

    def heal_all(self) -> None:
        """Nothing is cut any more."""
        self._cut.clear()

    def is_cut(self, one: PeerId, other: PeerId) -> bool:
        """Whether no link of the two can come about."""
        return frozenset((one, other)) in self._cut

    def can_link(self, one: PeerId, other: PeerId) -> bool:
        """Whether a new conversation of the two would get through."""
        if not self.are_neighbours(one, other) or frozenset((one, other)) in self._cut:
            return False
        there, back = self.direction(one, other), self.direction(other, one)
        is_open = there.held is None and back.held is None
        return is_open and not (there.is_blocked or back.is_blocked)
