"""What is fetched of a state: checked, kept over a restart, and stepped on to the bit."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from node.holdings.journal import FileJournal
from node.holdings.shard_store import Item, ShardStore
from node.plane.gathered import FETCH_FILE, Gathered, PartialCells, WrongStep
from protocol.errors import ProofError, StateError
from protocol.frames import Bulk, BulkHeader
from protocol.messages import SealCertificate
from sim.world.files import SimFiles
from tests.node.builders import head_of, peers_named, toy_manifest

PEERS = peers_named(2)
CELLS = 8
MANIFEST = toy_manifest(PEERS[0], cells=CELLS)
NUMEL = MANIFEST.layout(0).fragment_numels[0]
FOLDER = Path("/run")


def vector(name: str) -> np.ndarray:
    generator = np.random.default_rng(random.Random(name).getrandbits(64))
    return generator.standard_normal(NUMEL).astype(np.float32)


def store_of(anchor_N: np.ndarray | None = None) -> ShardStore:
    return ShardStore(MANIFEST, 0, vector("anchor") if anchor_N is None else anchor_N)


def sealed(root: bytes, round_index: int = 7, commits=(b"c" * 32,)) -> SealCertificate:
    value = head_of(PEERS).value
    value = replace(value, round=round_index, root=root, commits=commits)
    return SealCertificate(value=value, seals=())


class Joiner:
    """What a node fetches with, over its starts."""

    def __init__(self, store: ShardStore | None = None, files: SimFiles | None = None) -> None:
        self.files = files or SimFiles(random.Random(0))
        self.store = store or store_of(np.zeros(NUMEL, np.float32))
        self.journal = FileJournal(FOLDER, files=self.files)
        self.partial = PartialCells(FOLDER, self.files)
        self.gathered = Gathered(self.store, self.journal, self.partial)

    def again(self) -> "Joiner":
        return Joiner(self.store, self.files)


def header(bulk: Bulk, subject: bytes, round_index: int = 1) -> BulkHeader:
    return BulkHeader(bulk=bulk, subject=subject, round=round_index, items=1)


def item_of(source: ShardStore, index: int) -> Item:
    return source.state_item(source.state, index)


def taken(joiner: Joiner, source: ShardStore, seal: SealCertificate, cells) -> list[int]:
    found: list[int] = []
    for index in cells:
        found += joiner.gathered.take(header(Bulk.STATE, seal.value.digest), item_of(source, index))
    return found


def is_whole(joiner: Joiner) -> bool:
    return joiner.gathered.is_whole


def held(joiner: Joiner, seal: SealCertificate) -> list[int]:
    return sorted(joiner.gathered.expect_state(seal)[seal.value.digest])


def test_state_is_whole_with_its_last_cell_and_has_the_sealed_root():
    source, joiner = store_of(), Joiner()
    seal = sealed(source.state.root)
    # Its slots are zero like ours: nobody needs to send them, once their subtree is proven.
    assert held(joiner, seal) == []
    assert taken(joiner, source, seal, [3]) == [3, *range(8, 16)]
    assert not is_whole(joiner)
    taken(joiner, source, seal, range(CELLS))
    assert is_whole(joiner)
    assert joiner.gathered.state().root == source.state.root
    joiner.gathered.forget()
    assert not joiner.files.exists(FOLDER / FETCH_FILE)


def test_wrong_cell_is_refused_and_keeps_nothing():
    source, joiner = store_of(), Joiner()
    seal = sealed(source.state.root)
    held(joiner, seal)
    item = item_of(source, 2)
    wrong = replace(item, payload=item.payload[:-1] + bytes([item.payload[-1] ^ 1]))
    with pytest.raises(ProofError):
        joiner.gathered.take(header(Bulk.STATE, seal.value.digest), wrong)
    assert held(joiner.again(), seal) == []


def test_cells_of_another_seal_are_not_taken():
    source, joiner = store_of(), Joiner()
    seal = sealed(source.state.root)
    held(joiner, seal)
    assert joiner.gathered.take(header(Bulk.STATE, b"x" * 32), item_of(source, 0)) == ()
    assert joiner.gathered.take(header(Bulk.STEP, seal.value.digest), item_of(source, 0)) == ()


def test_cell_that_comes_twice_is_news_once_and_is_kept_once():
    source, joiner = store_of(), Joiner()
    seal = sealed(source.state.root)
    held(joiner, seal)
    assert taken(joiner, source, seal, [3]) == [3, *range(8, 16)]
    size = len(joiner.files.content(FOLDER / FETCH_FILE))
    assert taken(joiner, source, seal, [3, 9]) == []
    assert len(joiner.files.content(FOLDER / FETCH_FILE)) == size


def test_restart_goes_on_with_what_was_fetched_and_with_what_that_proves():
    source, joiner = store_of(), Joiner()
    seal = sealed(source.state.root)
    held(joiner, seal)
    taken(joiner, source, seal, [5, 1, 6])
    joiner = joiner.again()
    assert joiner.partial.begun == (seal.value.digest, sum(map(source.state_bytes, (5, 1, 6))))
    assert held(joiner, seal) == [1, 5, 6, *range(8, 16)]
    taken(joiner, source, seal, [0, 2, 3])
    assert held(joiner.again(), seal) == [0, 1, 2, 3, 5, 6, *range(8, 16)]


@pytest.mark.parametrize("cut", [1, 100, 4095, 4500, 9000])
def test_torn_tail_costs_the_cells_in_it_and_no_more(cut):
    source, joiner = store_of(), Joiner()
    seal = sealed(source.state.root)
    held(joiner, seal)
    taken(joiner, source, seal, [0, 1, 2, 3])
    path = FOLDER / FETCH_FILE
    whole = joiner.files.content(path)
    joiner.files.create(path).write(whole[: len(whole) - cut])
    joiner = joiner.again()
    left = [cell for cell in held(joiner, seal) if cell < CELLS]
    assert left == list(range(4 - 1 - cut // 4250))
    # What is appended behind it is found again.
    taken(joiner, source, seal, [7])
    assert [cell for cell in held(joiner.again(), seal) if cell < CELLS] == [*left, 7]


def test_flipped_bit_anywhere_in_the_file_never_makes_a_wrong_state(seed):
    source, rng = store_of(), random.Random(seed)
    seal = sealed(source.state.root)
    for _ in range(30):
        joiner = Joiner()
        held(joiner, seal)
        taken(joiner, source, seal, range(6))
        path = FOLDER / FETCH_FILE
        joiner.files.flip(path, rng.randrange(8 * len(joiner.files.content(path))))
        joiner = joiner.again()
        held(joiner, seal)
        taken(joiner, source, seal, range(CELLS))
        assert joiner.gathered.state().root == source.state.root


def test_disk_that_takes_no_more_costs_the_restart_its_gain_and_nothing_else():
    def full(operation: str, path: Path) -> None:
        if path.name == FETCH_FILE and operation == "write":
            raise OSError("no space left")

    source, joiner = store_of(), Joiner(files=SimFiles(random.Random(0), before=full))
    seal = sealed(source.state.root)
    held(joiner, seal)
    taken(joiner, source, seal, range(CELLS))
    assert joiner.gathered.state().root == source.state.root


def test_cells_that_are_the_same_in_a_newer_state_are_not_fetched_again():
    old = store_of()
    anchor_N = old.state.anchor_N.copy()
    anchor_N[5 * 1024 :] += 1.0
    new, joiner = store_of(anchor_N), Joiner()
    first, second = sealed(old.state.root), sealed(new.state.root, 8)
    held(joiner, first)
    taken(joiner, old, first, range(6))
    for one in (joiner, joiner.again()):
        # In memory, and from the file.
        held(one, second)
        found = taken(one, new, second, [5])
        # Of cell 5 the subtrees beside are 4, 6-7, 0-3 and the slots.
        assert sorted(found) == [0, 1, 2, 3, 4, 5, *range(8, 16)]
        taken(one, new, second, [6, 7])
        assert one.gathered.state().root == new.state.root
        one.gathered.forget()
        held(one, first)
        taken(one, old, first, range(6))


def test_state_that_is_our_own_needs_nobody():
    source = store_of()
    joiner = Joiner(store_of())
    seal = sealed(source.state.root)
    assert held(joiner, seal) == list(range(2 * CELLS))
    assert is_whole(joiner)


# Steps ------------------------------------------------------------------------------------------


class Run:
    """Rounds with their results, as the swarm made them."""

    def __init__(self, rounds: int) -> None:
        self.store = store_of()
        self.start = self.store.state
        self.seals: list[SealCertificate] = []
        self.results: list[list[bytes]] = []
        for index in range(1, rounds + 1):
            is_empty = index == 3
            commits = () if is_empty else (bytes([index]) * 32,)
            state = self.store.state
            cells = []
            if not is_empty:
                x_N = vector(f"result {index}").astype("<f2")
                cells = [x_N[at : at + 1024].tobytes() for at in range(0, NUMEL, 1024)]
                state = self.store.stepped(state, cells, round_index=index)
                self.store.replace_state(state)
            self.seals.append(sealed(state.root, index, commits))
            self.results.append(cells)

    def joiner(self) -> Joiner:
        joiner = Joiner(store_of())
        assert joiner.store.state.root == self.start.root
        return joiner


def give(joiner: Joiner, run: Run, number: int, cells=range(CELLS)) -> None:
    value = run.seals[number].value
    for cell in cells:
        item = Item(cell, run.results[number][cell], ())
        joiner.gathered.take(header(Bulk.STEP, value.digest, value.round), item)
    joiner.gathered.advance()


def test_steps_lead_to_the_sealed_state_in_whatever_order_results_come():
    run = Run(4)
    joiner = run.joiner()
    assert joiner.gathered.expect_steps(run.seals) == {}
    give(joiner, run, 3)
    give(joiner, run, 1)
    assert not is_whole(joiner)
    give(joiner, run, 0, range(1, CELLS))
    assert not is_whole(joiner)
    give(joiner, run, 0, [0])
    assert is_whole(joiner)
    assert joiner.gathered.state().root == run.seals[-1].value.root
    assert joiner.store.state.root == run.start.root, "nothing is taken over before the core says"


def test_steps_wait_for_their_last_result_and_take_no_cells_of_a_state():
    run = Run(2)
    joiner = run.joiner()
    joiner.gathered.expect_steps(run.seals)
    assert taken(joiner, run.store, run.seals[-1], range(CELLS)) == []
    give(joiner, run, 0)
    assert not is_whole(joiner)
    with pytest.raises(StateError, match="not all steps"):
        joiner.gathered.state()
    give(joiner, run, 1)
    assert joiner.gathered.state().root == run.seals[-1].value.root


def test_results_of_steps_outlive_a_restart():
    run = Run(4)
    joiner = run.joiner()
    joiner.gathered.expect_steps(run.seals)
    give(joiner, run, 0)
    give(joiner, run, 1)
    again = joiner.again()
    found = again.gathered.expect_steps(run.seals)
    assert set(found) == {run.seals[0].value.digest, run.seals[1].value.digest}
    again.gathered.advance()
    give(again, run, 3)
    assert again.gathered.state().root == run.seals[-1].value.root


@pytest.mark.parametrize("junk", [b"\x00\x3c", b"\x00\x7c"], ids=["one", "infinity"])
def test_wrong_result_is_told_forgotten_and_can_come_anew(junk):
    run = Run(2)
    joiner = run.joiner()
    joiner.gathered.expect_steps(run.seals)
    subject = run.seals[0].value.digest
    wrong = junk + run.results[0][4][2:]
    joiner.gathered.take(header(Bulk.STEP, subject), Item(4, wrong, ()))
    with pytest.raises(WrongStep) as caught:
        give(joiner, run, 0, [0, 1, 2, 3, 5, 6, 7])
    assert caught.value.subject == subject
    assert not joiner.journal.results(1), "what is wrong is not kept for others"
    give(joiner, run, 0)
    give(joiner, run, 1)
    assert joiner.gathered.state().root == run.seals[-1].value.root


def test_fetched_cells_lie_in_the_vectors_of_the_state_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
):
    source, joiner = store_of(), Joiner()
    made: list[np.ndarray] = []
    take = joiner.store.blank_vectors

    def blank_vectors():
        made.extend(vectors := take())
        return vectors

    monkeypatch.setattr(joiner.store, "blank_vectors", blank_vectors)
    seal = sealed(source.state.root)
    assert held(joiner, seal) == []
    taken(joiner, source, seal, range(source.num_state_cells))
    state = joiner.gathered.state()
    assert made
    found = (state.anchor_N, *state.slots.values())
    assert all(one_N is vector_N for one_N, vector_N in zip(found, made, strict=True))
    assert state.anchor_N.tobytes() == source.state.anchor_N.tobytes()


def test_state_is_gathered_whole_where_the_steps_to_it_were_gathered_before():
    run = Run(2)
    joiner = run.joiner()
    joiner.gathered.expect_steps(run.seals)
    last, source = run.seals[-1], run.store
    held(joiner, last)
    taken(joiner, source, last, [*range(source.num_state_cells)])
    assert is_whole(joiner)
    assert joiner.gathered.state().root == last.value.root
