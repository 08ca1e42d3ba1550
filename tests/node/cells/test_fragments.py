"""R5: a round is about one fragment; the state is of all of them, under one root."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from node.holdings.checkpoints import Checkpoints, stored_states
from node.holdings.shard_store import ShardStore
from node.plane.served import checkpoint_finder
from protocol.errors import DecodeError, ProofError, StateError
from protocol.events import ListEntry
from protocol.grid import merkle_root
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from protocol.rounds.chain import genesis
from sim.world.toy_run import toy_run
from tests.node.builders import peers_named, toy_manifest

PEERS = peers_named(2)
CELLS = (3, 1, 2)
ROUNDS = 8


def manifest_of(cells: tuple[int, ...], **outer) -> RunManifest:
    timing = toy_manifest(PEERS[0]).timing
    manifest = toy_run(PEERS[0], rounds=5, cells=cells, timing=timing)
    return replace(manifest, outer=replace(manifest.outer, **outer))


MANIFEST = manifest_of(CELLS)
LAYOUT = MANIFEST.layout(0)


def vector(name: str, numel: int, scale: float = 1.0) -> np.ndarray:
    generator = np.random.default_rng(random.Random(name).getrandbits(64))
    return (scale * generator.standard_normal(numel)).astype(np.float32)


def store_of(manifest: RunManifest = MANIFEST) -> ShardStore:
    return ShardStore(manifest, 0, vector("anchor", manifest.layout(0).numel))


def list_of(index: int) -> bytes:
    return bytes([index]) * 32


def play(store: ShardStore, index: int, fragment: int) -> bytes:
    """A round of two contributions to that fragment; the root that its outer step gives."""
    numel, entries = store.layout.fragment_numels[fragment], []
    for number, peer in enumerate(PEERS):
        x_N = vector(f"{index}/{number}", numel, 0.01)
        payloads = store.encode(x_N, fragment=fragment)
        root, norms = store.contribute(payloads, fragment=fragment)
        assert len(norms) == len(payloads) == store.layout.num_cells(fragment)
        entries.append((ListEntry(peer, bytes([number]) * 32, 10 + number), root))
    count = store.layout.num_cells(fragment)
    store.reduce(list_of(index), entries, first=0, stop=count, fragment=fragment)
    root = store.apply(list_of(index), is_empty=False, round_index=index)
    store.adopt(list_of(index))
    return root


@pytest.mark.parametrize("optimizer", ["nesterov", "sgd"])
@pytest.mark.parametrize("codec", ["fp16", "int4"])
def test_each_fragment_goes_on_as_if_it_were_a_run_of_its_own(optimizer, codec):
    """E5: the same bits as in runs over that fragment alone, each in its own rounds only."""
    settings = {"optimizer": optimizer, "codec": codec}
    if optimizer == "sgd":
        settings["momentum"] = 0.0
    manifest = manifest_of(CELLS, **settings)
    store, layout = store_of(manifest), manifest.layout(0)
    alone = []
    for fragment, (tensor,) in enumerate(manifest.shards[0].fragments):
        shard = replace(
            manifest.shards[0],
            tensors=(manifest.shards[0].tensors[tensor],),
            fragments=((0,),),
        )
        anchor_N = store.state.anchor_N[layout.fragment_span(fragment)].copy()
        alone.append(ShardStore(replace(manifest, shards=(shard,)), 0, anchor_N))
    for index in range(1, ROUNDS):
        fragment = index % len(CELLS)
        before = store.state
        root = play(store, index, fragment)
        play(alone[fragment], index, 0)
        assert root == store.state.root == store.make_state(*parts(store)).root != before.root
        assert root == merkle_root([merkle_root(roots) for roots in store.state.cell_roots])
        for other, one in enumerate(alone):
            span = layout.fragment_span(other)
            assert np.array_equal(store.state.anchor_N[span], one.state.anchor_N)
            for name, slot_N in store.state.slots.items():
                assert np.array_equal(slot_N[span], one.state.slots[name])
            is_same = store.state.cell_roots[other] == before.cell_roots[other]
            assert is_same == (other != fragment)


def parts(store: ShardStore):
    return store.state.anchor_N, store.state.slots


def test_step_taken_ahead_leaves_the_other_fragments_as_they_are():
    ahead, behind = store_of(), store_of()
    for store in (ahead, behind):
        play(store, 1, 1)
        x_N = vector("x", LAYOUT.fragment_numels[2], 0.01)
        root, _ = store.contribute(store.encode(x_N, fragment=2), fragment=2)
        entries = [(ListEntry(PEERS[0], bytes(32), 1), root)]
        store.reduce(list_of(2), entries, first=0, stop=2, fragment=2)
    base = ahead.state.root
    ahead.step_ahead(list_of(2), [1, 0], round_index=2, base=base)
    roots = {s.apply(list_of(2), is_empty=False, round_index=2) for s in (ahead, behind)}
    assert len(roots) == 1
    for store in (ahead, behind):
        store.adopt(list_of(2))
    assert ahead.state.anchor_N.tobytes() == behind.state.anchor_N.tobytes()


def test_state_travels_cell_by_cell_and_is_whole_only_with_all_fragments():
    source, joiner = store_of(), store_of()
    for index in range(1, 4):
        play(source, index, index % 3)
    state, count = source.state, source.num_state_cells
    assert count == 2 * sum(CELLS)
    vectors = joiner.blank_vectors()
    for index in range(count):
        item = source.state_item(state, index)
        joiner.check_state_cell(state.root, item)
        assert len(item.payload) == joiner.state_bytes(index)
        joiner.place_cell(vectors, index, item.payload)
        with pytest.raises(ProofError):
            joiner.check_state_cell(state.root, replace(item, index=(index + 1) % count))
    found = joiner.assemble(state.root, vectors)
    assert found.anchor_N.tobytes() == state.anchor_N.tobytes()
    assert found.slots["momentum"].tobytes() == state.slots["momentum"].tobytes()
    with pytest.raises(StateError):
        joiner.assemble(state.root, joiner.blank_vectors())


def test_cells_of_another_fragment_are_not_taken():
    sender, taker = store_of(), store_of()
    x_N = vector("x", LAYOUT.fragment_numels[2], 0.01)
    root, _ = sender.contribute(sender.encode(x_N, fragment=2), fragment=2)
    first, last = sender.parts(root, [0, 1])
    taker.put_part(root, first, fragment=2)
    taker.put_part(root, last, fragment=2)
    with pytest.raises((ProofError, DecodeError)):
        taker.put_part(root, last, fragment=0)
    with pytest.raises(StateError):
        sender.contribute(sender.encode(x_N, fragment=2), fragment=1)
    data = b"".join(first.payload for _ in range(2))
    with pytest.raises(StateError):
        taker.restore_result(list_of(1), data, fragment=1)
    assert taker.num_state_cells == 12


async def test_checkpoint_holds_all_fragments_and_is_served_from_the_disk(tmp_path: Path) -> None:
    store = store_of()
    for index in range(1, 5):
        root = play(store, index, index % 3)
    start = genesis(MANIFEST, 0, bytes(32))
    seal = SealCertificate(value=replace(start.value, round=4, root=root), seals=())
    await Checkpoints(tmp_path, MANIFEST, 0).save(seal, store.state.anchor_N, store.state.slots)

    (stored,) = stored_states(tmp_path, MANIFEST, 0, store.slot_names)
    assert stored.anchor_N.tobytes() == store.state.anchor_N.tobytes()
    again = store_of()
    assert again.make_state(stored.anchor_N, stored.slots).root == root

    source = checkpoint_finder(tmp_path, again, MANIFEST)(seal)
    assert source is not None
    for index in range(source.count):
        again.check_state_cell(root, source.item(index))
    changed = replace(seal.value, root=bytes(32))
    assert checkpoint_finder(tmp_path, again, MANIFEST)(replace(seal, value=changed)) is None
