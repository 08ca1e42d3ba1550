"""Results that are stepped and proven cell by cell, as they come (R7)."""

import random

import pytest

from protocol.grid import cell_root, merkle_proof
from tests.node.cells.test_shard_store import LIST, contribution, entry, filled, store_of


def test_step_ahead_in_any_order_and_with_cells_missing_gives_the_bits_of_one_at_the_end(seed):
    rng = random.Random(f"{seed}/ahead")
    plain, ahead = store_of(), store_of()
    for store in (plain, ahead):
        filled(store)
    base = ahead.state.root
    for _ in range(rng.randrange(1, 6)):
        cells = rng.sample(range(4), rng.randrange(4))
        ahead.step_ahead(LIST, cells, round_index=1, base=rng.choice((base, b"")))
    root = plain.apply(LIST, is_empty=False, round_index=1)
    assert ahead.apply(LIST, is_empty=False, round_index=1, base=base) == root
    for store in (plain, ahead):
        store.adopt(LIST)
    assert ahead.state.anchor_N.tobytes() == plain.state.anchor_N.tobytes()
    assert ahead.state.slots["momentum"].tobytes() == plain.state.slots["momentum"].tobytes()


@pytest.mark.parametrize("begun", ["other LIST", "other round", "other base", "another result"])
def test_step_ahead_of_something_else_leaves_nothing_in_the_candidate(begun):
    plain, ahead = store_of(), store_of()
    filled(plain)
    filled(ahead)
    other = bytes(32)
    ahead.reduce(other, [(entry(0, 1), contribution(ahead, "y")[0])], first=0, stop=4)
    match begun:
        case "other LIST":
            ahead.step_ahead(other, range(4), round_index=1, base=b"")
        case "other round":
            ahead.step_ahead(LIST, range(4), round_index=2, base=b"")
        case "other base":
            ahead.step_ahead(LIST, range(4), round_index=1, base=bytes(32))
        case _:
            for store in (plain, ahead):
                if store is ahead:
                    store.step_ahead(LIST, range(4), round_index=1, base=b"")
                root, _ = contribution(store, "z")
                store.reduce(LIST, [(entry(0, 1), root)], first=1, stop=3)
    roots = {store.apply(LIST, is_empty=False, round_index=1) for store in (plain, ahead)}
    assert len(roots) == 1


def test_step_ahead_of_cells_that_are_not_here_or_of_no_result_waits_for_them():
    store = store_of()
    store.step_ahead(LIST, range(4), round_index=1, base=b"")
    entries = [(entry(0, 1), contribution(store, "x")[0])]
    store.reduce(LIST, entries, first=1, stop=3)
    store.step_ahead(LIST, range(4), round_index=1, base=b"")
    for first, stop in ((0, 1), (3, 4)):
        store.reduce(LIST, entries, first=first, stop=stop)
    plain = store_of()
    plain.reduce(LIST, [(entry(0, 1), contribution(plain, "x")[0])], first=0, stop=4)
    roots = {s.apply(LIST, is_empty=False, round_index=1) for s in (store, plain)}
    assert len(roots) == 1


def test_result_cells_that_are_replaced_get_the_proofs_of_what_is_there_now():
    store = store_of()
    filled(store)
    before = store.results(LIST, first=1, stop=4)
    root = store.reduce(LIST, [(entry(0, 1), contribution(store, "x")[0])], first=2, stop=3)
    after = store.results(LIST, first=1, stop=4)
    assert root == cell_root(after[1].payload) != cell_root(before[1].payload)
    roots = [cell_root(item.payload) for item in after]
    assert [item.proof for item in after] == [merkle_proof(roots, place) for place in range(3)]
    assert store.results(LIST, first=2, stop=3)[0].proof == ()
