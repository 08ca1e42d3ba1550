"""R7: what is believed, what is summed, and which anchor stands when."""

import random
from dataclasses import replace

import numpy as np
import pytest

from node.holdings.shard_store import ROUNDS_KEPT, Item, ShardStore, State, Vector
from protocol.errors import DecodeError, PeerError, ProofError, StateError
from protocol.events import ListEntry
from protocol.grid import cell_root, merkle_proof, merkle_root
from tests.node.builders import peers_named, toy_manifest

PEERS = peers_named(3)
MANIFEST = toy_manifest(PEERS[0], cells=4)
NUMEL = MANIFEST.layout(0).fragment_numels[0]
LIST = bytes(range(32))


def vector(name: str, scale: float = 1.0) -> np.ndarray:
    """Reproducible noise."""
    generator = np.random.default_rng(random.Random(name).getrandbits(64))
    return (scale * generator.standard_normal(NUMEL)).astype(np.float32)


def store_of(anchor_N: np.ndarray | None = None, **outer) -> ShardStore:
    manifest = replace(MANIFEST, outer=replace(MANIFEST.outer, **outer))
    return ShardStore(manifest, 0, vector("anchor") if anchor_N is None else anchor_N)


def payloads_of(x_N: np.ndarray, dtype: str = "<f2") -> list[bytes]:
    return [x_N[start : start + 1024].astype(dtype).tobytes() for start in range(0, NUMEL, 1024)]


def contribution(store: ShardStore, name: str) -> tuple[bytes, np.ndarray]:
    """A contribution in the store: its root, and the vector that its bytes say."""
    x_N = vector(name, 0.01)
    root, _ = store.contribute(payloads_of(x_N))
    return root, x_N.astype(np.float16).astype(np.float32)


def entry(number: int, tokens: int) -> ListEntry:
    return ListEntry(PEERS[number], bytes([number]) * 32, tokens)


def filled(store: ShardStore, tokens=(10, 30, 50)):
    """Three contributions, summed into the store as the result of LIST; what they say."""
    found = [contribution(store, f"contribution {n}") for n in range(len(tokens))]
    entries = [(entry(n, t), found[n][0]) for n, t in enumerate(tokens)]
    root = store.reduce(LIST, entries, first=0, stop=4)
    return [x_N for _, x_N in found], root


# Parts ------------------------------------------------------------------------------------------


def test_part_travels_from_its_sender_to_a_reducer_and_from_there_to_another():
    sender, reducer, substitute = store_of(), store_of(), store_of()
    root, _ = contribution(sender, "x")
    for item in sender.parts(root, [1, 2]):
        reducer.put_part(root, item)
    assert [item.index for item in reducer.parts(root, [0, 1, 2, 3])] == [1, 2]
    for item in reducer.parts(root, [2]):
        substitute.put_part(root, item)
    assert substitute.parts(root, [2]) == sender.parts(root, [2])


def test_any_flipped_byte_in_a_part_or_its_proof_is_the_senders_fault(seed):
    rng = random.Random(seed)
    sender, reducer = store_of(), store_of()
    root, _ = contribution(sender, "x")
    (item,) = sender.parts(root, [3])
    for _ in range(40):
        position = rng.randrange(len(item.payload))
        payload = bytearray(item.payload)
        payload[position] ^= 1 << rng.randrange(8)
        with pytest.raises(PeerError):
            reducer.put_part(root, replace(item, payload=bytes(payload)))
    for number in range(len(item.proof)):
        proof = list(item.proof)
        proof[number] = bytes(32)
        with pytest.raises(ProofError):
            reducer.put_part(root, replace(item, proof=tuple(proof)))
    assert reducer.parts(root, [3]) == []
    reducer.put_part(root, item)
    assert reducer.parts(root, [3]) == [item]


def test_part_in_the_place_of_another_cell_is_refused():
    sender, reducer = store_of(), store_of()
    root, _ = contribution(sender, "x")
    (item,) = sender.parts(root, [1])
    with pytest.raises(ProofError):
        reducer.put_part(root, replace(item, index=2))
    with pytest.raises(ProofError):
        reducer.put_part(bytes(32), item)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_part_that_its_sender_committed_to_but_is_not_finite_is_refused(poison):
    x_N = vector("x", 0.01)
    x_N[5] = poison
    payloads = payloads_of(x_N)
    roots = [cell_root(payload) for payload in payloads]
    store = store_of()
    with pytest.raises(DecodeError):
        store.put_part(merkle_root(roots), Item(0, payloads[0], merkle_proof(roots, 0)))
    assert store.parts(merkle_root(roots), [0]) == []


def test_contribution_that_does_not_fit_the_grid_is_a_state_error():
    for payloads in (payloads_of(vector("x"))[:3], payloads_of(vector("x"), "<f4")):
        with pytest.raises(StateError):
            store_of().contribute(payloads)


def test_cell_norms_are_those_of_the_decoded_bytes():
    x_N = vector("x", 0.01)
    _, norms = store_of().contribute(payloads_of(x_N))
    decoded_N = x_N.astype(np.float16).astype(np.float64)
    expected = [np.linalg.norm(decoded_N[s : s + 1024]) for s in range(0, NUMEL, 1024)]
    assert norms == pytest.approx(expected, rel=1e-12)


# Exactness --------------------------------------------------------------------------------------


def reference(anchor_N, momentum_N, rows_PN, tokens):
    """Five lines: the weighted mean of the wire bytes, rounded to the wire, then Nesterov."""
    weights_P = [np.float32(t / sum(tokens)) for t in tokens]
    mean_N = rows_PN[0] * weights_P[0]
    for row_N, weight in zip(rows_PN[1:], weights_P[1:], strict=True):
        mean_N = mean_N + row_N * weight
    mean_N = mean_N.astype(np.float16).astype(np.float32)
    momentum_N = np.float32(0.5) * momentum_N + mean_N
    return anchor_N - np.float32(0.7) * (np.float32(0.5) * momentum_N + mean_N), momentum_N


def test_state_after_two_rounds_is_to_the_bit_what_the_listed_bytes_give():
    store = store_of()
    anchor_N, momentum_N = vector("anchor"), np.zeros(NUMEL, np.float32)
    for index, tokens in enumerate(((10, 30, 50), (7, 1, 1))):
        digest = bytes([index]) * 32
        found = [contribution(store, f"{index}/{n}") for n in range(3)]
        entries = [(entry(n, tokens[n]), found[n][0]) for n in range(3)]
        store.reduce(digest, entries, first=0, stop=4)
        root = store.apply(digest, is_empty=False, round_index=index + 1)
        store.adopt(digest)
        anchor_N, momentum_N = reference(anchor_N, momentum_N, [x for _, x in found], tokens)
        assert store.state.anchor_N.tobytes() == anchor_N.tobytes()
        assert store.state.slots["momentum"].tobytes() == momentum_N.tobytes()
        assert store.state.root == root


def test_slices_summed_apart_give_the_bits_of_one_sum_over_all_cells():
    whole, parts = store_of(), store_of()
    filled(whole)
    entries = [
        (entry(n, t), contribution(parts, f"contribution {n}")[0])
        for n, t in enumerate((10, 30, 50))
    ]
    for first, stop in ((2, 4), (0, 1), (1, 2)):
        parts.reduce(LIST, entries, first=first, stop=stop)
    states = {s.apply(LIST, is_empty=False, round_index=1) for s in (whole, parts)}
    assert len(states) == 1


def test_order_of_the_rows_is_the_order_of_the_entries_and_matters_to_the_bits():
    roots = set()
    for order in ((0, 1, 2), (2, 1, 0)):
        store = store_of(codec="none")
        # Large and small by turns, so that float additions do not commute in their rounding.
        found = [
            store.contribute(payloads_of(vector(f"c{n}", 10.0**n), "<f4"))[0] for n in range(3)
        ]
        roots.add(store.reduce(LIST, [(entry(n, 1 + n), found[n]) for n in order], first=0, stop=4))
    assert len(roots) == 2


@pytest.mark.parametrize(("codec", "width"), [("none", 4), ("fp16", 2)])
def test_parts_and_results_have_the_width_of_their_codec(codec, width):
    store = store_of(codec=codec)
    sizes = [(store.part_bytes(cell), store.result_bytes(cell)) for cell in (0, 3)]
    assert sizes == [(1024 * width, 1024 * width), (924 * width, 924 * width)]


@pytest.mark.parametrize("codec", ["int8", "int4", "sparse2bit"])
def test_results_of_coarse_codecs_travel_at_eight_bits(codec):
    """R7."""
    store = store_of(codec=codec)
    assert store.part_bytes(0) < 1.01 * 1024
    # A seed, and two floats a block.
    assert [store.result_bytes(cell) for cell in (0, 3)] == [8 + 8 + 1024, 8 + 8 + 924]


def test_empty_list_leaves_the_state_as_it_is():
    store = store_of()
    before = store.state
    assert store.apply(LIST, is_empty=True, round_index=1) == before.root
    store.adopt(LIST)
    assert store.state is before


# Anchor and candidates ----------------------------------------------------------------------------


def test_old_anchor_stands_untouched_until_the_candidate_is_adopted():
    store = store_of()
    before, bits = store.state, store.state.anchor_N.tobytes()
    filled(store)
    root = store.apply(LIST, is_empty=False, round_index=1)
    assert store.state is before
    assert store.state.anchor_N.tobytes() == bits
    assert root != before.root
    store.adopt(LIST)
    assert store.state.root == root
    assert before.anchor_N.tobytes() == bits


def test_candidates_of_two_lists_stand_side_by_side_and_one_is_adopted():
    store = store_of()
    filled(store)
    root = store.apply(LIST, is_empty=False, round_index=1)
    other = store.apply(bytes(32), is_empty=True, round_index=1)
    store.adopt(LIST)
    assert (store.state.root, root != other) == (root, True)


def test_parts_results_and_states_of_the_last_rounds_stay_for_stragglers_and_older_ones_go():
    store = store_of()
    roots, states = [], [store.state.root]
    for index in range(6):
        digest = bytes([index + 1]) * 32
        root, _ = contribution(store, f"round {index}")
        roots.append(root)
        store.reduce(digest, [(entry(0, 1), root)], first=0, stop=4)
        states.append(store.apply(digest, is_empty=False, round_index=index))
        store.adopt(digest)
    gone = 6 - ROUNDS_KEPT
    assert [bool(store.parts(root, [0])) for root in roots] == [False] * gone + [True] * ROUNDS_KEPT
    held = [bool(store.results(bytes([i + 1]) * 32, first=0, stop=4)) for i in range(6)]
    assert held == [False] * gone + [True] * ROUNDS_KEPT
    held = [store.state_of(root) is not None for root in states]
    assert held == [False] * gone + [True] * (ROUNDS_KEPT + 1)


# Results ----------------------------------------------------------------------------------------


def test_results_travel_with_proofs_and_a_flipped_byte_is_refused(seed):
    rng = random.Random(seed)
    reducer, member = store_of(), store_of()
    found = [contribution(reducer, f"contribution {n}")[0] for n in range(2)]
    entries = [(entry(n, 1), found[n]) for n in range(2)]
    root = reducer.reduce(LIST, entries, first=1, stop=4)
    assert reducer.results(LIST, first=0, stop=4) == []
    items = reducer.results(LIST, first=1, stop=4)
    for item in items:
        payload = bytearray(item.payload)
        payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
        with pytest.raises(PeerError):
            member.put_result(LIST, root, replace(item, payload=bytes(payload)), first=1, stop=4)
        member.put_result(LIST, root, item, first=1, stop=4)
    assert member.results(LIST, first=1, stop=4) == items
    with pytest.raises(ProofError):
        member.put_result(LIST, root, items[0], first=0, stop=3)


# State ------------------------------------------------------------------------------------------


def advanced() -> ShardStore:
    store = store_of()
    filled(store)
    store.apply(LIST, is_empty=False, round_index=1)
    store.adopt(LIST)
    return store


def cells_of(source: ShardStore) -> dict[int, bytes]:
    items = [source.state_item(source.state, index) for index in range(source.num_state_cells)]
    for item in items:
        source.check_state_cell(source.state.root, item)
    return {item.index: item.payload for item in items}


def placed(store: ShardStore, cells: dict[int, bytes]) -> list[Vector]:
    vectors = store.blank_vectors()
    for index, payload in cells.items():
        assert bytes(store.place_cell(vectors, index, payload)) == payload
    return vectors


def test_state_is_assembled_from_verified_cells_anchor_and_momentum_alike():
    source, late = advanced(), store_of(np.zeros(NUMEL, np.float32))
    state = late.assemble(source.state.root, placed(late, cells_of(source)))
    late.replace_state(state)
    assert late.state.anchor_N.tobytes() == source.state.anchor_N.tobytes()
    assert late.state.slots["momentum"].tobytes() == source.state.slots["momentum"].tobytes()
    assert late.num_state_cells == 8


def test_state_with_zeroed_momentum_does_not_have_the_sealed_root():
    source = advanced()
    cells = cells_of(source)
    for index in range(4, 8):
        cells[index] = bytes(len(cells[index]))
    with pytest.raises(StateError):
        store_of().assemble(source.state.root, placed(store_of(), cells))


def test_state_cell_that_is_not_under_the_sealed_root_is_refused():
    source = advanced()
    item = source.state_item(source.state, 7)
    wrong = [
        replace(item, payload=item.payload[:-1] + b"\x55"),
        replace(item, payload=item.payload[:-4]),
        replace(item, index=3),
        replace(item, proof=item.proof[:-1]),
    ]
    for bad in wrong:
        with pytest.raises(ProofError):
            store_of().check_state_cell(source.state.root, bad)


def test_root_of_a_state_covers_every_element_of_anchor_and_slots():
    store = advanced()
    roots = {store.state.root}
    for position in (0, 1023, 1024, NUMEL - 1):
        for name in ("anchor", "momentum"):
            anchor_N = store.state.anchor_N.copy()
            momentum_N = store.state.slots["momentum"].copy()
            changed_N = anchor_N if name == "anchor" else momentum_N
            changed_N[position] = np.nextafter(changed_N[position], np.float32(9))
            roots.add(store.make_state(anchor_N, {"momentum": momentum_N}).root)
    assert len(roots) == 9


def test_seat_proof_needs_the_whole_state_and_belongs_to_one_peer_and_one_seal():
    store = advanced()
    zeroed = store.make_state(store.state.anchor_N, {"momentum": np.zeros(NUMEL, np.float32)})
    proofs = {
        store.seat_proof(PEERS[0], LIST),
        store.seat_proof(PEERS[1], LIST),
        store.seat_proof(PEERS[0], bytes(32)),
    }
    liar = store_of()
    liar.replace_state(zeroed)
    proofs.add(liar.seat_proof(PEERS[0], LIST))
    assert len(proofs) == 4
    twin = store_of()
    twin.replace_state(State(store.state.anchor_N, store.state.slots, (), b""))
    assert twin.seat_proof(PEERS[0], LIST) == store.seat_proof(PEERS[0], LIST)


def test_cells_that_do_not_exist_are_not_served():
    store = advanced()
    assert store.state_of(bytes(32)) is None
    assert store.result_cells(bytes(32)) == []
    assert store.parts(bytes(32), [0]) == []
