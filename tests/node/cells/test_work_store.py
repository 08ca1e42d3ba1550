"""States and residuals by their roots: what is kept is what was asked for, and what is served is
whole."""

from dataclasses import replace

import numpy as np
import pytest

from node.holdings.states import Item
from node.plane.work_desk import WorkStore
from protocol.errors import PeerError
from protocol.grid import EMPTY_ROOT, Layout, ShardSpec, TensorSpec
from protocol.segments import cells_of, root_of, vectors_of

LAYOUT = Layout(ShardSpec("model", (TensorSpec("w", (2500,)),), ((0,),)), 1024)


def state(seed: int) -> list[np.ndarray]:
    luck = np.random.default_rng(seed)
    return [luck.normal(size=2500).astype(np.float32) for _ in range(2)]


def served(seed: int) -> tuple[bytes, list[Item]]:
    cells = cells_of(LAYOUT, state(seed))
    root = root_of(cells)
    return root, WorkStore(LAYOUT, lambda _: cells, has_tail=False).items(root, range(len(cells)))


def test_state_that_was_fetched_is_the_one_that_was_served_and_is_served_on(seed):
    root, items = served(seed)
    store = WorkStore(LAYOUT, lambda _: (), has_tail=False)
    for item in items[1:]:
        store.put(root, item, counts={6})
    assert not store.cells(root)
    assert not store.items(root, range(6))
    store.put(root, items[0], counts={6})
    found = vectors_of(LAYOUT, store.cells(root))
    assert [x_N.tobytes() for x_N in found] == [x_N.tobytes() for x_N in state(seed)]
    assert store.items(root, [3, 3, 99]) == [items[3]]
    store.keep(())
    assert not store.cells(root)


def test_cell_that_is_not_the_one_is_refused(seed):
    root, items = served(seed)
    store = WorkStore(LAYOUT, lambda _: (), has_tail=False)
    first, last = items[0], items[2]
    for wrong in (
        replace(first, payload=first.payload[:-4] + b"\x00\x00\x00\x01"),
        replace(first, payload=first.payload + bytes(4)),
        replace(first, index=1),
        replace(first, index=6),
        replace(last, payload=first.payload),
        replace(first, proof=first.proof[:-1]),
    ):
        with pytest.raises(PeerError):
            store.put(root, wrong, counts={6})
    with pytest.raises(PeerError):
        store.put(root, first, counts={4})
    assert not store.cells(root)


def test_cells_say_themselves_how_many_there_are_of_them(seed):
    root, items = served(seed)
    for counts in ({4, 6}, {6, 9}):
        store = WorkStore(LAYOUT, lambda _: (), has_tail=False)
        for item in items:
            store.put(root, item, counts=counts)
        assert store.items(root, range(6)) == items
        with pytest.raises(PeerError):
            store.put(root, replace(items[0], index=4), counts=counts)


def test_nothing_has_a_root_of_its_own():
    assert root_of(()) == EMPTY_ROOT
    with pytest.raises(ValueError, match="4 cells of vectors of 3"):
        vectors_of(LAYOUT, cells_of(LAYOUT, state(0))[:4])
