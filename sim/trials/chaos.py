"""Chaos: carries a timetable out in a world, fault by fault, and undoes those that end.

What cannot be done to a node in its present state (to freeze a dead one) is left out and noted: a
timetable is drawn before the world runs, and nobody knows then who will be alive.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from node.reporting.tracing import Adopted, Confirmed, Ended, Record, Synced
from protocol import events as ev
from protocol.identity import PeerId
from protocol.rounds.roster import has_quorum
from protocol.rounds.round_view import RoundView
from sim.trials.blows import BLOWS, Blow, Members, Undo
from sim.trials.faults import ANY, CLOSER, NEXT_CLOSER, WorldFault
from sim.trials.phases import PHASES, Phase, phase_of
from sim.world.world import SimNode, World

DISK_ENDED = "disk:"
"""How the reason begins for which a process ends that its disk has failed."""

STALE_ROUNDS = 3
"""A phase of a round that is so long over comes to nobody any more."""


@dataclass(slots=True)
class _Planned:
    """A fault of the timetable, and how many victims it has struck."""

    fault: WorldFault
    struck: int = 0


@dataclass(slots=True)
class _Armed:
    """A fault whose round has begun; `open` are the victims that have not come to its phase."""

    planned: _Planned
    open: list[str]
    struck: list[PeerId] = field(default_factory=list)
    round: int = field(init=False)
    is_there: Phase = field(init=False)

    def __post_init__(self) -> None:
        """What is asked of it at every action is at hand."""
        fault = self.planned.fault
        self.round, self.is_there = fault.round, PHASES[fault.phase]


class WorldChaos:
    """One timetable in one world. `enter` makes a newcomer join, `replaced` hears
    whose disk has lost what was durable, `note` what happens, in words.

    `first_struck_s` and `struck_s` are when a fault struck first and last, `ends` when those with
    an end ended, and their kinds. `coverage` counts faults by kind and by the phase that the victim
    was in. `revision` grows with everything that may bring the
    end of the run nearer.
    """

    def __init__(
        self,
        world: World,
        timetable: Sequence[WorldFault],
        *,
        enter: Callable[[PeerId, str], None],
        replaced: Callable[[PeerId], None],
        note: Callable[[str], None],
        restart_s: float = 0.0,
    ) -> None:
        self.coverage: Counter[str] = Counter()
        self.first_struck_s = self.struck_s = 0.0
        self.ends: list[tuple[float, str]] = []
        self.revision = 0
        self._world = world
        self._note = note
        self._names: dict[PeerId, str] = {}
        self._planned = [_Planned(one) for one in sorted(timetable, key=lambda one: one.round)]
        self._waiting = list(self._planned)
        self._armed: list[_Armed] = []
        self._num_open = 0
        self._round = 0
        self._restart_s = restart_s
        self._members = Members(world, lambda peer: enter(peer, self._names[peer]), replaced)
        world.tracers.append(self._saw)

    def start(self) -> None:
        """All members have joined: the first round begins."""
        self._begin(1)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way that would end: no node is down, no link broken for now."""
        return self._num_open == 0

    @property
    def missed(self) -> list[WorldFault]:
        """Those that have struck nobody: their moment did not come, or there was no victim."""
        return [one.fault for one in self._planned if not one.struck]

    @property
    def partial(self) -> list[WorldFault]:
        """Those in a phase to which some of their victims did not come."""
        return [one.fault for one in self._planned if 0 < one.struck < len(one.fault.victims)]

    @property
    def quiet_since_s(self) -> float:
        """When the last fault struck or ended."""
        return max(self.struck_s, self.ends[-1][0] if self.ends else 0.0)

    def named(self, name: str) -> PeerId:
        """The node that a timetable calls so."""
        peer = self._world.peer(name)
        self._names[peer] = name
        return peer

    def name_of(self, peer: PeerId) -> str:
        """Its name in the timetable."""
        return self._names[peer]

    def members(self) -> list[PeerId]:
        """All honest nodes that ever joined and have not been told to leave, by name; but for those
        whose machine erred and that are banned for it."""
        liars, nodes = self._world.settings.liars, self._world.nodes
        banned = {p for node in nodes.values() for p in node.core.machine.head.roster.banned}
        out = {*liars, *(peer for peer in banned if nodes[peer].has_erred)}
        honest = (peer for peer in self._members.present() if peer not in out)
        return sorted(honest, key=self.name_of)

    def is_alive(self, peer: PeerId) -> bool:
        """Whether its process runs."""
        return self._world.nodes[peer].is_alive

    def round_of(self, peer: PeerId) -> int:
        """The newest round that is final there."""
        return self._world.nodes[peer].round

    def has_quorum(self) -> bool:
        """Whether a quorum of the newest round's voters lives, and knows what it signed."""
        nodes = self._world.nodes
        living = [nodes[peer] for peer in sorted(nodes) if nodes[peer].is_alive]
        if not living:
            return False
        bases = [node.core.machine.standing.base for node in living]
        # Of the round that is final next: with two in flight (R5) the head names a later one.
        roster = max(bases, key=lambda base: base.index).named.roster
        able = {node.peer for node in living if not node.core.machine.is_muted}
        return has_quorum(roster, able, trust=self._world.manifest.trust)

    # When ---------------------------------------------------------------------------------------

    def _saw(self, record: Record) -> None:
        match record:
            case Adopted() | Confirmed() | Synced():
                index = record.certificate.value.round + 1
                if index > self._round:
                    self._begin(index)
            case Ended(peer=peer, reason=reason) if reason.startswith(DISK_ENDED):
                self._note(f"{self._names[peer]}: ended, {reason}")
                if self._restart_s:
                    self._num_open += 1
                    node = self._world.nodes[peer]
                    self._world.later(self._restart_s, lambda: self._started_again(node))
            case _:
                pass

    def _started_again(self, node: SimNode) -> None:
        self._num_open -= 1
        self.revision += 1
        if self._world.nodes[node.peer] is node and not node.is_alive:
            self._note(f"{self._names[node.peer]}: started again")
            self._world.bounce(node.peer)

    def _begin(self, index: int) -> None:
        self._round = index
        while self._waiting and self._waiting[0].fault.round <= index:
            planned = self._waiting.pop(0)
            fault = planned.fault
            if fault.phase:
                self._arm(_Armed(planned, list(fault.victims)))
            else:
                self._num_open += 1
                self._world.later(fault.after_s, partial(self._strike, planned))
        for armed in [one for one in self._armed if one.round + STALE_ROUNDS <= index]:
            self._disarm(armed)

    def _arm(self, armed: _Armed) -> None:
        # A trigger is asked at every action of every node: only while there is something to ask.
        if not self._armed:
            self._world.triggers.append(self._asked)
        self._armed.append(armed)

    def _disarm(self, armed: _Armed) -> None:
        self._armed.remove(armed)
        if not self._armed:
            self._world.triggers.remove(self._asked)

    def _asked(self, world: World, node: SimNode, action: ev.CoreAction | None) -> None:
        del world
        views = node.core.views()
        for armed in tuple(self._armed):
            for view in views:
                if view.index != armed.round or not node.is_alive:
                    continue
                role = self._role(armed, node, view)
                if role is not None and armed.is_there(view, action):
                    armed.open.remove(role)
                    armed.struck.append(node.peer)
                    if not armed.open:
                        self._disarm(armed)
                    self._num_open += 1
                    self._deal(armed.planned, [node.peer])
                    break

    def _role(self, armed: _Armed, node: SimNode, view: RoundView) -> str | None:
        """As what this node would be a victim."""
        if node.peer in armed.struck:
            return None
        for role in armed.open:
            match role:
                case str() if role == ANY:
                    is_meant = True
                case str() if role == CLOSER:
                    is_meant = view.closer(0) == node.peer
                case str() if role == NEXT_CLOSER:
                    is_meant = view.closer(1) == node.peer
                case _:
                    is_meant = self._names.get(node.peer) == role
            if is_meant:
                return role
        return None

    # What ---------------------------------------------------------------------------------------

    def _strike(self, planned: _Planned) -> None:
        self._deal(planned, [self.named(name) for name in planned.fault.victims])

    def _deal(self, planned: _Planned, victims: list[PeerId]) -> None:
        """One is open already for this fault; it is closed when all of it is over."""
        fault, phase = planned.fault, planned.fault.phase
        against = [self.named(name) for name in fault.against]
        blow = Blow(self._members, fault, victims, against)
        self.revision += 1
        nodes = [self._world.nodes.get(peer) for peer in victims]
        places = [phase or (phase_of(n.core.machine.view) if n else "absent") for n in nodes]
        undo = BLOWS[fault.kind](blow)
        names = ", ".join(self._names[peer] for peer in victims)
        if undo is None:
            self._num_open -= 1
            self._note(f"{names}: no {fault.kind}, there is nobody to hurt")
            return
        planned.struck += len(victims)
        self.coverage.update(f"{fault.kind} @ {place}" for place in places)
        self.struck_s = self._world.now_s
        self.first_struck_s = self.first_struck_s or self.struck_s
        self._note(f"{names} {fault.what}" + (f", at {phase}" if phase else ""))
        if not fault.duration_s:
            self._num_open -= 1
            return
        if fault.period_s:
            self._alternate(fault, blow, undo, fault.duration_s)
        else:
            self._world.later(fault.duration_s, lambda: self._end(fault, names, undo))

    def _alternate(self, fault: WorldFault, blow: Blow, undo: Undo | None, left_s: float) -> None:
        """It comes and goes until its time is over; it is gone then."""
        wait_s = min(fault.period_s, left_s)
        self._world.later(wait_s, partial(self._switch, fault, blow, undo, left_s - wait_s))

    def _switch(self, fault: WorldFault, blow: Blow, undo: Undo | None, left_s: float) -> None:
        if left_s <= 0.0:
            self._end(fault, ", ".join(self._names[peer] for peer in blow.victims), undo)
            return
        again = None
        if undo is not None:
            undo()
        else:
            again = BLOWS[fault.kind](blow)
        self._alternate(fault, blow, again, left_s)

    def _end(self, fault: WorldFault, names: str, undo: Undo | None) -> None:
        self._num_open -= 1
        self.revision += 1
        if undo is not None:
            undo()
        self.ends.append((self._world.now_s, fault.kind))
        self._note(f"{names}: {fault.kind} is over")
