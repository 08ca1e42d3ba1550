"""Signed messages between linked peers: each forwarded once, gaps filled by heartbeats. Pure.

A message goes to every linked peer when it is signed. Whoever hears one forwards it to those of
its own links that the origin is not linked to, so that two peers that cannot reach each other
still agree. A heartbeat names what is held; who holds more sends the rest.
"""

from collections.abc import Iterable, Iterator

from node.events import Send
from node.round_view import RoundView
from protocol.frames import Heartbeat, Messages
from protocol.identity import PeerId
from protocol.messages import SignedMessage

FRAME_BYTES = 48 * 1024
"""Messages are packed into frames up to here, well under the limit of a control frame."""

MESSAGE_ID_BYTES = 8


class Relay:
    """What each linked peer is linked to, and when each message came here."""

    def __init__(self, me: PeerId, *, settle_s: float) -> None:
        self._me = me
        self._settle_s = settle_s
        self._links: dict[PeerId, frozenset[PeerId]] = {}
        self._heard_s: dict[bytes, float] = {}

    def note(self, message: SignedMessage, now_s: float) -> None:
        """A new message was filed."""
        self._heard_s[message.digest] = now_s

    def forget(self, keep: Iterable[SignedMessage]) -> None:
        """Drop the times of all other messages; called once per round."""
        kept = {message.digest for message in keep}
        self._heard_s = {d: t for d, t in self._heard_s.items() if d in kept}

    def drop_link(self, peer: PeerId) -> None:
        """A peer is no longer linked to us; what it is linked to is unknown."""
        self._links.pop(peer, None)

    def forward(
        self, message: SignedMessage, source: PeerId, linked: Iterable[PeerId]
    ) -> Iterator[Send]:
        """Pass on a new message to those whom its origin has not sent it to itself."""
        reached = self._links.get(message.sender, frozenset())
        for peer in linked:
            if peer not in reached and peer not in (source, message.sender):
                yield Send(peer, Messages(messages=(message,)))

    def fill(
        self, peer: PeerId, beat: Heartbeat, views: Iterable[RoundView], now_s: float
    ) -> Iterator[Send]:
        """What `peer` lacks of the round that its heartbeat says it works on.

        Messages that came a moment ago are left out: they are on their way to it as well.
        """
        self._links[peer] = frozenset(beat.links)
        view = next((view for view in views if view.index == beat.round), None)
        if view is None or view.basis != beat.head:
            return
        held = set(beat.held)
        missing = [
            message
            for message in view.ballots.messages()
            if message.digest[:MESSAGE_ID_BYTES] not in held
            and now_s - self._heard_s.get(message.digest, 0.0) >= self._settle_s
        ]
        yield from pack(peer, missing)


def pack(peer: PeerId, messages: Iterable[SignedMessage]) -> Iterator[Send]:
    """Messages to one peer, in as few frames as the limit allows."""
    batch: list[SignedMessage] = []
    size = 0
    for message in messages:
        if batch and (size + len(message.encoded) > FRAME_BYTES or len(batch) == 256):
            yield Send(peer, Messages(messages=tuple(batch)))
            batch, size = [], 0
        batch.append(message)
        size += len(message.encoded)
    if batch:
        yield Send(peer, Messages(messages=tuple(batch)))


def message_ids(view: RoundView) -> tuple[bytes, ...]:
    """What a heartbeat says about the messages of a round."""
    return tuple(message.digest[:MESSAGE_ID_BYTES] for message in view.ballots.messages())
