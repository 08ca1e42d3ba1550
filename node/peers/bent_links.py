"""The links of a node whose hooks bend its frames: a liar in a test, never a volunteer's node."""

from dataclasses import dataclass, field

from node.hooks import NodeHooks
from node.peers.links import Links
from protocol.frames import Frame
from protocol.identity import PeerId


@dataclass(slots=True)
class BentLinks(Links):
    """Each peer gets what the hooks have for it."""

    hooks: NodeHooks = field(default_factory=NodeHooks)

    def send_all(self, peers: tuple[PeerId, ...], frame: Frame) -> None:
        """See Links."""
        for peer in peers:
            Links.send_all(self, (peer,), self.hooks.sent_frame(peer, frame))
