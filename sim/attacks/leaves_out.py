"""A closer that leaves senders out of each LIST that is its to propose: a chosen one, the lowest of
the others, or all others, so that it sums itself alone.

It proposes such a LIST as somebody may who has not heard all HAVEs.
"""

from dataclasses import replace

from node.hooks import NodeHooks
from protocol.frames import Frame, Messages
from protocol.identity import PeerId, Signer
from protocol.messages import Commit, List, SignedMessage, decode_body, sign_message
from sim.attacks.seam import Attack

COMMITS_KEPT = 8


class LeavesOut(Attack):
    """The vectors are honest; whose are summed is not."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return BendsLists(is_all=False)


class ListsItself(Attack):
    """It is all that is summed in its turns."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return BendsLists(is_all=True)


class BendsLists(NodeHooks):
    """Every own LIST goes out without the COMMIT of the chosen one, or without all but the own."""

    bends_frames = True

    def __init__(self, *, is_all: bool) -> None:
        self.name = "attack lists_itself" if is_all else "attack leaves_out"
        self._is_all = is_all
        self._signer: Signer | None = None
        self._own: list[bytes] = []

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._signer = signer

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """See NodeHooks."""
        del peer
        if not isinstance(frame, Messages):
            return frame
        return Messages(messages=tuple(self._bent(message) for message in frame.messages))

    def _bent(self, message: SignedMessage) -> SignedMessage:
        signer, body = self._signer, decode_body(message)
        if signer is None or message.sender != signer.peer_id:
            return message
        if isinstance(body, Commit):
            self._own = [*self._own, message.digest][-COMMITS_KEPT:]
        if not isinstance(body, List):
            return message
        others = [digest for digest in body.commits if digest not in self._own]
        left_out = others if self._is_all else others[:1]  # They ascend by sender.
        kept = tuple(digest for digest in body.commits if digest not in left_out)
        return sign_message(signer, message.slot, replace(body, commits=kept))
