"""Every registered rule in a node's store: slices by whichever reducers, the bytes of the rule."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from node.cells.shard_store import ShardStore
from node.events import ListEntry
from protocol.identity import PeerId
from sim.toy_run import CELL_ELEMENTS, toy_run
from tests.sim.mixed import TIMING
from training.aggregation import AGGREGATORS

PEERS, CELLS = 5, 4


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_store_gives_the_bytes_of_the_rule_for_any_slices(name: str, seed: int) -> None:
    luck = np.random.default_rng(seed)
    peers = [PeerId(bytes([number]) * 32) for number in range(PEERS)]
    toy = toy_run(peers[0], rounds=1, cells=CELLS, timing=TIMING)
    manifest = replace(toy, outer=replace(toy.outer, aggregator=name, codec="none"))
    numel = manifest.layout(0).fragment_numels[0]
    store = ShardStore(manifest, 0, np.zeros(numel, dtype=np.float32))
    rows_PN = luck.normal(size=(PEERS, numel)).astype(np.float32)
    cuts = range(CELL_ELEMENTS, numel, CELL_ELEMENTS)
    entries = []
    for peer, row_N in zip(peers, rows_PN, strict=True):
        payloads = [cell_N.astype("<f4").tobytes() for cell_N in np.split(row_N, cuts)]
        root, _ = store.contribute(payloads)
        entries.append((ListEntry(peer, root, int(luck.integers(1, 1000))), root))
    weights_P = np.array([float(entry.tokens) for entry, _ in entries])
    cells = np.split(rows_PN, cuts, axis=1)
    wanted = [AGGREGATORS[name]()(cell_PN, weights_P).value.tobytes() for cell_PN in cells]
    for digest, bounds in ((bytes(32), (0, 4)), (b"\1" * 32, (0, 1, 3, 4))):
        for first, stop in pairwise(bounds):
            store.reduce(digest, entries, first=first, stop=stop)
        assert store.whole_result(digest) == wanted
