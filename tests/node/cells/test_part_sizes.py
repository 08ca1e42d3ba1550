"""Which sizes a cell may have: checked before a byte of it is read."""

from dataclasses import replace

import numpy as np
import pytest

from node.holdings.shard_store import ShardStore
from node.plane import bulk
from protocol.errors import ProofError, StateError
from protocol.frames import Bulk, BulkHeader
from protocol.manifest import RunManifest, Setting
from tests.training.replicas import small_manifest
from training.compression import make_codec
from training.models.genesis import genesis_weights


def manifest_of(energy: float) -> RunManifest:
    manifest = small_manifest()
    settings = (Setting("energy", energy), Setting("rank", 8))
    outer = replace(manifest.outer, codec="lowrank", codec_settings=settings)
    return replace(manifest, outer=outer)


def store_of(manifest: RunManifest) -> ShardStore:
    return ShardStore(manifest, 0, genesis_weights(manifest)[0])


def header(kind: Bulk) -> BulkHeader:
    return BulkHeader(bulk=kind, subject=bytes(32), round=1, items=1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("energy", [0.9, 1.0])
def test_part_has_the_size_of_one_of_its_ranks_and_all_else_one_size(energy: float) -> None:
    store, spec = store_of(manifest_of(energy)), manifest_of(1.0).outer
    numel = store.layout.cell_numel(0, 0)
    ranks = range(1, 9) if energy < 1.0 else [8]
    sizes = {
        make_codec(
            replace(spec, codec_settings=(Setting("energy", 1.0), Setting("rank", rank)))
        ).payload_bytes(numel)
        for rank in ranks
    }
    for kind, expected in (
        (Bulk.PART, sizes),
        (Bulk.RESULT, {store.result_bytes(0)}),
        (Bulk.STATE, {store.state_bytes(0)}),
    ):
        for size in range(max(expected) + 10):
            if size in expected:
                bulk.check_size(store, header(kind), 0, size)
            else:
                with pytest.raises(ProofError, match="instead of"):
                    bulk.check_size(store, header(kind), 0, size)


def test_contribution_of_unequal_ranks_is_kept_and_one_that_fits_no_cell_is_not() -> None:
    store, codec = store_of(manifest_of(0.9)), make_codec(manifest_of(0.9).outer)
    first, last = store.layout.cell_numels[0]
    row_N = np.linspace(-1, 1, 64, dtype=np.float32)
    noise_N = np.random.default_rng(1).normal(size=last).astype(np.float32)
    payloads = [codec.encode(np.tile(row_N, first // 64)), codec.encode(noise_N)]
    assert len(payloads[0]) < codec.payload_bytes(first)
    store.contribute(payloads)
    assert len(store.decode(payloads)) == first + last
    for wrong in (payloads[:1], [*payloads, b""], [payloads[0] + b"0", payloads[1]]):
        with pytest.raises(StateError, match="does not fit the grid"):
            store.contribute(wrong)
