"""The network process's end of the channel to the trainer: starts it, feeds it, hears it, ends it.

The trainer is a child of `subprocess` kind, never `multiprocessing`: a user's script needs no main
guard, and nothing of this process is copied into it. torch is never imported here.
"""

import logging
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import trio
from numpy.typing import NDArray

from node.children import child_environment, end_child
from protocol.errors import TrainerError
from protocol.manifest import RunManifest
from training.channel import CHANNEL_SUFFIX, ChannelFile, channel_spec
from training.exchange import Contribution, Lease, Outcome, RunClock
from training.frames import (
    FROM_TRAINER,
    Contributed,
    Deliver,
    FrameReader,
    FromTrainer,
    Progress,
    Ready,
    Start,
    ToTrainer,
    Validation,
    pack_frame,
)

logger = logging.getLogger(__name__)

TRAINER_COMMAND = (sys.executable, "-P", "-m", "training.trainer_main")
"""-P keeps the working directory, where a user may have a `training` of their own, off the path."""

_PIPE_READ_BYTES = 64 * 1024
_STDERR_LINES_KEPT = 20
_STDERR_LINE_CHARACTERS_MAX = 400
_EVENTS_WAITING_MAX = 64
"""Beyond it progress is dropped, and everything else makes the trainer wait."""

_GRACE_S = 0.3
"""From its closed pipe to the end of a trainer, and for its last lines to arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """How to start one trainer."""

    folder: Path
    """The run's folder, whose lock the caller holds; the mapped file lives in it."""

    manifest: RunManifest
    manifest_path: Path
    """The same manifest, signed, as a file."""

    shard: int = 0
    threads: int = 1
    """Threads of torch, `node.children.trainer_threads` of the nodes on this host. More threads
    than cores make all trainers many times slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionReady:
    """The trainer ended a round: its contribution, copied out of the mapping."""

    contribution: Contribution


TrainerEvent = Ready | ContributionReady | Progress | Validation


class Trainer:
    """A running trainer process. Made by `open_trainer`; iterate over it for its events."""

    def __init__(self, config: TrainerConfig, channel: ChannelFile, process: trio.Process) -> None:
        assert process.stdin is not None
        self._layout = config.manifest.layout(config.shard)
        self._channel = channel
        self._process = process
        self._stdin = process.stdin
        self._open: deque[tuple[int, int]] = deque()
        """Sequence and fragment of contributions without an outcome, oldest first."""
        self._num_contributions = 0
        self._finished = False
        self._failure: TrainerError | None = None
        self._stderr_lines: deque[str] = deque(maxlen=_STDERR_LINES_KEPT)
        self._stderr_ended = trio.Event()
        self._dead = trio.Event()
        self._send_events, self._events = trio.open_memory_channel[TrainerEvent](
            _EVENTS_WAITING_MAX
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def start(
        self,
        *,
        clock: RunClock,
        lease: Lease,
        anchors: tuple[NDArray[np.float32], ...],
        listed: bool = False,
        validate: bool = False,
    ) -> None:
        """Begin training from these anchors, one flat vector per fragment; called once.

        The anchors are copied. `listed` is about the round before (see Start); `validate` asks for
        a Validation of the anchors. Raises TrainerError if the trainer is dead.
        """
        for fragment, anchor_N in enumerate(anchors):
            await trio.to_thread.run_sync(self._channel.write_anchor, fragment, anchor_N)
        self._finished = not lease
        await self._send(Start(clock=clock, lease=lease, listed=listed, validate=validate))

    async def deliver(self, outcome: Outcome, *, validate: bool = False) -> None:
        """Answer the oldest contribution that has no outcome yet; there must be one.

        The anchor is copied. An outcome with an empty lease ends the trainer once it has taken it
        over. Raises TrainerError if the trainer is dead.
        """
        if self._failure is not None:
            raise self._failure
        assert self._open, "no contribution waits for an outcome"
        sequence, fragment = self._open.popleft()
        await trio.to_thread.run_sync(self._channel.write_anchor, fragment, outcome.anchor_N)
        self._finished = not outcome.lease
        await self._send(
            Deliver(
                sequence=sequence,
                listed=outcome.listed,
                clock=outcome.clock,
                lease=outcome.lease,
                validate=validate,
            )
        )

    async def next_event(self) -> TrainerEvent:
        """The next event. Raises TrainerError, with its last lines, when the trainer is dead.

        Raises trio.EndOfChannel when it has ended because its run is over.
        """
        try:
            return await self._events.receive()
        except trio.EndOfChannel:
            if self._failure is not None:
                raise self._failure from None
            raise

    def __aiter__(self) -> Self:
        """The events until the run is over. Raises TrainerError as `next_event` does."""
        return self

    async def __anext__(self) -> TrainerEvent:
        """See `__aiter__`."""
        try:
            return await self.next_event()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def _send(self, frame: ToTrainer) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            await self._stdin.send_all(pack_frame(frame))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            # Its obituary follows in a moment and says more than a broken pipe.
            with trio.move_on_after(3 * _GRACE_S):
                await self._dead.wait()
            if self._failure is not None:
                raise self._failure from error
            raise TrainerError(f"the trainer {self.pid} is gone") from error

    async def read_events(self) -> None:
        """Turn frames into events until the trainer ends; run by `open_trainer`."""
        stdout = self._process.stdout
        assert stdout is not None
        reader = FrameReader(FROM_TRAINER)
        broken = ""
        async with self._send_events:
            try:
                while data := await stdout.receive_some(_PIPE_READ_BYTES):
                    for frame in reader.feed(data):
                        await self._pass_on(frame)
            except (TrainerError, trio.BrokenResourceError) as error:
                broken = str(error)
                self._process.kill()
            code = await self._ended()
            # A trainer whose run is over ends itself; everything else is a death.
            if broken or code != 0 or not self._finished:
                self._failure = TrainerError(self._obituary(code, broken))
            self._dead.set()

    async def read_stderr(self) -> None:
        """Log what the trainer says and keep its last lines; run by `open_trainer`."""
        stderr = self._process.stderr
        assert stderr is not None
        rest = b""
        try:
            while data := await stderr.receive_some(_PIPE_READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-_STDERR_LINE_CHARACTERS_MAX:]
                for line in lines:
                    self._hear(line)
        except trio.BrokenResourceError:
            rest += b" (stderr broke)"
        if rest:
            self._hear(rest)
        self._stderr_ended.set()

    def _hear(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()[:_STDERR_LINE_CHARACTERS_MAX]
        shown = "".join(c if c.isprintable() else "?" for c in text)
        self._stderr_lines.append(shown)
        logger.info("trainer pid=%d %s", self.pid, shown)

    async def _ended(self) -> int:
        with trio.move_on_after(_GRACE_S):
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
        code = await self._process.wait()
        with trio.move_on_after(_GRACE_S):
            await self._stderr_ended.wait()
        return code

    def _obituary(self, code: int, broken: str) -> str:
        said = "\n  ".join(self._stderr_lines) or "(it said nothing)"
        cause = broken or f"ended with status {code}"
        return f"the trainer {self.pid} {cause}; its last lines:\n  {said}"

    async def _pass_on(self, frame: FromTrainer) -> None:
        if isinstance(frame, Contributed):
            event: TrainerEvent = ContributionReady(contribution=await self._take(frame))
        else:
            event = frame
        if isinstance(event, Progress):
            try:
                self._send_events.send_nowait(event)
            except trio.WouldBlock:
                logger.debug("progress dropped step=%d", event.step)
        else:
            await self._send_events.send(event)

    async def _take(self, frame: Contributed) -> Contribution:
        fragments = range(len(self._channel.spec.fragment_numels))
        if frame.fragment not in fragments:
            raise TrainerError(f"contributed to a fragment {frame.fragment} that is not there")
        if len(frame.lengths) != self._layout.num_cells(frame.fragment):
            raise TrainerError(f"contributed {len(frame.lengths)} cells")
        if frame.sequence != self._num_contributions:
            raise TrainerError(f"contributed number {frame.sequence} out of turn")
        if len(self._open) == self._channel.spec.slots:
            raise TrainerError("contributed before an outcome freed a slot")
        payloads = await trio.to_thread.run_sync(
            self._channel.read_payloads, frame.sequence, frame.lengths
        )
        self._num_contributions += 1
        self._open.append((frame.sequence, frame.fragment))
        return Contribution(
            fragment=frame.fragment,
            payloads=payloads,
            tokens=frame.tokens,
            samples=frame.samples,
            steps=frame.steps,
            residual_before=frame.residual_before,
            residual_after=frame.residual_after,
            loss=frame.loss,
        )


@asynccontextmanager
async def open_trainer(
    config: TrainerConfig, *, command: Sequence[str] = TRAINER_COMMAND
) -> AsyncIterator[Trainer]:
    """Start a trainer; on leaving it is dead within a second and its file is gone.

    What the body raises comes out as it is, not in an exception group. A start-up failure shows as
    the trainer's death: `next_event` raises TrainerError with what it said. `command` is another
    program that keeps to the rules of the channel, or breaks them.
    """
    prefix = f"trainer-shard{config.shard}-"
    for stale in config.folder.glob(f"{prefix}*{CHANNEL_SUFFIX}"):
        # Windows refuses while the trainer of a killed node is still dying; the next start does it.
        with suppress(PermissionError):
            stale.unlink(missing_ok=True)
    path = config.folder / f"{prefix}{secrets.token_hex(4)}{CHANNEL_SUFFIX}"
    spec = channel_spec(config.manifest, config.shard)
    try:
        with ChannelFile.create(path, spec) as channel:
            process = await _spawn(command, config, path)
            trainer = Trainer(config, channel, process)
            try:
                async with _unwrapped_nursery() as nursery:
                    nursery.start_soon(trainer.read_stderr)
                    nursery.start_soon(trainer.read_events)
                    yield trainer
                    nursery.cancel_scope.cancel()
            finally:
                await end_child(process)
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def _unwrapped_nursery() -> AsyncIterator[trio.Nursery]:
    # The tasks in it raise nothing of their own, so that a lone exception is the body's.
    alone: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        alone = group.exceptions[0]
    if alone is not None:
        raise alone


async def _spawn(command: Sequence[str], config: TrainerConfig, channel: Path) -> trio.Process:
    options = ["--channel", str(channel), "--manifest", str(config.manifest_path)]
    options += ["--run", config.manifest.digest.hex(), "--shard", str(config.shard)]
    options += ["--threads", str(config.threads)]
    return await trio.lowlevel.open_process(
        [*command, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
    )
