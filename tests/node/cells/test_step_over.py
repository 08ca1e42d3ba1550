"""A large state is stepped in its own memory once the round is sealed, unless somebody holds it."""

import random
from typing import Any

import numpy as np
import pytest

from node.holdings.shard_store import ShardStore
from tests.node.cells.test_shard_store import contribution, entry, store_of
from training.channel.channel_file import AnchorPlaces, ChannelFile, ChannelSpec

NUM_CELLS = 4


def large(store: ShardStore) -> ShardStore:
    """A store to which its state is a large one."""
    store.step_over_bytes_min = 0
    return store


def summed(store, index):
    """A LIST of round `index` with its result."""
    digest = bytes([index]) * 32
    root, _ = contribution(store, f"round {index}")
    store.reduce(digest, [(entry(0, 1), root)], first=0, stop=NUM_CELLS)
    return digest


def play(store, index, rng=None):
    """One round to its end; the root that its votes are about."""
    digest, base = summed(store, index), store.state.root
    if rng is not None:
        cells = rng.sample(range(NUM_CELLS), rng.randrange(NUM_CELLS))
        store.step_ahead(digest, cells, round_index=index, base=base)
    root = store.apply(digest, is_empty=False, round_index=index)
    store.adopt(digest)
    assert store.state.root == root
    return root


def vectors_of(state):
    return [state.anchor_N, *state.slots.values()]


def bytes_of(state):
    return [vector_N.tobytes() for vector_N in vectors_of(state)]


def places_of(state):
    return [vector_N.ctypes.data for vector_N in vectors_of(state)]


def test_large_and_small_states_go_through_the_same_bits(seed):
    rng = random.Random(f"{seed}/over")
    small, over = store_of(), large(store_of())
    held = []
    for index in range(1, 12):
        if rng.random() < 0.3:
            held.append((over.state, bytes_of(over.state)))
        elif held and rng.random() < 0.5:
            held.pop()
        assert play(over, index, rng) == play(small, index, rng)
        assert bytes_of(over.state) == bytes_of(small.state)
        assert over.make_state(over.state.anchor_N, over.state.slots).root == over.state.root
        assert all(bytes_of(state) == was for state, was in held)


def test_state_that_nobody_holds_is_stepped_in_its_own_memory():
    store = large(store_of())
    play(store, 1)  # The first one is made by somebody else.
    places = places_of(store.state)
    for index in range(2, 6):
        root = store.state.root
        play(store, index)
        assert places_of(store.state) == places
        assert store.state_of(root) is None


@pytest.mark.parametrize("held", ["state", "anchor", "slice", "memory", "slots"])
def test_whoever_holds_any_of_a_state_keeps_it_as_it_is(held):
    store = large(store_of())
    play(store, 1)
    state, before, places = store.state, bytes_of(store.state), places_of(store.state)
    momentum_N = state.slots["momentum"]
    mine: Any = {
        "state": state,
        "anchor": state.anchor_N,
        "slice": state.anchor_N[3:5],
        "memory": state.anchor_N.data,
        "slots": momentum_N,
    }[held]
    del state, momentum_N
    play(store, 2)
    moved = [now != then for now, then in zip(places_of(store.state), places, strict=True)]
    assert moved == [held != "slots", held in ("state", "slots")]
    match held:
        case "state":
            assert bytes_of(mine) == before
        case "slice":
            assert mine.tobytes() == before[0][12:20]
        case _:
            assert bytes(mine) == before[held == "slots"]
    del mine
    places = places_of(store.state)
    play(store, 3)
    assert places_of(store.state) == places


def test_state_is_whole_until_its_round_is_sealed_and_after_a_list_that_gives_way():
    plain, store = store_of(), large(store_of())
    for each in (plain, store):
        play(each, 1)
    before = bytes_of(store.state)
    other = summed(store, 7)
    store.step_ahead(other, range(2), round_index=2, base=store.state.root)
    store.apply(other, is_empty=False, round_index=2)
    assert bytes_of(store.state) == before
    assert play(store, 2) == play(plain, 2)
    assert bytes_of(store.state) == bytes_of(plain.state)


def test_branch_leaves_the_final_state_alone():
    store = large(store_of())
    play(store, 1)
    final, before = store.state.root, bytes_of(store.state)
    for index in (2, 3):
        digest = summed(store, index)
        store.apply(digest, is_empty=False, round_index=index)
        store.advance(digest)
    assert store.final.root == final
    assert bytes_of(store.final) == before
    store.fall_back()
    assert bytes_of(store.state) == before
    plain = store_of()
    play(plain, 1)
    assert play(store, 2) == play(plain, 2)


def test_empty_round_keeps_the_state():
    store = large(store_of())
    play(store, 1)
    before, digest = bytes_of(store.state), bytes([9]) * 32
    root = store.apply(digest, is_empty=True, round_index=2)
    store.adopt(digest)
    assert (store.state.root, bytes_of(store.state)) == (root, before)


def test_anchor_moves_to_where_a_trainer_reads_it_and_away_when_that_one_is_gone(tmp_path):
    plain, store = store_of(), large(store_of())
    numel = store.layout.numel
    spec = ChannelSpec(run=bytes(32), fragment_numels=(numel,), slot_bytes=1 << 16, slots=1)
    with ChannelFile.create(tmp_path / "a.channel", spec) as channel:
        anchors = AnchorPlaces(channel)
        root, before = store.state.root, bytes_of(store.state)
        store.use_anchors(anchors)
        assert (store.state.root, bytes_of(store.state)) == (root, before)
        assert store.state_of(root) is store.state
        place = anchors.place_of(store.state.anchor_N)
        assert place is not None
        for index in (1, 2):
            assert play(store, index) == play(plain, index)
            assert anchors.place_of(store.state.anchor_N) == place
        # A trainer that is still at it: the next one lies beside it.
        late_N = channel.anchor(0, place=place)
        lent_N, was = store.state.anchor_N, late_N.tolist()
        assert play(store, 3) == play(plain, 3)
        assert anchors.place_of(store.state.anchor_N) not in (place, None)
        assert late_N.tolist() == was
        del lent_N
        store.use_anchors(None)
        assert play(store, 4) == play(plain, 4)
        assert anchors.place_of(store.state.anchor_N) is None
        assert np.array_equal(store.state.anchor_N, plain.state.anchor_N)
