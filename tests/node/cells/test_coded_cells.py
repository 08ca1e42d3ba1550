"""A store of large 8-bit cells, which are summed and stepped as codes: the bits of decoded ones."""

from dataclasses import replace

import numpy as np
import pytest

from node.holdings.shard_store import ShardStore
from protocol.events import ListEntry
from protocol.grid import ShardSpec, TensorSpec
from protocol.identity import PeerId
from tests.node.edge import toy_manifest
from tests.training.test_kernels import compiled, numpy_alone
from training.compression import CODECS
from training.compression.blocks import Int8Codec
from training.outer.optimizers import Nesterov

CELL = 1 << 15
NUMEL = 3 * CELL + 1500
PEERS, ROUNDS = 5, 2


def store_of(aggregator: str, optimizer: str) -> ShardStore:
    toy = toy_manifest()
    shard = ShardSpec("model", (TensorSpec("w", (NUMEL,)),), ((0,),))
    outer = replace(toy.outer, codec="int8", aggregator=aggregator, optimizer=optimizer)
    outer = replace(outer, momentum=0.5 if optimizer == "nesterov" else 0.0)
    manifest = replace(toy, shards=(shard,), cell_elements=CELL, outer=outer)
    store = ShardStore(manifest, 0, np.ones(NUMEL, dtype=np.float32))
    store.step_over_bytes_min = 0  # Each step is taken twice, as that of a large state is.
    return store


def play(store: ShardStore, seed: int) -> list[object]:
    """Some rounds: all norms, all bytes of the results, the states."""
    luck = np.random.default_rng(seed)
    found: list[object] = []
    cells = store.layout.num_cells(0)
    for index in range(1, ROUNDS + 1):
        digest, entries = bytes([index]) * 32, []
        for number in range(PEERS):
            x_N = luck.standard_normal(NUMEL).astype(np.float32) * np.float32(1 + 9 * (number == 2))
            root, norms = store.contribute(store.encode(x_N))
            tokens = int(luck.integers(1, 1000))
            entries.append((ListEntry(PeerId(bytes([number]) * 32), root, tokens), root))
            found.append(norms)
        spans = [(0, 1), (1, cells)]
        grams = []
        if store.aggregator.uses_stats:
            grams = [store.measure(entries, first=first, stop=stop) for first, stop in spans]
        for first, stop in spans:
            store.reduce(digest, entries, first=first, stop=stop, grams=grams)
        step_on = range(cells) if index % 2 else []
        store.step_ahead(digest, step_on, round_index=index, base=store.state.root)
        found.extend(store.result_cells(digest))
        found.append(store.apply(digest, is_empty=False, round_index=index))
        store.adopt(digest)
        assert store.state.root == found[-1]
        found.append(store.state.anchor_N.tobytes())
    return found


@pytest.mark.quick(3)
@compiled
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "sign"])
@pytest.mark.parametrize("aggregator", ["mean", "default", "krum", "trimmed_mean"])
def test_rounds_of_codes_have_the_bits_of_rounds_of_numbers(
    aggregator: str, optimizer: str, seed: int
) -> None:
    found = play(store_of(aggregator, optimizer), seed)
    with numpy_alone():
        assert play(store_of(aggregator, optimizer), seed) == found


@compiled
@pytest.mark.parametrize("aggregator", ["mean", "default"])
def test_nothing_that_may_stay_coded_is_decoded(
    aggregator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last cell, which is short and has no whole blocks, it is."""
    decoded: list[int] = []
    stepped: list[int] = []
    restore, step = Int8Codec._restored, Nesterov.step

    def counts(self, head_BF, packed, x_N):
        decoded.append(len(x_N))
        return restore(self, head_BF, packed, x_N)

    def counts_steps(self, anchor_N, aggregate_N, info, out=None):
        stepped.append(len(anchor_N))
        return step(self, anchor_N, aggregate_N, info, out)

    store = store_of(aggregator, "nesterov")
    entries, digest = [], bytes(32)
    for number in range(PEERS):
        root, _ = store.contribute(store.encode(np.full(NUMEL, number + 1, dtype=np.float32)))
        entries.append((ListEntry(PeerId(bytes([number]) * 32), root, 1), root))
    grams = [store.measure(entries, first=0, stop=4)] if store.aggregator.uses_stats else []
    monkeypatch.setattr(Int8Codec, "_restored", counts)
    monkeypatch.setattr(Nesterov, "step", counts_steps)
    store.contribute(store.encode(np.ones(NUMEL, dtype=np.float32)))
    store.reduce(digest, entries, first=0, stop=4, grams=grams)
    store.step_ahead(digest, range(4), round_index=1, base=store.state.root)
    store.apply(digest, is_empty=False, round_index=1)
    store.adopt(digest)
    assert set(decoded) == {1500}
    assert set(stepped) <= {1500}


def test_decoding_is_what_numbers_of_a_contribution_are_read_by(seed: int) -> None:
    store = store_of("mean", "sgd")
    x_N = np.random.default_rng(seed).standard_normal(NUMEL).astype(np.float32)
    _, norms = store.contribute(store.encode(x_N))
    codec = CODECS["int8"]()
    cells = [x_N[start : start + CELL] for start in range(0, NUMEL, CELL)]
    decoded = [codec.decode(codec.encode(cell_N), len(cell_N)) for cell_N in cells]
    expected = [np.linalg.norm(cell_N.astype(np.float64)) for cell_N in decoded]
    assert norms == pytest.approx(expected, rel=1e-12)
