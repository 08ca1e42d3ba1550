"""The links of a node whose hooks bend its frames: a liar in a test, never a volunteer's node."""

from dataclasses import dataclass, field

import trio

from node.core import NodeCore
from node.hooks import NodeHooks
from node.peers.links import Links
from protocol.frames import Frame, encode_frame
from protocol.identity import PeerId

FLOOD_BYTES_PER_S = 10e6
"""What a flood offers at most, to all peers together."""

LOOK_S = 0.05
"""How often it looks for somebody to flood."""


@dataclass(slots=True, kw_only=True)
class BentLinks(Links):
    """Each peer gets what the hooks have for it."""

    core: NodeCore
    hooks: NodeHooks = field(default_factory=NodeHooks)

    def send_all(self, peers: tuple[PeerId, ...], frame: Frame) -> None:
        """See Links."""
        for peer in peers:
            Links.send_all(self, (peer,), self.hooks.sent_frame(peer, frame))

    async def run(self) -> None:
        """See Links; and flood, where the hooks do."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Links.run, self)
            if self.hooks.floods:
                nursery.start_soon(self._flood)

    async def _flood(self) -> None:
        """Offer frames to all who are linked, as fast as they take them."""
        due_s = trio.current_time()
        while True:
            num_bytes = 0
            for peer in self.linked():
                queue = self._queues.get(peer)
                frame = self.hooks.flood(self.core, peer)
                if queue is None or frame is None:
                    continue
                data = encode_frame(frame)
                try:
                    with trio.move_on_after(LOOK_S):
                        await queue.send(data)
                        num_bytes += len(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    continue  # That link is over.
            due_s = max(due_s, trio.current_time()) + num_bytes / FLOOD_BYTES_PER_S
            await trio.sleep_until(due_s if num_bytes else due_s + LOOK_S)
