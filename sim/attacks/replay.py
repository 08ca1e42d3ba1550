"""Replay: what others signed in earlier rounds is said again, among what is new."""

from collections import deque

from node.plane.hooks import NodeHooks
from protocol.frames import Frame, Messages
from protocol.identity import PeerId
from protocol.messages import SignedMessage
from sim.attacks.seam import Attack

KEPT = 512
AGAIN = 8
"""So many old messages go with each frame: it stays far below what a frame may have."""


class Replay(Attack):
    """The vectors are honest; the signatures are, too, but for another round."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return OldMessages()


class OldMessages(NodeHooks):
    """Whatever this node passes on or says is kept, and sent again in later rounds."""

    name = "attack replay"
    bends_frames = True

    def __init__(self) -> None:
        self._kept = deque[SignedMessage](maxlen=KEPT)
        self._known = set[bytes]()
        self._round = 0

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """See NodeHooks."""
        del peer
        if not isinstance(frame, Messages):
            return frame
        old = []
        for _ in range(min(AGAIN, len(self._kept))):
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
