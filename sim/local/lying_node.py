"""A real node that lies, in its contributions or in what it signs.

python -P -m sim.local.lying_node --attack scale [options of node.network_main]
python -P -m sim.local.lying_node --attack alie --shared FOLDER --liars 2 [options of the same]
python -P -m sim.local.lying_node --flood HAVE [options of the same]
"""

import argparse
from pathlib import Path

from node.hooks import NodeHooks
from node.network_main import main as run_node
from node.processes.interrupts import end_now
from sim.attacks.alone import ALONE, TOGETHER, hooks_of
from sim.attacks.flooding import FLOODS, Flood
from sim.local.sharing_liar import SharingLiar


def main() -> int:
    """Entry point; the exit status of the node."""
    parser = argparse.ArgumentParser(prog="sim.local.lying_node", description=__doc__)
    lies = parser.add_mutually_exclusive_group(required=True)
    lies.add_argument("--attack", choices=(*ALONE, *TOGETHER))
    lies.add_argument("--flood", choices=FLOODS, help="what it says as fast as others take it")
    parser.add_argument("--shared", type=Path, help="of those who lie together")
    parser.add_argument("--liars", type=int, default=1, help="how many lie together")
    own, words = parser.parse_known_args()
    if own.attack in TOGETHER and own.shared is None:
        parser.error(f"--attack {own.attack} takes --shared")
    return run_node(words, _bent(own))


def _bent(own: argparse.Namespace) -> NodeHooks:
    if own.attack in TOGETHER:
        return SharingLiar(own.attack, own.shared, own.liars)
    return Flood(own.flood) if own.flood else hooks_of(own.attack)


if __name__ == "__main__":
    end_now(main())
