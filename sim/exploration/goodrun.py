"""L1: from wherever a search has come, do the living make the round final once all goes well?

All who live reach each other at once, know who is dead, and answer what they are asked; time
passes. The machines are forks of the shipped ones: nothing here decides for them.
"""

from collections.abc import Iterable, Sequence

from protocol import events as ev
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Kind
from protocol.rounds.round_view import RoundView
from sim.exploration.peers import MachinePeer
from sim.exploration.table import Table

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
        allowed = [v.attempt + len(v.electorate) + 2 for v in views if v.index == self._round]
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
            if peer.machine.view.is_member and peer.machine.view.contribution is None:
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
        for view in _views(source):
            for message in list(view.ballots.messages()):
                mine = target.machine.view
                if view.basis == mine.basis and mine.ballots.find(message.digest) is None:
                    target.hear(message)
                    moved |= mine.ballots.find(message.digest) is not None
        return moved

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


def _views(peer: MachinePeer) -> list[RoundView]:
    machine = peer.machine
    return list(machine.views)


def holds(peer: MachinePeer, bulk: Bulk, subject: bytes, cell: int) -> bool:
    """Whether a peer has a cell of a part or a result, of this round or the one before."""
    return any(
        cell in (view.parts if bulk is Bulk.PART else view.results).get(subject, ())
        for view in _views(peer)
    )
