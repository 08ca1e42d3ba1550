"""Segments of others on their way to the trainer, and what it finds; own states that are asked for
and were not kept (R10)."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from node.plane.hooks import NodeHooks
from node.plane.work_desk import WorkDesk
from node.trainers.trainer import Trainer
from protocol import events as ev
from protocol.errors import TrainerError
from protocol.manifest import RunManifest
from training.channel.exchange import Contribution
from training.channel.frames import Audit, Audited, Reopen

logger = logging.getLogger(__name__)

WAITING_MAX = 64
"""Segments that wait for the trainer; of more nothing is said."""


def work_done(contribution: Contribution, manifest: RunManifest) -> ev.WorkDone:
    """What the COMMIT says of the work behind a contribution. Raises TrainerError if there is no
    trace of it."""
    traced = contribution.traced
    if traced is None or len(traced.trace) != manifest.audits.segments + 1:
        raise TrainerError("the trainer keeps no trace, and the run has audits")
    return ev.WorkDone(trace=traced.trace, before=traced.before, after=traced.after)


class AuditWork:
    """Hands them over one after the other: each is a file, and a trainer takes them as it has time.

    It takes them while it waits for the outcome of a round.
    """

    def __init__(
        self,
        desk: WorkDesk,
        hooks: NodeHooks,
        tell: Callable[[ev.CoreEvent], Awaitable[None]],
    ) -> None:
        self._desk, self._hooks, self._tell = desk, hooks, tell
        self._send, self._waiting = trio.open_memory_channel[ev.Rerun | bytes](WAITING_MAX)
        self._number = 0
        self._open: tuple[int, ev.Rerun, Path] | None = None
        self._answered = trio.Event()
        self._root: bytes | None = None
        """The state that the trainer makes again now."""
        self._again: dict[bytes, trio.Event] = {}
        """States of own rounds that are asked for and were not kept; set when the trainer tried."""
        desk.reopen = self.reopen

    def close_rounds(self) -> None:
        """After a seal: what nobody may ask for any more is not kept."""
        try:
            self._desk.close_rounds()
        except OSError as error:
            logger.warning("states are kept that nobody asks for reason=%s", error)

    async def offer(self, task: ev.Rerun, *, is_training: bool) -> None:
        """Have it run, or say at once that it cannot be: there is no trainer, or too much waits."""
        try:
            if is_training:
                self._send.send_nowait(task)
                return
        except trio.WouldBlock:
            logger.warning("audit given up segment=%d reason=too many wait", task.segment)
        await self._say(task, b"")

    async def reopen(self, root: bytes) -> None:
        """Have a state of an own round made again, and wait until that is tried."""
        if root not in self._again:
            try:
                self._send.send_nowait(root)
            except trio.WouldBlock:
                return
            self._again[root] = trio.Event()
        await self._again[root].wait()

    async def run(self, trainer: Trainer) -> None:
        """Until cancelled. Raises TrainerError if the trainer is dead."""
        async for task in self._waiting:
            self._number += 1
            self._answered = trio.Event()
            if isinstance(task, bytes):
                self._root = task
                await trainer.audit(Reopen(number=self._number, root=task))
                await self._answered.wait()
                self._again.pop(task).set()
                continue
            path = await self._written(task)
            if path is None:
                await self._say(task, b"")
                continue
            self._open = (self._number, task, path)
            await trainer.audit(_frame(task, self._number, path))
            await self._answered.wait()

    async def answered(self, event: Audited) -> None:
        """What the trainer found. Raises TrainerError for what nobody asked."""
        if self._root is not None and event.number == self._number:
            self._root = None
            logger.info("made again state=%s", event.found.hex()[:16])
            self._answered.set()
            return
        if self._open is None or self._open[0] != event.number:
            raise TrainerError(f"found the end of segment {event.number} that nobody asked for")
        (_, task, path), self._open = self._open, None
        await trio.to_thread.run_sync(partial(path.unlink, missing_ok=True))
        self._desk.forget()
        self._answered.set()
        logger.info("audited round=%d segment=%d", task.round, task.segment)
        await self._say(task, self._hooks.reran(event.found) if event.found else b"")

    async def _written(self, task: ev.Rerun) -> Path | None:
        try:
            return await trio.to_thread.run_sync(self._desk.write, task, self._number)
        except OSError as error:
            logger.warning("audit given up segment=%d reason=%s", task.segment, error)
            return None

    async def _say(self, task: ev.Rerun, found: bytes) -> None:
        await self._tell(
            ev.Reran(commit_digest=task.commit_digest, segment=task.segment, found=found)
        )


def _frame(task: ev.Rerun, number: int, path: Path) -> Audit:
    return Audit(
        number=number,
        path=str(path.absolute()),
        round=task.round,
        step=task.step,
        segment=task.segment,
        lease=task.lease,
        before=task.commit.work[0].before,
        residual_before=task.commit.residual_before,
        inherited=task.inherited,
    )
