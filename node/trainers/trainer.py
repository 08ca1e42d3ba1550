"""A trainer as the network process sees it, whoever started it.

Its process is a child of ours (`node.trainers.trainer_channel`), or the user's own program, whose
child we are (`node.trainers.attached_trainer`). What passes through the mapping and in which order
is the same.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

import numpy as np
import trio
from numpy.typing import NDArray

from node.holdings.shard_store import ShardStore
from protocol.errors import BarnraiseError, TrainerError
from protocol.grid import Layout
from training.channel.channel_file import AnchorPlaces, ChannelFile, PayloadPlaces
from training.channel.exchange import Contribution, Outcome, TraceRoots, Turn
from training.channel.frames import (
    Audit,
    Audited,
    Contributed,
    Deliver,
    FromTrainer,
    Grade,
    Proceed,
    Progress,
    Ready,
    Reopen,
    Start,
    ToTrainer,
    Validation,
)

logger = logging.getLogger(__name__)

_EVENTS_WAITING_MAX = 64
"""Beyond it progress is dropped, and everything else makes the trainer wait."""

_DIGEST_BYTES = 32

_OBITUARY_S = 1.0
"""For a broken pipe's obituary: it says more than the pipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionReady:
    """The trainer ended a round: its contribution. Its cells may lie in the mapping, to be read
    like bytes; the trainer writes there again once nobody holds any of them."""

    contribution: Contribution


Moved = tuple[NDArray[np.float32], NDArray[np.float32]]

TrainerEvent = Ready | ContributionReady | Progress | Validation | Audited


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
        """What it reads in place, until it has contributed."""
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
            event: TrainerEvent = ContributionReady(contribution=await self._take(frame))
        elif isinstance(frame, Audited) and len(frame.found) not in (0, _DIGEST_BYTES):
            raise TrainerError(f"found an end of {len(frame.found)} bytes")
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
            self._lent_N = None
            self.anchors.forget_copy()
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
        )


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
