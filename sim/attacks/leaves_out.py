"""A closer that leaves senders out of each LIST that is its to propose: a chosen one, the lowest of
the others; all others, so that it sums itself alone; or all, so that the round is of nobody's work.

It proposes such a LIST as somebody may who has not heard all HAVEs.
"""

from collections.abc import Callable
from dataclasses import replace

from node.plane.hooks import NodeHooks
from protocol.frames import Frame, Messages
from protocol.identity import PeerId, Signer
from protocol.messages import Commit, List, SignedMessage, decode_body, sign_message
from sim.attacks.seam import Attack

COMMITS_KEPT = 8


class LeavesOut(Attack):
    """The vectors are honest; whose are summed is not."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return BendsLists("leaves_out", lambda own, others: [*own, *others[1:]])


class ListsItself(Attack):
    """It is all that is summed in its turns."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return BendsLists("lists_itself", lambda own, _: own)


class ListsNobody(Attack):
    """Nothing is summed in its turns."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return BendsLists("lists_nobody", lambda *_: [])


class BendsLists(NodeHooks):
    """Every own LIST goes out with the COMMITs that are kept of the own and of those of others."""

    bends_frames = True

    def __init__(self, name: str, keeps: Callable[[list[bytes], list[bytes]], list[bytes]]) -> None:
        self.name = f"attack {name}"
        self._keeps = keeps
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
        own = [digest for digest in body.commits if digest in self._own]
        others = [digest for digest in body.commits if digest not in self._own]
        wanted = self._keeps(own, others)  # They ascend by sender, and are to stay so.
        kept = tuple(digest for digest in body.commits if digest in wanted)
        return sign_message(signer, message.slot, replace(body, commits=kept))
