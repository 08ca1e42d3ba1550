"""The trainer's end of the channel to the network process.

Weights and payloads pass through one memory-mapped file (`training.channel.channel_file`),
everything else as frames over a pipe. A frame is sent after the bytes that it speaks of are in
place, and neither end ever writes what the other reads.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import TrainerError
from training.channel.channel_file import CHANNEL_SUFFIX as CHANNEL_SUFFIX
from training.channel.channel_file import ChannelFile as ChannelFile
from training.channel.channel_file import ChannelSpec as ChannelSpec
from training.channel.channel_file import channel_spec as channel_spec
from training.channel.control_pipe import ControlPipe
from training.channel.exchange import NO_TRACE, Contribution, Outcome, Turn
from training.channel.frames import (
    Audit,
    Audited,
    Contributed,
    Deliver,
    Frame,
    Grade,
    Proceed,
    Reopen,
    Start,
    ToUser,
)

_NOTHING = np.empty(0, dtype=np.float32)

RunsAudits = Callable[[Audit | Reopen], bytes]


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
        self.audits: RunsAudits | None = None
        """Runs segments of others again, while an outcome is waited for."""

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
        self._place = frame.place
        if frame.validate:
            self._validate_round = frame.clock.round
        return frame

    def draft(self) -> NDArray[np.uint8]:
        """Where the cells of the next contribution are to lie, one behind the other: what lies
        there already `begin` need not copy. Asked once its round has begun."""
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
            )
        )
        return ChannelTicket(self, sequence)

    def outcome(self, sequence: int) -> Outcome:
        """Block until the outcome of contribution `sequence` is here; once per contribution."""
        while sequence not in self._outcomes:
            self._take(self._pipe.receive())
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
        while self._turn is None:
            self._take(self._pipe.receive())
        turn, self._turn = self._turn, None
        return turn

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
            changed = self._read_anchors(frame.others, 0)
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
        if frame.validate:
            self._validate_round = frame.clock.round
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
