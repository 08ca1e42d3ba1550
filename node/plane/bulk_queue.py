"""What is still to be sent to each peer: in order, each cell once, and at a pace that it takes.

Pure; `node.plane.bulk_streams` and the simulator's world both ask it. An asker that asks again for
what is on its way already gets it once: on a slow line a second copy is what would hold up the
first.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from dht.reaching.token_bucket import TokenBucket
from protocol import limits
from protocol.events import Push
from protocol.frames import Bulk
from protocol.identity import PeerId

CELLS_WAITING_MAX = 4 * limits.WANT_CELLS_MAX
"""To one peer. A state is one Want of 12 288 cells; the parts of 64 contributions that a substitute
wants are 4096, and so are the results of a round."""

PLACES_WAITING_MAX = 256
"""Subjects of which cells wait for one peer: 64 contributions, some LISTs, and room."""

PIECES_PER_WINDOW = 4
"""A cell travels in pieces, the last one shorter, and the taker says a byte for each that it has
read: so both ends see a line move that takes long for a cell. Where it takes the window to fill a
fast one, pieces are large, a cell in the end: each answer is a record on the wire, at both ends."""

WINDOW_BYTES_START = 64 * limits.KIB
WINDOW_BYTES_MAX = PIECES_PER_WINDOW * limits.PIECE_BYTES_MAX
"""Of each transfer under way at a time. At 100 ms there and back, the most makes 170 MB/s."""

QUEUED_S = 1.0
"""Of so much waiting on the line the sender does not make more: frames wait behind it."""

DRAINING_MAX = 1
"""Transfers of one lane to one peer of which all is sent but the rest (`Meter.is_rest`), and that
are not through, while the next one is on its way."""

Place = tuple[Bulk, bytes]


def _lane(bulk: Bulk) -> bool:
    """What joiners and audits fetch is long, and a round does not wait behind it."""
    return bulk in (Bulk.STATE, Bulk.STEP, Bulk.WORK)


def _first(ready: list[tuple[int, Place]]) -> Place:
    """The earliest round first: without its result nobody comes to the next one, and whoever gets
    the parts of each new round before it never does. Of one round parts before results, and of its
    results those of the newest LIST: the one before is given up."""
    place = min((index, place[0]) for index, place in ready)
    fitting = [other for index, other in ready if (index, other[0]) == place]
    return fitting[-1 if place[1] is Bulk.RESULT else 0]


@dataclass(slots=True)
class _Line:
    """To one peer. `waiting` maps places to the round that they are about and the cells."""

    waiting: dict[Place, tuple[int, dict[int, None]]] = field(default_factory=dict)
    under_way: list[Push] = field(default_factory=list)
    draining: list[Push] = field(default_factory=list)
    """Those of them that were sent."""

    def is_busy(self, lane: bool) -> bool:
        """Whether nothing of a lane may begin now."""
        draining = sum(1 for due in self.draining if _lane(due.bulk) is lane)
        under_way = sum(1 for due in self.under_way if _lane(due.bulk) is lane)
        return under_way > draining or draining > DRAINING_MAX


class PushQueue:
    """The transfers of one node. One transfer of parts or results is sent to a peer at a time, and
    one of what it fetches as a joiner. The earliest round goes first, and of one round its parts go
    before results, for nobody can sum without them; of results those of the newest LIST."""

    def __init__(self) -> None:
        self._lines: dict[PeerId, _Line] = {}

    def offer(self, push: Push, *, round_index: int) -> None:
        """Let cells wait, but for those that wait or are under way already; `round_index` is of the
        round that they are about.

        Beyond the bounds those of the oldest round are forgotten: an honest peer asks again.
        """
        line = self._lines.setdefault(push.to, _Line())
        place = (push.bulk, push.subject)
        sent = {
            cell for due in line.under_way if (due.bulk, due.subject) == place for cell in due.cells
        }
        cells = [cell for cell in push.cells if cell not in sent]
        if cells:
            line.waiting.setdefault(place, (round_index, {}))[1].update(dict.fromkeys(cells))
        self._bound(line)
        self._tidy(push.to)

    def _bound(self, line: _Line) -> None:
        total = sum(len(cells) for _, cells in line.waiting.values())
        while total > CELLS_WAITING_MAX or len(line.waiting) > PLACES_WAITING_MAX:
            # Of one round the first: dicts keep the order in which places came.
            oldest = min(line.waiting, key=lambda place: line.waiting[place][0])
            total -= len(line.waiting.pop(oldest)[1])

    def begin(self, to: PeerId) -> Push | None:
        """The transfer that may begin now, which is under way until `done`."""
        line = self._lines.get(to)
        if line is None:
            return None
        busy = {lane for lane in (False, True) if line.is_busy(lane)}
        ready = [
            (index, place)
            for place, (index, _) in line.waiting.items()
            if _lane(place[0]) not in busy
        ]
        if not ready:
            return None
        bulk, subject = place = _first(ready)
        due = Push(to, bulk, subject, tuple(line.waiting.pop(place)[1]))
        line.under_way.append(due)
        return due

    def sent(self, due: Push) -> None:
        """All of it is on the line or is its rest: the next one may begin. It is under way until
        `done`."""
        line = self._lines.get(due.to)
        if line is None or any(other is due for other in line.draining):
            return
        if any(other is due for other in line.under_way):
            line.draining.append(due)

    def done(self, due: Push) -> None:
        """It is through, or given up."""
        line = self._lines.get(due.to)
        if line is not None:
            line.under_way = [other for other in line.under_way if other is not due]
            line.draining = [other for other in line.draining if other is not due]
            self._tidy(due.to)

    def forget(self, to: PeerId) -> None:
        """The peer is out of reach: what waits for it would come too late."""
        line = self._lines.get(to)
        if line is not None:
            line.waiting.clear()
            self._tidy(to)

    def _tidy(self, to: PeerId) -> None:
        """A peer may come under many names."""
        line = self._lines[to]
        if not (line.waiting or line.under_way):
            del self._lines[to]

    def __contains__(self, to: PeerId) -> bool:
        """Whether anything is or waits to be sent to a peer."""
        return to in self._lines


class SendWindow:
    """How many bytes may be under way to one peer, learned from how long they take.

    The window grows by what came through in good time, and shrinks by half of what waited long.
    """

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES_START
        self._least_s = float("inf")

    def took(self, num_bytes: int, delay_s: float) -> None:
        """So many bytes were through so long after they had been sent."""
        self._least_s = min(self._least_s, delay_s)
        is_slow = delay_s > self._least_s + QUEUED_S
        window_bytes = self.window_bytes + (-num_bytes // 2 if is_slow else num_bytes)
        self.window_bytes = min(max(window_bytes, limits.PIECE_BYTES_MIN), WINDOW_BYTES_MAX)

    def stalled(self) -> None:
        """Nothing came through for as long as is waited: what goes next is small, so that a line
        that has become slow moves it in time."""
        self.window_bytes = WINDOW_BYTES_START

    @property
    def piece_bytes(self) -> int:
        """How large the pieces of the next cell are: powers of two, a part of the window; of the
        largest window the largest piece."""
        if self.window_bytes == WINDOW_BYTES_MAX:
            return limits.PIECE_BYTES_MAX
        size = limits.PIECE_BYTES_MIN
        while size < limits.CHUNK_BYTES and 2 * size * PIECES_PER_WINDOW <= self.window_bytes:
            size *= 2
        return size


class Meter:
    """The pieces of one transfer that are on their way. Times are monotonic.

    While it `gives_way` to others there is one of them at most.
    """

    def __init__(self, pace: SendWindow, gives_way: Callable[[], bool] = lambda: False) -> None:
        self._pace = pace
        self._gives_way = gives_way
        self._pieces: deque[tuple[int, float]] = deque()
        self.under_way = 0
        """Bytes that were sent and are not known to be through."""

    @property
    def num_pieces(self) -> int:
        """How many they are."""
        return len(self._pieces)

    def has_room(self, num_bytes: int) -> bool:
        """Whether a piece may be sent now; one always may."""
        if not self.under_way:
            return True
        return not self._gives_way() and self.under_way + num_bytes <= self._pace.window_bytes

    def is_rest(self, num_bytes: int) -> bool:
        """Whether so little is left that the next transfer is to open its stream.

        Opening it takes a round trip, and what asks for it goes behind what is under way, at most
        a window: as long as a window that is sent meanwhile keeps the line full.
        """
        return not self._gives_way() and num_bytes <= self._pace.window_bytes

    @property
    def piece_bytes(self) -> int:
        """How large the pieces of the next cell are."""
        return self._pace.piece_bytes

    def sent(self, num_bytes: int, now_s: float) -> None:
        """A piece is on its way."""
        self._pieces.append((num_bytes, now_s))
        self.under_way += num_bytes

    def through(self, now_s: float) -> None:
        """The taker has read the oldest piece; nothing must be asked of it when none is out."""
        num_bytes, sent_s = self._pieces.popleft()
        self.under_way -= num_bytes
        self._pace.took(num_bytes, now_s - sent_s)


# Line limits --------------------------------------------------------------------------------------
#
# How much of the line cells may take, each way: what a node's owner allows.
#
# Cells are nearly all that a node moves. Control messages are some kilobytes a round, and wait for
# nothing: a round in which they are late is lost.

BURST_S = 0.25
"""Unused rate of so long may go at once: within ten seconds that is 2.5 % more than was set."""

SLACK_S = 10.0
"""What a transfer that waits for its turn is given beyond its wait."""

Pause = Callable[[int, trio.CancelScope], Awaitable[None]]
"""Waits until so many bytes may go; the deadline of the transfer's scope waits with it."""


class LineLimits:
    """Bytes per second up and down, for all transfers together; 0 sets no limit.

    What is received is answered late, and so the sender, which has no more under way than came
    through in good time, keeps to the limit of the taker.
    """

    def __init__(self, up_bytes_per_s: float = 0.0, down_bytes_per_s: float = 0.0) -> None:
        self._is_up_limited = up_bytes_per_s > 0.0
        self._up = TokenBucket(up_bytes_per_s, now_s=0.0, burst_s=BURST_S)
        self._down = TokenBucket(down_bytes_per_s, now_s=0.0, burst_s=BURST_S)

    def turn(self, before: Pause | None) -> Pause | None:
        """What each piece of a transfer waits for, after a pause of its own kind; None: nothing."""
        if not self._is_up_limited:
            return before

        async def both(num_bytes: int, scope: trio.CancelScope) -> None:
            if before is not None:
                await before(num_bytes, scope)
            await self.before_sending(num_bytes, scope)

        return both

    async def before_sending(self, num_bytes: int, scope: trio.CancelScope) -> None:
        """Wait until so many bytes may go; the transfer's `scope` waits with it."""
        await _wait(self._up, num_bytes, scope)

    async def after_receiving(self, num_bytes: int, scope: trio.CancelScope) -> None:
        """Wait as long as so many bytes take on the line that the owner allows."""
        await _wait(self._down, num_bytes, scope)


async def _wait(bucket: TokenBucket, num_bytes: int, scope: trio.CancelScope) -> None:
    now_s = trio.current_time()
    delay_s = bucket.delay_s(num_bytes, now_s)
    if delay_s:
        scope.deadline = now_s + delay_s + SLACK_S
        await trio.sleep(delay_s)


# Throttle -----------------------------------------------------------------------------------------
#
# How much of the line joiners get.
#
# States are sent to joiners on a line that rounds need. So much of it they may take, and beside
# moving parts and results never more than a tenth.

YIELD_TIMES = 9
"""Beside parts and results on the move a state gets a tenth of the time. Not nothing: on slow lines
they move all the time, and nobody could ever join."""

YIELD_S_MAX = 3.0
"""A joiner that hears nothing for long gives a source up."""


class Throttle:
    """What a node sends to joiners, to all of them together.

    While parts or results move, each piece is followed by a pause of some times as long as the
    piece took: nearly all of the line is theirs.
    """

    def __init__(self, bytes_per_s: float, *, now_s: float) -> None:
        self._all = TokenBucket(bytes_per_s, now_s=now_s)
        self._free_s = now_s

    def delay_s(
        self, num_bytes: int, *, took_s: float, is_round_moving: bool, now_s: float
    ) -> float:
        """The pause before the next piece; `took_s` is how long the one before was on its way."""
        begins_s = now_s
        if is_round_moving:
            begins_s = max(now_s, self._free_s) + min(YIELD_TIMES * took_s, YIELD_S_MAX)
            self._free_s = begins_s
        return max(begins_s - now_s, self._all.delay_s(num_bytes, now_s))


# Uplink -------------------------------------------------------------------------------------------
#
# How much leaves this node, as its own transfers show it.
#
# Several transfers share one line, so what counts is the time in which there is any, and what all
# of them moved in it. One taker may be slower than the line: the largest of the last few is the
# line's.

SAMPLE_BYTES = 1 << 20
"""Of less, delays and schedulers are most of what is measured: nothing is said of it."""

SAMPLES_KEPT = 8


class Uplink:
    """Watches the transfers of parts and results of one node. Seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._num_open = 0
        self._began_s = 0.0
        self._bytes = 0
        self._is_whole = True
        self._samples: deque[float] = deque(maxlen=SAMPLES_KEPT)

    def mbit(self) -> float | None:
        """Megabits per second; None while too little is known."""
        return max(self._samples, default=None)

    def began(self, now_s: float) -> None:
        """A transfer begins."""
        if not self._num_open:
            self._began_s, self._bytes, self._is_whole = now_s, 0, True
        self._num_open += 1

    def ended(self, num_bytes: int | None, now_s: float) -> None:
        """It is over, and its taker has so many bytes; None where nobody knows how many."""
        self._num_open -= 1
        self._is_whole &= num_bytes is not None
        self._bytes += num_bytes or 0
        took_s = now_s - self._began_s
        if not self._num_open and self._is_whole and self._bytes >= SAMPLE_BYTES and took_s > 0.0:
            self._samples.append(8e-6 * self._bytes / took_s)
