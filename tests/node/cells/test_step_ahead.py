"""Results that are stepped and proven cell by cell, as they come (R7)."""

import random
from dataclasses import replace

import pytest

from node.holdings.journal import FileJournal
from node.plane.bulk import StoredResults
from protocol.errors import ProofError, StateError
from protocol.events import Push
from protocol.frames import Bulk
from protocol.grid import cell_root, merkle_proof
from protocol.identity import Ed25519Signer
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


def test_cell_that_comes_a_second_time_is_the_one_that_was_stepped():
    store = store_of()
    filled(store)
    before = store.result_cells(LIST)
    for item in store.results(LIST, first=0, stop=4):
        root = store._results[LIST].root(0, 4)
        again = replace(item, payload=bytes(bytearray(item.payload)))
        store.put_result(LIST, root, again, first=0, stop=4)
    assert all(a is b for a, b in zip(before, store.result_cells(LIST), strict=True))


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


def sealed_on_disk(journal):
    """A store that has adopted LIST, whose result the journal keeps; what it said of it before."""
    store = store_of()
    store.find_file = journal.find_result
    filled(store)
    store.apply(LIST, is_empty=False, round_index=1)
    journal.keep_result(1, LIST, store.result_cells(LIST))
    before = store.results(LIST, first=1, stop=4)
    assert not store.is_on_disk(LIST)
    store.adopt(LIST)
    return store, before


@pytest.fixture
def journal(tmp_path):
    journal = FileJournal(tmp_path)
    yield journal
    journal.close()


def test_final_result_is_read_from_the_disk_with_the_same_cells_and_proofs(journal, tmp_path):
    store, before = sealed_on_disk(journal)
    assert store.is_on_disk(LIST)
    assert store.results(LIST, first=1, stop=4) == before
    assert store.result_cells(LIST)[1:] == [item.payload for item in before]
    root = store._results[LIST].root(1, 4)
    store.put_result(LIST, root, before[0], first=1, stop=4)
    assert not store._results[LIST]._payloads, "what comes late takes no memory"
    with pytest.raises(ProofError):
        store.put_result(LIST, root, replace(before[0], payload=b"x"), first=1, stop=4)


def stored(store, *cells: int) -> StoredResults:
    """What a peer that asks for those cells is sent of LIST, which has two slices."""
    push = Push(Ed25519Signer(b"t" * 32).peer_id, Bulk.RESULT, LIST, cells)
    return StoredResults(store, push, [[], [(0, 1), (1, 4)]])


def test_wanted_cells_of_a_final_result_are_read_one_by_one_each_once(journal):
    store, before = sealed_on_disk(journal)
    source = stored(store, 3, 1, 3, 3, 9)
    assert source.cells == (1, 3)
    assert source.count == 2
    assert [source.item(cell) for cell in source.cells] == [before[0], before[2]]
    assert stored(store, 9).count == 0


def test_cell_that_the_disk_has_lost_ends_the_transfer_and_others_are_whole(journal, tmp_path):
    store, before = sealed_on_disk(journal)
    (path,) = (tmp_path / "results").iterdir()
    data = bytearray(path.read_bytes())
    data[len(before[0].payload)] ^= 1  # The first byte of cell 1.
    path.write_bytes(data)
    source = stored(store, 1, 2)
    with pytest.raises(StateError, match="cell 1 of a result is gone"):
        source.item(1)
    assert source.item(2) == before[1]


@pytest.mark.parametrize("damage", ["a byte", "the end", "all"])
def test_result_that_the_disk_has_lost_is_as_one_that_is_not_here(journal, tmp_path, damage):
    store, before = sealed_on_disk(journal)
    (path,) = (tmp_path / "results").iterdir()
    data, size = path.read_bytes(), len(before[0].payload)
    match damage:
        case "a byte":
            path.write_bytes(data[:size] + bytes([data[size] ^ 1]) + data[size + 1 :])
        case "the end":
            path.write_bytes(data[: 2 * size - 1])
        case _:
            path.unlink()
    assert store.results(LIST, first=1, stop=4) == []
    is_there = damage != "all"
    assert bool(store.results(LIST, first=0, stop=1)) is is_there, "other cells are whole"


def test_result_that_no_file_keeps_stays_in_memory(journal):
    store = store_of()
    store.find_file = journal.find_result
    filled(store)
    store.apply(LIST, is_empty=False, round_index=1)
    store.adopt(LIST)
    assert not store.is_on_disk(LIST)
    assert len(store.results(LIST, first=0, stop=4)) == 4


def test_step_ahead_takes_the_memory_of_the_state_before_the_last():
    store = store_of()
    roots, places = [store.state.root], set()
    for index in range(1, 7):
        digest = bytes([index]) * 32
        root, _ = contribution(store, f"round {index}")
        store.reduce(digest, [(entry(0, 1), root)], first=0, stop=4)
        held = [store.state_of(known) is not None for known in roots]
        assert held[-2:] == [True] * len(held[-2:]), "who is a round behind asks for it"
        store.step_ahead(digest, (), round_index=index, base=b"")
        held = [store.state_of(known) is not None for known in roots]
        assert held == [False] * (index - 1) + [True]
        roots.append(store.apply(digest, is_empty=False, round_index=index))
        store.adopt(digest)
        vectors = (store.state.anchor_N, *store.state.slots.values())
        places |= {vector_N.ctypes.data for vector_N in vectors}
    assert len(places) == 2 * len(vectors)


def test_step_ahead_on_a_branch_lets_go_of_nothing():
    store = store_of()
    final = store.state.root
    for index in (1, 2):
        digest = bytes([index]) * 32
        root, _ = contribution(store, f"round {index}")
        store.reduce(digest, [(entry(0, 1), root)], first=0, stop=4)
        store.step_ahead(digest, range(4), round_index=index, base=b"")
        assert store.state_of(final) is not None
        store.apply(digest, is_empty=False, round_index=index)
        store.advance(digest)
    assert store.final.root == final
    assert store.state_of(final) is not None
