"""How much of a round's messages is kept of whom, so that nobody takes the room of others. Pure.

Anybody can make up keys, and a member can sign for every attempt. Room is counted in messages and
in bytes. What is not kept for want of room is sent again, later each time (`protocol.core.relay`).

SEATs have a room that is theirs. Of more than it has those are kept that are first in the round's
order: all nodes keep the same, and to be early is worth nothing.
"""

from bisect import insort
from dataclasses import dataclass, field

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import SignedMessage
from protocol.rounds.turns import place_in_turn


@dataclass(slots=True)
class MessageQuota:
    """Of the messages of one round: each member has some of its own, and the rest is for all."""

    members: frozenset[PeerId]
    _filed: dict[PeerId, int] = field(default_factory=dict)
    _bytes: dict[PeerId, int] = field(default_factory=dict)
    _shared: int = 0
    _shared_bytes: int = 0
    _seats: list[tuple[bytes, PeerId]] = field(default_factory=list)
    """Who asks for a seat, ascending by its place in the order."""

    def takes(self, message: SignedMessage) -> bool:
        """Whether there is room for this one, which is no SEAT; it is taken then."""
        sender, size, most = message.sender, len(message.encoded), limits.MEMBER_BYTES_PER_ROUND_MAX
        if sender in self.members:
            filed, taken = self._filed.get(sender, 0), self._bytes.get(sender, 0) + size
            if taken > most:
                return False
            if filed < self._own:
                self._filed[sender], self._bytes[sender] = filed + 1, taken
                return True
        self._shared_bytes += size
        self._shared += 1
        is_there = self._shared <= limits.MESSAGES_SHARED_MAX - limits.SEATS_ASKED_MAX
        if is_there and self._shared_bytes <= most:
            return True
        self._shared_bytes -= size
        self._shared -= 1
        return False

    def seat(self, peer: PeerId, round_index: int) -> PeerId | None:
        """Take the SEAT of that peer; whose SEAT is one too many then, its own or another."""
        insort(self._seats, (place_in_turn(round_index, peer), peer))
        if len(self._seats) <= limits.SEATS_ASKED_MAX:
            return None
        return self._seats.pop()[1]

    @property
    def _own(self) -> int:
        own = limits.MESSAGES_PER_ROUND_MAX - limits.MESSAGES_SHARED_MAX
        return own // max(1, len(self.members))
