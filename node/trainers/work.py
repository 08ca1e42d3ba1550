"""The trainer's side of a node: hands it anchors and leases, takes its contributions in.

In runs with audits it also hands over segments of others' rounds, and own states that are asked for
and were not kept (R10).
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import trio
from numpy.typing import NDArray

from node.holdings.checkpoints import run_clock
from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from node.plane.work_desk import WorkDesk
from node.status.board import EventLog
from node.trainers.choosing import Choosing
from node.trainers.trainer import (
    OpenTrainer,
    Trainer,
    TrainerConfig,
    TrainerEvent,
    anchors_in_place,
    open_trainer,
)
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.errors import TrainerError
from protocol.leases import Lease, part_of_lease
from protocol.manifest import RunManifest
from protocol.rounds.admission import claim_breach
from protocol.rounds.fates import Fates
from protocol.rounds.patience import WholeRounds, parts_s
from protocol.segments import ALONE
from training.channel.exchange import Contribution, Outcome, RunClock, Turn
from training.channel.frames import Audit, Audited, Progress, Ready, Reopen, Start, Validation

_NOTHING = np.empty(0, dtype=np.float32)


@dataclass(slots=True, eq=False)
class Wanted:
    """The newest Train action, and the anchor of the shard that goes with it."""

    action: ev.Train
    anchor_N: NDArray[np.float32]
    """Nothing once the trainer has it, with one round in flight: from then on that is what keeps
    the anchor as it is."""

    @property
    def round(self) -> int:
        """The round to train for."""
        return self.action.round

    @property
    def sealed(self) -> int:
        """The last round whose seal is in the anchor."""
        return self.action.certificate.value.round

    @property
    def basis(self) -> bytes:
        """What names that round."""
        return self.action.basis

    @property
    def num_members(self) -> int:
        """How many have a seat by that seal."""
        return len(self.action.certificate.value.roster.members)

    def moved(self, moved: tuple[NDArray[np.float32], NDArray[np.float32]] | None) -> None:
        """If the anchor is the first of these, it lies in the second now."""
        if moved is not None and self.anchor_N is moved[0]:
            self.anchor_N = moved[1]

    def let_go(self, *, lag: int) -> None:
        """The trainer has it. With two rounds in flight it is told of it more than once."""
        if lag == 1:
            self.anchor_N = _NOTHING


# Audits (R10) ------------------------------------------------------------------------------------

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
        since=task.since,
    )


logger = logging.getLogger(__name__)


# The rounds of one trainer -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkParts:
    """What the work needs of the node around it."""

    core: NodeCore
    store: ShardStore
    hooks: NodeHooks
    log: EventLog
    tell: Callable[[ev.CoreEvent], Awaitable[None]]
    validate_every: int
    is_observer: bool
    opens_trainer: OpenTrainer = open_trainer
    """A user's own process may be the trainer in place of a child of ours."""

    uplink_mbit: Callable[[], float | None] = lambda: None
    """What leaves this node, once that is known."""

    desk: WorkDesk | None = None
    """In runs with audits."""

    met: trio.Event | None = None
    """Training begins once it is set: a newcomer that meets nobody of its run trains for nobody."""


class TrainerWork:
    """Keeps one trainer busy with what the core wants. `run` owns the process.

    `done` is set when the trainer has taken the last outcome over and ended.
    """

    def __init__(self, parts: WorkParts, config: TrainerConfig) -> None:
        self._parts = parts
        self._config = config
        self._wanted: Wanted | None = None
        self._bent_N: NDArray[np.float32] | None = None
        self._changed = trio.Event()
        self._is_stale = self._is_lost = False
        """Whether what was wanted last is of a branch that was left (R4), and whether one was left
        since the round in hand began: its residual may be of that."""
        self._taken: Wanted | None = None
        """What the trainer has heard of last."""
        self._fates = Fates()
        self._layout = parts.store.layout
        fragments = range(self._layout.num_fragments)
        self._spans = tuple(self._layout.fragment_span(fragment) for fragment in fragments)
        self._round = -1
        """The round that the trainer works for, or worked for last."""
        self._is_open = False
        """Whether it has handed that in, and waits to hear for which round to go on."""
        self._lag = config.manifest.outer.overlap
        self._in_flight: deque[int] = deque()
        """Rounds that it handed in and knows no outcome of, oldest first."""
        self._told = -1
        """The last seal whose anchors it has."""
        self._choosing = Choosing(
            config.manifest, self._layout.num_fragments, parts.log, parts.uplink_mbit
        )
        self._lengths = WholeRounds(config.manifest.inner.inner_steps)
        self._grade = 0
        """That the trainer was told last; 0 of none."""
        self._audits = (
            None if parts.desk is None else AuditWork(parts.desk, parts.hooks, parts.tell)
        )
        self.train_loss: float | None = None
        self.done = trio.Event()
        parts.core.working = self._working

    def adopted(self, anchor_N: NDArray[np.float32] | None) -> None:
        """The anchor if the hooks bent it; the next Train action goes with it."""
        self._bent_N = anchor_N

    def train(self, action: ev.Train, anchor_N: NDArray[np.float32]) -> None:
        """Take over what the core wants; the trainer hears of it as soon as it is free."""
        self._fates.hear(action)
        self._is_stale = False
        bent_N, self._bent_N = self._bent_N, None
        self._wanted = Wanted(action, anchor_N if bent_N is None else bent_N)
        if self._audits is not None:
            self._audits.close_rounds()
        self._changed.set()

    def _working(self) -> ev.Working | None:
        """How far the trainer is; None while it waits to hear for which round to go on."""
        if self._round < 0 or self._is_open or self.done.is_set():
            return None
        return self._choosing.headway.working(trio.current_time())

    def fell_back(self) -> None:
        """R4: the branch is left. With two rounds in flight more than one may have been wanted
        since the trainer began with the one in hand (R5)."""
        self._is_stale = self._is_lost = self._lag > 1

    def results_here(self) -> None:
        """The whole result of a round is here."""
        self._choosing.results_here(trio.current_time())

    async def audit(self, task: ev.Rerun) -> None:
        """Have a segment of somebody's round run again."""
        assert self._audits is not None, "a run without audits"
        await self._audits.offer(task, is_training=self._round >= 0)

    async def run(self) -> None:
        """Until the run is over. Raises TrainerError when the trainer dies before, and ConfigError
        where it told what the user can mend.
        """
        opened, store = self._parts.opens_trainer(self._config), self._parts.store
        async with opened as trainer, anchors_in_place(trainer, store) as moved:
            if self._wanted is not None:
                self._wanted.moved(moved)
            del moved
            self._parts.log.emit("trainer", pid=trainer.pid)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed, trainer)
                if self._audits is not None:
                    nursery.start_soon(self._audits.run, trainer)
                async for event in trainer:
                    await self._hear(event)
                    del event  # Or it would hold a contribution until the next event.
                nursery.cancel_scope.cancel()
        self.done.set()

    async def _hear(self, event: TrainerEvent) -> None:
        match event:
            case Audited():
                assert self._audits is not None, "nobody asked"
                await self._audits.answered(event)
            case Contribution():
                await self._contribute(event)
            case Validation():
                # The anchor that round r + 1 starts from is the one that seal r made.
                self._parts.log.emit(
                    "validation",
                    round=event.round - 1,
                    loss=event.loss,
                    windows=event.windows,
                    of_windows=event.of_windows,
                )
            case Ready():
                # It takes the start, which may lie in its pipe for long, from here on.
                self._choosing.begun(trio.current_time())
                logger.info(
                    "trainer ready threads=%d device=%s precision=%s micro_batch=%d",
                    event.threads,
                    event.device,
                    event.precision,
                    event.micro_batch,
                )
                self._parts.log.emit(
                    "trainer_ready",
                    device=event.device,
                    precision=event.precision,
                    threads=event.threads,
                    micro_batch=event.micro_batch,
                )
                if not self._parts.is_observer:
                    await self._parts.tell(ev.TrainerReady(self._class_of(event)))
            case Progress(step=step, loss=loss):
                self._choosing.progressed(step, trio.current_time())
                logger.debug("training step=%d loss=%.3f", step, loss)
                self._parts.log.emit("progress", step=step, loss=loss)

    async def _contribute(self, contribution: Contribution) -> None:
        """Store a contribution that is for the round under way; a late one is only answered."""
        parts = self._parts
        self.train_loss = contribution.loss
        self._choosing.handed(self._round, contribution, trio.current_time())
        rules = parts.core.machine.config.clock
        wrong = claim_breach(rules, samples=contribution.samples, tokens=contribution.tokens)
        if wrong:
            # No peer would take it; an own loop may have counted wrongly in `step(samples=)`.
            raise TrainerError(f"the trainer contributes {wrong}: its peers would refuse that")
        work = None if self._audits is None else work_done(contribution, self._config.manifest)
        fragment = contribution.fragment
        if fragment != self._layout.fragment_of(self._round):
            raise TrainerError(f"the trainer contributes to fragment {fragment} in that round")
        assert self._taken is not None
        basis = self._taken.basis
        rounds = parts.core.machine.standing.worked_for
        if not self._is_lost and any(basis == view.basis for view in rounds):
            self._fates.contributed(basis)
            given = contribution.payloads
            bend = partial(parts.hooks.contribution, given, parts.store, fragment)
            payloads = await trio.to_thread.run_sync(bend)
            store = partial(parts.store.contribute, payloads, fragment=fragment)
            root, norms = await trio.to_thread.run_sync(store)
            parts.hooks.own_contribution(partial(self._whole, payloads, fragment))
            await parts.tell(
                ev.Contributed(
                    round=self._round,
                    root=root,
                    cell_norms=norms,
                    tokens=contribution.tokens,
                    samples=contribution.samples,
                    steps=contribution.steps,
                    residual_before=contribution.residual_before,
                    residual_after=contribution.residual_after,
                    basis=basis,
                    work=work,
                )
            )
            self._choosing.committed(trio.current_time())
        else:
            logger.info("contribution came too late round=%d", self._round)
        self._in_flight.append(self._round)
        self._is_open = True
        self._changed.set()

    def _class_of(self, ready: Ready) -> str:
        """Its device's class; one that nobody else is of where nobody could compute the same."""
        is_said = self._audits is None or ready.device_class not in ("", ALONE)
        alone = f"{ALONE} {self._parts.core.machine.view.me.hex()[:16]}"
        return self._parts.hooks.device_class(ready.device_class if is_said else alone)

    def _whole(self, payloads: Sequence[bytes], fragment: int) -> NDArray[np.float32]:
        """A contribution as a vector of the shard."""
        whole_N = np.zeros(self._layout.numel, dtype=np.float32)
        whole_N[self._spans[fragment]] = self._parts.store.decode(payloads, fragment=fragment)
        return whole_N

    async def _feed(self, trainer: Trainer) -> None:
        """Start the trainer with the first lease, then answer each contribution once sealed."""
        if self._parts.met is not None:
            await self._parts.met.wait()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            wanted = self._wanted
            if self._is_stale or wanted is None or wanted is self._taken:
                continue
            if self._lag > 1 and self._round >= 0:
                await self._settle(trainer, wanted)
            if self._fates.is_pending(wanted.basis):
                continue
            if wanted.action.lease or self._parts.core.is_finished:
                await self._go_on(trainer, wanted)

    async def _go_on(self, trainer: Trainer, wanted: Wanted) -> None:
        """To the round that is wanted, as soon as the trainer is free for it."""
        if self._round < 0:
            await self._start(trainer, wanted)
        elif self._lag == 1:
            if self._is_open:
                await self._deliver(trainer, wanted)
        # R5: rounds never go back there, whatever a resync wants again, but where a branch is left.
        elif self._is_open and (wanted.round > self._round or self._has_left(wanted)):
            await self._proceed(trainer, wanted)

    def _has_left(self, wanted: Wanted) -> bool:
        """R4: whether the round that the trainer works for is of a branch that was left."""
        assert self._taken is not None
        is_other = self._round > wanted.sealed and self._taken.basis not in wanted.action.bases
        return self._is_lost or is_other

    async def _start(self, trainer: Trainer, wanted: Wanted) -> None:
        fates, self._round, self._taken = self._fates, wanted.round, wanted
        self._told = wanted.sealed
        start = Start(
            clock=self._clock(wanted),
            lease=self._lease(wanted),
            since=fates.since,
            listed=fates.listed,
            members=wanted.num_members,
            validate=self._validates(wanted),
            bases=(*fates.names, *wanted.action.bases),
        )
        fates.taken_over(self._round, wanted.sealed)
        await trainer.start(start, anchors=tuple(map(wanted.anchor_N.__getitem__, self._spans)))
        self._choosing.begun(trio.current_time())
        await self._tell_grade(trainer)
        wanted.let_go(lag=self._lag)

    async def _deliver(self, trainer: Trainer, wanted: Wanted) -> None:
        fates, contributed = self._fates, self._round
        self._in_flight.clear()
        self._taken, self._round, self._is_open = wanted, wanted.round, False
        is_resync = fates.is_behind(contributed)
        outcome = self._outcome(contributed, wanted, is_resync=is_resync)
        outcome = replace(outcome, clock=self._clock(wanted), lease=self._lease(wanted))
        fates.taken_over(self._round)
        await self._tell_grade(trainer)
        await trainer.deliver(outcome, validate=self._validates(wanted))
        self._mark_told(wanted)
        wanted.let_go(lag=self._lag)

    async def _settle(self, trainer: Trainer, wanted: Wanted) -> None:
        """R5: tell what became of rounds that are over, whatever the trainer works for by now."""
        is_left = self._has_left(wanted)
        while self._in_flight and (is_left or self._in_flight[0] <= wanted.sealed):
            contributed, is_new = self._in_flight.popleft(), wanted.sealed > self._told
            # Not `is_behind`: what was handed in for the round under way may be sealed yet, unless
            # it stood on a branch that was left (R4).
            is_resync = is_left or contributed < self._fates.since
            outcome = self._outcome(contributed, wanted, is_resync=is_resync)
            await trainer.deliver(outcome, validate=is_new and self._validates(wanted))
            self._mark_told(wanted)

    async def _proceed(self, trainer: Trainer, wanted: Wanted) -> None:
        """R5: the trainer goes on, though the outcome of the last round may be open."""
        self._taken, self._round, self._is_open = wanted, wanted.round, False
        self._is_lost = False
        others = self._changed_since_told(wanted)
        turn = Turn(
            clock=self._clock(wanted),
            lease=self._lease(wanted),
            others=others,
            members=wanted.num_members,
            listed=self._fates.listed,
        )
        self._fates.taken_over(self._round, wanted.sealed)
        await self._tell_grade(trainer)
        await trainer.proceed(turn)
        self._mark_told(wanted)

    def _mark_told(self, wanted: Wanted) -> None:
        last_s, num_members = self._last_commit_s, wanted.num_members
        self._choosing.told(trio.current_time(), last_s=last_s, num_members=num_members)

    @property
    def _last_commit_s(self) -> float | None:
        """When the last COMMIT of another peer came to the round that was sealed last."""
        sealed = self._parts.core.machine.previous
        return None if sealed is None else sealed.times.committed_s

    async def _tell_grade(self, trainer: Trainer) -> None:
        if self._grade != self._choosing.grade:
            self._grade = self._choosing.grade
            await trainer.encode_in(self._grade)

    def _outcome(self, contributed: int, wanted: Wanted, *, is_resync: bool) -> Outcome:
        """What became of a contribution; the next lease is not in it."""
        fragment = self._layout.fragment_of(contributed)
        self._choosing.landed(trio.current_time(), last_s=self._last_commit_s)
        if (sealed := self._parts.core.machine.previous) is not None:
            self._choosing.saw(self._lengths.see(sealed))
            self._choosing.sent(parts_s(sealed, trio.current_time()))
        # Rounds since may be about others; behind a resync all may have changed.
        others = self._changed_since_told(wanted, is_all=is_resync)
        others.pop(fragment, None)
        return Outcome(
            listed=self._fates.was_listed(contributed),
            is_resync=is_resync,
            anchor_N=wanted.anchor_N[self._spans[fragment]],
            others=others,
            clock=run_clock(wanted.action.certificate),
            members=wanted.num_members,
            lease=(),
        )

    def _changed_since_told(
        self, wanted: Wanted, *, is_all: bool = False
    ) -> dict[int, NDArray[np.float32]]:
        """By fragment the anchors that the trainer has not got; from here on it has them."""
        since = range(self._told + 1, wanted.sealed + 1)
        changed = {self._layout.fragment_of(index) for index in since[: len(self._spans)]}
        self._told = wanted.sealed
        fragments = range(len(self._spans)) if is_all else sorted(changed)
        return {fragment: wanted.anchor_N[self._spans[fragment]] for fragment in fragments}

    def _clock(self, wanted: Wanted) -> RunClock:
        """The sealed clock before the round that is wanted; rounds in flight count as whole."""
        clock = run_clock(wanted.action.certificate)
        in_flight = wanted.round - clock.round
        steps = self._config.manifest.inner.inner_steps * in_flight
        step = clock.step + steps
        return replace(clock, round=wanted.round, step=step, basis=wanted.basis)

    def _lease(self, wanted: Wanted) -> Lease:
        """As much of the lease as the trainer is to use; the COMMIT gives the rest back."""
        lease = wanted.action.lease
        if not lease:
            return lease
        clock = run_clock(wanted.action.certificate)
        usual = clock.step // max(1, clock.round - 1)
        now_s = trio.current_time()
        choice = self._choosing.next(self._round, now_s, usual=usual)
        first = self._clock(wanted).step
        self._choosing.headway.begins(self._round, choice.steps, first, now_s)
        if choice.steps == choice.steps_max:
            return lease
        return part_of_lease(lease, 0, choice.steps * self._config.manifest.inner.batch)

    def _validates(self, wanted: Wanted) -> bool:
        """Whether to measure this anchor, if there is time; of the last one there is."""
        every = self._parts.validate_every
        return every > 0 and (self._parts.core.is_finished or wanted.sealed % every == 0)
