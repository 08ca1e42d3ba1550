"""A real node that lies, in its contributions or in what it signs.

python -P -m sim.local.lying_node --attack scale [options of node.network_main]
"""

import argparse

from node.network_main import main as run_node
from node.processes.interrupts import end_now
from sim.attacks.alone import ALONE, hooks_of


def main() -> int:
    """Entry point; the exit status of the node."""
    parser = argparse.ArgumentParser(prog="sim.local.lying_node", description=__doc__)
    parser.add_argument("--attack", choices=ALONE, required=True)
    own, words = parser.parse_known_args()
    return run_node(words, hooks_of(own.attack))


if __name__ == "__main__":
    end_now(main())
