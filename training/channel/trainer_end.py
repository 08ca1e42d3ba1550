"""The trainer's end of the channel to the network process.

Weights and payloads pass through one memory-mapped file (`training.channel.channel_file`),
everything else as frames over a pipe, whose end says that the network process is gone. A frame is
sent after the bytes that it speaks of are in place, and neither end ever writes what the other
reads.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import BarnraiseError, TrainerError
from training.channel.channel_file import CHANNEL_SUFFIX as CHANNEL_SUFFIX
from training.channel.channel_file import ChannelFile as ChannelFile
from training.channel.channel_file import ChannelSpec as ChannelSpec
from training.channel.channel_file import channel_spec as channel_spec
from training.channel.exchange import NO_TRACE, Contribution, Outcome, TrainerTimes, Turn
from training.channel.frames import (
    TO_TRAINER,
    AnchorRead,
    Audit,
    Audited,
    Contributed,
    Deliver,
    Failed,
    Frame,
    FrameReader,
    Grade,
    Proceed,
    Reopen,
    Start,
    ToUser,
    error_of,
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


_NOTHING = np.empty(0, dtype=np.float32)

RunsAudits = Callable[[Audit | Reopen], bytes]


class SpareWork(Protocol):
    """SEAM: what a trainer does while it waits for the network process, a bounded piece at a time.

    Called by ChannelExchange, in the trainer's thread. Implementation:
    `training.loop.idle_validation.IdleValidator`; tests.
    """

    def is_due(self) -> bool:
        """Whether there is something to do in the wait behind the contribution that is handed over
        now; it needs the anchors that were in hand before."""
        ...

    def begin(self) -> None:
        """The wait begins. Behind this call the anchors may change."""
        ...

    def go_on(self) -> bool:
        """Do a piece; whether there is more. Asked while there is no word to take."""
        ...

    def end(self, *, is_alone: bool, is_ahead: bool) -> None:
        """The wait is over, and the model must be as it was, but for what the outcome replaces.
        `is_alone`: nobody else has a seat, so nobody waits for this trainer. `is_ahead`: with two
        rounds in flight it need not wait, and a little more may be done."""
        ...

    def give_up(self) -> None:
        """The wait has failed: the model must be as behind `end`, and nothing is told."""
        ...


class ChannelExchange:
    """Exchange over the channel. Used by one thread.

    Where a run allows it anchors are read where the network process has them: they are good until
    the next contribution is handed over. With `copies` they are the reader's own.
    """

    def __init__(self, channel: ChannelFile, pipe: ControlPipe, *, copies: bool = False) -> None:
        self._channel = channel
        self._pipe = pipe
        self._copies = copies or not channel.spec.is_read_in_place
        self._place = 0
        """Where the network process wants the next contribution."""
        self._anchors: list[NDArray[np.float32]] = []
        self._sent: dict[int, int] = {}
        """Sequence to fragment of contributions without an outcome."""
        self._outcomes: dict[int, Outcome] = {}
        self._turn: Turn | None = None
        self._awaits_turn = False
        self._next_sequence = 0
        self.grade = 0
        """See KnowsLine."""
        self._validate_round: int | None = None
        self._members = 1
        self.audits: RunsAudits | None = None
        """Runs segments of others again, while an outcome is waited for."""
        self.spare: SpareWork | None = None
        self._is_spare_due = False

    @property
    def anchors(self) -> tuple[NDArray[np.float32], ...]:
        """The newest anchor of every fragment; empty before `opening`. Nobody writes to them."""
        return tuple(self._anchors)

    def opening(self) -> Start:
        """Block until the network process says what to start from; called once, first.

        Raises TrainerError when the network process is gone.
        """
        frame = self._pipe.receive()
        if not isinstance(frame, Start):
            raise TrainerError(f"{type(frame).__name__} before Start")
        fragments = range(len(self._channel.spec.fragment_numels))
        self._anchors = [_NOTHING for _ in fragments]
        self._read_anchors(tuple(fragments), frame.anchor)
        self._place, self._members = frame.place, frame.members
        if frame.validate:
            self._validate_round = frame.clock.round
        return frame

    def draft(self) -> NDArray[np.uint8]:
        """Where the cells of the next contribution are to lie, one behind the other: what lies
        there already `begin` need not copy. Asked once its round has begun; nowhere while a slot
        may still be in use."""
        if self._channel.spec.slots > 1:
            return np.empty(0, np.uint8)
        return self._channel.payload_memory(self._place)

    def begin(self, fragment: int, contribution: Contribution) -> "ChannelTicket":
        """Have the contribution in its place and tell the network process."""
        assert self._anchors, "begin before opening"
        assert contribution.fragment == fragment
        assert len(self._sent) < self._channel.spec.slots, "a slot is still in use"
        assert fragment not in self._sent.values(), "one round in flight per fragment (R5)"
        assert not self._awaits_turn, "the turn of the round before was not taken"
        sequence = self._next_sequence
        self._next_sequence += 1
        self._awaits_turn = self._channel.spec.slots > 1
        slots = self._channel.spec.slots
        place = self._place if slots == 1 else sequence % slots
        self._channel.write_payloads(place, contribution.payloads)
        self._sent[sequence] = fragment
        self._is_spare_due = self.spare is not None and self.spare.is_due()
        traced = contribution.traced or NO_TRACE
        self.send(
            Contributed(
                sequence=sequence,
                fragment=fragment,
                lengths=tuple(len(payload) for payload in contribution.payloads),
                tokens=contribution.tokens,
                samples=contribution.samples,
                steps=contribution.steps,
                residual_before=contribution.residual_before,
                residual_after=contribution.residual_after,
                loss=contribution.loss,
                trace=traced.trace,
                before=traced.before,
                after=traced.after,
                times=contribution.times or TrainerTimes(),
                reads_on=self._is_spare_due and not self._copies,
            )
        )
        return ChannelTicket(self, sequence)

    def outcome(self, sequence: int) -> Outcome:
        """Block until the outcome of contribution `sequence` is here; once per contribution."""
        with self._waiting():
            while sequence not in self._outcomes:
                self._take(self._next_frame())
        return self._outcomes.pop(sequence)

    def is_here(self, sequence: int) -> bool:
        """Whether `outcome` would not block. Raises TrainerError as that does."""
        while sequence not in self._outcomes:
            frame = self._pipe.poll()
            if frame is None:
                return False
            self._take(frame)
        return True

    def proceed(self) -> Turn:
        """See Exchange. Raises TrainerError when the network process is gone."""
        assert self._awaits_turn or self._turn is not None, "nothing was handed over"
        with self._waiting():
            while self._turn is None:
                self._take(self._next_frame())
        turn, self._turn = self._turn, None
        return turn

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """The first wait behind a contribution is where there is time to spare."""
        if not self._is_spare_due or self.spare is None:
            yield
            return
        self.spare.begin()
        if not self._copies:
            self.send(AnchorRead())
        is_over = False
        try:
            yield
            is_over = True
        finally:
            self._is_spare_due = False
            if is_over:
                is_ahead = self._channel.spec.slots > 1
                self.spare.end(is_alone=self._members == 1, is_ahead=is_ahead)
            else:
                self.spare.give_up()

    def _next_frame(self) -> ToUser:
        if self._is_spare_due and self.spare is not None:
            while (frame := self._pipe.poll()) is None and self.spare.go_on():
                pass
            if frame is not None:
                return frame
        return self._pipe.receive()

    def _take(self, frame: ToUser) -> None:
        """Take a frame in. Raises TrainerError for one that nothing calls for."""
        # In the order of begin: a later one would free a slot that is still in use.
        if isinstance(frame, Deliver) and frame.sequence == min(self._sent, default=None):
            self._take_outcome(frame)
        elif isinstance(frame, Grade):
            self.grade = frame.bits
        elif isinstance(frame, Audit | Reopen) and self.audits is not None:
            self.send(Audited(number=frame.number, found=self.audits(frame)))
        elif isinstance(frame, Proceed) and self._awaits_turn:
            self._awaits_turn = False
            self._members = frame.members
            changed = self._read_anchors(frame.others, 0)
            if changed:
                self._validate_round = None  # No word has said which round these are of.
            self._turn = Turn(
                clock=frame.clock,
                lease=frame.lease,
                others=changed,
                members=frame.members,
                listed=frame.listed,
            )
        else:
            raise TrainerError(f"an unexpected {type(frame).__name__} frame")

    def _take_outcome(self, frame: Deliver) -> None:
        self._members = frame.members
        if frame.validate:
            self._validate_round = frame.clock.round
        elif self._validate_round != frame.clock.round:
            self._validate_round = None  # The anchor that was to be measured is gone.
        fragment = self._sent.pop(frame.sequence)
        if fragment in frame.others:
            raise TrainerError(f"anchors of fragments {frame.others}")
        changed = self._read_anchors((fragment, *frame.others), frame.anchor)
        self._place = frame.place
        self._outcomes[frame.sequence] = Outcome(
            listed=frame.listed,
            is_resync=frame.is_resync,
            anchor_N=changed.pop(fragment),
            clock=frame.clock,
            lease=frame.lease,
            members=frame.members,
            others=changed,
        )

    def _read_anchors(
        self, fragments: tuple[int, ...], place: int
    ) -> dict[int, NDArray[np.float32]]:
        if not set(fragments) <= set(range(len(self._anchors))):
            raise TrainerError(f"anchors of fragments {fragments}")
        for fragment in fragments:
            # Let go of first: unless somebody holds it, the next one takes its memory.
            self._anchors[fragment] = _NOTHING
            read = self._channel.read_anchor if self._copies else self._channel.anchor
            self._anchors[fragment] = read(fragment, place=place)
        return {fragment: self._anchors[fragment] for fragment in fragments}

    def take_validation(self) -> int | None:
        """The round whose anchor is to be validated, if one was asked for since the last call."""
        asked, self._validate_round = self._validate_round, None
        return asked

    def send(self, frame: Frame) -> None:
        """Send a frame. Raises TrainerError when the network process is gone."""
        self._pipe.send(frame)


@dataclass(frozen=True, slots=True)
class ChannelTicket:
    """A contribution that the network process has in its hands."""

    exchange: ChannelExchange
    sequence: int

    def is_here(self) -> bool:
        """See Ticket. Raises TrainerError when the network process is gone."""
        return self.exchange.is_here(self.sequence)

    def result(self) -> Outcome:
        """Block until the round is sealed. Raises TrainerError when the network process is gone."""
        return self.exchange.outcome(self.sequence)
