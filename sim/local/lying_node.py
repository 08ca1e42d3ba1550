"""A real node that lies, in its contributions or in what it signs.

python -P -m sim.local.lying_node --attack scale [options of node.network_main]
python -P -m sim.local.lying_node --attack alie --shared FOLDER --liars 2 [options of the same]
python -P -m sim.local.lying_node --flood HAVE --while FILE [options of the same]

Those who lie together tell each other by a file what they made: each writes its honest work of a
round and waits a moment for that of the others; then all send what the attack makes of these. They
see nothing of honest nodes, so they take their own work for it.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from node.holdings.shard_store import ShardStore
from node.network_main import main as run_node
from node.plane.hooks import NodeHooks
from node.processes.interrupts import end_now
from node.state.folder import write_atomically
from protocol.core.node_core import NodeCore
from protocol.frames import Frame
from protocol.identity import PeerId, Signer
from sim.attacks import ATTACKS
from sim.attacks.alone import TOGETHER, Crafting, hooks_of, is_carried_out
from sim.attacks.flooding import FLOODS, Flood
from sim.attacks.seam import Vector
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


def main() -> int:
    """Entry point; the exit status of the node."""
    parser = argparse.ArgumentParser(prog="sim.local.lying_node", description=__doc__)
    lies = parser.add_mutually_exclusive_group(required=True)
    lies.add_argument("--attack", help="name of an attack or an act in `sim.attacks`")
    lies.add_argument(
        "--flood",
        choices=FLOODS,
        help="kind of message that the node sends as fast as others accept it",
    )
    parser.add_argument("--while", type=Path, dest="sign", help="flood only while this file exists")
    parser.add_argument(
        "--shared", type=Path, help="file shared by the attackers that work together"
    )
    parser.add_argument(
        "--liars", type=int, default=1, help="number of attackers that work together"
    )
    own, words = parser.parse_known_args()
    if own.flood is None and not is_carried_out(own.attack):
        parser.error(f"--attack {own.attack} is none that nodes can carry out")
    if own.attack in TOGETHER and own.shared is None:
        parser.error(f"--attack {own.attack} takes --shared")
    return run_node(words, _bent(own))


def _bent(own: argparse.Namespace) -> NodeHooks:
    if own.attack in TOGETHER:
        return SharingLiar(own.attack, own.shared, own.liars)
    if own.flood:
        return Flood(own.flood) if own.sign is None else FloodWhile(own.flood, own.sign)
    return hooks_of(own.attack)


class FloodWhile(Flood):
    """It floods while a file is there."""

    def __init__(self, kind: str, sign: Path) -> None:
        super().__init__(kind)
        self._sign = sign

    def flood(self, core: NodeCore, to: PeerId) -> Frame | None:
        """See NodeHooks."""
        self.is_on = self._sign.exists()
        return super().flood(core, to)


if __name__ == "__main__":
    end_now(main())
