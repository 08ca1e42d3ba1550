"""Attacks on what a member signs: two COMMITs in one slot, LISTs that leave senders out, and what
was signed in rounds that are over.

The vectors are honest; what is said of them is not.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from blake3 import blake3

from node.plane.hooks import NodeHooks
from protocol.frames import Frame, Messages
from protocol.identity import PeerId, Signer
from protocol.messages import Body, Commit, List, SignedMessage, decode_body, sign_message

COMMITS_KEPT = 8


class SignsAnother(NodeHooks, ABC):
    """Some of what it signs goes out with another body, in the same slot."""

    bends_frames = True

    def __init__(self) -> None:
        self._signer: Signer | None = None

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._signer = signer

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """See NodeHooks."""
        if not isinstance(frame, Messages):
            return frame
        return Messages(messages=tuple(self._instead_of(message) for message in frame.messages))

    def _instead_of(self, message: SignedMessage) -> SignedMessage:
        signer, body = self._signer, decode_body(message)
        if signer is None or message.sender != signer.peer_id:
            return message
        bent = self.bent(message, body)
        return message if bent is body else sign_message(signer, message.slot, bent)

    @abstractmethod
    def bent(self, message: SignedMessage, body: Body) -> Body:
        """What is said in place of the body of an own message; the body itself if nothing is."""


class TwoCommits(SignsAnother):
    """Equivocation: every second peer, in the order in which they are spoken to, hears another
    COMMIT. It names another residual, so nothing but the other COMMIT contradicts it."""

    name = "attack equivocation"

    def __init__(self) -> None:
        super().__init__()
        self._peers: list[PeerId] = []

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """See NodeHooks."""
        if not isinstance(frame, Messages):
            return frame
        if peer not in self._peers:
            self._peers.append(peer)
        return frame if self._peers.index(peer) % 2 == 0 else super().sent_frame(peer, frame)

    def bent(self, message: SignedMessage, body: Body) -> Body:
        """See SignsAnother."""
        if not isinstance(body, Commit):
            return body
        return replace(body, residual_after=blake3(body.residual_after).digest())


Keeps = Callable[[list[bytes], list[bytes]], list[bytes]]
"""Which COMMITs a LIST names, of the own ones and of those of others."""


class BendsLists(SignsAnother):
    """A closer that leaves senders out of each LIST that is its to propose, as somebody may who has
    not heard all HAVEs."""

    def __init__(self, name: str, keeps: Keeps) -> None:
        super().__init__()
        self.name = f"attack {name}"
        self._keeps = keeps
        self._own: list[bytes] = []

    def bent(self, message: SignedMessage, body: Body) -> Body:
        """See SignsAnother."""
        if isinstance(body, Commit):
            self._own = [*self._own, message.digest][-COMMITS_KEPT:]
        if not isinstance(body, List):
            return body
        own = [digest for digest in body.commits if digest in self._own]
        others = [digest for digest in body.commits if digest not in self._own]
        wanted = self._keeps(own, others)  # They ascend by sender, and are to stay so.
        return replace(body, commits=tuple(d for d in body.commits if d in wanted))


LISTS: dict[str, Keeps] = {
    "leaves_out": lambda own, others: [*own, *others[1:]],
    "lists_itself": lambda own, _: own,
    "lists_nobody": lambda *_: [],
}
"""All but a chosen one, the lowest of the others; the closer alone; nobody, so that the round is of
nobody's work."""


REPLAY_KEPT = 512
REPLAYED = 8
"""So many old messages go with each frame: it stays far below what a frame may have."""


class OldMessages(NodeHooks):
    """Replay: whatever this node passes on or says is kept, and sent again in later rounds, among
    what is new. The signatures are honest, but for another round."""

    name = "attack replay"
    bends_frames = True

    def __init__(self) -> None:
        self._kept = deque[SignedMessage](maxlen=REPLAY_KEPT)
        self._known = set[bytes]()
        self._round = 0

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """See NodeHooks."""
        if not isinstance(frame, Messages):
            return frame
        old = []
        for _ in range(min(REPLAYED, len(self._kept))):
            message = self._kept[0]
            self._kept.rotate(-1)
            if message.slot.round < self._round:
                old.append(message)
        for message in frame.messages:
            self._round = max(self._round, message.slot.round)
            if message.digest not in self._known:
                self._known.add(message.digest)
                self._kept.append(message)
        return Messages(messages=(*old, *frame.messages)[:256])
