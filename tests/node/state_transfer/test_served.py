"""What joiners can ask for: from memory, from checkpoints, and for as long as they fetch it."""

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from node.holdings.checkpoints import Checkpoints
from node.holdings.journal import FileJournal
from node.holdings.shard_store import ShardStore, State
from node.plane import served
from node.plane import served as checkpoint_source
from node.plane.served import HELD_S, STATES_HELD_MAX, Served, StateInMemory, checkpoint_finder
from protocol import limits
from protocol.errors import StreamClosedError
from protocol.frames import Bulk
from protocol.grid import cell_root
from protocol.messages import SealCertificate
from protocol.rounds.chain import genesis
from sim.world.files import SimFiles
from tests.node.edge import NUMEL, toy_manifest

MANIFEST = toy_manifest()
START = genesis(MANIFEST, 0, bytes(32))


def vector(name: str) -> np.ndarray:
    generator = np.random.default_rng(random.Random(name).getrandbits(64))
    return generator.standard_normal(NUMEL).astype(np.float32)


class Swarm:
    """One node that steps on, round by round, and serves."""

    def __init__(self, find=lambda _: None) -> None:
        self.store = ShardStore(MANIFEST, 0, vector("anchor"))
        self.journal = FileJournal(Path("/run"), files=SimFiles(random.Random(0)))
        self.served = Served(self.store, self.journal, find)
        self.seals: list[SealCertificate] = []
        self.states: list[State] = []

    def step(self) -> None:
        index = len(self.seals) + 1
        commits = (bytes([index]) * 32,)
        value = replace(START.value, round=index, commits=commits)
        x_N = vector(f"result {index}").astype("<f2")
        cells = [x_N[at : at + 1024].tobytes() for at in range(0, NUMEL, 1024)]
        self.store.restore_result(value.list_digest, b"".join(cells))
        self.journal.keep_result(index, value.list_digest, cells)
        root = self.store.apply(value.list_digest, is_empty=False, round_index=index)
        self.store.adopt(value.list_digest)
        self.seals.append(SealCertificate(value=replace(value, root=root), seals=()))
        self.states.append(self.store.state)

    def find(self, bulk: Bulk, round_index: int, now_s: float = 0.0):
        return self.served.find(bulk, self.seals[round_index - 1], now_s=now_s)

    def check(self, source, round_index: int) -> None:
        root = self.seals[round_index - 1].value.root
        assert source.count == self.store.num_state_cells
        for index in range(source.count):
            self.store.check_state_cell(root, source.item(index))


def test_state_that_is_asked_for_stays_until_nobody_asks_any_more():
    swarm = Swarm()
    for _ in range(3):
        swarm.step()
    assert swarm.find(Bulk.STATE, 3) is not None
    for _ in range(6):
        swarm.step()
    swarm.check(swarm.find(Bulk.STATE, 3, HELD_S), 3)
    assert swarm.find(Bulk.STATE, 4) is None
    assert swarm.find(Bulk.STATE, 3, 2 * HELD_S) is not None
    assert swarm.find(Bulk.STATE, 3, 3 * HELD_S + 0.1) is None
    assert len(swarm.served._held) == 0


def test_joiners_hold_so_many_states_and_no_more():
    swarm = Swarm()
    for index in range(1, 9):
        swarm.step()
        assert swarm.find(Bulk.STATE, index, float(index)) is not None
        assert len(swarm.served._held) <= STATES_HELD_MAX
    held = [index for index in range(1, 9) if swarm.find(Bulk.STATE, index, 9.0) is not None]
    assert held == [7, 8], "the last two are in memory anyhow"


def test_results_of_the_last_rounds_are_served_from_the_disk_and_older_ones_are_gone():
    swarm = Swarm()
    rounds = limits.RESULT_ROUNDS_KEPT + 4
    for _ in range(rounds):
        swarm.step()
        swarm.journal.saved_up_to(len(swarm.seals) - 1)
    for index in range(1, rounds + 1):
        source = swarm.find(Bulk.STEP, index)
        if index <= 4:
            assert source is None
            continue
        cells = [source.item(cell).payload for cell in range(source.count)]
        before = swarm.states[index - 2]
        state = swarm.store.stepped(before, cells, round_index=index)
        assert state.root == swarm.seals[index - 1].value.root


def test_result_that_rotted_on_the_disk_is_not_served():
    swarm = Swarm()
    for _ in range(6):
        swarm.step()
    folder = Path("/run/results")
    files = swarm.journal._files
    assert isinstance(files, SimFiles)
    (name,) = [name for name in files.names(folder) if name.startswith("round-000002-")]
    files.flip(folder / name, 77)
    assert swarm.find(Bulk.STEP, 2) is None
    assert swarm.find(Bulk.STEP, 3) is not None


def test_cell_that_rots_while_a_result_is_fetched_ends_the_transfer_and_is_not_sent():
    swarm = Swarm()
    for _ in range(6):
        swarm.step()
    source = swarm.find(Bulk.STEP, 2)
    assert source is not None
    first, second = source.item(0), source.item(1)
    folder, files = Path("/run/results"), swarm.journal._files
    assert isinstance(files, SimFiles)
    (name,) = [name for name in files.names(folder) if name.startswith("round-000002-")]
    files.flip(folder / name, 8 * len(first.payload) - 1)
    for again in (source, swarm.find(Bulk.STEP, 2)):
        assert again is not None
        with pytest.raises(StreamClosedError):
            again.item(0)
        assert again.item(1) == second


def test_round_that_listed_nobody_has_no_result():
    swarm = Swarm()
    swarm.step()
    empty = replace(swarm.seals[0].value, commits=())
    seal = SealCertificate(value=empty, seals=())
    assert swarm.served.find(Bulk.STEP, seal, now_s=0.0) is None


# Checkpoints ------------------------------------------------------------------------------------


async def saved(folder: Path) -> Swarm:
    """Five rounds, of which the last three are on the disk, and none but the last in memory."""
    swarm = Swarm()
    swarm.served = Served(
        swarm.store, swarm.journal, checkpoint_finder(folder, swarm.store, MANIFEST)
    )
    checkpoints = Checkpoints(folder, MANIFEST, 0)
    for _ in range(5):
        swarm.step()
        await checkpoints.save(swarm.seals[-1], swarm.store.state.anchor_N, swarm.store.state.slots)
    swarm.store.replace_state(swarm.store.state)
    return swarm


async def test_state_is_served_from_its_checkpoint_to_the_bit(tmp_path: Path) -> None:
    swarm = await saved(tmp_path)
    source = swarm.find(Bulk.STATE, 3)
    assert not isinstance(source, StateInMemory)
    swarm.check(source, 3)
    assert swarm.find(Bulk.STATE, 2) is None, "three are kept"


async def test_checkpoint_that_is_served_stays_readable_when_newer_ones_take_its_place(
    tmp_path: Path,
) -> None:
    swarm = await saved(tmp_path)
    checkpoints = Checkpoints(tmp_path, MANIFEST, 0)
    source = swarm.find(Bulk.STATE, 3)
    for _ in range(4):
        swarm.step()
        state = swarm.store.state
        await checkpoints.save(swarm.seals[-1], state.anchor_N, state.slots)
    assert swarm.find(Bulk.STATE, 3, 1.0) is source
    swarm.check(source, 3)


async def test_state_held_in_memory_goes_over_to_its_checkpoint(tmp_path: Path) -> None:
    swarm = await saved(tmp_path)
    assert isinstance(swarm.find(Bulk.STATE, 5), StateInMemory)
    for _ in range(3):
        swarm.step()
    source = swarm.find(Bulk.STATE, 5, 1.0)
    assert not isinstance(source, StateInMemory)
    swarm.check(source, 5)


@pytest.mark.parametrize("name", ["anchor", "outer"])
async def test_damaged_checkpoint_is_not_served_wherever_it_is_damaged(
    tmp_path: Path, name: str, seed: int
) -> None:
    swarm = await saved(tmp_path)
    path = tmp_path / "round-000004" / f"{name}.safetensors"
    whole, rng = path.read_bytes(), random.Random(seed)
    for number in range(60):
        changed = bytearray(whole)
        # Half of them in the header, which is a small part of it.
        place = rng.randrange(rng.choice((200, len(whole))))
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        # Two of them within one tick of the file system's clock are not the same file.
        os.utime(path, ns=(number, number))
        source = swarm.find(Bulk.STATE, 3)
        if source is not None:  # A bit of a name that nobody reads, or of the header's blanks.
            swarm.check(source, 3)
        swarm.served.forget_old(1e9)
    for size in (0, 7, 8, 100, 3000, 4096, 4097, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert swarm.find(Bulk.STATE, 3) is None


async def test_checkpoint_of_another_branch_is_not_served(tmp_path: Path) -> None:
    swarm = await saved(tmp_path)
    other = replace(swarm.seals[2].value, root=bytes(32))
    seal = SealCertificate(value=other, seals=())
    assert swarm.served.find(Bulk.STATE, seal, now_s=0.0) is None


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the cells of checkpoints that were hashed."""
    sizes: list[int] = []

    def count(cell: bytes) -> bytes:
        sizes.append(len(cell))
        return cell_root(cell)

    monkeypatch.setattr(checkpoint_source, "cell_root", count)
    return sizes


async def test_checkpoints_that_are_asked_for_in_turn_are_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[int]
) -> None:
    monkeypatch.setattr(served, "STATES_HELD_MAX", 1)
    swarm = await saved(tmp_path)
    for number in range(20):
        assert swarm.find(Bulk.STATE, 3 + number % 2, float(number)) is not None
    assert len(hashed) == 2 * swarm.store.num_state_cells
    swarm.check(swarm.find(Bulk.STATE, 3), 3)


async def test_damaged_checkpoint_is_hashed_once(tmp_path: Path, hashed: list[int]) -> None:
    swarm = await saved(tmp_path)
    path = tmp_path / "round-000004" / "anchor.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for number in range(20):
        assert swarm.find(Bulk.STATE, 3, float(number)) is None
    assert len(hashed) == swarm.store.num_state_cells


async def test_cell_of_a_checkpoint_that_rots_while_it_is_served_is_not_sent(
    tmp_path: Path,
) -> None:
    swarm = await saved(tmp_path)
    source = swarm.find(Bulk.STATE, 3)
    assert source is not None
    path = tmp_path / "round-000004" / "anchor.safetensors"
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    # A disk tells nobody of it.
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    outcomes = set()
    for index in range(source.count):
        try:
            swarm.store.check_state_cell(swarm.seals[2].value.root, source.item(index))
            outcomes.add("sound")
        except StreamClosedError:
            outcomes.add("not sent")
    assert outcomes == {"sound", "not sent"}
    swarm.served.forget_old(1e9)
    assert swarm.find(Bulk.STATE, 3, 1e9) is None
