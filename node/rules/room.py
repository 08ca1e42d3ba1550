"""How much of a round's messages is kept of whom, so that nobody takes the room of others. Pure.

Anybody can make up keys, and a member can sign for every attempt and every LIST that it makes up.
What is not kept for want of room is sent again with the next heartbeat.
"""

from dataclasses import dataclass, field

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Kind, SignedMessage


@dataclass(slots=True)
class Room:
    """Of the messages of one round: each member has some of its own, and the rest is for all."""

    members: frozenset[PeerId]
    _filed: dict[PeerId, int] = field(default_factory=dict)
    _shared: int = 0
    _seats: int = 0

    def takes(self, message: SignedMessage) -> bool:
        """Whether there is room for this one; it is taken then."""
        sender = message.sender
        if message.slot.kind is Kind.SEAT:
            if self._seats >= limits.SEATS_ASKED_MAX:
                return False
        elif sender in self.members:
            filed = self._filed.get(sender, 0)
            if filed < self._own:
                self._filed[sender] = filed + 1
                return True
        if self._shared >= limits.MESSAGES_SHARED_MAX:
            return False
        self._shared += 1
        self._seats += message.slot.kind is Kind.SEAT
        return True

    @property
    def _own(self) -> int:
        own = limits.MESSAGES_PER_ROUND_MAX - limits.MESSAGES_SHARED_MAX
        return own // max(1, len(self.members))
