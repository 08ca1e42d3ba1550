"""A real node that lies: its trainer's honest work is exchanged for what an attack makes of it.

    python -P -m sim.local.lying_node --attack scale [options of node.network_main]

It signs as the protocol asks, so that nothing convicts it. It sees its own work alone: what others
contribute is not known before everybody has committed.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from node.cells.shard_store import ShardStore
from node.hooks import NodeHooks
from node.network_main import main as run_node
from node.processes.interrupts import end_now
from protocol import limits
from sim.attacks import ATTACKS, Context
from sim.attacks.seam import Vector

ALONE = (
    "constant_direction",
    "gaussian",
    "on_off",
    "scale",
    "shift",
    "sign_flip",
    "slow_drift",
    "stale",
    "targeted_slice",
    "zero",
)
"""Attacks that need no vector of others, and no other data. `nan` is no contribution: a node that
makes one ends."""

HISTORY_MAX = 16
_SHARE_OF_MOST = 0.5


class Liar(NodeHooks):
    """Bends every contribution by an attack."""

    def __init__(self, attack: str) -> None:
        self.name = f"attack {attack}"
        self._attack = ATTACKS[attack](blind=True)
        self._luck = np.random.default_rng(0)
        self._history: list[Vector] = []
        self._round = 0

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """What the attack makes of the own work."""
        own_1N = store.decode(payloads, fragment=fragment)[None]
        layout = store.layout
        cells = range(layout.num_cells(fragment))
        context = Context(
            round=self._round,
            luck=self._luck,
            rule=lambda rows_PN: rows_PN[0],
            slices=tuple(slice(*layout.cell_range(fragment, cell)) for cell in cells),
            history=self._history,
        )
        self._round += 1
        sent_N = self._attack.send(own_1N, own_1N, context)[0]
        self._history = [*self._history, own_1N][-HISTORY_MAX:]
        return store.encode(_bounded(sent_N), fragment=fragment)


def _bounded(sent_N: Vector) -> Vector:
    """No longer than a COMMIT may say, or nobody would take it."""
    most = np.float32(_SHARE_OF_MOST * limits.CELL_NORM_MAX / np.sqrt(len(sent_N)))
    bounded_N: Vector = np.clip(np.nan_to_num(sent_N), -most, most)
    return bounded_N


def main() -> int:
    """Entry point; the exit status of the node."""
    parser = argparse.ArgumentParser(prog="sim.local.lying_node", description=__doc__)
    parser.add_argument("--attack", choices=ALONE, required=True)
    own, words = parser.parse_known_args()
    return run_node(words, Liar(own.attack))


if __name__ == "__main__":
    end_now(main())
