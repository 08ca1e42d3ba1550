"""A node's simulated disk: the shipped journal and checkpoints, through every disaster it knows."""

import errno
import random
from dataclasses import replace

import numpy as np
import pytest

from node.holdings.recovery import StoredState
from sim.world.disk import SPOILABLE, Disk, DiskSpec
from tests.node.journal_history import message, seals

DIGEST = bytes(range(32))
LOSES_ALL = DiskSpec(lose=1.0, tear=0.0, slow=0.0)


def disk_of(seed: object = 0, spec: DiskSpec = LOSES_ALL) -> Disk:
    disk = Disk(random.Random(f"{seed}"), spec)
    disk.reopen()
    return disk


def state_of(round_index: int) -> StoredState:
    anchor_N = np.arange(100, dtype=np.float32) + round_index
    slots = {"momentum": anchor_N * np.float32(2), "variance": anchor_N + np.float32(3)}
    return StoredState(round_index, bytes([round_index] * 32), anchor_N, slots)


def same(one: StoredState, other: StoredState) -> bool:
    return (
        (one.round, one.seal) == (other.round, other.seal)
        and one.anchor_N.tobytes() == other.anchor_N.tobytes()
        and {name: v_N.tobytes() for name, v_N in one.slots.items()}
        == {name: v_N.tobytes() for name, v_N in other.slots.items()}
    )


def rounds_of(disk: Disk) -> list[int]:
    return [state.round for state in disk.states()]


def off_and_on(disk: Disk) -> None:
    disk.crash(is_power_off=True)
    disk.reopen()


def fill(disk: Disk, rounds: int) -> None:
    """What a node writes in so many rounds."""
    for index in range(1, rounds + 1):
        disk.journal.record([message(index)])
        disk.journal.keep_result(index, DIGEST, [b"result", bytes([index])])
        disk.journal.extend_chain(seals(index, index))
        disk.save(state_of(index))


def test_what_was_told_to_be_durable_outlives_the_power(caplog):
    disk = disk_of()
    fill(disk, 5)
    off_and_on(disk)
    assert list(disk.journal.chain()) == seals(1, 5)
    assert message(5) in disk.journal.messages()
    assert rounds_of(disk)[:3] == [5, 4, 3]
    assert all(same(state, state_of(state.round)) for state in disk.states())
    # What is newer than the oldest checkpoint is needed; of round 3 those who are a round behind.
    assert all(disk.journal.results(index) for index in (3, 4, 5))
    assert not disk.journal.is_lost
    assert "skipped" not in caplog.text


def test_killed_process_loses_nothing_and_the_power_may_take_what_was_not_synced():
    kept = []
    for is_power_off in (False, True):
        disk = disk_of(spec=replace(LOSES_ALL, slow=1.0))
        disk.save_behind(state_of(1))
        size = disk.bytes_used
        disk.crash(is_power_off=is_power_off)
        kept.append(disk.bytes_used == size)
        disk.reopen()
        assert rounds_of(disk) == []
    assert kept == [True, False]


def test_checkpoint_that_was_being_written_is_passed_over_and_one_that_was_due_next_ends_it():
    disk = disk_of(spec=replace(LOSES_ALL, slow=1.0))
    disk.save(state_of(1))
    disk.save_behind(state_of(2))
    assert rounds_of(disk) == [1]
    disk.save_behind(state_of(3))
    assert rounds_of(disk) == [2, 1]
    disk.crash(is_power_off=False)
    disk.reopen()
    assert rounds_of(disk) == [2, 1]
    disk.save(state_of(4))
    assert rounds_of(disk) == [4, 2, 1], "the third ended with its process"


def test_checkpoints_of_a_branch_that_was_given_up_go():
    disk = disk_of()
    for index in (1, 2, 3, 2):
        disk.save(state_of(index))
    assert rounds_of(disk) == [2, 1]


@pytest.mark.parametrize("what", SPOILABLE)
def test_spoiled_file_is_noticed(what, caplog):
    for seed in range(20):
        disk = disk_of(seed)
        assert not disk.spoil(what)
        fill(disk, 6)
        assert disk.spoil(what)
        disk.crash(is_power_off=False)
        disk.reopen()
        results = [bool(disk.journal.results(index)) for index in range(1, 7)]
        healthy = (
            disk.journal.is_lost,
            len(disk.journal.chain()),
            rounds_of(disk),
            results,
        )
        assert healthy != (False, 6, [6, 5, 4], [True] * 6)
        assert disk.journal.is_lost == (what == "slots")
        if what != "slots":
            assert message(6) in disk.journal.messages()


def test_full_disk_takes_nothing_and_what_was_there_stays():
    disk = disk_of()
    fill(disk, 3)
    disk.is_full = True
    for write in (
        lambda: disk.journal.record([message(4)]),
        lambda: disk.journal.extend_chain(seals(4, 4)),
        lambda: disk.journal.keep_result(4, DIGEST, [b"x"]),
        lambda: disk.save(state_of(4)),
    ):
        with pytest.raises(OSError, match="No space left") as caught:
            write()
        assert caught.value.errno == errno.ENOSPC
    disk.is_full = False
    off_and_on(disk)
    assert list(disk.journal.chain()) == seals(1, 3)
    assert rounds_of(disk) == [3, 2, 1]
    assert message(3) in disk.journal.messages()
    assert message(4) not in disk.journal.messages()


def test_lost_disk_is_known_to_be_one_until_that_is_forgiven():
    disk = disk_of()
    fill(disk, 3)
    disk.forget()
    assert disk.bytes_used == 0
    disk.reopen()
    assert disk.journal.is_lost
    disk.journal.record([message(4)])
    off_and_on(disk)
    assert disk.journal.is_lost
    disk.journal.forgive_loss()
    off_and_on(disk)
    assert not disk.journal.is_lost


def test_disk_that_is_rolled_back_does_not_know():
    disk = disk_of()
    fill(disk, 3)
    image = disk.image()
    disk.journal.record([message(4)])
    disk.journal.extend_chain(seals(4, 4))
    disk.roll_back(image)
    disk.reopen()
    assert not disk.journal.is_lost
    assert list(disk.journal.chain()) == seals(1, 3)
    assert rounds_of(disk) == [3, 2, 1]


def lived(seed: int, spec: DiskSpec) -> list[str]:
    """A node's life with crashes, and errors that end its process; every start keeps promises."""
    disk = Disk(random.Random(f"{seed}/disk"), spec)
    luck = random.Random(f"{seed}/luck")
    told, height, signed = [], 0, None
    for index in range(1, 120):
        try:
            disk.reopen()
        except OSError as error:
            told.append(f"start failed {error.errno}")
            disk.crash()
            continue
        chain, messages = disk.journal.chain(), disk.journal.messages()
        assert list(chain) == seals(1, len(chain))
        assert len(chain) >= height
        assert signed is None or signed in messages
        assert not disk.journal.is_lost
        height = len(chain)
        told.append(f"{height} {len(messages)} {rounds_of(disk)} {disk.bytes_used}")
        try:
            for _ in range(luck.randrange(6)):
                disk.journal.record([message(height + 1, index % 9)])
                signed = message(height + 1, index % 9)
                disk.journal.keep_result(height + 1, DIGEST, [b"x" * 300])
                assert disk.journal.results(height + 1) == {DIGEST: b"x" * 300}
                disk.journal.extend_chain(seals(height + 1, height + 1))
                height += 1
                disk.save_behind(state_of(height % 200))
        except OSError as error:
            told.append(f"ended {error.errno}")
        disk.crash()
    return told


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(4))
def test_life_of_crashes_and_errors_keeps_every_promise_and_is_the_same_again(seed):
    spec = DiskSpec(fail=0.01, rotate_bytes=2000)
    told = lived(seed, spec)
    assert told == lived(seed, spec)
    assert any("ended" in line for line in told)
    assert max(int(line.split()[0]) for line in told if line[0].isdigit()) > 30
