"""Every registered rule in a node's store: slices by whichever reducers, the bytes of the rule."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from node.holdings.shard_store import ShardStore
from protocol.events import ListEntry
from protocol.gram_wire import from_wire
from protocol.identity import PeerId
from sim.world.toy_run import CELL_ELEMENTS, toy_run
from tests.sim.mixed import TIMING
from training.aggregation import AGGREGATORS, coefficients_of
from training.aggregation import gram_rules as clipping
from training.numeric import gram
from training.numeric.gram import wire_form

PEERS, CELLS = 6, 4


class Filled:
    """A store with the contributions of all peers, as of a LIST that names them all."""

    def __init__(self, name: str, seed: int) -> None:
        luck = np.random.default_rng(seed)
        peers = [PeerId(bytes([number]) * 32) for number in range(PEERS)]
        toy = toy_run(peers[0], rounds=1, cells=CELLS, timing=TIMING)
        manifest = replace(toy, outer=replace(toy.outer, aggregator=name, codec="none"))
        numel = manifest.layout(0).fragment_numels[0]
        self.rule = AGGREGATORS[name](cell_elements=CELL_ELEMENTS)
        self.store = ShardStore(manifest, 0, np.zeros(numel, dtype=np.float32))
        self.rows_PN = luck.normal(size=(PEERS, numel)).astype(np.float32)
        # Of two liars one is long everywhere, and one in one cell.
        self.rows_PN[1] *= 30.0
        self.rows_PN[4, :CELL_ELEMENTS] *= 30.0
        self.entries = []
        for peer, row_N in zip(peers, self.rows_PN, strict=True):
            cells = np.split(row_N, range(CELL_ELEMENTS, numel, CELL_ELEMENTS))
            root, _ = self.store.contribute([cell_N.astype("<f4").tobytes() for cell_N in cells])
            self.entries.append((ListEntry(peer, root, int(luck.integers(1, 1000))), root))
        self.weights_P = np.array([float(entry.weight) for entry, _ in self.entries])

    def measured(self, bounds: tuple[int, ...]) -> list[bytes]:
        if not self.rule.uses_stats:
            return []
        spans = pairwise(bounds)
        return [self.store.measure(self.entries, first=a, stop=b) for a, b in spans]

    def reduced(self, digest: bytes, bounds: tuple[int, ...], grams: list[bytes]) -> bytes:
        for first, stop in pairwise(bounds):
            self.store.reduce(digest, self.entries, first=first, stop=stop, grams=grams)
        return b"".join(self.store.result_cells(digest))


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_store_gives_the_bytes_of_the_rule_over_whole_vectors_for_any_slices(
    name: str, seed: int
) -> None:
    filled = Filled(name, seed)
    rule, rows_PN = filled.rule, filled.rows_PN
    for number, bounds in enumerate([(0, 4), (0, 1, 3, 4), (0, 2, 4)]):
        grams = filled.measured(bounds)
        found = filled.reduced(bytes([number]) * 32, bounds, grams)
        wanted = rule.combine(rows_PN, coefficients_of(rule, grams, filled.weights_P))
        assert found == wanted.tobytes()
        if len(bounds) == 2 and rule.uses_stats:
            assert grams == [wire_form(rule.stats(rows_PN), PEERS)]
        # What is rounded once for each slice differs in no weight that one could measure.
        exact_N = rule(rows_PN, filled.weights_P).value
        assert np.allclose(wanted, exact_N, rtol=1e-5, atol=1e-6)


def test_what_was_measured_is_used_again_of_the_very_same_contributions_only(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = Filled("default", seed)
    grams = filled.measured((0, 4))
    # Another list is measured last, one contribution shorter: other rows in the same places.
    filled.store.measure(filled.entries[1:], first=0, stop=4)
    found = filled.reduced(bytes(32), (0, 4), grams)
    wanted = filled.rule.combine(
        filled.rows_PN, coefficients_of(filled.rule, grams, filled.weights_P)
    )
    assert found == wanted.tobytes()
    filled.measured((0, 4))
    monkeypatch.delattr(clipping, "cell_squares")
    assert filled.reduced(bytes([1]) * 32, (0, 4), grams) == found


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_made_up_gram_matrix_gives_finite_numbers_and_no_error(name: str, seed: int) -> None:
    filled, luck = Filled(name, seed), np.random.default_rng(seed)
    bounds = (0, 2, 4)
    grams = filled.measured(bounds)
    for number in range(12):
        made_up_PP = luck.normal(size=(PEERS, PEERS))
        sizes_P = 10.0 ** luck.uniform(-60, 80, size=PEERS) * (luck.random(PEERS) < 0.8)
        made_up_PP = np.clip(made_up_PP + made_up_PP.T, -1.0, 1.0)
        np.fill_diagonal(made_up_PP, 1.0)
        made_up_PP *= np.sqrt(sizes_P)[:, None] * np.sqrt(sizes_P)
        form = made_up_PP[np.triu_indices(PEERS)].astype("<f8").tobytes()
        from_wire(form)  # Nobody is told that it is made up.
        lies = [form, *grams[1:]] if grams else []
        found = filled.reduced(bytes([number]) * 32, bounds, lies)
        assert np.isfinite(np.frombuffer(found, dtype="<f4")).all()


def test_gram_matrix_of_other_rows_leads_to_nothing(seed: int) -> None:
    filled = Filled("krum", seed)
    other = wire_form(gram.gram_stats(filled.rows_PN[:3], CELL_ELEMENTS), 3)
    for grams in ([other], [other, *filled.measured((0, 4))]):
        found = filled.reduced(bytes([len(grams)]) * 32, (0, 4), grams)
        assert not np.frombuffer(found, dtype="<f4").any()
