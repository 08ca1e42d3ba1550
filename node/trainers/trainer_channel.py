"""The trainer as a child of the network process: starts it, hears it, ends it.

The trainer is a child of `subprocess` kind, never `multiprocessing`: a user's script needs no main
guard, and nothing of this process is copied into it. torch is never imported here.
"""

import logging
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from node.processes.children import child_environment, end_child
from node.trainers.trainer import Trainer
from protocol.errors import BarnraiseError, TrainerError
from protocol.manifest import RunManifest
from training.channel.channel_file import CHANNEL_SUFFIX, ChannelFile, channel_spec
from training.channel.frames import (
    FROM_TRAINER,
    Failed,
    FrameReader,
    FromTrainer,
    ToTrainer,
    error_of,
    pack_frame,
)

logger = logging.getLogger(__name__)

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

    inner_folder: Path | None = None
    """Where this shard's trainer keeps its moments and its contribution of each round (R6); None
    keeps none."""


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
    """A fresh mapped file for one trainer, gone with the block; stale ones go first.

    Raises OSError where the disk is full.
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
    if config.inner_folder is not None:
        options += ["--inner", str(config.inner_folder)]
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
