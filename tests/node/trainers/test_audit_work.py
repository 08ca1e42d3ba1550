"""Segments of others on their way to the trainer, one at a time, and what it finds (R10)."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.plane.hooks import NodeHooks
from node.trainers.work import WAITING_MAX, AuditWork
from protocol import events as ev
from protocol.errors import TrainerError
from sim.attacks.work import FindsWrong
from tests.node.cells.test_work_desk import rerun_of
from training.channel.frames import Audit, Audited, Reopen

FOUND = b"e" * 32


class Around:
    """The desk, the trainer and the core of one node; `write` makes the file of a task."""

    def __init__(self, folder: Path, hooks: NodeHooks | None = None) -> None:
        self.folder = folder
        self.told: list[Any] = []
        self.asked: list[Audit] = []
        self.forgotten = 0
        self.write: Any = self.written
        self.changed = trio.Event()
        self.work = AuditWork(self, hooks or NodeHooks(), self.tell)  # type: ignore[arg-type]

    def written(self, task: Any, number: int) -> Path:
        path = self.folder / f"{number}.work"
        path.write_bytes(b"state")
        return path

    def forget(self) -> None:
        self.forgotten += 1

    async def tell(self, event: ev.CoreEvent) -> None:
        self.told.append(event)
        self.changed.set()

    async def audit(self, frame: Audit) -> None:
        assert await trio.Path(frame.path).read_bytes() == b"state"
        self.asked.append(frame)
        self.changed.set()

    async def change(self) -> None:
        """Until the trainer is asked, or something is told."""
        await self.changed.wait()
        self.changed = trio.Event()

    def reran(self, found: bytes, segment: int = 1) -> ev.Reran:
        return ev.Reran(commit_digest=bytes(32), segment=segment, found=found)


async def test_trainer_gets_one_after_the_other_and_no_file_is_left(tmp_path):
    around = Around(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.work.run, around)
        for segment in (0, 1):
            await around.work.offer(rerun_of(segment), is_training=True)
        for number in (1, 2):
            await around.change()
            assert around.told == [around.reran(FOUND, one) for one in range(number - 1)]
            await around.work.answered(Audited(number=number, found=FOUND))
            around.changed = trio.Event()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [frame.segment for frame in around.asked] == [0, 1]
    assert around.told == [around.reran(FOUND, 0), around.reran(FOUND, 1)]
    assert list(tmp_path.iterdir()) == []
    assert around.forgotten == 2, "what only answered segments begin with may go"


async def test_auditor_that_lies_says_another_end_and_not_where_it_knows_nothing(tmp_path):
    for found, is_bent in ((FOUND, True), (b"", False)):
        around = Around(tmp_path, FindsWrong())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(around.work.run, around)
            await around.work.offer(rerun_of(1), is_training=True)
            await around.change()
            await around.work.answered(Audited(number=1, found=found))
            nursery.cancel_scope.cancel()
        (said,) = around.told
        assert (said.found != found, len(said.found)) == (is_bent, len(found))


async def test_nothing_is_said_where_it_cannot_be_run(tmp_path):
    around = Around(tmp_path)
    await around.work.offer(rerun_of(1), is_training=False)
    assert around.told == [around.reran(b"")]

    def full(task: Any, number: int) -> Path | None:
        raise OSError("no space")

    for broken in (full, lambda task, number: None):
        around = Around(tmp_path)
        around.write = broken
        async with trio.open_nursery() as nursery:
            nursery.start_soon(around.work.run, around)
            await around.work.offer(rerun_of(1), is_training=True)
            await around.change()
            nursery.cancel_scope.cancel()
        assert (around.told, around.asked) == ([around.reran(b"")], [])


async def test_of_what_too_many_wait_for_nothing_is_said(tmp_path):
    around = Around(tmp_path)
    for _ in range(WAITING_MAX):
        await around.work.offer(rerun_of(0), is_training=True)
    assert around.told == []
    await around.work.offer(rerun_of(1), is_training=True)
    assert around.told == [around.reran(b"")]


async def test_answer_that_nobody_asked_for_is_a_broken_trainer(tmp_path):
    around = Around(tmp_path)
    with pytest.raises(TrainerError, match="nobody asked"):
        await around.work.answered(Audited(number=1, found=FOUND))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.work.run, around)
        await around.work.offer(rerun_of(1), is_training=True)
        await around.change()
        with pytest.raises(TrainerError, match="nobody asked"):
            await around.work.answered(Audited(number=2, found=FOUND))
        nursery.cancel_scope.cancel()


async def test_own_state_that_was_not_kept_is_made_again_once_for_all_who_wait(tmp_path):
    around = Around(tmp_path)
    asked: list[Reopen] = []

    async def reopens(frame: Reopen) -> None:
        asked.append(frame)

    around.audit = reopens  # type: ignore[assignment, method-assign]
    back: list[int] = []

    async def waits(number: int) -> None:
        await around.work.reopen(bytes(32))
        back.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.work.run, around)
        for number in range(2):
            nursery.start_soon(waits, number)
        await wait_all_tasks_blocked()
        assert (asked, back) == ([Reopen(number=1, root=bytes(32))], [])
        with pytest.raises(TrainerError, match="nobody asked"):
            await around.work.answered(Audited(number=7, found=FOUND))
        await around.work.answered(Audited(number=1, found=bytes(32)))
        await wait_all_tasks_blocked()
        assert sorted(back) == [0, 1]
        # What another audit finds is told as before, and the next question is asked again.
        nursery.start_soon(waits, 2)
        await wait_all_tasks_blocked()
        assert asked[-1] == Reopen(number=2, root=bytes(32))
        nursery.cancel_scope.cancel()
    assert around.told == []
