"""Signed messages between linked peers: each forwarded once, gaps filled by heartbeats. Pure.

A message goes to every linked peer when it is signed. Whoever hears one forwards it to those of
its own links that the origin is not linked to, so that two peers that cannot reach each other
still agree. A heartbeat names what is held; who holds more sends the rest.
"""

from collections.abc import Iterable, Iterator

from node.ballots import MESSAGE_ID_BYTES as MESSAGE_ID_BYTES
from node.events import Send
from node.rare import Rare, never
from node.round_view import RoundView
from protocol import limits
from protocol.frames import Heartbeat, Messages
from protocol.identity import PeerId
from protocol.messages import SignedMessage

FRAME_BYTES = 48 * 1024
"""Messages are packed into frames up to here, well under the limit of a control frame."""


class Relay:
    """What each linked peer is linked to, and when each message came here."""

    def __init__(self, me: PeerId, *, settle_s: float, rare: Rare = never) -> None:
        self._me = me
        self._rare = rare
        self._settle_s = settle_s
        self._links: dict[PeerId, tuple[PeerId, ...]] = {}
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
        if self._rare("forward-to-none"):
            return
        reached = self._links.get(message.sender, ())
        if self._rare("forward-to-all"):
            reached = ()
        beyond = set(linked).difference(reached, (source, message.sender))
        frame = Messages(messages=(message,))
        for peer in sorted(beyond):
            yield Send(peer, frame)

    def fill(
        self, peer: PeerId, beat: Heartbeat, views: Iterable[RoundView], now_s: float
    ) -> Iterable[Send]:
        """What `peer` lacks of the round that its heartbeat says it works on.

        Messages that came a moment ago are left out: they are on their way to it as well.
        """
        self._links[peer] = beat.links
        view = next((view for view in views if view.index == beat.round), None)
        if view is None or view.basis != beat.head:
            return ()
        unknown = view.ballots.id_set.difference(beat.held)
        if not unknown:
            return ()  # As nearly always.
        missing = [
            message
            for message in view.ballots.messages()
            if message.digest[:MESSAGE_ID_BYTES] in unknown
            and now_s - self._heard_s.get(message.digest, 0.0) >= self._settle_s
        ]
        return pack(peer, missing)


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
    """What a heartbeat says about the messages of a round; own ones may be beyond its limit."""
    return view.ballots.ids[: limits.MESSAGES_PER_ROUND_MAX]
