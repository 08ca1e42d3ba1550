"""A lying node of this machine that tells the others of its kind what it made, by a file.

Each writes its honest work of a round and waits a moment for that of the others; then all send what
the attack makes of these. They see nothing of honest nodes, so they take their own work for it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from node.cells.shard_store import ShardStore
from node.hooks import NodeHooks
from node.state.folder import write_atomically
from protocol.identity import PeerId, Signer
from sim.attacks import ATTACKS
from sim.attacks.seam import Vector
from sim.attacks.together import Crafting
from sim.attacks.work import STANDS_BY_ITS_WORK

PATIENCE_S, LOOK_S = 2.0, 0.02
"""How long one waits for the others, and how often it looks. Before that a COMMIT is late."""

ROUNDS_KEPT = 4


class SharingLiar(NodeHooks):
    """One of `count` liars that share a folder."""

    def __init__(
        self, name: str, folder: Path, count: int, *, patience_s: float = PATIENCE_S
    ) -> None:
        self.name = f"attack {name}"
        self._crafting = Crafting(ATTACKS[name](blind=True))
        self._folder, self._count, self._patience_s = folder, count, patience_s
        self._me = PeerId(bytes(32))
        self._written: list[Path] = []

    @property
    def without(self) -> frozenset[str]:
        """See NodeHooks."""
        return STANDS_BY_ITS_WORK

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._me = signer.peer_id

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """What all of them send; in a worker thread, so waiting holds nothing else up."""
        own_N = store.decode(payloads, fragment=fragment)
        # Who begins from the same state is in the same round.
        place = f"{store.state.root.hex()[:32]}-{fragment}"
        self._write(place, own_N)
        until_s = time.monotonic() + self._patience_s
        made = self._read(place, len(own_N))
        while len(made) < self._count and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            made = self._read(place, len(own_N))
        made = {**made, self._me: own_N}
        sent = self._crafting.sent({}, made, store, fragment)
        return store.encode(sent[self._me], fragment=fragment)

    def _write(self, place: str, own_N: Vector) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{place}-{self._me.hex()}"
        write_atomically(path, own_N.astype("<f4").tobytes(), 0o600)
        self._written.append(path)
        for old in self._written[:-ROUNDS_KEPT]:
            old.unlink(missing_ok=True)
        self._written = self._written[-ROUNDS_KEPT:]

    def _read(self, place: str, numel: int) -> Mapping[PeerId, Vector]:
        found: dict[PeerId, Vector] = {}
        for path in self._folder.glob(f"{place}-*"):
            # One that was written atomically has another name until it is whole.
            with suppress(OSError, ValueError):
                vector_N = np.frombuffer(path.read_bytes(), dtype="<f4")
                if len(vector_N) == numel:
                    found[PeerId(bytes.fromhex(path.name.rpartition("-")[2]))] = vector_N
        return found
