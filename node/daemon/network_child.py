"""The network process as a child of the user's own, which is the trainer; blocking calls only."""

import logging
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from node.processes.children import child_environment
from protocol.errors import BarnraiseError, ConfigError, TrainerError
from training.channel.frames import TO_USER, Leaving
from training.channel.trainer_end import ControlPipe

logger = logging.getLogger(__name__)

LEAVE_S = 1.7
"""For the child to say goodbye to its peers and go; it is killed then, which takes no time."""

_WAIT_S = 0.2
"""How often a longer wait looks up: on Windows Ctrl+C does not end one."""

_LAST_WORD_S = 1.0
"""From the end of the pipe to that of the process, and for a last word behind a broken pipe."""

_SAID_BYTES_KEPT = 4096
_SAID_LINES_KEPT = 20

NOTHING_MORE: Mapping[str, str] = MappingProxyType({})

# A group of its own: Ctrl+C in a terminal is for the user's process to act on.
_PROCESS_GROUP: int | None
if sys.platform == "win32":
    _CREATION_FLAGS, _PROCESS_GROUP = subprocess.CREATE_NEW_PROCESS_GROUP, None
else:
    _CREATION_FLAGS, _PROCESS_GROUP = 0, 0


class NetworkChild:
    """A network process whose standard input and output are the control pipe.

    `close` ends it. If this process dies it ends by itself: its standard input does. In a fork of
    this process, such as a data loader's worker, `close` does nothing and the pipe raises.
    """

    def __init__(
        self,
        command: Sequence[str],
        state: Path,
        environment: Mapping[str, str] = NOTHING_MORE,
    ) -> None:
        """Start it, with `environment` on top of ours.

        Raises ConfigError where `state` cannot be written to.
        """
        try:
            state.mkdir(parents=True, exist_ok=True)
            # A file and no pipe: nobody has to read while the user computes. It has no name, so
            # that nothing is left of it however this process ends.
            self._said = tempfile.TemporaryFile(dir=state)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise ConfigError(
                f"cannot use the folder {state}: {error.strerror}; name another as `state`"
            ) from error
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env={**child_environment(), **environment},
                bufsize=0,
                creationflags=_CREATION_FLAGS,
                process_group=_PROCESS_GROUP,
            )
        except OSError:
            self._said.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pipe = ControlPipe(self._stdout.fileno(), self._stdin.fileno(), kinds=TO_USER)
        self._is_closed = False
        _CHILDREN.add(self)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @contextmanager
    def explained(self) -> Iterator[None]:
        """A block that uses the pipe: its end becomes the error that says why.

        That is what the network process told, as the class of error that it is; else a TrainerError
        with its last lines.
        """
        try:
            yield
        except TrainerError as error:
            reason = self._reason(error)
            if reason is error:
                raise
            raise reason from error

    def check(self) -> None:
        """Raise, as `explained` does, if the network process is gone already."""
        if self.pipe.failure is not None:
            with self.explained():
                raise self.pipe.failure

    def say_leaving(self) -> None:
        """Tell it that the trainer is done; it stays as long as peers need it."""
        with suppress(TrainerError):
            self.pipe.send(Leaving())

    def close(self, *, linger_s: float = 0.0) -> None:
        """End the process; it is gone when this returns, or raises KeyboardInterrupt.

        `linger_s` is how long it may serve peers in a run that is over. Otherwise it leaves its
        peers cleanly, and is killed if it is not gone within two seconds.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._wait(linger_s)
            if self._process.poll() is None:
                self.say_leaving()
                self._stdin.close()
                self._wait(LEAVE_S)
        finally:
            self._end()

    def leave_to_parent(self) -> None:
        """After a fork, in the child: copies of the pipe's ends would outlive the parent."""
        if not self._is_closed:
            self._is_closed = True
            self.pipe.leave_to_parent()
            for file in (self._stdin, self._stdout, self._said):
                file.close()

    def _wait(self, limit_s: float) -> None:
        for _ in range(round(limit_s / _WAIT_S)):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_WAIT_S)
                return

    def _end(self) -> None:
        if self._process.poll() is None:
            logger.warning("the network process was killed pid=%d", self.pid)
            self._process.kill()
        self._process.wait()
        self._stdin.close()
        # Its end of the pipe is closed, so the thread that reads ours has nothing to wait for.
        if self.pipe.wait_closed(_LAST_WORD_S):
            self._stdout.close()
        self._said.close()

    def _reason(self, error: TrainerError) -> BarnraiseError:
        # A write fails before the word that explains it has been read.
        self.pipe.wait_closed(_LAST_WORD_S)
        if self.pipe.told is not None:
            return self.pipe.told
        if self.pipe.failure is None or self._is_closed:
            return error
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORD_S)
        code = self._process.poll()
        how = "still runs" if code is None else f"ended with status {code}"
        return TrainerError(
            f"{self.pipe.failure}; process {self.pid} {how}, its last lines:\n{self._tail()}"
        )

    def _tail(self) -> str:
        # The end of the file is where the child writes: a shared position. It is read when the
        # child is gone.
        size = self._said.seek(0, 2)
        self._said.seek(max(0, size - _SAID_BYTES_KEPT))
        lines = self._said.read().decode("utf-8", "replace").splitlines()[-_SAID_LINES_KEPT:]
        shown = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
        return "\n".join(f"  {line}" for line in shown) or "  (it said nothing)"


_CHILDREN: "weakref.WeakSet[NetworkChild]" = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for child in list(_CHILDREN):
        child.leave_to_parent()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_leave_all_to_parent)


# Join variable ------------------------------------------------------------------------------------
#
# How a program hands an invite link to its network process: not on a command line.
#
# The link may hold a key, and a command line is shown to every user of the machine. The environment
# of a process is for its user alone.

JOIN_VARIABLE = "BARNRAISE_JOIN"


def take_from_environment() -> str | None:
    """The link that this process was started with; its own children do not get it."""
    return os.environ.pop(JOIN_VARIABLE, None)
