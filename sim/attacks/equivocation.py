"""Equivocation: one COMMIT for half of the peers, in the same slot another one for the others."""

from dataclasses import replace

from blake3 import blake3

from node.plane.hooks import NodeHooks
from protocol.frames import Frame, Messages
from protocol.identity import PeerId, Signer
from protocol.messages import Commit, SignedMessage, decode_body, sign_message
from sim.attacks.seam import Attack


class Equivocation(Attack):
    """The vectors are honest; what is said of them is not."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return TwoCommits()


class TwoCommits(NodeHooks):
    """Every second peer, in the order in which they are spoken to, hears another COMMIT.

    It names another residual, so nothing but the other COMMIT contradicts it.
    """

    name = "attack equivocation"
    bends_frames = True

    def __init__(self) -> None:
        self._signer: Signer | None = None
        self._peers: list[PeerId] = []

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._signer = signer

    def sent_frame(self, peer: PeerId, frame: Frame) -> Frame:
        """See NodeHooks."""
        if not isinstance(frame, Messages):
            return frame
        if peer not in self._peers:
            self._peers.append(peer)
        if self._peers.index(peer) % 2 == 0:
            return frame
        return Messages(messages=tuple(self._bent(message) for message in frame.messages))

    def _bent(self, message: SignedMessage) -> SignedMessage:
        signer, body = self._signer, decode_body(message)
        if signer is None or message.sender != signer.peer_id or not isinstance(body, Commit):
            return message
        other = replace(body, residual_after=blake3(body.residual_after).digest())
        return sign_message(signer, message.slot, other)
