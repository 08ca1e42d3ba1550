"""States and residuals by their roots: what is kept is what was asked for, and what is served is
whole."""

from dataclasses import replace

import numpy as np
import pytest

from node.holdings.states import Item
from node.plane.work_desk import WorkStore
from protocol.errors import PeerError
from protocol.grid import EMPTY_ROOT, Layout, ShardSpec, TensorSpec
from protocol.segments import STATE, SegmentState, WorkKind, cells_of_fragment, root_of, state_of

LAYOUT = Layout(ShardSpec("model", (TensorSpec("w", (2500,)),), ((0,),)), 1024)


COUNT = 7
"""Cells of two vectors, and a tail."""
OF_FRAGMENT, WEIGHTS = WorkKind("residual"), WorkKind("weights")


def state(seed: int) -> SegmentState:
    luck = np.random.default_rng(seed)
    weights_N, moment_N = (luck.normal(size=2500).astype(np.float32) for _ in range(2))
    return SegmentState(weights_N, (moment_N,), seed)


def store_of(cells: tuple[bytes, ...] = ()) -> WorkStore:
    return WorkStore(LAYOUT, lambda _: cells, moments=1)


def served(seed: int) -> tuple[bytes, list[Item]]:
    cells = state(seed).cells(LAYOUT)
    root = root_of(cells)
    return root, store_of(cells).items(root, range(len(cells)))


def test_state_that_was_fetched_is_the_one_that_was_served_and_is_served_on(seed):
    root, items = served(seed)
    store = store_of()
    for item in items[1:]:
        store.put(root, item, kinds={STATE})
    assert not store.needed_cells(root, STATE)
    assert store.items(root, range(COUNT)) == items[1:]
    # Of several fragments the weights of one are enough for the encoding.
    assert not store.needed_cells(root, WEIGHTS)
    store.put(root, items[0], kinds={STATE})
    found = state_of(LAYOUT, b"".join(store.needed_cells(root, STATE)), 1)
    assert found.cells(LAYOUT) == state(seed).cells(LAYOUT)
    assert store.items(root, [3, 3, 99]) == [items[3]]
    store.keep(())
    assert not store.needed_cells(root, STATE)


def test_cell_that_is_not_the_one_is_refused(seed):
    root, items = served(seed)
    store = store_of()
    first, last = items[0], items[2]
    for wrong in (
        replace(first, payload=first.payload[:-4] + b"\x00\x00\x00\x01"),
        replace(first, payload=first.payload + bytes(4)),
        replace(first, index=1),
        replace(first, index=COUNT),
        replace(last, payload=first.payload),
        replace(first, proof=first.proof[:-1]),
    ):
        with pytest.raises(PeerError):
            store.put(root, wrong, kinds={STATE})
    with pytest.raises(PeerError):
        store.put(root, first, kinds={OF_FRAGMENT})
    assert not store.needed_cells(root, STATE)


def test_cells_say_themselves_what_they_are_of(seed):
    root, items = served(seed)
    store = store_of()
    kinds = {OF_FRAGMENT, STATE}
    for item in items:
        store.put(root, item, kinds=kinds)
    assert store.items(root, range(COUNT)) == items
    with pytest.raises(PeerError):
        store.put(root, replace(items[0], index=4), kinds=kinds)


def test_residual_is_of_the_cells_of_its_fragment(seed):
    sizes = (1500, 900)
    tensors = tuple(TensorSpec(f"w{number}", (size,)) for number, size in enumerate(sizes))
    layout = Layout(ShardSpec("model", tensors, ((0,), (1,))), 1024)
    luck = np.random.default_rng(seed)
    for fragment, size in enumerate(sizes):
        residual_N = luck.normal(size=size).astype(np.float32)
        cells = cells_of_fragment(layout, fragment, residual_N)
        root = root_of(cells)
        owner = WorkStore(layout, dict.fromkeys([root], cells).__getitem__)
        items = owner.items(root, range(len(cells)))
        store = WorkStore(layout, lambda _: ())
        with pytest.raises(PeerError):
            store.put(root, items[-1], kinds={WorkKind("residual", 1 - fragment)})
        for item in items:
            store.put(root, item, kinds={WorkKind("residual", fragment)})
        assert tuple(store.needed_cells(root, WorkKind("residual", fragment))) == cells


def test_nothing_has_a_root_of_its_own():
    assert root_of(()) == EMPTY_ROOT
