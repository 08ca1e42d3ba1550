"""A real node that lies, in its contributions or in what it signs.

python -P -m sim.local.lying_node --attack scale [options of node.network_main]
python -P -m sim.local.lying_node --attack alie --shared FOLDER --liars 2 [options of the same]
python -P -m sim.local.lying_node --flood HAVE --while FILE [options of the same]
"""

import argparse
from pathlib import Path

from node.network_main import main as run_node
from node.plane.hooks import NodeHooks
from node.processes.interrupts import end_now
from protocol.core.node_core import NodeCore
from protocol.frames import Frame
from protocol.identity import PeerId
from sim.attacks.alone import TOGETHER, hooks_of, is_carried_out
from sim.attacks.flooding import FLOODS, Flood
from sim.local.sharing_liar import SharingLiar


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
