"""The trainer's end of the control pipe: frames out, frames in, and the end of the other side."""

import logging
import os
import queue
import threading
from collections.abc import Callable

from protocol import limits
from protocol.errors import BarnraiseError, TrainerError
from training.channel.failure import error_of
from training.channel.frames import (
    TO_TRAINER,
    Failed,
    Frame,
    FrameReader,
    ToUser,
    pack_frame,
)

logger = logging.getLogger(__name__)

_READ_BYTES = 64 * limits.KIB

_INTERRUPT_S = 0.2
"""How often a wait looks up: on Windows Ctrl+C does not end one without a time-out."""


class ControlPipe:
    """Both directions of the pipe. Used by one thread; a second one, its own, reads.

    That thread sees at once when the network process is gone: it calls `on_closed`, where the
    trainer process ends itself in the middle of whatever it computes. Without `on_closed` the next
    call raises. Frames are of the given `kinds`. The descriptors stay the caller's.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        *,
        kinds: tuple[type[ToUser], ...] = TO_TRAINER,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._kinds = kinds
        self._on_closed = on_closed
        self._inbox: queue.SimpleQueue[ToUser | BarnraiseError] = queue.SimpleQueue()
        self._failure: BarnraiseError | None = None
        self._told: BarnraiseError | None = None
        self._reader = threading.Thread(target=self._read_frames, name="channel", daemon=True)
        self._reader.start()

    @property
    def failure(self) -> BarnraiseError | None:
        """Why the pipe has ended, once it has; what `receive` raises after the frames before."""
        return self._failure

    @property
    def told(self) -> BarnraiseError | None:
        """What the network process said why it ends, if it did."""
        return self._told

    def receive(self) -> ToUser:
        """Block until the next frame.

        Raises TrainerError when the network process is gone, and what it told as its reason.
        """
        while True:
            try:
                frame = self._inbox.get(timeout=_INTERRUPT_S)
            except queue.Empty:
                continue
            return self._opened(frame)

    def poll(self) -> ToUser | None:
        """The next frame if it is here; raises as `receive` does."""
        try:
            frame = self._inbox.get_nowait()
        except queue.Empty:
            return None
        return self._opened(frame)

    def _opened(self, frame: ToUser | BarnraiseError) -> ToUser:
        if isinstance(frame, BarnraiseError):
            self._inbox.put(frame)  # Every later call must fail too, not wait for ever.
            raise frame
        return frame

    def send(self, frame: Frame) -> None:
        """Send a frame. Raises TrainerError when the network process is gone."""
        view = memoryview(pack_frame(frame))
        try:
            while view:
                view = view[os.write(self._write_fd, view) :]
        except OSError as error:
            raise TrainerError(f"the network process is gone: {error}") from error

    def leave_to_parent(self) -> None:
        """After a fork, in the child: the pipe is the parent's; every call raises."""
        self._read_fd = self._write_fd = -1
        self._failure = TrainerError("the process that this one was forked from trains in this run")
        # The parent's reading thread may have held the lock of the one before.
        self._inbox = queue.SimpleQueue()
        self._inbox.put(self._failure)

    def wait_closed(self, limit_s: float) -> bool:
        """Wait until the reading thread has ended; whether it has."""
        self._reader.join(limit_s)
        return not self._reader.is_alive()

    def _read_frames(self) -> None:
        self._failure = self._read_until_the_end()
        self._inbox.put(self._failure)
        self._on_closed()

    def _read_until_the_end(self) -> BarnraiseError:
        reader = FrameReader(self._kinds)
        try:
            while data := os.read(self._read_fd, _READ_BYTES):
                for frame in reader.feed(data):
                    if isinstance(frame, Failed):
                        # Nothing follows it, and a process that hangs here must not hold us up.
                        self._told = error_of(frame)
                        return self._told
                    self._inbox.put(frame)
        except (OSError, TrainerError) as error:
            logger.warning("channel broken error=%s", error)
            return TrainerError(f"the network process broke the channel: {error}")
        return TrainerError("the network process is gone")
