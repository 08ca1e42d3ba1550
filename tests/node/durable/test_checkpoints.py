"""Checkpoints in the background, on a disk that may be full."""

import os
import random
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.durable.checkpoints import REST, Checkpoints, stored_states
from node.rules.chain import genesis
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from tests.node.edge import NUMEL, toy_manifest
from tests.training.full_disk import files_of_at_most


async def test_disk_that_takes_no_more_is_an_os_error(tmp_path: Path) -> None:
    manifest = toy_manifest()
    anchor_N = np.zeros(NUMEL, dtype=np.float32)
    checkpoints = Checkpoints(tmp_path, manifest, 0)
    checkpoints.offer(genesis(manifest, 0, bytes(32)), anchor_N, {"momentum": anchor_N})
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
    anchor_N = np.zeros(NUMEL, dtype=np.float32)
    momentum = {"momentum": anchor_N}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(checkpoints.run)
        checkpoints.offer(sealed(manifest, 3), anchor_N, momentum)
        await wait_all_tasks_blocked()  # It is being written, slowly.
        checkpoints.offer(sealed(manifest, 4), anchor_N, momentum)
        nursery.start_soon(checkpoints.save, sealed(manifest, 9), anchor_N, momentum)
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
        checkpoints.offer(sealed(manifest, 10), anchor_N, momentum)
        await checkpoints.flushed()
        assert checkpoints.written == [3, 9, 10]
        nursery.cancel_scope.cancel()


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
    anchor_N = np.zeros(NUMEL, dtype=np.float32)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(checkpoints.run)
        for index in range(1, rounds + 1):
            checkpoints.offer(sealed(manifest, index), anchor_N, {})
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
