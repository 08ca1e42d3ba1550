"""I8: the seeds of the nodes' keys are in nothing that they say or store.

In worlds that is also in no frame that leaves, and in no byte on a disk.
"""

import base64
from collections.abc import Iterator

import base58

from node.reporting.tracing import Accused, Adopted, Began, Diverged, Ended, Record, Signed, Synced
from protocol import events as ev
from protocol.frames import Frame, encode_frame
from protocol.identity import Ed25519Signer, PeerId
from sim.checks.history import Check, History, Kinds
from sim.world.world import SimNode, World


class Needles:
    """One key seed of 32 bytes in every form in which it may be written down."""

    def __init__(self, seed: bytes) -> None:
        self._forms: tuple[tuple[str, bytes], ...] = (
            ("as it is", seed),
            ("in hex", seed.hex().encode()),
            ("in hex", seed.hex().upper().encode()),
            ("in base58", base58.b58encode(seed)),
            *(("in base64", form) for form in _base64_forms(seed)),
        )

    def find(self, data: bytes) -> str | None:
        """In which form the seed is in `data`; None if in none."""
        return next((how for how, form in self._forms if form in data), None)


def _base64_forms(seed: bytes) -> Iterator[bytes]:
    """Both alphabets, at every place that it can have within a longer text."""
    for encode_base64 in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            text = encode_base64(bytes(before) + seed)
            # The first and the last characters hold bits of what stands around it.
            first = -(-8 * before // 6)
            yield text[first : (before + len(seed)) * 8 // 6]


class Leaks(Check):
    """I8 over records: of nodes whose seeds were told with `expect`."""

    name = "I8"
    kinds: Kinds = (Began, Signed, Adopted, Synced, Accused, Diverged, Ended)

    def __init__(self, history: History) -> None:
        self._history = history
        self._needles: dict[PeerId, Needles] = {}

    def expect(self, peer: PeerId, seed: bytes) -> Needles:
        """From now on this node must not tell its seed."""
        if peer not in self._needles:
            self._needles[peer] = Needles(seed)
        return self._needles[peer]

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        needles = self._needles.get(record.peer)
        if needles is not None:
            how = needles.find(_said(record))
            if how is not None:
                yield f"its key's seed, {how}, is in a record: {type(record).__name__}"


def _said(record: Record) -> bytes:
    match record:
        case Signed(message=message):
            return message.encoded
        case Began(head=certificate) | Adopted(certificate=certificate):
            return certificate.encoded
        case Synced(certificate=certificate):
            return certificate.encoded
        case Accused(reason=reason) | Diverged(reason=reason) | Ended(reason=reason):
            return reason.encode()
        case _:
            return b""


# In worlds ----------------------------------------------------------------------------------------

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
