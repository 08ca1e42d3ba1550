"""The fixed layout, and Merkle trees: every leaf provable, nothing else."""

import random
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import limits
from protocol.errors import ProofError
from protocol.grid import (
    EMPTY_ROOT,
    Layout,
    ShardSpec,
    StateTree,
    TensorSpec,
    cell_root,
    check_merkle_proof,
    check_state_proof,
    merkle_proof,
    merkle_root,
    state_place,
)
from tests.protocol.strategies import values

COUNTS = range(1, 71)


def nodes(count: int) -> list[bytes]:
    return [blake3(b"node %d" % number).digest() for number in range(count)]


def holds(root: bytes, node: bytes, proof: tuple[bytes, ...], index: int, count: int) -> bool:
    try:
        check_merkle_proof(root, node, proof, index=index, count=count)
    except ProofError:
        return False
    return True


# Layout


@given(shard=values(ShardSpec), cell_elements=st.sampled_from([1, 3, 8, 1024]))
def test_cells_cut_every_fragment_without_gap_or_overlap(shard, cell_elements):
    layout = Layout(shard, cell_elements)
    assert sum(layout.fragment_numels) == sum(tensor.numel for tensor in shard.tensors)
    for fragment, numel in enumerate(layout.fragment_numels):
        ranges = [layout.cell_range(fragment, c) for c in range(layout.num_cells(fragment))]
        assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
        assert ranges[-1][1] == numel
        sizes = [layout.cell_numel(fragment, c) for c in range(len(ranges))]
        assert all(size == cell_elements for size in sizes[:-1])
        assert 1 <= sizes[-1] <= cell_elements


@given(shard=values(ShardSpec), cell_elements=st.sampled_from([1, 3, 8]))
def test_spans_of_all_cells_cover_the_vector_of_the_shard_once(shard, cell_elements):
    layout = Layout(shard, cell_elements)
    seen = []
    for fragment, count in enumerate(layout.fragment_cells):
        spans = [layout.cell_span(fragment, cell) for cell in range(count)]
        whole = layout.fragment_span(fragment)
        assert (spans[0].start, spans[-1].stop) == (whole.start, whole.stop)
        seen += [element for span in spans for element in range(span.start, span.stop)]
        numels = [span.stop - span.start for span in spans]
        assert tuple(numels) == layout.cell_numels[fragment]
    assert seen == list(range(layout.numel))


STATES = st.lists(st.integers(1, 7), min_size=1, max_size=6)


def leaves_of(counts):
    numbers = iter(range(sum(counts)))
    return [[blake3(b"%d" % next(numbers)).digest() for _ in range(count)] for count in counts]


@given(STATES)
def test_every_state_cell_is_proven_in_its_place_and_nowhere_else(counts):
    leaves = leaves_of(counts)
    tree, flat = StateTree(leaves), [leaf for fragment in leaves for leaf in fragment]
    root = tree.root
    assert root == merkle_root([merkle_root(fragment) for fragment in leaves])
    assert root is not None
    for index, leaf in enumerate(flat):
        proof = tree.proof(index)
        check_state_proof(root, leaf, proof, index=index, counts=counts)
        for other in range(-1, len(flat) + 1):
            if other != index:
                with pytest.raises(ProofError):
                    check_state_proof(root, leaf, proof, index=other, counts=counts)
        for wrong in (proof[1:], (*proof, bytes(32)), tuple(reversed(proof))):
            if wrong != proof:
                with pytest.raises(ProofError):
                    check_state_proof(root, leaf, wrong, index=index, counts=counts)
        with pytest.raises(ProofError):
            check_state_proof(root, bytes(32), proof, index=index, counts=counts)


@given(STATES, st.data())
def test_proof_of_a_state_cell_tells_of_all_others(counts, data):
    leaves = leaves_of(counts)
    tree, count = StateTree(leaves), sum(counts)
    index = data.draw(st.integers(0, count - 1))
    beside = list(tree.beside(index))
    assert [node for _, node in beside] == list(tree.proof(index))
    covered = [cell for cells, _ in beside for cell in cells]
    assert sorted([*covered, index]) == list(range(count))
    unknown = data.draw(st.sampled_from([cell for cell in range(count) if cell != index] or [-1]))
    partly = [list(fragment) for fragment in leaves]
    fragment, place = state_place(counts, max(0, unknown))
    partly[fragment][place] = None
    for cells, node in StateTree(partly).beside(index):
        assert (node is None) == (max(0, unknown) in cells)


def test_scalar_has_one_element():
    assert TensorSpec("scale", ()).numel == 1
    assert TensorSpec("weight", (3, 4, 5)).numel == 60


A, B = TensorSpec("a", (2,)), TensorSpec("b", (3,))


@pytest.mark.parametrize(
    ("tensors", "fragments"),
    [
        ((B, A), ((0, 1),)),
        ((A, A), ((0, 1),)),
        ((A, B), ((0,),)),
        ((A, B), ((0, 1), (1,))),
        ((A, B), ((0, 1, 2),)),
        ((A, B), ((1, 0),)),
        ((A, B), ((0,), (-1,))),
    ],
    ids=["unsorted", "twice", "left out", "in two", "unknown", "descending", "negative"],
)
def test_shard_that_cuts_its_tensors_wrongly_is_refused(tensors, fragments):
    with pytest.raises(ValueError, match="tensor"):
        ShardSpec("model", tensors, fragments)


# Trees


def test_roots_follow_the_definition():
    a, b, c = nodes(3)
    pair = blake3(b"\x01" + a + b).digest()
    assert merkle_root([]) == EMPTY_ROOT == blake3(b"barnraise/empty/1").digest()
    assert merkle_root([a]) == a
    assert merkle_root([a, b]) == pair
    assert merkle_root([a, b, c]) == blake3(b"\x01" + pair + c).digest()
    assert merkle_proof([a, b, c], 2) == (pair,)


@pytest.mark.quick(8)
@pytest.mark.parametrize("count", COUNTS)
def test_every_node_proves_its_place_and_no_other(count):
    level = nodes(count)
    root = merkle_root(level)
    for index, node in enumerate(level):
        proof = merkle_proof(level, index)
        assert len(proof) <= (count - 1).bit_length()
        places = [other for other in range(-1, count + 1) if holds(root, node, proof, other, count)]
        assert places == [index]


@pytest.mark.quick(8)
@pytest.mark.parametrize("count", COUNTS)
def test_flipped_bit_of_node_proof_or_root_is_refused(count, seed):
    rng = random.Random(f"{seed}/{count}")
    level = nodes(count)
    root = merkle_root(level)

    def flip(value: bytes) -> bytes:
        bit = rng.randrange(256)
        return (int.from_bytes(value, "big") ^ 1 << bit).to_bytes(32, "big")

    for index, node in enumerate(level):
        proof = merkle_proof(level, index)
        assert not holds(root, flip(node), proof, index, count)
        assert not holds(flip(root), node, proof, index, count)
        for step in range(len(proof)):
            wrong = (*proof[:step], flip(proof[step]), *proof[step + 1 :])
            assert not holds(root, node, wrong, index, count)


@pytest.mark.quick(8)
@pytest.mark.parametrize("count", COUNTS)
def test_proof_with_more_fewer_or_swapped_nodes_is_refused(count):
    level = nodes(count)
    root = merkle_root(level)
    for index, node in enumerate(level):
        proof = merkle_proof(level, index)
        assert not holds(root, node, (*proof, root), index, count)
        assert not holds(root, node, (EMPTY_ROOT, *proof), index, count)
        if proof:
            assert not holds(root, node, proof[:-1], index, count)
            assert not holds(root, node, proof[1:], index, count)
        if len(proof) > 1:
            assert not holds(root, node, proof[::-1], index, count)


def way(index: int, count: int) -> list[int]:
    """The turns from a leaf to the root: what a count changes about a proof."""
    turns = []
    while count > 1:
        if index ^ 1 < count:
            turns.append(index % 2)
        index, count = index // 2, (count + 1) // 2
    return turns


@pytest.mark.quick(8)
@pytest.mark.parametrize("count", COUNTS)
def test_proof_in_a_tree_of_another_count_holds_only_where_the_way_is_the_same(count):
    level = nodes(count)
    root = merkle_root(level)
    for index, node in enumerate(level):
        proof = merkle_proof(level, index)
        for other in range(index + 1, 2 * count + 2):
            expected = way(index, other) == way(index, count)
            assert holds(root, node, proof, index, other) == expected


@pytest.mark.parametrize(("index", "count"), [(0, 0), (-1, 3), (3, 3), (0, -1)])
def test_place_outside_the_tree_is_refused(index, count):
    with pytest.raises(ProofError, match="index"):
        check_merkle_proof(EMPTY_ROOT, EMPTY_ROOT, (), index=index, count=count)


def test_inner_node_is_no_cell():
    """A node of the tree, shown as a cell of a smaller one: the key keeps cell and node apart."""
    cells = [cell_root(b"x" * 5000), cell_root(b"y")]
    assert cell_root(b"\x01" + cells[0] + cells[1]) != merkle_root(cells)
    assert cell_root(b"y") != blake3(b"y").digest()


# Cells


@settings(deadline=None, max_examples=20)
@given(size=st.integers(0, 64 * limits.KIB))
def test_cell_root_is_the_keyed_hash_of_its_bytes(size):
    payload = random.Random(size).randbytes(size)
    hasher = blake3(key=blake3(b"barnraise/cell/1").digest())
    for start in range(0, size, 1000):
        hasher.update(payload[start : start + 1000])
    assert cell_root(payload) == cell_root(memoryview(payload)) == hasher.digest()


def test_cells_that_differ_in_a_byte_or_in_length_have_different_roots(seed):
    rng = random.Random(f"{seed}/cells")
    size = 48 * limits.KIB + 5
    payload = rng.randbytes(size)
    roots = {cell_root(payload), cell_root(payload + b"\x00"), cell_root(payload[:-1])}
    for index in [0, size - 1, *rng.sample(range(1, size - 1), 20)]:
        changed = bytearray(payload)
        changed[index] ^= 1 << rng.randrange(8)
        roots.add(cell_root(bytes(changed)))
    assert len(roots) == 25
    assert EMPTY_ROOT not in roots


def test_cell_of_floats_is_hashed_as_its_bytes():
    floats: Any = memoryview(bytes(16)).cast("f")
    assert cell_root(floats) == cell_root(bytes(16))
