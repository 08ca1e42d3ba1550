"""A trainer as the network process sees it, whoever started it.

Its process is a child of ours, started below, or the user's own program, whose child we are
(`node.trainers.attached_trainer`). What passes through the mapping and in which order is the same.

A child is of `subprocess` kind, never `multiprocessing`: a user's script needs no main guard, and
nothing of this process is copied into it. torch is never imported here.
"""

import logging
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import trio
from numpy.typing import NDArray

from node.holdings.shard_store import ShardStore
from node.processes.children import child_environment, end_child
from node.processes.machine import free_memory_bytes
from protocol.errors import BarnraiseError, TrainerError
from protocol.grid import Layout
from protocol.manifest import RunManifest
from training.channel.channel_file import (
    CHANNEL_SUFFIX,
    AnchorPlaces,
    ChannelFile,
    PayloadPlaces,
    channel_spec,
)
from training.channel.exchange import Contribution, Outcome, TraceRoots, TrainerTimes, Turn
from training.channel.frames import (
    FROM_TRAINER,
    AnchorRead,
    Audit,
    Audited,
    Contributed,
    Deliver,
    Failed,
    FrameReader,
    FromTrainer,
    Grade,
    Proceed,
    Progress,
    Ready,
    Reopen,
    Start,
    ToTrainer,
    Validation,
    error_of,
    pack_frame,
)

logger = logging.getLogger(__name__)

_EVENTS_WAITING_MAX = 64
"""Beyond it progress is dropped, and everything else makes the trainer wait."""

_DIGEST_BYTES = 32

_SECONDS_MAX = 1e9
"""Of a phase that a trainer tells of."""

_OBITUARY_S = 1.0
"""For a broken pipe's obituary: it says more than the pipe."""


Moved = tuple[NDArray[np.float32], NDArray[np.float32]]

TrainerEvent = Ready | Contribution | Progress | Validation | Audited
"""What a trainer tells. The cells of a contribution may lie in the mapping, to be read like bytes;
the trainer writes there again once nobody holds any of them."""


class TrainerLine(Protocol):
    """The control pipe to one trainer, and the word on how it ended."""

    @property
    def pid(self) -> int:
        """Process id of the trainer."""
        ...

    async def send(self, frame: ToTrainer) -> None:
        """Send a frame. Raises trio's Broken- or ClosedResourceError where nobody reads."""
        ...

    async def receive(self) -> FromTrainer | None:
        """The next frame; None when the trainer has closed its end, or is gone.

        Raises TrainerError for bytes that are no frame, BrokenResourceError for a broken pipe.
        """
        ...

    async def ended(self, broken: str, *, is_finished: bool) -> BarnraiseError | None:
        """How it ended, None for an orderly end; called once, after the last frame.

        What it told as its reason is an error of that class, all else a TrainerError.

        `broken` is the rule that it broke, if it did: what still runs of it is ended first.
        `is_finished` says whether it was told that its run is over.
        """
        ...


class Trainer:
    """A running trainer; iterate over it for its events.

    Whoever makes one runs `read_events` in a task beside it.
    """

    def __init__(self, layout: Layout, channel: ChannelFile, line: TrainerLine) -> None:
        self._layout = layout
        self._channel = channel
        self._line = line
        self._open: deque[tuple[int, int]] = deque()
        """Sequence and fragment of contributions without an outcome, oldest first."""
        self._num_contributions = 0
        self.anchors = AnchorPlaces(channel)
        """Where the anchors should lie that it is given: there it reads them in place."""
        self._payloads = PayloadPlaces(channel)
        self._lent_N: NDArray[np.float32] | None = None
        """What it reads in place, until it has contributed, or has said that it has read it."""
        self._reads_on = False
        self._finished = False
        self._failure: BarnraiseError | None = None
        self._dead = trio.Event()
        self._started = trio.Event()
        self._sending = trio.Lock()
        """Audits come between the outcomes of rounds."""
        self._send_events, self._events = trio.open_memory_channel[TrainerEvent](
            _EVENTS_WAITING_MAX
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._line.pid

    @property
    def reads_in_place(self) -> bool:
        """Whether it reads anchors that lie in `anchors` without a copy."""
        return self._channel.spec.is_read_in_place

    async def start(self, start: Start, *, anchors: tuple[NDArray[np.float32], ...]) -> None:
        """Begin training from these anchors, one flat vector per fragment; called once.

        An anchor that lies in `anchors` stays as it is until the contribution, others are copied.
        Raises TrainerError if the trainer is dead.
        """
        place = await self._lend_anchors(dict(enumerate(anchors)))
        self._finished = not start.lease
        await self._send(replace(start, anchor=place, place=self._granted()))
        self._started.set()

    async def deliver(self, outcome: Outcome, *, validate: bool = False) -> None:
        """Answer the oldest contribution that has no outcome yet; there must be one.

        An anchor that lies in `anchors` stays as it is until the contribution, others are copied.
        With one round in flight an outcome with an empty lease ends the trainer once it has taken
        it over. Raises TrainerError if the trainer is dead.
        """
        if self._failure is not None:
            raise self._failure
        assert self._open, "no contribution waits for an outcome"
        sequence, fragment = self._open.popleft()
        place = await self._lend_anchors({fragment: outcome.anchor_N, **outcome.others})
        self._finished = not outcome.lease and self._channel.spec.slots == 1
        await self._send(
            Deliver(
                sequence=sequence,
                listed=outcome.listed,
                is_resync=outcome.is_resync,
                clock=outcome.clock,
                lease=outcome.lease,
                members=outcome.members,
                others=tuple(outcome.others),
                validate=validate,
                anchor=place,
                place=self._granted(),
            )
        )

    async def proceed(self, turn: Turn) -> None:
        """With two rounds in flight (R5): go on for another round; once behind each contribution.

        The anchors are copied. A turn with an empty lease ends the trainer; all outcomes are
        delivered before. Raises TrainerError if the trainer is dead.
        """
        if self._failure is not None:
            raise self._failure
        await self._lend_anchors(turn.others)
        self._finished = not turn.lease
        await self._send(
            Proceed(
                clock=turn.clock,
                lease=turn.lease,
                others=tuple(turn.others),
                members=turn.members,
                listed=turn.listed,
            )
        )

    async def encode_in(self, bits: int) -> None:
        """Of a codec with grades: in so many bits per element from now on; behind `start`.

        Raises TrainerError if the trainer is dead.
        """
        await self._send(Grade(bits=bits))

    async def audit(self, frame: Audit | Reopen) -> None:
        """Have a segment of somebody's round run again; Audited comes as an event.

        Waits until it is started. Raises TrainerError if the trainer is dead.
        """
        await self._started.wait()
        await self._send(frame)

    async def _lend_anchors(self, anchors: Mapping[int, NDArray[np.float32]]) -> int:
        """Have them in the mapping: the place where they are."""
        if self.reads_in_place and 0 in anchors:
            place = self.anchors.place_of(anchors[0])
            if place is not None:
                self._lent_N = anchors[0]
                return place
            await trio.to_thread.run_sync(self.anchors.keep_copy, anchors[0])
            return 0
        for changed, anchor_N in anchors.items():
            await trio.to_thread.run_sync(self._channel.write_anchor, changed, anchor_N)
        return 0

    def _granted(self) -> int:
        """Where the next contribution may be written, with one round in flight."""
        return self._payloads.grant() if self._channel.spec.slots == 1 else 0

    async def next_event(self) -> TrainerEvent:
        """The next event. Raises TrainerError, with its last lines, when the trainer is dead, or
        what it told as its reason: ConfigError for what the user can mend.

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

    async def read_events(self) -> None:
        """Turn frames into events until the trainer ends."""
        broken = ""
        async with self._send_events:
            try:
                while (frame := await self._line.receive()) is not None:
                    await self._pass_on(frame)
            except (TrainerError, trio.BrokenResourceError) as error:
                broken = str(error)
            self._failure = await self._line.ended(broken, is_finished=self._finished)
            self._dead.set()

    async def _send(self, frame: ToTrainer) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            async with self._sending:
                await self._line.send(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            with trio.move_on_after(_OBITUARY_S):
                await self._dead.wait()
            if self._failure is not None:
                raise self._failure from error
            raise TrainerError(f"the trainer {self.pid} is gone") from error

    async def _pass_on(self, frame: FromTrainer) -> None:
        if isinstance(frame, Contributed):
            event: TrainerEvent = await self._take(frame)
        elif isinstance(frame, AnchorRead):
            if not self._reads_on:
                raise TrainerError("has read an anchor that it was not reading")
            self._let_go_of_anchor()
            return
        elif isinstance(frame, Audited) and len(frame.found) not in (0, _DIGEST_BYTES):
            raise TrainerError(f"found an end of {len(frame.found)} bytes")
        elif isinstance(frame, Validation) and not 0 < frame.windows <= frame.of_windows:
            raise TrainerError(f"a loss over {frame.windows} of {frame.of_windows} windows")
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
        slots = self._channel.spec.slots
        if slots == 1:
            payloads = await trio.to_thread.run_sync(self._payloads.lent, frame.lengths)
            self._reads_on = frame.reads_on
            if not self._reads_on:
                self._let_go_of_anchor()
        else:
            place = frame.sequence % slots
            read = partial(self._channel.read_payloads, place, frame.lengths)
            payloads = await trio.to_thread.run_sync(read)
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
            traced=_traced(frame),
            times=_checked(frame.times),
        )

    def _let_go_of_anchor(self) -> None:
        """It reads it no more: another one may come in its place."""
        self._reads_on = False
        self._lent_N = None
        self.anchors.forget_copy()


def _checked(times: TrainerTimes) -> TrainerTimes:
    if not all(0.0 <= seconds <= _SECONDS_MAX for seconds in astuple(times)):
        raise TrainerError(f"contributed with times that are none: {times}")
    return times


def _traced(frame: Contributed) -> TraceRoots | None:
    """What it says of the work behind it; nothing in a run without audits."""
    if not frame.trace:
        return None
    if any(len(root) != _DIGEST_BYTES for root in (*frame.trace, frame.before, frame.after)):
        raise TrainerError("contributed with roots that are none")
    return TraceRoots(trace=frame.trace, before=frame.before, after=frame.after)


@asynccontextmanager
async def anchors_in_place(trainer: Trainer, store: ShardStore) -> AsyncIterator[Moved | None]:
    """The state's anchor lies where this trainer reads it, as far as it does that in place; what
    it was before, and is now."""
    if not trainer.reads_in_place:
        yield None
        return
    try:
        # Without a name here: it would hold the anchor for as long as the trainer runs.
        yield await trio.to_thread.run_sync(store.use_anchors, trainer.anchors)
    finally:
        store.use_anchors(None)


# The trainer as a child of the network process ---------------------------------------------------

TRAINER_COMMAND = (sys.executable, "-P", "-m", "training.trainer_main")
"""-P keeps the working directory, where a user may have a `training` of their own, off the path."""

_PIPE_READ_BYTES = 64 * 1024
_STDERR_LINES_KEPT = 20
_STDERR_LINE_CHARACTERS_MAX = 400
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
    """Threads of torch, `node.processes.children.trainer_threads` of the nodes on this host. More
    threads than cores make all trainers many times slower."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:N` or `mps`; without that device the trainer ends at once."""

    model_file: Path | None = None
    """The run's model file, where its model is in one (`node.trainers.model_file`)."""

    corpus: Path | None = None
    """The run's token store, where its text is none that this machine has by itself."""

    inner_folder: Path | None = None
    """Where this shard's trainer keeps its moments and its contribution of each round (R6); None
    keeps none."""

    validation_share: float = 0.0
    """Of its time, what it may spend on measuring anchors while the run goes on."""


OpenTrainer = Callable[[TrainerConfig], AbstractAsyncContextManager[Trainer]]
"""How the trainer of a node comes to be: `open_trainer` here, or an attached one."""


class _TrainerChild:
    """TrainerLine to a child process."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._reader = FrameReader[FromTrainer | Failed]((*FROM_TRAINER, Failed))
        self._told: BarnraiseError | None = None
        self._frames: deque[FromTrainer] = deque()
        self._stderr_lines: deque[str] = deque(maxlen=_STDERR_LINES_KEPT)
        self._stderr_ended = trio.Event()

    @property
    def pid(self) -> int:
        """See TrainerLine."""
        return self._process.pid

    async def send(self, frame: ToTrainer) -> None:
        """See TrainerLine."""
        await self._stdin.send_all(pack_frame(frame))

    async def receive(self) -> FromTrainer | None:
        """See TrainerLine."""
        while not self._frames:
            data = await self._stdout.receive_some(_PIPE_READ_BYTES)
            if not data:
                return None
            for frame in self._reader.feed(data):
                if isinstance(frame, Failed):
                    self._told = error_of(frame)
                else:
                    self._frames.append(frame)
        return self._frames.popleft()

    async def ended(self, broken: str, *, is_finished: bool) -> BarnraiseError | None:
        """See TrainerLine. A trainer whose run is over ends itself; all else is a death.

        One that says why it cannot go on is believed: the user can mend it.
        """
        if broken:
            self._process.kill()
        code = await self._exit_status()
        if self._told is not None:
            return self._told
        if broken or code != 0 or not is_finished:
            return TrainerError(self._obituary(code, broken))
        return None

    async def read_stderr(self) -> None:
        """Log what the trainer says and keep its last lines; run by `open_trainer`."""
        rest = b""
        try:
            while data := await self._stderr.receive_some(_PIPE_READ_BYTES):
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

    async def _exit_status(self) -> int:
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


@asynccontextmanager
async def open_trainer(
    config: TrainerConfig, *, command: Sequence[str] = TRAINER_COMMAND
) -> AsyncIterator[Trainer]:
    """Start a trainer; on leaving it is dead within a second and its file is gone.

    What the body raises comes out as it is, not in an exception group. A start-up failure shows as
    the trainer's death: `next_event` raises what it told as its reason, else TrainerError with its
    last lines. `command` is another program that keeps to the rules of the channel, or breaks them.
    """
    with channel_for(config) as channel:
        process = await _spawn(command, config, channel.path)
        try:
            child = _TrainerChild(process)
            trainer = Trainer(config.manifest.layout(config.shard), channel, child)
            async with unwrapped_nursery() as nursery:
                nursery.start_soon(child.read_stderr)
                nursery.start_soon(trainer.read_events)
                yield trainer
                nursery.cancel_scope.cancel()
        finally:
            await end_child(process)


@contextmanager
def channel_for(config: TrainerConfig) -> Iterator[ChannelFile]:
    """A fresh mapped file for one trainer, gone with the block; stale ones go first. In memory
    where it fits there, else in the run's folder.

    Raises OSError where the disk is full.
    """
    prefix = f"trainer-shard{config.shard}-"
    for stale in config.folder.glob(f"{prefix}*{CHANNEL_SUFFIX}"):
        # Windows refuses while the trainer of a killed node is still dying; the next start does it.
        with suppress(PermissionError):
            stale.unlink(missing_ok=True)
    spec = channel_spec(config.manifest, config.shard)
    in_memory = ChannelFile.create_in_memory(spec, free_memory_bytes())
    if in_memory is not None:
        with in_memory:
            yield in_memory
        return
    path = config.folder / f"{prefix}{secrets.token_hex(4)}{CHANNEL_SUFFIX}"
    try:
        with ChannelFile.create(path, spec) as channel:
            yield channel
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def unwrapped_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery out of which the body's exception comes as it is, not in a group."""
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
    options += ["--threads", str(config.threads), "--device", config.device]
    if config.model_file is not None:
        options += ["--model-file", str(config.model_file)]
    if config.corpus is not None:
        options += ["--corpus", str(config.corpus)]
    if config.inner_folder is not None:
        options += ["--inner", str(config.inner_folder)]
    options += ["--validation-share", str(config.validation_share)]
    start = partial(
        trio.lowlevel.open_process,
        [*command, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
    )
    # A group of its own: Ctrl+C in a terminal goes to ours alone. The trainer ignores it, but not
    # before Python has started, and would then die with a traceback on the user's screen.
    if sys.platform == "win32":
        return await start(creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    return await start(process_group=0)
