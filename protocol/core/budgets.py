"""What each peer may cost a second: its frames wait for their turn, and who goes on is named. Pure.

A frame costs its reader more than its sender: a signature to check, a body to read, an answer to
put together. Each peer has a share of this node's time for that. Beyond its share its next frame
is read later, so that its stream stands still and nobody else waits; whoever keeps its stream full
is told of as a fault, again and again, and nobody waits for it in a round. Its link stays: where
some had cut it and some had not, its rounds would be slower than with the flood.

What somebody passes on for others costs it the reading alone. The rest is charged to who signed it
(`PASSED_ON`): whoever forwards for a flooder is not taken for one.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from protocol.frames import (
    Branch,
    Chain,
    Frame,
    Heartbeat,
    Messages,
    StatusAsk,
    Want,
    WantBranch,
    WantChain,
    encode_frame,
)
from protocol.gossip import Entries
from protocol.gossiping.settings import PEERS_MAX, Rate
from protocol.identity import PeerId
from protocol.messages import Kind, SignedMessage

SHARE = Rate(0.1, 1.0)
"""Seconds of work per second, and the burst. One peer may take a tenth of a core; the burst is what
a peer may send to a newcomer at once: a whole round of the largest run."""

OVER_S = 0.05
"""Report a peer once it is this many seconds of work over its share: what half a second allows."""

PASSED_ON = Rate(0.1, 1.0)
"""Seconds of work with what one peer signed and others pass on; of all who have no seat together
likewise: keys cost nothing."""

NOBODY = PeerId(bytes(32))
"""The account that all peers without a seat share."""

FRAME_S = 2e-4
BYTE_S = 1e-7
"""To decode and to hand on: a heartbeat of 50 KB takes 4 ms, a frame of 200 messages 6."""

MESSAGE_S = 4e-4
"""A signature."""

PASSED_SEAT_S = MESSAGE_S / 2
"""A SEAT of somebody else. Whoever is honest passes on what it checked itself, which is half of
what it may send."""

LONG_BYTE_S = 1e-6
"""Of bodies that are many numbers, or other messages whose signatures are to be checked."""

_LONG = frozenset({Kind.COMMIT, Kind.HAVE, Kind.LIST, Kind.NEWATTEMPT})

ANSWERS_S: dict[type[Frame], float] = {
    Heartbeat: 0.0003,
    StatusAsk: 0.01,
    WantChain: 0.02,
    WantBranch: 0.02,
    Want: 0.001,
}
"""What is put together for who asks: signed messages, seals from the disk, cells. A heartbeat asks
for what it does not hold."""

WANTED_CELL_S = 2e-6
"""A cell that is looked up."""


class Charge(NamedTuple):
    """How long the next frame of a peer is to wait, and whether this one is to be told of."""

    wait_s: float
    is_over: bool


OVERDRAWN_S = 2.0
"""So long after it was told of last, a peer counts as suspected."""

OVER = "sends more than its share: a flood"
"""The reason that is told."""

_FREE = Charge(0.0, False)


@dataclass(slots=True)
class _Account:
    level_s: float
    at_s: float
    over_s: float = 0.0


class Budgets:
    """The shares of all peers. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[PeerId, _Account] = OrderedDict()

    def charge(self, peer: PeerId, cost_s: float, now_s: float) -> Charge:
        """A frame of a peer is here, which costs so much; it is taken in any case."""
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = _Account(SHARE.burst, now_s)
            if len(self._accounts) > PEERS_MAX:
                self._accounts.popitem(last=False)
        level_s = account.level_s + (now_s - account.at_s) * SHARE.per_s
        if level_s > SHARE.burst:
            level_s = SHARE.burst
        if account.over_s and level_s > SHARE.burst / 2:
            account.over_s = 0.0  # That was a burst, and is over.
        account.level_s = level_s = level_s - cost_s
        account.at_s = now_s
        if level_s >= 0.0:
            return _FREE
        self._accounts.move_to_end(peer)
        account.over_s += min(cost_s, -level_s)
        is_over = account.over_s >= OVER_S
        if is_over:
            account.over_s -= OVER_S
        return Charge(-level_s / SHARE.per_s, is_over)


def cost_s(peer: PeerId, frame: Frame, num_bytes: int) -> float:
    """What a frame of that peer costs, before it is looked into."""
    cost = FRAME_S + BYTE_S * num_bytes
    if isinstance(frame, Messages):
        for message in frame.messages:
            if message.sender == peer:
                cost += message_cost_s(message)
            elif message.slot.kind is Kind.SEAT:
                cost += PASSED_SEAT_S
        return cost
    if isinstance(frame, Want):
        return cost + ANSWERS_S[Want] + WANTED_CELL_S * 8 * len(frame.bits)
    return cost + ANSWERS_S.get(type(frame), 0.0)


def message_cost_s(message: SignedMessage) -> float:
    """What it costs to check a signed message and to read its body."""
    per_byte_s = LONG_BYTE_S if message.slot.kind in _LONG else BYTE_S
    return MESSAGE_S + per_byte_s * len(message.body)


def about_bytes(frame: Frame) -> int:
    """How long a frame is on the wire, near enough for a world that does not encode it."""
    if isinstance(frame, Messages):
        num_bytes = 0
        for message in frame.messages:  # In a loop: of each frame of a world.
            num_bytes += len(message.encoded)
        return num_bytes
    if isinstance(frame, Heartbeat):
        return 64 + 9 * len(frame.held) + 34 * (len(frame.links) + len(frame.silent))
    if isinstance(frame, Entries):
        return sum(len(entry) for entry in frame.entries)
    if isinstance(frame, Chain | Branch):
        return sum(len(seal.encoded) for seal in frame.seals)
    if isinstance(frame, Want):
        return 48 + len(frame.bits)
    return len(encode_frame(frame))


# Strikes ------------------------------------------------------------------------------------------
#
# Peers that do wrong again and again are left alone for a while: strikes lead to a pause.
#
# Pure. A pause is this node's own business: nobody is told, and nothing is proven by it. Evidence
# and bans are something else.

STRIKES_MAX = 10
"""At once; an honest peer may be wrong now and then, when it hears of a change too late."""

FORGOTTEN_S = 6.0
"""A strike is forgotten after so long: what goes on for ever at a tenth of a second's work each
minute needs no pause."""

PAUSE_S, PAUSE_S_MAX = 5.0, 600.0
"""The first pause costs a round or two; each further one is twice as long as the one before."""

GOOD_S = 1800.0
"""After so long without a strike, the next pause is a first one again."""

STRUCK_MAX = 256
"""Peers that are remembered. Keys cost nothing, so a liar may come under many names."""


@dataclass(slots=True)
class _Record:
    """`level` counts the strikes that were not forgotten at `at_s`."""

    level: float
    at_s: float
    pause_s: float = PAUSE_S
    paused_until_s: float = float("-inf")


class Strikes:
    """Counts the strikes of each peer. Times are monotonic seconds, never going back."""

    def __init__(self) -> None:
        self._records: dict[PeerId, _Record] = {}
        self._banned: frozenset[PeerId] = frozenset()

    def ban(self, banned: Collection[PeerId]) -> tuple[PeerId, ...]:
        """Those whom the last seal bans are left alone for good; whom of them it is news of."""
        new = tuple(sorted(set(banned) - self._banned))
        self._banned = frozenset(banned)
        return new

    def strike(self, peer: PeerId, now_s: float) -> float:
        """Count a strike; how long the pause is that begins with it, 0 if none does.

        What a peer does in its pause is not counted: it was under way when the pause began.
        """
        record = self._records.pop(peer, None) or _Record(0.0, now_s)
        self._forget_one()
        self._records[peer] = record  # The latest last.
        if now_s < record.paused_until_s:
            return 0.0
        if now_s - max(record.at_s, record.paused_until_s) > GOOD_S:
            record.pause_s = PAUSE_S
        record.level = max(0.0, record.level - (now_s - record.at_s) / FORGOTTEN_S) + 1.0
        record.at_s = now_s
        # Of ten within seconds the first is half forgotten with the last, and they are ten.
        if record.level <= STRIKES_MAX - 1:
            return 0.0
        pause_s = record.pause_s
        record.level, record.paused_until_s = 0.0, now_s + pause_s
        record.pause_s = min(2.0 * pause_s, PAUSE_S_MAX)
        return pause_s

    def is_paused(self, peer: PeerId, now_s: float) -> bool:
        """Whether a peer is to be left alone now."""
        if peer in self._banned:
            return True
        record = self._records.get(peer)
        return record is not None and now_s < record.paused_until_s

    def _forget_one(self) -> None:
        """Make room: the one that struck longest ago, of those never paused if there are any."""
        if len(self._records) < STRUCK_MAX:
            return
        small = (peer for peer, record in self._records.items() if record.pause_s == PAUSE_S)
        del self._records[next(small, next(iter(self._records)))]
