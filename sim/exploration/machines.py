"""What all models of running machines have in common: their states, what a deed leads to, and L1.

L1 asks whether the living make the round final once all goes well, from wherever a search has come:
all who live reach each other at once, know who is dead, and answer what they are asked; time
passes. The machines are forks of the shipped ones: nothing here decides for them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from protocol import events as ev
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Kind, SignedMessage
from protocol.rounds.round_view import RoundView
from sim.exploration.explorer import Model
from sim.exploration.peers import LATE_KINDS, Deed, Effect, MachinePeer, Peers
from sim.exploration.table import Post, Table


class MachinesState(NamedTuple):
    """Each peer by number, all messages sent, what may still happen, and what is wrong.

    `dead` is a bit mask over the peers. Where links change, `links` gives each peer its side.
    """

    peers: tuple[int, ...]
    sent: int
    restarts: int = 0
    sleeps: int = 0
    disks: int = 0
    wrong: str = ""
    dead: int = 0
    links: tuple[int, ...] = ()
    changes: int = 0


Moves = Iterator[tuple[str, MachinesState]]


class Machines(Model[MachinesState], ABC):
    """The frame of the models. Safety is asked of every state, L1 of every `every`-th, 0 for none.

    Where `rules` are not asked for, of the signatures only S1 and S3 are; `ready` are messages that
    lie there beside those that were sent.
    """

    ready = 0
    keeps_idle = False
    """Whether a deed that changes nothing is a move all the same."""
    loses_results = False
    """Whether a peer may lose its results alone, when it restarts."""
    adopts = ""
    """What is said of a move by which somebody adopts a round."""

    def __init__(self, table: Table, post: Post, peers: Peers, *, every: int, rules: bool) -> None:
        self.table, self.post, self.peers = table, post, peers
        self._every, self._rules, self._asked = every, rules, 0

    def check(self, state: MachinesState) -> str:
        """What a move found to be wrong, and where it is asked for, that a good run seals."""
        self._asked += 1
        if state.wrong or not self._every or self._asked % self._every:
            return state.wrong
        return self.fails_to_finish(state)

    @abstractmethod
    def fails_to_finish(self, state: MachinesState) -> str:
        """L1: why the living do not seal in a good run from here; empty if they do."""

    def _after(self, state: MachinesState, seat: int, label: str, deeds: tuple[Deed, ...]) -> Moves:
        """The state after deeds to one peer; the label also says what it signed."""
        done = self._do(state, seat, deeds)
        if done is None:
            return
        number, effect = done
        numbers = (*state.peers[:seat], number, *state.peers[seat + 1 :])
        sent = self.post.add(state.sent, effect.sent)
        wrong = effect.broken or self._wrong_signature(state, effect)
        following = state._replace(peers=numbers, sent=sent)
        following = following._replace(wrong=wrong or self._wrong_step(following, seat, effect))
        words = label + (self.adopts if effect.adopted else "")
        said = self.table.said(self.post.letters[number] for number in effect.sent)
        yield f"{words}: {said}" if said else words, following

    def _do(
        self, state: MachinesState, seat: int, deeds: tuple[Deed, ...]
    ) -> tuple[int, Effect] | None:
        """What the deeds lead to; None if nothing has changed, and that is no move."""
        number, effect = self.peers.do(state.peers[seat], deeds)
        is_idle = number == state.peers[seat] and not (effect.broken or self.keeps_idle)
        return None if is_idle else (number, effect)

    def _wrong_signature(self, state: MachinesState, effect: Effect) -> str:
        wrong = self.post.wrong(state.sent | self.ready, effect.sent)
        return wrong if self._rules or wrong.startswith(("S1", "S3")) else ""

    def _wrong_step(self, state: MachinesState, seat: int, effect: Effect) -> str:
        """What else is wrong with what one peer has done on its way to that state."""
        if not effect.adopted:
            return ""
        found: dict[int, bytes] = {}
        for number in state.peers:
            for certificate in self.peers.states[number].chain:
                value = certificate.value
                if found.setdefault(value.round, value.digest) != value.digest:
                    return "S1: two peers have adopted different seals of one round"
        return ""

    def _mishaps(self, state: MachinesState, seat: int, name: str) -> Moves:
        """It is killed, freezes, or loses its disk."""
        fewer = state._replace(restarts=state.restarts - 1)
        slept = state._replace(sleeps=state.sleeps - 1)
        replaced = state._replace(disks=state.disks - 1)
        if state.restarts:
            yield from self._after(fewer, seat, f"{name} is killed and restarts", (("restart",),))
            if self.loses_results and self.peers.states[state.peers[seat]].results:
                label = f"{name} restarts without its results"
                yield from self._after(fewer, seat, label, (("restart", "no results"),))
        if state.sleeps:
            yield from self._after(slept, seat, f"{name} freezes and wakes", (("wake",),))
        if state.disks:
            label = f"{name} loses its disk and restarts"
            yield from self._after(replaced, seat, label, (("lost disk",),))


# A good run ---------------------------------------------------------------------------------------

STEPS_MAX = 600
STEP_MIN_S = 0.5


class GoodRun:
    """The living, from here on without faults, until the round `until` is final everywhere.

    Helpers of the table hold all bytes and answer for them.
    """

    def __init__(
        self, table: Table, living: Sequence[MachinePeer], dead: Iterable[PeerId], *, until: int
    ) -> None:
        self._table = table
        self._peers = {peer.machine.view.me: peer for peer in living}
        self._dead = frozenset(dead)
        self._round = until

    def fails(self, *, helper_finds: frozenset[PeerId] = frozenset()) -> str:
        """Why the living do not seal; empty if they do, within v + 2 more attempts.

        Where there are helpers, the first of them says that it holds the parts of `helper_finds`.
        """
        views = [p.machine.view for p in self._peers.values()]
        allowed = [v.attempt + len(v.roles.electorate) + 2 for v in views if v.index == self._round]
        last = max(allowed, default=len(self._table.voters) + 2)
        for peer in self._peers.values():
            peer.tell(ev.SuspicionsChanged(self._dead))
        for _ in range(STEPS_MAX):
            self._settle(helper_finds)
            broken = [peer.broken for peer in self._peers.values() if peer.broken]
            if broken:
                return f"in a good run: {broken[0]}"
            waiting = self._open_peers()
            if not waiting:
                return ""
            if any(p.machine.view.attempt > last for p in waiting if self._is_last(p)):
                return "L1: the living do not seal within v + 2 attempts"
            self._wait()
        return "L1: the living never seal"

    def _open_peers(self) -> list[MachinePeer]:
        return [p for p in self._peers.values() if p.machine.view.index <= self._round]

    def _is_last(self, peer: MachinePeer) -> bool:
        return peer.machine.view.index == self._round

    def _wait(self) -> None:
        due_s = [peer.machine.wakeup_s() - peer.now_s for peer in self._open_peers()]
        step_s = max(STEP_MIN_S, min(due_s))
        for peer in self._peers.values():
            peer.now_s += step_s
            peer.tell(ev.Tick())

    def _settle(self, helper_finds: frozenset[PeerId]) -> None:
        """Deliver whatever there is, until there is no more."""
        moved = True
        while moved:
            self._catch_up()
            # Before training: a round of that takes longer than gossip does.
            self._pass_evidence()
            self._train()
            moved = self._exchange() or self._answer_status() or self._carry_bytes()
            if self._table.helpers and not moved:
                moved = self._tell_closers(helper_finds)

    def _catch_up(self) -> None:
        """What a core does for a machine that is two rounds behind: from a later seal on."""
        leader = max(self._peers.values(), key=lambda peer: peer.machine.head.round)
        for peer in self._peers.values():
            if peer.machine.head.round < leader.machine.head.round - 1:
                peer.chain = leader.chain
                peer.machine.reset(leader.machine.certificate, now_s=peer.now_s)

    def _train(self) -> None:
        for peer in self._open_peers():
            if peer.machine.view.is_member and peer.machine.view.own.contribution is None:
                peer.contribute()

    def _exchange(self) -> bool:
        moved = False
        for peer in self._open_peers():
            for other in self._peers.values():
                if other is not peer:
                    moved |= self._tell_all(other, peer)
        return moved

    def _tell_all(self, source: MachinePeer, target: MachinePeer) -> bool:
        moved = False
        for view in source.machine.views:
            for message in list(view.ballots.messages()):
                mine = target.machine.view
                if view.basis != mine.basis:
                    break
                told = self._told(source, target, message)
                if told is not None and mine.ballots.find(told.digest) is None:
                    target.hear(told)
                    moved |= mine.ballots.find(told.digest) is not None
        return moved

    def _told(
        self, source: MachinePeer, target: MachinePeer, message: SignedMessage
    ) -> SignedMessage | None:
        """What comes of a message now from one to another; None if nothing does."""
        del source, target
        return message

    def _tell_late(self) -> None:
        """COMMITs and SEALs of a round that is sealed, which still count (R1)."""
        for source in self._peers.values():
            for target in self._peers.values():
                if source is not target:
                    self._tell_of_sealed(source, target)

    def _tell_of_sealed(self, source: MachinePeer, target: MachinePeer) -> None:
        for view in source.machine.views:
            ended = target.machine.ended_on(view.basis)
            if ended is None:
                continue
            for message in list(view.ballots.messages()):
                told = self._told(source, target, message)
                is_late = told is not None and told.slot.kind in LATE_KINDS
                if told is not None and is_late and ended.ballots.find(told.digest) is None:
                    target.hear(told)

    def _pass_evidence(self) -> None:
        """Gossip: what one holds against somebody all come to hold."""
        held = {who: one for peer in self._peers.values() for who, one in peer.evidence.items()}
        for peer in self._peers.values():
            for subject in sorted(held.keys() - peer.evidence.keys() - {peer.machine.view.me}):
                peer.convict(held[subject])

    def _answer_status(self) -> bool:
        moved = False
        for peer in self._peers.values():
            for other in self._peers.values():
                machine = other.machine
                if other is not peer and peer.machine.is_asking and not machine.has_forgotten:
                    peer.tell(ev.StatusHeard(machine.view.me, machine.view.index))
                    moved |= not peer.machine.is_asking
        return moved

    def _carry_bytes(self) -> bool:
        moved = False
        for peer in self._peers.values():
            actions, peer.actions = peer.actions, []
            for action in actions:
                match action:
                    case ev.Push(to=to, bulk=bulk, subject=subject, cells=cells):
                        moved |= self._bring(peer.machine.view.me, to, bulk, (subject, cells))
                    case ev.Pull(source=source, bulk=bulk, subject=subject, cells=cells):
                        moved |= self._bring(source, peer.machine.view.me, bulk, (subject, cells))
                    case _:
                        pass
        return moved

    def _bring(
        self, source: PeerId, target: PeerId, bulk: Bulk, what: tuple[bytes, tuple[int, ...]]
    ) -> bool:
        subject, cells = what
        if source not in self._table.helpers:
            giver = self._peers.get(source)
            cells = tuple(c for c in cells if giver and holds(giver, bulk, subject, c))
        taker = self._peers.get(target)
        if not cells or taker is None:
            return False
        taker.tell(ev.CellsArrived(bulk, subject, cells))
        return True

    def _tell_closers(self, senders: frozenset[PeerId]) -> bool:
        moved = False
        for peer in self._open_peers():
            view = peer.machine.view
            heard = view.ballots.of(Kind.HAVE, view.attempt)
            if view.closer(view.attempt) == view.me and self._table.helpers[0] not in heard:
                have = self._table.have(senders, view.attempt)
                peer.hear(have)
                moved |= view.ballots.find(have.digest) is not None
        return moved


def holds(peer: MachinePeer, bulk: Bulk, subject: bytes, cell: int) -> bool:
    """Whether a peer has a cell of a part or a result, of this round or the one before."""
    return any(
        cell in (view.cells.parts if bulk is Bulk.PART else view.cells.results).get(subject, ())
        for view in peer.machine.views
    )


def parts_due(
    view: RoundView, givers: Sequence[MachinePeer]
) -> Iterator[tuple[PeerId, bytes, int]]:
    """Sender, COMMIT and cell of the parts that a peer sums, has not, and somebody has."""
    for piece in view.own_slices():
        for sender, commit, _ in view.commits():
            for cell in view.cells.missing_parts(commit, piece):
                if any(holds(giver, Bulk.PART, commit, cell) for giver in givers):
                    yield sender, commit, cell
