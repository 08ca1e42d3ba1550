"""The trainer is the user's own process, whose child this network process is (`node.swarm`).

The control pipe is our standard input and output. It is there before the run is known, so that a
failure at any point reaches the user's process as the error that it is.
"""

import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from node.trainers.trainer import Trainer, TrainerConfig, channel_for, unwrapped_nursery
from protocol.errors import BarnraiseError, TrainerError
from training.channel.child_process import leave_interrupts_to_parent, take_control_pipe
from training.channel.frames import (
    FROM_USER,
    Attach,
    FrameReader,
    FromTrainer,
    Leaving,
    ToUser,
    failure_frame,
    pack_frame,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_READ_BYTES = 64 * 1024

_FRAMES_WAITING_MAX = 64
"""A trainer that keeps to the rules has sent Ready, and a contribution per round in flight."""

_FAILURE_S = 1.0
"""For the last word to get into a pipe that nobody may be reading."""


class Attachment:
    """TrainerLine to the user's process, and the news that it has left.

    Pipes are read and written in threads: neither trio nor Windows can wait for a pipe that was
    opened as somebody else's standard input.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._frames: deque[FromTrainer] = deque()
        self._broken = ""
        self._is_torn = False
        self._changed = trio.Event()
        self.left = trio.Event()
        self.is_open = False

    @property
    def pid(self) -> int:
        """See TrainerLine."""
        return os.getppid()

    @asynccontextmanager
    async def open_trainer(self, config: TrainerConfig) -> AsyncIterator[Trainer]:
        """The user's process as a trainer, once it has been told of the run; used once."""
        self.is_open = True
        with channel_for(config) as channel:
            trainer = Trainer(config.manifest.layout(config.shard), channel, self)
            assert config.inner_folder is not None
            # A user's process may have another working directory by now.
            await self.send(
                Attach(
                    run=config.manifest.digest,
                    manifest=str(config.manifest_path.absolute()),
                    channel=str(channel.path.absolute()),
                    inner=str(config.inner_folder.absolute()),
                    shard=config.shard,
                )
            )
            async with unwrapped_nursery() as nursery:
                nursery.start_soon(trainer.read_events)
                yield trainer
                nursery.cancel_scope.cancel()

    async def fail(self, error: BarnraiseError) -> None:
        """Tell the user's process why this one ends, if it still listens."""
        with trio.CancelScope(shield=True), trio.move_on_after(_FAILURE_S):
            await self.send(failure_frame(error))

    async def read(self) -> None:
        """Read frames until the user's process leaves; run in a task of the whole process."""
        reader = FrameReader(FROM_USER)
        try:
            while data := await _in_thread(partial(os.read, self._read_fd, _READ_BYTES)):
                for frame in reader.feed(data):
                    if isinstance(frame, Leaving):
                        return
                    self._keep(frame)
        except OSError as error:
            logger.warning("control pipe broken error=%s", error)
        except TrainerError as error:
            # Not a leaving: whoever works with the trainer hears of it and tells it in turn.
            self._broken = str(error)
        finally:
            if not self._broken:
                self.left.set()
            self._wake()

    async def send(self, frame: ToUser) -> None:
        """See TrainerLine. A process that is gone needs no answer: that it left shows in `left`."""
        if self._is_torn:
            return
        # Cancelled in the middle of a frame, and another one behind half of it would be nonsense.
        self._is_torn = True
        try:
            await _in_thread(partial(self._write, pack_frame(frame)))
        except OSError as error:
            logger.debug("nobody reads the control pipe error=%s", error)
        else:
            self._is_torn = False

    async def receive(self) -> FromTrainer | None:
        """See TrainerLine."""
        while not self._frames:
            if self._broken:
                raise TrainerError(self._broken)
            if self.left.is_set():
                return None
            await self._changed.wait()
        return self._frames.popleft()

    async def ended(self, broken: str, *, is_finished: bool) -> TrainerError | None:
        """See TrainerLine. A user may leave at any time; that is no death."""
        del is_finished
        return TrainerError(f"the training process {self.pid} {broken}") if broken else None

    def _keep(self, frame: FromTrainer) -> None:
        if len(self._frames) == _FRAMES_WAITING_MAX:
            raise TrainerError(f"sent more than {_FRAMES_WAITING_MAX} frames that nobody asked for")
        self._frames.append(frame)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._write_fd, view) :]


async def _in_thread(work: Callable[[], T]) -> T:
    # The stubs that libp2p's dependencies bring predate this argument's name.
    return await trio.to_thread.run_sync(
        work,
        abandon_on_cancel=True,  # type: ignore[call-arg]
    )


@asynccontextmanager
async def attachment() -> AsyncIterator[Attachment]:
    """Take our standard input and output over as the control pipe; nothing may print before.

    The block is cancelled where the user's process leaves before there is a trainer; from then on
    leaving takes a goodbye to the peers, and `left` is for the node to watch. Ctrl+C is for the
    user's process to act on.
    """
    leave_interrupts_to_parent()
    async with unwrapped_nursery() as nursery:
        attached = Attachment(*take_control_pipe())
        nursery.start_soon(attached.read)
        nursery.start_soon(_end_early, attached, nursery.cancel_scope)
        yield attached
        nursery.cancel_scope.cancel()


async def _end_early(attached: Attachment, scope: trio.CancelScope) -> None:
    await attached.left.wait()
    if not attached.is_open:
        scope.cancel()
