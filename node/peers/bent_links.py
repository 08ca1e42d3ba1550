"""The links of a node whose hooks bend its frames: a liar in a test, never a volunteer's node."""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

import trio

from node.peers.links import Links
from node.plane.hooks import NodeHooks
from protocol.core.node_core import NodeCore
from protocol.frames import Frame, encode_frame
from protocol.identity import PeerId

FLOOD_BYTES_PER_S = 10e6
"""What a flood offers at most, to all peers together."""

LOOK_S = 0.05
"""How often it looks for somebody to flood."""


@dataclass(slots=True, kw_only=True)
class BentLinks(Links):
    """Each peer gets what the hooks have for it, when they have it."""

    core: NodeCore
    hooks: NodeHooks = field(default_factory=NodeHooks)
    _held: list[tuple[float, int, PeerId, Frame]] = field(default_factory=list, init=False)
    """A heap of what is held back, by when it goes."""
    _num_held: int = field(default=0, init=False)
    _is_sooner: trio.Event = field(default_factory=trio.Event, init=False)

    def send_all(self, peers: tuple[PeerId, ...], frame: Frame) -> None:
        """See Links."""
        for peer in peers:
            for after_s, bent in self.hooks.outgoing(peer, frame):
                if after_s:
                    self._hold(trio.current_time() + after_s, peer, bent)
                else:
                    Links.send_all(self, (peer,), bent)

    async def run(self) -> None:
        """See Links; let go what is held back, and flood, where the hooks do."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Links.run, self)
            nursery.start_soon(self._let_go)
            if self.hooks.floods:
                nursery.start_soon(self._flood)

    def _hold(self, at_s: float, peer: PeerId, frame: Frame) -> None:
        self._num_held += 1
        heappush(self._held, (at_s, self._num_held, peer, frame))
        self._is_sooner.set()

    async def _let_go(self) -> None:
        while True:
            while self._held and self._held[0][0] <= trio.current_time():
                _, _, peer, frame = heappop(self._held)
                Links.send_all(self, (peer,), frame)
            self._is_sooner = trio.Event()
            with trio.move_on_at(self._held[0][0] if self._held else inf):
                await self._is_sooner.wait()

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
