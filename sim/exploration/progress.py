"""One of four says that its work moves, to all or to some, truly or not: for how long the others
wait for it, and what that costs whom.

All machines are shipped ones, and time passes beat by beat. In each beat X takes one step, or
commits, or stands still, or says that it fetches, and is heard by all, by one, or by nobody; behind
some such beats it does one of these for ever. Whatever the others say reaches all of them at once,
and what X said to one of them a beat later: so whatever happens is X's doing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from protocol import events as ev
from protocol.frames import Phase, Progress
from protocol.identity import PeerId
from protocol.messages import Kind, SealValue, SignedMessage
from protocol.rounds.lapses import owed
from protocol.rounds.patience import CAP_ROUNDS, LATE_SHARE
from sim.exploration.explorer import Model
from sim.exploration.machines import STEP_MIN_S, GoodRun
from sim.exploration.peers import MachinePeer, Peers, fork
from sim.exploration.table import DEADLINE_S, LETTERS, Post, Table

BEAT_S = DEADLINE_S / 2
HEARTBEAT_S = 2.0
"""Work that does not grow for four of these has stopped: not within a beat."""

TRAINING_BEATS = 2
"""A and B need so long: they may wait for a few more than four times as long, and longer than it
takes until a HAVE is a lapse."""

DEADLINES_MAX = 6
"""What a round takes behind all training and waiting, in which an attempt ends besides."""

NOTHING, STEP, COMMIT, FETCH = "stands still", "takes a step", "commits", "fetches"
LONG = "takes a step, and says that each takes two deadlines"
STEPS_OF_X = 1000
LONG_STEP_S = 2 * DEADLINE_S


@dataclass(frozen=True, slots=True)
class Beat:
    """What X does in a beat, and who hears of it: one by letter, or all."""

    what: str
    whom: str = ""

    def __str__(self) -> str:
        return f"X {self.what}" + (f", and {self.whom} alone hears it" if self.whom else "")


SILENT = Beat(NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPlan:
    """How much is explored: `beats` in which X does as it likes, and then one thing for ever, for
    `rounds` in all. Its place among the voters is `place`. Who is `mute` says nothing besides: no
    HAVE, no VOTE; but its NEWATTEMPTs if it goes `ahead` alone. `acts` are all that it may do. C
    trains so many beats longer as it is `slow`. Of the round's `attempts` one is the last. Whoever
    is `apart`, by letter, has no link to X: what X says it hears from others, and nothing of its
    work. X is listed all the same, if it commits before it has cost what it may.
    """

    beats: int
    acts: tuple[Beat, ...]
    rounds: int = 3
    trust: str = "open"
    place: int = 0
    cells: int = 4
    mute: bool = False
    ahead: bool = False
    slow: int = 0
    attempts: int = 9
    apart: str = ""

    def round_max_s(self, acts: Sequence[Beat]) -> float:
        """What a round takes at most, whatever X does. Where it has committed before the others,
        it can cost them something only by what it says that it fetches, and not for another
        attempt."""
        waits = LATE_SHARE + CAP_ROUNDS
        is_heard = not self.ahead and any(act.what == FETCH for act in acts)
        if acts[0] == Beat(COMMIT) and not is_heard:
            waits = 0
        training_s = (TRAINING_BEATS + self.slow) * BEAT_S
        return (1 + waits) * training_s + DEADLINES_MAX * DEADLINE_S


class WaitingState(NamedTuple):
    """What X has done, beat by beat, and whether the last of it was for ever; all messages sent,
    and what is wrong."""

    acts: tuple[Beat, ...]
    sent: int
    is_over: bool = False
    wrong: str = ""


class Waiting(Model[WaitingState]):
    """The model: A, B and C, and X."""

    def __init__(self, plan: WaitingPlan) -> None:
        self.plan = plan
        self.table = Table(voters=4, helpers=0, num_cells=plan.cells, trust=plan.trust)
        head = self.table.head
        self.first = head.value.round + 1
        self.x = self.table.voters[plan.place]
        self.honest = tuple(peer for peer in self.table.voters if peer != self.x)
        self.by_name = dict(zip(LETTERS, self.honest, strict=False))
        self.post = Post(plan.trust)
        self.post.rosters[head.value.digest] = head.value.roster
        config = replace(self.table.config, heartbeat_s=HEARTBEAT_S, relayed_s=1.5 * HEARTBEAT_S)
        peers = Peers(self.post, config, frozenset({self.x}))
        everybody = [peers.fresh(peer, head) for peer in self.table.voters]
        for peer in everybody:
            peer.machine.rates.linked = frozenset(self.table.voters)
        self._swarms: dict[tuple[Beat, ...], list[MachinePeer]] = {(): everybody}

    def start(self) -> WaitingState:
        """All begin to train."""
        return WaitingState((), 0)

    def check(self, state: WaitingState) -> str:
        """What the last beats have shown."""
        return state.wrong

    def moves(self, state: WaitingState) -> Iterator[tuple[str, WaitingState]]:
        """A beat more, or the same for ever."""
        if state.is_over:
            return
        has_committed = any(act.what == COMMIT for act in state.acts)
        for act in self.plan.acts:
            if (act.what == COMMIT and has_committed) or (act.what == FETCH and not has_committed):
                continue
            acts = (*state.acts, act)
            if len(acts) <= self.plan.beats:
                beats, swarm = self._beats(state, acts)
                wrong = beats.play(act)
                self._swarms[acts] = swarm
                yield str(act), WaitingState(acts, beats.sent, wrong=wrong)
            beats, _ = self._beats(state, acts)
            wrong = beats.play_on(act)
            yield f"{act}, for ever", WaitingState(acts, beats.sent, is_over=True, wrong=wrong)

    def _beats(
        self, state: WaitingState, acts: tuple[Beat, ...]
    ) -> tuple["Beats", list[MachinePeer]]:
        swarm = [fork(peer) for peer in self._swarms[state.acts]]
        return Beats(self, swarm, state.sent, acts), swarm


class Beats(GoodRun):
    """What follows from beats of one swarm, the last of them behind `acts`."""

    def __init__(
        self, model: Waiting, swarm: Sequence[MachinePeer], sent: int, acts: tuple[Beat, ...]
    ) -> None:
        super().__init__(model.table, swarm, (), until=model.first + model.plan.rounds - 1)
        self._model, self.sent, self._acts = model, sent, acts
        self._said: list[SignedMessage] = []
        for peer in swarm:
            peer.sent = self._said  # Of all together, in the order in which it is signed.
        self._x = self._peers[model.x]
        self._others = [self._peers[peer] for peer in model.honest]
        first_told = next((act.whom for act in acts if act.what == COMMIT), "")
        self._first_told = self._peers.get(model.by_name.get(first_told, model.x))

    def play(self, act: Beat) -> str:
        """A beat; what is wrong behind it."""
        self._do(act)
        ends_s = self._x.now_s + BEAT_S
        while self._x.now_s < ends_s:
            self._settle(frozenset())
            due_s = min(peer.machine.wakeup_s() - peer.now_s for peer in self._others)
            step_s = min(max(STEP_MIN_S, due_s), ends_s - self._x.now_s)
            for peer in self._peers.values():
                peer.now_s += step_s
                peer.tell(ev.Tick())
        self._settle(frozenset())
        return self._wrong_signatures() or self._wrong_seals() or self._wronged()

    def play_on(self, act: Beat) -> str:
        """The same beat for ever: what is wrong before all rounds are final."""
        while any(peer.machine.view.index <= self._round for peer in self._others):
            if wrong := self.play(act) or self._too_long():
                return wrong
        return ""

    def _too_long(self) -> str:
        """Whether a round takes longer than it may, in time or in attempts."""
        plan, first = self._model.plan, self._model.first
        for peer in self._others:
            view = peer.machine.view
            took_s = peer.now_s - view.times.started_s
            if took_s > plan.round_max_s(self._acts if view.index == first else (SILENT,)):
                return "L1: X holds the round for longer than it may cost"
            if any(one.attempt >= plan.attempts for one in peer.machine.views):
                return "L1: an attempt ends in which all do what they owe"
        return ""

    # What all do ---------------------------------------------------------------------------------

    def _do(self, act: Beat) -> None:
        """X's part of a beat, and how far the others say that they are."""
        everybody = self._peers.values()
        if act.what == COMMIT and self._x.machine.view.own.contribution is None:
            self._x.contribute()
        for peer in self._others:
            view, work = peer.machine.view, None
            if view.own.contribution is None:
                done = int((peer.now_s - view.times.started_s) / BEAT_S)
                work = ev.Working(view.index, Phase.TRAIN, done, self._beats_of(peer), None)
            said = peer.machine.patience.own(view, work, peer.now_s)
            for other in everybody:
                if other is not peer:
                    self._beat(view.me, other, said)
        whom = self._model.by_name.get(act.whom)
        hearers = [self._peers[whom], self._x] if whom else everybody
        for peer in hearers if act.what in (STEP, LONG, FETCH) else ():
            self._beat(self._model.x, peer, (self._claim(peer, act.what),))

    def _beats_of(self, peer: MachinePeer) -> int:
        """For so long it trains."""
        is_slow = peer is self._others[-1]
        return TRAINING_BEATS + (self._model.plan.slow if is_slow else 0)

    def _claim(self, peer: MachinePeer, what: str) -> Progress:
        """What X says of itself to somebody: one step more than in the beat before."""
        view = peer.machine.view
        done = int((peer.now_s - view.times.started_s) / BEAT_S)
        return Progress(
            shard=view.seals.head.shard,
            round=view.index,
            phase=Phase.FETCH if what == FETCH else Phase.TRAIN,
            done=done,
            total=STEPS_OF_X,
            end_s=int(LONG_STEP_S * (STEPS_OF_X - done)) if what == LONG else 0,
        )

    def _beat(self, sender: PeerId, hearer: MachinePeer, said: tuple[Progress, ...]) -> None:
        """A heartbeat comes."""
        if self._are_apart(sender, hearer.machine.view.me):
            return
        if hearer.machine.view.me == sender:
            for one in said:
                hearer.machine.patience.told(sender, one, hearer.now_s)
        else:
            hearer.machine.hear_progress(sender, said, hearer.now_s)
        hearer.tell(ev.Tick())

    def _train(self) -> None:
        """X commits when it does; the others behind their training."""
        for peer in self._others:
            view = peer.machine.view
            is_done = peer.now_s >= view.times.started_s + self._beats_of(peer) * BEAT_S
            is_open = view.index <= self._round and view.own.contribution is None
            if is_done and is_open and view.is_member:
                peer.contribute()

    def _settle(self, helper_finds: frozenset[PeerId]) -> None:
        self._tell_late()
        super()._settle(helper_finds)

    def _told(
        self, source: MachinePeer, target: MachinePeer, message: SignedMessage
    ) -> SignedMessage | None:
        """What X told one alone, that one passes on a beat later."""
        me, first = target.machine.view.me, self._first_told
        if self._are_apart(source.machine.view.me, me):
            return None
        if message.sender != self._model.x or me == self._model.x:
            return message if message.sender != me else None
        plan = self._model.plan
        if message.slot.kind is not Kind.COMMIT:
            is_said = not plan.mute or (plan.ahead and message.slot.kind is Kind.NEWATTEMPT)
            return message if is_said else None
        if first is None or first is self._x or first is target:
            return message
        came_s = first.machine.view.arrivals.commit_s.get(self._model.x, math.inf)
        is_over = first.machine.view.basis != message.slot.basis
        return message if is_over or source.now_s >= came_s + BEAT_S else None

    def _are_apart(self, one: PeerId, other: PeerId) -> bool:
        return {one, other} == {self._model.x, self._model.by_name.get(self._model.plan.apart)}

    # What is wrong --------------------------------------------------------------------------------

    def _wrong_signatures(self) -> str:
        """S1 and S3, by all that was signed."""
        for peer in self._peers.values():
            if peer.broken:
                return peer.broken
            for certificate in peer.adopted:
                self._model.post.rosters[certificate.value.digest] = certificate.value.roster
        numbers = tuple(self._model.post.number(message) for message in self._said)
        self._said.clear()
        wrong = self._model.post.wrong(self.sent, numbers)
        self.sent = self._model.post.add(self.sent, numbers)
        return wrong

    def _wrong_seals(self) -> str:
        """S2 and S4, and that nobody honest loses anything."""
        for peer in self._others:
            for certificate in peer.adopted:
                value = certificate.value
                if value.commits and not any(value.list_digest in p.results for p in self._others):
                    return "S2: nobody has the result of a sealed round"
                if not value.roster.voter_set.issuperset(self._model.honest):
                    return "I9: an honest voter loses its seat or its vote"
                if any(s.set_backs for s in value.roster.seats if s.peer in self._model.honest):
                    return "R8: an honest voter is set back"
                if value.round == self._model.first and self._leaves_out_x(value):
                    return "R3: X is left out for one that has no link to it"
            peer.adopted = []
        finals: dict[int, bytes] = {}
        for certificate in (link for peer in self._others for link in peer.chain):
            value = certificate.value
            if finals.setdefault(value.round, value.digest) != value.digest:
                return "S4: two seals name the roster of one round"
        return ""

    def _leaves_out_x(self, value: SealValue) -> bool:
        """Whether X, which moves all the time, is not in the first round though it has not cost yet
        what it may."""
        has_committed = any(act.what == COMMIT for act in self._acts)
        may_cost_s = (1 + CAP_ROUNDS) * TRAINING_BEATS * BEAT_S
        is_due = has_committed or self._x.now_s < may_cost_s
        return bool(self._model.plan.apart) and is_due and len(value.commits) < len(self._peers)

    def _wronged(self) -> str:
        """Whether anybody honest is named by somebody honest."""
        for peer in self._others:
            view, ended = peer.machine.view, peer.machine.previous
            named = view.lapses.lapsed | (owed(ended) if ended else set())
            named -= {view.me}  # Of itself it tells nothing.
            if named.intersection(self._model.honest):
                return "R8: an honest member is named for a lapse"
        return ""
