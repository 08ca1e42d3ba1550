"""Signed messages between linked peers: each forwarded once, gaps filled by heartbeats. Pure.

A message goes to every linked peer when it is signed. Whoever hears one forwards it to those of
its own links that the origin is not linked to, so that two peers that cannot reach each other
still agree: by the word of either end, and not where the one it came from has forwarded it to. A
heartbeat names what is held; who holds more sends the rest.

Of a peer that has just been linked nothing is forwarded before its second heartbeat: its first
one names the few that it was linked to by then. Else all would send all the messages of whoever
comes to all, for it comes to all of them within a moment.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from protocol import limits
from protocol.core.liveness import Liveness
from protocol.events import Send, SendAll
from protocol.frames import BranchEnd, Heartbeat, Messages, Progress
from protocol.identity import PeerId
from protocol.messages import SignedMessage, message_id_of
from protocol.rounds.round_config import Rare, never
from protocol.rounds.round_view import RoundView

FIRST_SENDERS = 2
"""So many links of a peer send it a message that it lacks, before all who have it do."""

FILL_BYTES_MAX = 512 * 1024
"""Of a round, with one heartbeat: what a peer lacks that has just come is there with a few."""

FRAME_BYTES = 48 * 1024
"""Messages are packed into frames up to here, well under the limit of a control frame."""


_NOBODY: frozenset[PeerId] = frozenset()
_NONE: AbstractSet[bytes] = frozenset()


class Relay:
    """What each linked peer is linked to, and when each message came here."""

    def __init__(self, me: PeerId, *, settle_s: float, rare: Rare = never) -> None:
        self._me = me
        self._rare = rare
        self._settle_s = settle_s
        self._links: dict[PeerId, tuple[PeerId, ...]] = {}
        self._reached: dict[PeerId, frozenset[PeerId]] = {}
        """The same, to look peers up in."""
        self._lacked: dict[PeerId, AbstractSet[bytes]] = {}
        """What each peer lacked by its last heartbeat."""
        self._sent: dict[PeerId, dict[bytes, tuple[float, float]]] = {}
        """What each peer was sent and has not said to hold: when it may be sent again, and how long
        it is to be waited then."""
        self._new: set[PeerId] = set()
        """Linked so lately that what they said of their links was soon out of date."""
        self._beyond: dict[PeerId, tuple[PeerId, ...]] = {}
        """Our links whom that peer is not linked to; of those `_linked` only."""
        self._linked: tuple[PeerId, ...] = ()
        self._linked_set: frozenset[PeerId] = _NOBODY
        self._heard_s: dict[bytes, float] = {}
        self._detours = 0

    def note(self, message: SignedMessage, now_s: float) -> None:
        """A new message was filed."""
        self._heard_s[message.digest] = now_s

    def forget(self, views: tuple[RoundView, ...]) -> None:
        """Drop the times of all messages but those of these rounds; called once per round."""
        kept: dict[bytes, float] = {}
        for digest, heard_s in self._heard_s.items():
            for view in views:
                if view.ballots.find(digest) is not None:
                    kept[digest] = heard_s
                    break
        self._heard_s = kept
        if self._sent:
            held = {message_id_of(digest) for digest in kept}
            for peer, sent in self._sent.items():
                self._sent[peer] = {key: due for key, due in sent.items() if key in held}

    def drop_link(self, peer: PeerId) -> None:
        """A peer is no longer linked to us; what it is linked to is unknown."""
        self._links.pop(peer, None)
        self._reached.pop(peer, None)
        self._new.discard(peer)
        self._beyond.clear()
        self._lacked.pop(peer, None)
        self._sent.pop(peer, None)

    def forward(
        self, message: SignedMessage, source: PeerId, linked: tuple[PeerId, ...]
    ) -> list[SendAll]:
        """Pass on a new message to those whom its origin has not sent it to itself."""
        if self._rare("forward-to-none"):
            return []
        origin = message.sender
        beyond = linked if self._rare("forward-to-all") else self._not_linked_to(origin, linked)
        if not beyond:
            return []  # As nearly always.
        done = {source, origin}
        if source != origin and beyond is not linked:
            done.update(self._reached.get(source, ()))  # Whoever forwards does so to all its links.
        peers = tuple(peer for peer in beyond if peer not in done)
        return [SendAll(peers, Messages(messages=(message,)))] if peers else []

    def _not_linked_to(self, origin: PeerId, linked: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        if linked is not self._linked:
            self._linked, self._linked_set = linked, frozenset(linked)
            self._beyond.clear()
        beyond = self._beyond.get(origin)
        if beyond is None:
            beyond = ()
            if origin not in self._new:
                links = self._reached
                far = self._linked_set - links.get(origin, _NOBODY)
                beyond = tuple(
                    peer
                    for peer in sorted(far)
                    if peer != origin and origin not in links.get(peer, _NOBODY)
                )
            self._beyond[origin] = beyond
        return beyond

    def _hear_links(self, peer: PeerId, beat: Heartbeat) -> None:
        links, known = beat.links, self._links.get(peer)
        if known is None:
            self._new.add(peer)
        elif peer in self._new:
            self._new.discard(peer)
        elif known == links:
            return  # As nearly always.
        self._links[peer], self._reached[peer] = links, beat.link_set
        # Of others it matters only where they are not linked to this one.
        self._beyond.pop(peer, None)
        reached = self._reached
        for origin in [o for o in self._beyond if peer not in reached.get(o, _NOBODY)]:
            del self._beyond[origin]

    def detour(self, rounds: Mapping[PeerId, int], view: RoundView) -> PeerId | None:
        """Who has the results of a round and is linked to us, where those who summed are not.

        That is whoever has gone on from it and still serves it; another one each time.
        """
        beyond = sorted(peer for peer, index in rounds.items() if index == view.index + 1)
        self._detours += 1
        return beyond[self._detours % len(beyond)] if beyond else None

    def fill(
        self, peer: PeerId, beat: Heartbeat, views: tuple[RoundView, ...], now_s: float
    ) -> Iterable[Send]:
        """What `peer` lacks of the round that its heartbeat says it works on.

        Messages that came a moment ago are left out: they are on their way to it as well. So are
        those that are for another of its links to send, until its next heartbeat lacks them still:
        else who was away for a moment would get everything from everybody.

        What it was sent and lacks still, it has refused, or it was busy: that is sent again later
        each time. And only so much goes with one heartbeat.
        """
        if self._links.get(peer) is not beat.links or peer in self._new:
            self._hear_links(peer, beat)
        for view in views:
            if view.index == beat.round and view.basis == beat.head:
                break
        else:
            return ()
        unknown = view.ballots.unknown_to(beat.held_set)
        if not unknown:
            if peer in self._lacked:
                del self._lacked[peer]
            return ()  # As nearly always.
        before, self._lacked[peer] = self._lacked.get(peer, _NONE), unknown
        settled = [
            key
            for key in unknown
            if now_s - self._heard_s.get(view.ballots.named(key)[-1].digest, 0.0) >= self._settle_s
        ]
        if not settled:
            return ()  # As most often: what it lacks is on its way.
        links = beat.links if self._me in beat.links else (self._me,)
        place = links.index(self._me)
        ours = {
            key
            for key in settled
            if key in before
            or (place - int.from_bytes(key[:4], "big")) % len(links) < FIRST_SENDERS
        }
        return pack(peer, self._due(peer, ours, view, now_s)) if ours else ()

    def _due(
        self, peer: PeerId, lacked: AbstractSet[bytes], view: RoundView, now_s: float
    ) -> Iterator[SignedMessage]:
        """Those of what it lacks that are to be sent now."""
        sent, size = self._sent.setdefault(peer, {}), 0
        for key in view.ballots.ids:
            if key not in lacked or (key in sent and now_s < sent[key][0]):
                continue
            messages = view.ballots.named(key)
            size += sum(len(message.encoded) for message in messages)
            if size > FILL_BYTES_MAX:
                return  # The rest with its next heartbeat.
            _, pause_s = sent.get(key, (now_s, self._settle_s))
            sent[key] = (now_s + pause_s, 2.0 * pause_s)
            yield from messages


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


def heartbeat(
    view: RoundView,
    liveness: Liveness,
    branch: tuple[BranchEnd, ...],
    now_s: float,
    progress: tuple[Progress, ...] = (),
) -> Heartbeat:
    """The sign of life of a node that works on that round; the rest as in Heartbeat."""
    links, silent = liveness.linked[:256], liveness.silent_links(now_s)[:256]
    head, held = view.basis, message_ids(view)
    return Heartbeat(
        round=view.index,
        head=head,
        held=held,
        links=links,
        silent=silent,
        branch=branch,
        progress=progress,
    )


def message_ids(view: RoundView) -> tuple[bytes, ...]:
    """What a heartbeat says about the messages of a round; own ones may be beyond its limit."""
    return view.ballots.told_ids[: limits.MESSAGES_PER_ROUND_MAX]
