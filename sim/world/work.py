"""The trainer's side of a simulated node, as `node.trainers.work` has it: one trainer, kept busy.

A trainer finishes what it began: where the round went on without it, its contribution comes too
late, and only then it hears what became of it.
"""

from node.trainers.choosing import Fit
from node.trainers.work import Wanted
from protocol import events as ev
from protocol.frames import Phase
from protocol.grid import EMPTY_ROOT
from protocol.identity import short_id
from protocol.leases import Lease, part_of_lease
from protocol.rounds.fates import Fates
from protocol.rounds.patience import WholeRound, WholeRounds, parts_s
from protocol.segments import STATE, WorkKind
from sim.world.nodes import Around, SimNode
from sim.world.trainer import Flight, Vector
from training.compression import Encoded
from training.methods.method import has_equal_steps

PATIENCE_S, LOOK_S = 0.6, 0.05
"""How long a liar waits at most for what others make, and how often it looks."""


class SimWork:
    """Keeps the trainer of one process busy with what the core wants."""

    def __init__(self, world: Around, node: SimNode) -> None:
        self._world = world
        self._node = node
        self._path = short_id(node.peer)
        self._wanted: Wanted | None = None
        self._taken: Wanted | None = None
        """What the trainer has heard of last."""
        self._fates = Fates()
        self._ready_s = 0.0
        self._owed_s = 0.0
        """What audits took of the machine since the last round of training began."""
        self._is_open = False
        self._is_stale = False
        """Whether what was wanted last is of a branch that was left (R4)."""
        self._is_lost = False
        """Whether a branch was left since the round in hand began: its residual may be of that."""
        self._is_waiting = False
        """Whether it has trained the round, and waits for the outcome of the one before (R5)."""
        self._span_s = (0.0, 0.0)
        """From when to when the trainer trains the round in hand, in the world's time."""
        manifest = world.manifest
        is_fitting = world.settings.fits_steps and not has_equal_steps(manifest)
        is_overlapped = manifest.outer.overlap > 1
        self._fit = Fit(is_overlapped=is_overlapped) if is_fitting else None
        self._lengths = WholeRounds(manifest.inner.inner_steps)
        self._steps = manifest.inner.inner_steps
        """Of the round in hand, and when it was begun."""
        self._began_s = 0.0
        self.round = -1
        self.is_done = False
        """Whether the trainer has taken over that the run is finished."""

    def begin(self) -> None:
        """The trainer is started; it is up a moment later."""
        self._ready_s = self._world.now_s + self._drawn_s("ready", self._node.device.ready_s)
        self._world.push(self._ready_s, self._node, self._node.tell, ev.TrainerReady())

    def train(self, action: ev.Train, anchor_N: Vector) -> None:
        """Take over what the core wants; the trainer hears of it as soon as it is free."""
        self._fates.hear(action)
        self._wanted, self._is_stale = Wanted(action, anchor_N), False
        if self._is_waiting and not self._is_held():
            self._is_waiting = False
            self._world.push(self._world.now_s, self._node, self._contribute)
        self._feed()

    def fell_back(self) -> None:
        """R4: the branch is left. With two rounds in flight more than one may have been wanted
        since the trainer began with the one in hand (R5)."""
        self._is_stale = self._is_lost = self._world.manifest.outer.overlap > 1

    def _feed(self) -> None:
        wanted = self._wanted
        if (
            self._is_stale
            or wanted is None
            or wanted is self._taken
            or self._fates.is_pending(wanted.basis)
        ):
            return
        is_wanted = bool(wanted.action.lease) or self._node.core.is_finished
        if self.round < 0:
            if is_wanted:
                self.start(wanted)
        elif self._is_open and is_wanted:
            self.deliver(wanted)

    def start(self, wanted: Wanted) -> None:
        """The first lease of this process."""
        self._taken = wanted
        self.round = wanted.round
        is_under_way = self._node.trainer.start(
            wanted.round, wanted.anchor_N, self._lease(wanted), self._fates, _flight(wanted)
        )
        self._fates.taken_over(self.round, wanted.sealed)
        self._train(is_under_way=is_under_way)

    def deliver(self, wanted: Wanted) -> None:
        """Answer the contribution, and go on."""
        lease = self._lease(wanted)
        self._taken, self.round, self._is_open = wanted, wanted.round, False
        self._is_lost = False
        is_under_way = self._node.trainer.finish(
            wanted.round, wanted.anchor_N, lease, self._fates, _flight(wanted)
        )
        self._fates.taken_over(self.round, wanted.sealed)
        self._train(is_under_way=is_under_way)

    def _lease(self, wanted: Wanted) -> Lease:
        """As much of the lease as fits this node's speed, as `node.trainers.work` takes it."""
        inner, sealed = self._world.manifest.inner, self._node.core.machine.previous
        lease, self._began_s = wanted.action.lease, self._world.now_s
        if self._fit is None or not lease:
            return lease
        whole = None if sealed is None else self._lengths.see(sealed)
        rate = self._node.clock.rate
        if whole is not None:
            self._fit.saw(WholeRound(whole.fastest_s / rate, whole.slowest_s / rate))
        now_s = self._node.clock.own_s(self._world.now_s)
        took_s = None if sealed is None else parts_s(sealed, now_s)
        if took_s is not None:
            self._fit.exchanged(*(seconds / rate for seconds in took_s))
        self._steps = self._fit.steps(inner.inner_steps)
        if self._steps == inner.inner_steps:
            return lease
        return part_of_lease(lease, 0, self._steps * inner.batch)

    def _train(self, *, is_under_way: bool) -> None:
        assert self._wanted is not None
        if not self._wanted.action.lease:
            self.is_done = True
            return
        begin_s = max(self._ready_s, self._world.now_s)
        train_s = 0.0 if is_under_way else self._drawn_s("train", self._node.device.train_s)
        train_s *= self._steps / self._world.manifest.inner.inner_steps
        train_s, self._owed_s = train_s + self._owed_s, 0.0
        self._world.push(begin_s + train_s, self._node, self._contribute)
        self._span_s = (begin_s, begin_s + train_s)
        self._world.labour.spans_s.append((self._node.peer, self._span_s))
        device = self._node.device
        if device.nap:
            luck = self._world.luck(f"nap/{self._path}")
            is_napping, share = luck.random() < device.nap, luck.random()
            if is_napping:
                nap_s = begin_s + share * train_s
                self._world.push(nap_s, self._node, self._world.nap, self._node)

    def working(self) -> ev.Working | None:
        """How far the trainer is with its round."""
        if self.round < 0 or self._is_open or self.is_done:
            return None
        (begin_s, end_s), now_s = self._span_s, self._world.now_s
        steps = self._steps
        share = (now_s - begin_s) / (end_s - begin_s) if end_s > begin_s else 1.0
        done = int(steps * min(1.0, max(0.0, share)))
        rest_s = self._node.clock.rate * max(0.0, end_s - now_s)
        return ev.Working(self.round, Phase.TRAIN, done, steps, rest_s)

    def _is_held(self) -> bool:
        """R5: whether an earlier round on the same fragment has no outcome yet.

        Of a branch that was left (R4) there will be none.
        """
        assert self._wanted is not None
        if self._fates.is_astray:
            return False
        awaited = self._node.trainer.waits_for()
        return awaited is not None and self._wanted.sealed < awaited

    def _contribute(self) -> None:
        """Store a contribution that is for the round under way; a late one is only answered."""
        world, node, wanted = self._world, self._node, self._wanted
        assert wanted is not None
        if self._fit is not None:
            inner_steps = world.manifest.inner.inner_steps
            self._fit.trained(self._steps, world.now_s - self._began_s, inner_steps)
        if self._is_held():
            self._is_waiting = True
            return
        if node.trainer.waits_for() is not None:
            node.trainer.join(wanted.anchor_N, wanted.sealed, self._fates)
        encoded = node.trainer.contribute(world.luck(f"learn/{self._path}"))
        world.labour.trained += 1
        if node.trainer.loss is not None:
            world.learned(node, self.round, node.trainer.loss)
        world.made(node, encoded.payloads, node.store.layout.fragment_of(self.round))
        self._hand_over(encoded, world.now_s + PATIENCE_S)

    def _hand_over(self, encoded: Encoded, until_s: float) -> None:
        """Store it, unless it is bent to wait for others; it is still trained work then."""
        world, node = self._world, self._node
        others = world.training_now(node)
        if world.now_s < until_s and node.hooks.is_waiting(node.store, others):
            world.push(world.now_s + LOOK_S, node, self._hand_over, encoded, until_s)
            return
        assert self._taken is not None
        basis = self._taken.basis
        rounds = node.core.machine.standing.worked_for
        if not self._is_lost and any(basis == view.basis for view in rounds):
            self._fates.contributed(basis)
            fragment = node.store.layout.fragment_of(self.round)
            payloads = node.hooks.contribution(encoded.payloads, node.store, fragment)
            root, norms = node.store.contribute(payloads, fragment=fragment)
            samples = self._steps * world.manifest.inner.batch
            node.tell(
                ev.Contributed(
                    round=self.round,
                    root=root,
                    cell_norms=norms,
                    tokens=samples,
                    samples=samples,
                    steps=self._steps,
                    residual_before=encoded.residual_before,
                    residual_after=encoded.residual_after,
                    basis=basis,
                    work=node.trainer.work(self.round),
                )
            )
        self._is_open = True
        if node.is_alive:
            self._feed()

    def audit(self, task: ev.Rerun) -> None:
        """Run a segment of somebody's round again; training is later by what that takes."""
        trainer = self._node.trainer
        assert trainer.traced is not None
        took_s = 0.0
        if task.segment < trainer.traced.segments:
            took_s = self._drawn_s("audit", self._node.device.train_s) / trainer.traced.segments
            self._owed_s += took_s
            self._world.labour.audited += 1.0 / trainer.traced.segments
        self._world.push(self._world.now_s + took_s, self._node, self._audited, task)

    def _audited(self, task: ev.Rerun) -> None:
        node, work = self._node, task.commit.work[0]
        assert node.trainer.traced is not None
        anchor_N = node.anchor(task.round - 1)
        fragment = node.store.layout.fragment_of(task.round)
        is_encoding = task.segment == node.trainer.traced.segments
        kind = WorkKind("weights", fragment) if is_encoding else STATE
        cells = node.works.needed_cells(work.trace[task.segment], kind)
        if is_encoding:
            of_residual = WorkKind("residual", fragment)
            residual = node.works.needed_cells(task.commit.residual_before, of_residual)
            is_lost = not residual and task.commit.residual_before != EMPTY_ROOT
            cells = [] if is_lost else cells + residual
        found = b""
        if anchor_N is not None and cells:
            found = node.trainer.traced.again(task, b"".join(cells), anchor_N)
            found = node.hooks.reran(found)
        node.tell(ev.Reran(commit_digest=task.commit_digest, segment=task.segment, found=found))

    def _drawn_s(self, purpose: str, span_s: tuple[float, float]) -> float:
        return self._world.luck(f"{purpose}/{self._path}").uniform(*span_s)


def _flight(wanted: Wanted) -> Flight:
    """What is in flight beside it."""
    return Flight(wanted.sealed, wanted.basis, wanted.action.bases)
