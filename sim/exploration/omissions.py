"""What liars do not say, say late, say to one, or deny, round after round, and what it costs whom.

All machines are shipped ones, the liars' too; what these send is held back or bent on its way. The
network between the honest is quick and loses nothing, and training takes longer than it: so
whatever happens is the liars' doing, and is allowed to cost nobody else anything.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from protocol import events as ev
from protocol.frames import Bulk
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Body,
    Have,
    Held,
    Kind,
    List,
    SealCertificate,
    SignedMessage,
    decode_message,
    sign_message,
)
from protocol.rounds.reducers import pack_senders, unpack_senders
from protocol.rounds.roster import liars as num_lying
from protocol.rounds.round_view import RoundView
from sim.exploration.explorer import Model
from sim.exploration.machines import GoodRun, holds
from sim.exploration.peers import MachinePeer, Peers, fork
from sim.exploration.table import DEADLINE_S, LETTERS, Post, Table

NEVER, LATE, ONE, DENY, CLAIM, PARTS = "never", "late", "to one", "denies", "claims", "withholds"
TWICE, GONE = "denies to all but", "gone"
OWED = (
    Kind.HAVE,
    Kind.HOLD,
    Kind.GRAM,
    Kind.AGG,
    Kind.LIST,
    Kind.VOTE,
    Kind.SEAL,
    Kind.COMMIT,
)
"""What a member owes the others in a round."""

COSTLY_MAX = 2
"""So many rounds somebody may cost time before it is known for it: it is told in the next one."""

TRAINING_S = 2 * DEADLINE_S
LATER = (1.2, 1.45, 2.9)
"""In deadlines since the round began: behind the HAVEs, just before the LIST, behind all of it."""


@dataclass(frozen=True, slots=True)
class Habit:
    """What liars do with what they owe: `kind` of message, none for parts or for everything; `how`;
    `whom` it is about or told first, by letter, empty for all; `late`, in deadlines."""

    kind: Kind | None
    how: str
    whom: str = ""
    late: float = 0.0

    def __str__(self) -> str:
        what = self.kind.name if self.kind else "L" if self.how == GONE else "parts"
        more = f" {self.whom}" if self.whom else ""
        return f"{what} {self.how}{more}" + (f" {self.late}" if self.late else "")


Habits = tuple[Habit, ...]


def silences() -> Iterator[Habit]:
    """Each kind never, and late."""
    for kind in OWED:
        yield Habit(kind, NEVER)
        for late in LATER:
            yield Habit(kind, LATE, late=late)


def slights(honest: Iterable[str]) -> Iterator[Habit]:
    """Each kind told to one alone or denying one, to all or to all others, and parts given to all
    but one, or to nobody."""
    yield Habit(None, PARTS)
    for name in honest:
        yield Habit(None, PARTS, name)
        for kind in OWED:
            for late in (0.0, *LATER[:2]):
                yield Habit(kind, ONE, name, late)
        for kind in (Kind.HAVE, Kind.HOLD, Kind.COMMIT, Kind.LIST):
            yield Habit(kind, DENY, name)
        for kind in (Kind.HAVE, Kind.HOLD, Kind.LIST):
            yield Habit(kind, TWICE, name)


def departures() -> Iterator[Habit]:
    """From some moment of each round on nothing is said and given, and all others suspect it."""
    for late in (0.05, *LATER):
        yield Habit(None, GONE, late=late)


@dataclass(frozen=True, slots=True, kw_only=True)
class OmissionPlan:
    """How much is explored: `rounds` on end, in which the liars change what they do up to `changes`
    times. They are of the `voters`, from the place `liar` on so many as may lie, and all `members`
    without a vote. `habits` are what they may do, of which they do up to `at_once`. What is told to
    one comes to the others `relay` deadlines later: the honest pass it on.
    """

    rounds: int
    voters: int = 4
    members: int = 0
    liar: int = 0
    changes: int = 0
    at_once: int = 1
    cells: int = 1
    relay: float = 0.2
    habits: Habits = ()
    without: frozenset[str] = frozenset()


class OmissionState(NamedTuple):
    """What the liars have done so far, round by round, and what is wrong."""

    done: tuple[Habits, ...]
    wrong: str = ""


class Omissions(Model[OmissionState]):
    """The model: honest voters A, B, C, ..., and the liars L, M, ..., whose habits are tried."""

    def __init__(self, plan: OmissionPlan) -> None:
        self.plan = plan
        self.table = Table(
            voters=plan.voters,
            helpers=0,
            members=plan.members,
            num_cells=plan.cells,
            trust="open",
        )
        head = self.table.head
        self.post = Post("open")
        self.post.rosters[head.value.digest] = head.value.roster
        config = replace(self.table.config, uses_gram=True, without=plan.without)
        lying = self.table.voters[plan.liar :][: num_lying(plan.voters, "open")]
        self.liars = (*lying, *self.table.members)
        self.honest = tuple(peer for peer in self.table.voters if peer not in lying)
        self.names = {peer: LETTERS[i] for i, peer in enumerate(self.honest)}
        self.names |= {peer: "LMNO"[i] for i, peer in enumerate(self.liars)}
        peers = Peers(self.post, config, frozenset(self.liars))
        everybody = [peers.fresh(peer, head) for peer in (*self.honest, *self.liars)]
        for peer in everybody:
            peer.machine.rates.linked = frozenset((*self.honest, *self.liars))
        self._costly: dict[tuple[Habits, ...], int] = {}
        self._swarms: dict[tuple[Habits, ...], list[MachinePeer]] = {(): everybody}
        slighted = slights(LETTERS[: len(self.honest)])
        self._habits = plan.habits or (*silences(), *slighted, *departures())

    def start(self) -> OmissionState:
        """Nothing was said yet."""
        return OmissionState(())

    def check(self, state: OmissionState) -> str:
        """What the last round has shown."""
        return state.wrong

    def moves(self, state: OmissionState) -> Iterator[tuple[str, OmissionState]]:
        """One more round, with the same habits or with others."""
        if len(state.done) >= self.plan.rounds:
            return
        for habits in self._choices(state.done):
            swarm = [fork(peer) for peer in self._swarms[state.done]]
            done = (*state.done, habits)
            wrong = OneRound(self, swarm, habits).wrong() or self._unnamed(swarm, done)
            self._swarms[done] = swarm
            words = ", ".join(map(str, habits)) or "nothing wrong"
            yield f"round {len(done)}: {words}", OmissionState(done, wrong)

    def _choices(self, done: tuple[Habits, ...]) -> Iterator[Habits]:
        changes = sum(before != after for before, after in itertools.pairwise(done))
        if done:
            yield done[-1]
            if changes >= self.plan.changes:
                return
        for habits in self._all_choices():
            if not done or habits != done[-1]:
                yield habits

    def _all_choices(self) -> Iterator[Habits]:
        yield ()
        for index, habit in enumerate(self._habits):
            yield (habit,)
            if self.plan.at_once > 1:
                for other in self._habits[index + 1 :]:
                    if other.kind != habit.kind or (not habit.kind and other.how != habit.how):
                        yield habit, other

    # What must hold behind a round --------------------------------------------------------------

    def wrong_of(self, swarm: Sequence[MachinePeer], attempts: int) -> str:
        """What the seal of the last round says that it should not, and what led to it."""
        living = [peer for peer in swarm if peer.machine.view.me in self.honest]
        seals = [peer.chain[-1] for peer in living]
        if len({seal.value.digest for seal in seals}) > 1:
            return "S1: two values are final in one round"
        roster = seals[0].value.roster
        if not roster.member_set.issuperset(self.honest):
            return "I9: an honest voter loses its seat"
        if not roster.voter_set.issuperset(self.honest):
            return "I9: an honest voter loses its vote"
        if any(seat.set_backs for seat in roster.seats if seat.peer in self.honest):
            return "R8: an honest voter is set back"
        return self._unlisted(living, seals[0]) or self._slow(attempts)

    def _unlisted(self, living: Sequence[MachinePeer], seal: SealCertificate) -> str:
        """Who is honest is in the LIST of an honest closer, unless it took up what a liar proposed
        in an attempt before, and a quorum certified."""
        view = living[0].machine.previous
        assert view is not None
        digest = seal.value.list_digest
        proposers = {
            sender
            for attempt in view.ballots.attempts(Kind.LIST)
            for sender, body in view.ballots.bodies(Kind.LIST, List, attempt).items()
            if view.ballots.list_digest(body) == digest
        }
        senders = {commit[0] for d in seal.value.commits if (commit := view.ballots.commit_of(d))}
        if proposers <= set(self.honest) and not senders.issuperset(self.honest):
            return "R2: an honest closer leaves out an honest sender"
        return ""

    def _slow(self, attempts: int) -> str:
        """At most an attempt for each liar that closes one, and one more."""
        if attempts > len(self.liars) + 1:
            return f"L1: a round takes {attempts + 1} attempts"
        return ""

    def _unnamed(self, swarm: Sequence[MachinePeer], done: tuple[Habits, ...]) -> str:
        """Whoever has cost rounds time again comes last, or has no seat; but of parts that
        one lacks no third can tell who is at fault, a late COMMIT is what deadlines are for, and
        who is gone is suspected."""
        honest = next(peer for peer in swarm if peer.machine.view.me in self.honest)
        view, roster = honest.machine.previous, honest.chain[-1].value.roster
        assert view is not None
        is_told = all(
            habit.kind is not Kind.COMMIT and (habit.kind or not habit.whom) and habit.how != GONE
            for habit in done[-1]
        )
        is_costly = is_told and honest.now_s - (view.times.opened_s or 0.0) >= DEADLINE_S / 2
        self._costly[done] = self._costly.get(done[:-1], 0) + is_costly
        named = {seat.peer for seat in roster.seats if seat.set_backs}
        is_named = named.intersection(self.liars) or not roster.member_set.issuperset(self.liars)
        if is_named or not is_costly or self._costly[done] <= COSTLY_MAX:
            return ""
        return "R8: who keeps the others waiting is named by nobody"


class OneRound(GoodRun):
    """A round in which the liars have those habits, and all else goes well."""

    def __init__(self, model: Omissions, swarm: list[MachinePeer], habits: Habits) -> None:
        until = swarm[0].machine.view.index
        super().__init__(model.table, swarm, (), until=until)
        self._model, self._habits = model, habits
        self._by_name = {name: peer for peer, name in model.names.items()}
        self._bent: dict[bytes, SignedMessage] = {}
        self._told_s: dict[bytes, float] = {}
        self._attempts = 0
        self._are_gone = False

    def wrong(self) -> str:
        """Play the round, and say what is wrong with it; empty if nothing is."""
        self._train_all()
        failed = self.fails()
        unsummable = self._unsummable()
        if failed or unsummable:
            return unsummable or failed
        swarm = list(self._peers.values())
        return self._model.wrong_of(swarm, self._attempts)

    # Time ---------------------------------------------------------------------------------------

    def _train_all(self) -> None:
        """What was said late in the round before comes while all train."""
        began_s = self._now_s()
        while self._now_s() < began_s + TRAINING_S:
            self._tell_late()
            for peer in self._peers.values():
                peer.now_s += TRAINING_S / 4
        self._tell_late()

    def _now_s(self) -> float:
        return next(iter(self._peers.values())).now_s

    def _open_peers(self) -> list[MachinePeer]:
        """The liars do as they like: the honest alone are waited for."""
        found = super()._open_peers()
        is_over = all(peer.machine.view.me in self._model.liars for peer in found)
        return [] if is_over else found

    def _is_last(self, peer: MachinePeer) -> bool:
        is_honest = peer.machine.view.me in self._model.honest
        if is_honest and peer.machine.view.index == self._round:
            self._attempts = max(self._attempts, peer.machine.view.attempt)
        return is_honest and super()._is_last(peer)

    def _settle(self, helper_finds: frozenset[PeerId]) -> None:
        self._leave()
        self._tell_late()
        super()._settle(helper_finds)

    def _leave(self) -> None:
        """The liars are gone once it is time; they and the others find that out."""
        gone_after = min((h.late for h in self._habits if h.how == GONE), default=math.inf)
        honest = [self._peers[peer] for peer in self._model.honest]
        opened_s = [
            view.times.opened_s
            for peer in honest
            if (view := peer.machine.view).index == self._round and view.times.opened_s is not None
        ]
        due_s = max(opened_s, default=math.inf) + gone_after * DEADLINE_S
        if not self._are_gone and self._now_s() >= due_s:
            self._are_gone = True
            for who, peer in self._peers.items():
                there, gone = self._model.honest, self._model.liars
                peer.tell(ev.SuspicionsChanged(frozenset(there if who in gone else gone)))

    def _train(self) -> None:
        """Who denies somebody in its COMMIT has forgotten all that it had of it."""
        for peer in self._open_peers():
            view = peer.machine.view
            is_due = view.own.contribution is None and view.me in self._model.liars
            for habit in self._habits if is_due and view.ended is not None else ():
                if habit.kind is Kind.COMMIT and habit.how == DENY and view.ended is not None:
                    _forget(view.ended, self._by_name[habit.whom])
        super()._train()

    # What is told -------------------------------------------------------------------------------

    def _exchange(self) -> bool:
        moved = self._claim()
        return super()._exchange() or moved

    def _told(
        self, source: MachinePeer, target: MachinePeer, message: SignedMessage
    ) -> SignedMessage | None:
        sender, to = message.sender, target.machine.view.me
        if to in self._model.liars:
            # Liars agree: none of them is told what another one bent, and holds it against it.
            is_bent = message in self._bent.values()
            return message if sender != to and not is_bent else None
        if sender not in self._model.liars:
            return message if sender != to else None
        if self._are_gone and source.machine.view.me in self._model.liars:
            return None
        kind, now_s = message.slot.kind, source.now_s
        for habit in self._habits:
            if habit.kind is not kind:
                continue
            whom = self._by_name.get(habit.whom)
            if habit.how == NEVER:
                return None
            late_s = habit.late * DEADLINE_S
            if late_s and now_s < self._began_s(source, message) + late_s:
                return None
            if habit.how == ONE and whom != to:
                told_s = self._told_s.setdefault(message.digest, now_s)
                if now_s < told_s + self._model.plan.relay * DEADLINE_S:
                    return None
            # And who passes on what another one said bends it as well.
            is_bent = habit.how == DENY or (habit.how == TWICE and whom != to)
            is_bent &= kind is not Kind.COMMIT
            if is_bent and source.machine.view.me in self._model.liars and whom is not None:
                message = self._deny(source, message, whom)
        return message

    def _began_s(self, source: MachinePeer, message: SignedMessage) -> float:
        """When the attempt of a message began, where it was signed."""
        for view in source.machine.views:
            if view.basis == message.slot.basis:
                is_in = view.attempt == message.slot.attempt or not message.slot.attempt
                start_s = view.times.opened_s if not message.slot.attempt else view.attempt_start_s
                return (math.inf if start_s is None else start_s) if is_in else 0.0
        return 0.0

    def _deny(self, source: MachinePeer, message: SignedMessage, whom: PeerId) -> SignedMessage:
        """The same message without that sender, signed again."""
        known = self._bent.get(message.digest)
        if known is None:
            view = next(v for v in source.machine.views if v.basis == message.slot.basis)
            body = _without(view, decode_message(message.encoded)[1], whom)
            known = sign_message(KeyedHashSigner(message.sender), message.slot, body)
            self._bent[message.digest] = known
        return known

    def _claim(self) -> bool:
        """HAVEs of whatever there is, asked or not, held or not."""
        if not any(habit.how == CLAIM for habit in self._habits):
            return False
        moved = False
        for liar in self._model.liars:
            for peer in self._peers.values():
                view = peer.machine.view
                is_due = view.index == self._round and view.times.opened_s is not None
                if view.me in self._model.liars or not is_due or liar not in view.member_set:
                    continue
                bits = pack_senders(view.member_set, view.members)
                body = Have(held=(Held(first=0, stop=view.cells.num_cells, senders=bits),))
                slot = view.slot(Kind.HAVE, attempt=view.attempt)
                message = sign_message(KeyedHashSigner(liar), slot, body)
                if view.ballots.find(message.digest) is None:
                    peer.hear(message)
                    moved |= view.ballots.find(message.digest) is not None
        return moved

    # What is given ------------------------------------------------------------------------------

    def _bring(
        self, source: PeerId, target: PeerId, bulk: Bulk, what: tuple[bytes, tuple[int, ...]]
    ) -> bool:
        if self._are_gone and source in self._model.liars:
            return False
        for habit in self._habits if source in self._model.liars else ():
            is_withheld = habit.how == PARTS and bulk is Bulk.PART
            if is_withheld and habit.whom in ("", self._model.names[target]):
                return False
        return super()._bring(source, target, bulk, what)

    def _unsummable(self) -> str:
        """Whether somebody is in a certified LIST whose part nobody honest holds."""
        living = [self._peers[peer] for peer in self._model.honest]
        for peer in living:
            for view in peer.machine.views:
                if view.index != self._round:
                    continue
                for _, body in view.ballots.certified_lists():
                    for commit in body.commits:
                        for cell in range(view.cells.num_cells):
                            if not any(holds(other, Bulk.PART, commit, cell) for other in living):
                                return "R2: somebody is listed whose parts nobody honest holds"
        return ""


def _without(view: RoundView, body: Body, whom: PeerId) -> Body:
    """What somebody says who denies that one, of a round with those members."""
    members = view.members

    def left(bits: bytes) -> bytes:
        return pack_senders(unpack_senders(bits, members) - {whom}, members) if bits else bits

    match body:
        case Have(held=held):
            runs = tuple(replace(run, senders=left(run.senders)) for run in held)
            return Have(held=tuple(run for run in runs if any(run.senders)))
        case List(commits=commits):
            kept = [d for d in commits if (found := view.ballots.commit_of(d)) and found[0] != whom]
            return replace(body, commits=tuple(kept))
        case _:
            return body


def _forget(ended: RoundView, whom: PeerId) -> None:
    """All that came of one in a round that is sealed; it is said to have kept others waiting."""
    ended.lapses.lapsed.add(whom)
    ended.ballots._commits.pop(whom, None)
    ended.ballots._commits_sorted = None
    for (kind, _, _), there in ended.ballots._slots.items():
        if kind is Kind.SEAL:
            there.pop(whom, None)
