"""I8 in worlds: no frame that leaves and no byte on a disk holds the seed of its node's key."""

from collections.abc import Iterator

from protocol import events as ev
from protocol.frames import Frame, encode_frame
from protocol.identity import Ed25519Signer, PeerId
from sim.checks.leaks import Leaks, Needles
from sim.world.world import SimNode, World

EVERY = 32
"""One frame in so many of its type is searched, and the first ones of each type all."""

FIRST = 4


class LeavingCheck:
    """I8 over the nodes of a world that sign for real; nothing is secret in the others."""

    def __init__(self, leaks: Leaks, world: World) -> None:
        self._leaks = leaks
        self._world = world
        self._needles: dict[PeerId, Needles] = {}
        self._counts: dict[tuple[PeerId, type[Frame]], int] = {}
        self.num_searched = 0

    def began(self, node: SimNode) -> Iterator[str]:
        """A process started: what is its secret, and is it on its disk?"""
        signer = node.core.signer
        if isinstance(signer, Ed25519Signer):
            self._needles[node.peer] = self._leaks.expect(node.peer, signer.seed)
            yield from self._search_disk(node)

    def asked(self, node: SimNode, action: ev.CoreAction | None) -> Iterator[str]:
        """Before an action: whether a frame that leaves tells the seed."""
        needles = self._needles.get(node.peer)
        if needles is None or not isinstance(action, ev.Send | ev.SendAll):
            return
        key = (node.peer, type(action.frame))
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= FIRST or count % EVERY == 0:
            self.num_searched += 1
            how = needles.find(encode_frame(action.frame))
            if how is not None:
                yield f"its key's seed, {how}, leaves in a frame: {type(action.frame).__name__}"

    def finish(self) -> Iterator[str]:
        """At the end, all disks."""
        for _, node in sorted(self._world.nodes.items()):
            yield from self._search_disk(node)

    def _search_disk(self, node: SimNode) -> Iterator[str]:
        needles = self._needles.get(node.peer)
        if needles is None:
            return
        for name, data in sorted(node.disk.image().items()):
            how = None if data is None else needles.find(data)
            if how is not None:
                yield f"its key's seed, {how}, is on its disk: {name}"
