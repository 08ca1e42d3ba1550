"""Checkpoints in the background, on a disk that may be full."""

import os
import random
import threading
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.holdings.checkpoints import (
    PATIENCE_S,
    REST,
    REST_S_MAX,
    ROUNDS_APART,
    Checkpoints,
    stored_states,
)
from node.holdings.states import State
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from protocol.rounds.chain import genesis
from tests.node.edge import NUMEL, toy_manifest
from tests.training.full_disk import files_of_at_most


def zeros() -> State:
    vector_N = np.zeros(NUMEL, dtype=np.float32)
    return State(vector_N, {"momentum": vector_N}, (), b"")


async def test_disk_that_takes_no_more_is_an_os_error(tmp_path: Path) -> None:
    manifest = toy_manifest()
    state = zeros()
    checkpoints = Checkpoints(tmp_path, manifest, 0)
    checkpoints.offer(genesis(manifest, 0, bytes(32)), state)
    with files_of_at_most(1024), pytest.raises(OSError, match=r"anchor|large"):
        await checkpoints.run()
    assert "latest" not in os.listdir(tmp_path)


class SlowCheckpoints(Checkpoints):
    """A disk that takes one write at a time, and each only once it may."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.may_write = threading.Semaphore(0)
        self.written: list[int] = []

    def _write(self, offer: Any) -> Path:
        assert self.may_write.acquire(timeout=20.0)
        self.written.append(offer[0].value.round)
        return super()._write(offer)


def sealed(manifest: RunManifest, round_index: int) -> SealCertificate:
    start = genesis(manifest, 0, bytes(32))
    return replace(start, value=replace(start.value, round=round_index))


async def test_state_that_was_fetched_is_not_replaced_by_an_older_one_that_had_to_wait(
    tmp_path: Path,
) -> None:
    manifest = toy_manifest()
    checkpoints = SlowCheckpoints(tmp_path, manifest, 0)
    state = zeros()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(checkpoints.run)
        checkpoints.offer(sealed(manifest, 3), state)
        await wait_all_tasks_blocked()  # It is being written, slowly.
        checkpoints.offer(sealed(manifest, 4), state)
        nursery.start_soon(checkpoints.save, sealed(manifest, 9), state.anchor_N, state.slots)
        await wait_all_tasks_blocked()
        # The write of round 3 ends: who waited longest for the disk has it, and that is the save.
        for _ in range(3):
            checkpoints.may_write.release()
        await checkpoints.flushed()
        assert checkpoints.written == [3, 9]
        assert checkpoints.latest is not None
        assert checkpoints.latest.name == "round-000010"
        found = [s.round for s in stored_states(tmp_path, manifest, 0, ["momentum"])]
        assert found == [9, 3]
        checkpoints.offer(sealed(manifest, 10), state)
        await checkpoints.flushed()
        assert checkpoints.written == [3, 9, 10]
        nursery.cancel_scope.cancel()


async def test_later_checkpoint_is_kept_until_its_round_is_on_the_disk_again(
    tmp_path: Path,
) -> None:
    """A damaged disk lost the seals that lead to it, and the node begins again before it."""
    manifest, state = toy_manifest(), zeros()
    folder, aside = tmp_path / "checkpoints", tmp_path / "set-aside"
    checkpoints = Checkpoints(folder, manifest, 0)

    async def write(*rounds: int) -> None:
        for round_index in rounds:
            certificate = sealed(manifest, round_index)
            await checkpoints.save(certificate, state.anchor_N, state.slots)

    def names(at: Path) -> list[str]:
        return sorted(path.name for path in at.glob("round-*"))

    await write(48, 48, 49, 50)
    assert not aside.exists(), "the same round again is no later one"
    before = (folder / "round-000051" / "anchor.safetensors").read_bytes()
    await write(1)
    assert names(folder) == ["round-000002"]
    assert names(aside) == ["round-000051"]
    assert (aside / "round-000051" / "anchor.safetensors").read_bytes() == before
    # Once more: what is kept is the latest of all.
    await write(9, 3)
    assert names(aside) == ["round-000051"]
    await write(60, 5)
    assert names(aside) == ["round-000061"]
    await write(60, 61)
    assert names(aside) == ["round-000061"], "three are kept, and the oldest is of round 5"
    await write(62)
    assert names(folder) == ["round-000061", "round-000062", "round-000063"]
    assert names(aside) == []


WRITE_S = 2.0


async def test_disk_rests_between_large_states_and_takes_the_newest_at_once_when_asked(
    tmp_path: Path, autojump_clock: trio.abc.Clock, seed: int
) -> None:
    class LongCheckpoints(Checkpoints):
        """A disk that takes two seconds for a state, in virtual time."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.began_s: dict[int, float] = {}

        async def _save(self, number: int, offer: Any) -> None:
            del number
            self.began_s[offer[0].value.round] = trio.current_time()
            await trio.sleep(WRITE_S)

    rng, manifest = random.Random(seed), toy_manifest()
    checkpoints, rounds = LongCheckpoints(tmp_path, manifest, 0), 200
    state = zeros()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(checkpoints.run)
        for index in range(1, rounds + 1):
            checkpoints.offer(sealed(manifest, index), state)
            await trio.sleep(rng.uniform(0.1, 1.0))
        began = sorted(checkpoints.began_s.values())
        gaps = [after - before for before, after in pairwise(began)]
        assert min(gaps) >= 0.999 * WRITE_S * (1.0 + REST)
        assert max(gaps) <= WRITE_S * (1.0 + REST) + 1.0
        asked_s = trio.current_time()
        await checkpoints.flushed()
        assert trio.current_time() <= asked_s + 2.0 * WRITE_S
        assert max(checkpoints.began_s) == rounds
        nursery.cancel_scope.cancel()


async def test_state_that_waits_is_held_by_nobody_and_written_with_the_next_one(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    class LongCheckpoints(Checkpoints):
        async def _save(self, number: int, offer: Any) -> None:
            written.append((offer[0].value.round, trio.current_time()))
            await trio.sleep(WRITE_S)

    manifest = toy_manifest()
    written: list[tuple[int, float]] = []
    checkpoints = LongCheckpoints(tmp_path, manifest, 0)
    states = [zeros() for _ in range(5)]
    gone = [weakref.ref(state) for state in states]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(checkpoints.run)
        checkpoints.offer(sealed(manifest, 1), states[0])
        await trio.sleep(WRITE_S / 2)
        checkpoints.offer(sealed(manifest, 2), states[1])
        rest_s = WRITE_S * (1.0 + REST)
        await trio.sleep(rest_s)
        states[0] = states[1] = zeros()
        assert not any(ref() for ref in gone[:2])
        assert [index for index, _ in written] == [1], "the disk has rested, and no state came"
        checkpoints.offer(sealed(manifest, 3), states[2])
        await trio.sleep(WRITE_S / 2)
        assert [index for index, _ in written] == [1, 3]
        # Nothing comes behind it: at last it is written by itself.
        checkpoints.offer(sealed(manifest, 4), states[3])
        began_s = trio.current_time()
        await trio.sleep(rest_s + 1.01 * PATIENCE_S)
        assert [index for index, _ in written] == [1, 3, 4]
        assert written[-1][1] - began_s > PATIENCE_S
        states[3] = zeros()
        checkpoints.offer(sealed(manifest, 5), zeros())
        await checkpoints.flushed()
        assert [index for index, _ in written] == [1, 3, 4], "that one was gone at once"
        nursery.cancel_scope.cancel()


async def test_large_state_is_written_every_so_many_rounds_when_it_is_fetched_and_at_the_end(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    class CountedCheckpoints(Checkpoints):
        async def _save(self, number: int, offer: Any) -> None:
            written.append(offer[0].value.round)

    manifest, state = toy_manifest(), zeros()
    written: list[int] = []

    def sealed_on(root: bytes, index: int) -> SealCertificate:
        certificate = sealed(manifest, index)
        return replace(certificate, value=replace(certificate.value, root=root))

    async def rounds(checkpoints: Checkpoints, first: int, stop: int) -> list[int]:
        written.clear()
        for index in range(first, stop):
            checkpoints.offer(sealed_on(bytes([index]) * 32, index), state)
            await trio.sleep(REST_S_MAX + PATIENCE_S)
        return list(written)

    async with trio.open_nursery() as nursery:
        small = CountedCheckpoints(tmp_path / "small", manifest, 0)
        nursery.start_soon(small.run)
        assert await rounds(small, 1, 6) == [1, 2, 3, 4, 5]
        large = CountedCheckpoints(tmp_path / "large", manifest, 0, large_bytes=1)
        nursery.start_soon(large.run)
        assert await rounds(large, 3, 2 * ROUNDS_APART + 5) == [
            3,
            ROUNDS_APART + 3,
            2 * ROUNDS_APART + 3,
        ]
        newest = 2 * ROUNDS_APART + 4
        large.fetched(bytes([newest - 1]) * 32)
        await trio.sleep(REST_S_MAX)
        assert written[-1] == 2 * ROUNDS_APART + 3, "the state before is not in memory any more"
        large.fetched(bytes([newest]) * 32)
        await trio.sleep(REST_S_MAX)
        assert written[-1] == newest
        assert await rounds(large, newest + 1, newest + 3) == []
        # A history that began anew, as after a damaged disk.
        assert await rounds(large, 2, 4) == [2]
        await large.flushed()
        assert written == [2, 3], "the last one is written when the node ends"
        nursery.cancel_scope.cancel()


async def test_of_large_states_two_checkpoints_are_kept(tmp_path: Path) -> None:
    manifest, state = toy_manifest(), zeros()
    for large_bytes, expected in ((1, [3, 4]), (1 << 40, [2, 3, 4])):
        folder = tmp_path / str(large_bytes)
        checkpoints = Checkpoints(folder, manifest, 0, large_bytes=large_bytes)
        for index in range(1, 5):
            await checkpoints.save(sealed(manifest, index), state.anchor_N, state.slots)
        assert sorted(int(path.name[6:]) - 1 for path in folder.glob("round-*")) == expected
