"""Chaos: carries a timetable out in a world, fault by fault, and undoes those that end.

A fault may wait for a phase of a round. A phase is a question asked before each action of a node,
and with None once all actions of an event are carried out. "Recorded" is the moment in which R12
lives: durable, and heard by nobody.

What cannot be done to a node in its present state (to freeze a dead one) is left out and noted: a
timetable is drawn before the world runs, and nobody knows then who will be alive.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import prod

from node.reporting.tracing import Adopted, Confirmed, Ended, Record, Synced
from protocol import events as ev
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Kind
from protocol.rounds.roster import has_quorum
from protocol.rounds.round_view import RoundView
from sim.trials.faults import ANY, CLOSER, NEXT_CLOSER, WorldFault
from sim.world.links import Link
from sim.world.nodes import Device, Seconds
from sim.world.world import SimNode, World

# When: the phases of a round ----------------------------------------------------------------------

Phase = Callable[[RoundView, ev.CoreAction | None], bool]
"""Whether the node whose view it is stands there, about to carry out that action."""

TRAINING = "training"
"""Where a node is that has signed nothing in its round."""


def said(kind: Kind) -> Phase:
    """All its messages of that kind, for any attempt and subject, have left."""

    def is_over(view: RoundView, action: ev.CoreAction | None) -> bool:
        return action is None and _has_signed(view, kind)

    return is_over


def recorded(kind: Kind) -> Phase:
    """The message is durable and was sent to nobody."""

    def is_over(view: RoundView, action: ev.CoreAction | None) -> bool:
        return isinstance(action, ev.Send | ev.SendAll) and _has_signed(view, kind)

    return is_over


def _has_signed(view: RoundView, kind: Kind) -> bool:
    return view.ballots.has_said(kind, view.me)


def _before_parts(view: RoundView, action: ev.CoreAction | None) -> bool:
    del view
    return isinstance(action, ev.Push) and action.bulk is Bulk.PART


def _after_parts(view: RoundView, action: ev.CoreAction | None) -> bool:
    return action is None and view.cells.pushed_among is not None


PHASES: Mapping[str, Phase] = {
    "COMMIT recorded": recorded(Kind.COMMIT),
    "COMMIT sent": _before_parts,
    "parts sent": _after_parts,
    "HAVE recorded": recorded(Kind.HAVE),
    "HAVE sent": said(Kind.HAVE),
    "LIST recorded": recorded(Kind.LIST),
    "LIST sent": said(Kind.LIST),
    "VOTE recorded": recorded(Kind.VOTE),
    "VOTE sent": said(Kind.VOTE),
    "GRAM recorded": recorded(Kind.GRAM),
    "GRAM sent": said(Kind.GRAM),
    "AGG recorded": recorded(Kind.AGG),
    "AGG sent": said(Kind.AGG),
    "SEAL recorded": recorded(Kind.SEAL),
    "SEAL sent": said(Kind.SEAL),
    "NEWATTEMPT sent": said(Kind.NEWATTEMPT),
}
"""In the order of a round. LIST is of its closer alone, HAVE and AGG of reducers; NEWATTEMPT comes
only where an attempt failed. GRAM comes only where the rule judges whole vectors."""

IN_EVERY_RUN = tuple(name for name in PHASES if not name.startswith("GRAM"))


def phase_of(view: RoundView) -> str:
    """The kind of the newest message that the node has signed in this round, or TRAINING."""
    newest = TRAINING
    for message in view.ballots.messages():
        if message.sender == view.me:
            newest = message.slot.kind.name
    return newest


# What each kind of fault does to a world, and how it is undone ------------------------------------

SLOW_LINK = Link(latency_s=(0.9, 1.1), bytes_per_s=12_500.0, loss=0.05)
"""2 s there and back, 100 kbit/s, one in twenty lost."""

Undo = Callable[[], object]
Pair = tuple[PeerId, PeerId]


@dataclass(slots=True)
class Slowed:
    """A machine as it was, and how many times slower each fault makes it."""

    device: Device
    factors: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Members:
    """Who is in a run by its faults: `enter` makes a node join, `left` have said goodbye.

    `replaced` hears whose disk has lost what was durable: nothing is promised of that.

    `gone` are those for good: no fault that ends later brings one back.

    `reasons` counts, by verb and pair, why a link is not what it was: it is mended with the last.
    `slowed` and `lines` keep what slow nodes and links were before.
    """

    world: World
    enter: Callable[[PeerId], None]
    replaced: Callable[[PeerId], None]
    left: set[PeerId] = field(default_factory=set)
    gone: set[PeerId] = field(default_factory=set)
    reasons: Counter[tuple[str, Pair]] = field(default_factory=Counter)
    slowed: dict[PeerId, Slowed] = field(default_factory=dict)
    lines: dict[Pair, Link] = field(default_factory=dict)

    def present(self) -> list[PeerId]:
        """All that ever joined and have not been told to leave, by id."""
        return [peer for peer in sorted(self.world.nodes) if peer not in self.left]

    def restart(self, dead: list[SimNode]) -> None:
        """Start those again that nothing else has started, and nothing has taken for good."""
        for node in dead:
            is_last = self.world.nodes[node.peer] is node and node.peer not in self.gone
            if is_last and not node.is_alive and not node.is_over:
                self.world.bounce(node.peer)

    def slow_down(self, peer: PeerId, factor: float) -> None:
        """One more fault makes it slower."""
        slowed = self.slowed.setdefault(peer, Slowed(self.world.nodes[peer].device))
        slowed.factors.append(factor)
        self._pace(peer, slowed)

    def speed_up(self, peer: PeerId, factor: float) -> None:
        """That fault is over; with the last the machine is what it was."""
        slowed = self.slowed[peer]
        slowed.factors.remove(factor)
        self._pace(peer, slowed)
        if not slowed.factors:
            del self.slowed[peer]

    def _pace(self, peer: PeerId, slowed: Slowed) -> None:
        device, factor = slowed.device, prod(slowed.factors)
        # It goes on under the next process of the peer.
        self.world.nodes[peer].device = replace(
            device,
            train_s=_times(device.train_s, factor),
            compute_s=_times(device.compute_s, factor),
        )


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault, with its victims found."""

    members: Members
    fault: WorldFault
    victims: list[PeerId]
    against: list[PeerId]

    @property
    def world(self) -> World:
        """Where it strikes."""
        return self.members.world

    def living(self) -> list[SimNode]:
        """The victims that can be hurt: they run."""
        nodes = self.world.nodes
        found = [nodes[peer] for peer in self.victims if peer in nodes]
        return [node for node in found if node.is_alive]

    def sides(self) -> list[Pair]:
        """Each victim with each of the other side: those named that are there, or, where none is
        named, all that are no victims."""
        nodes = self.world.nodes
        present = self.members.present()
        named = [peer for peer in self.against if peer in nodes]
        rest = [peer for peer in present if peer not in self.victims]
        others = named if self.against else rest
        victims = [peer for peer in self.victims if peer in nodes]
        return [(one, other) for one, other in product(victims, others) if one != other]


def _nothing() -> None:
    pass


def _crash(blow: Blow) -> Undo | None:
    living = blow.living()
    for node in living:
        blow.world.crash(node.peer)
        blow.members.gone.add(node.peer)
    return _nothing if living else None


def _down(hurt: Callable[[Members, SimNode], object], blow: Blow) -> Undo | None:
    """Killed, something is done to the dead, and it comes back."""
    return _killed(hurt, blow, blow.living())


def _killed(
    hurt: Callable[[Members, SimNode], object], blow: Blow, victims: list[SimNode]
) -> Undo | None:
    for node in victims:
        blow.world.crash(node.peer)
        hurt(blow.members, node)
    return partial(blow.members.restart, victims) if victims else None


def _unhurt(members: Members, node: SimNode) -> None:
    del members, node


def _power_off(members: Members, node: SimNode) -> None:
    del members
    node.disk.crash(is_power_off=True)


def _lose_disk(members: Members, node: SimNode) -> None:
    members.world.lose_disk(node.peer)
    members.replaced(node.peer)


def _spoil(what: str, blow: Blow) -> Undo | None:
    """As `_down`, but for those that have no such file yet."""
    victims = [node for node in blow.living() if node.disk.can_spoil(what)]
    return _killed(partial(_flip, what), blow, victims)


def _flip(what: str, members: Members, node: SimNode) -> None:
    if node.disk.spoil(what):
        members.replaced(node.peer)


def _roll_back(blow: Blow) -> Undo | None:
    """The image is taken now; later the node is killed and comes back from it."""
    living = blow.living()
    images = [(node.peer, node.disk.image()) for node in living]
    world = blow.world

    def go_back() -> None:
        for peer, image in images:
            if peer in blow.members.gone:
                continue
            world.crash(peer)
            world.nodes[peer].disk.roll_back(image)
            blow.members.replaced(peer)
            world.bounce(peer)

    return go_back if living else None


def _leave(blow: Blow) -> Undo | None:
    living = blow.living()
    for node in living:
        blow.world.leave(node.peer)
        blow.members.left.add(node.peer)
        blow.members.gone.add(node.peer)
    return _nothing if living else None


def _join(blow: Blow) -> Undo | None:
    new = [peer for peer in blow.victims if peer not in blow.world.nodes]
    for peer in new:
        blow.members.enter(peer)
    return _nothing if new else None


def _freeze(blow: Blow) -> Undo | None:
    running = [node for node in blow.living() if not node.is_frozen]
    for node in running:
        blow.world.freeze(node.peer)

    def thaw() -> None:
        for node in running:
            if blow.world.nodes[node.peer] is node:
                blow.world.thaw(node.peer)

    return thaw if running else None


def _between(
    do: Callable[[World, PeerId, PeerId], object],
    undo: Callable[[World, PeerId, PeerId], object],
    pairs_of: Callable[[Blow], list[Pair]],
    blow: Blow,
) -> Undo | None:
    """A link is broken by the first fault that says so, and mended with the last."""
    pairs, reasons = pairs_of(blow), blow.members.reasons
    name = do.__name__
    for pair in pairs:
        reasons[name, pair] += 1
        if reasons[name, pair] == 1:
            do(blow.world, *pair)

    def mend() -> None:
        for pair in pairs:
            reasons[name, pair] -= 1
            if not reasons[name, pair]:
                undo(blow.world, *pair)

    return mend if pairs else None


def _crossing(blow: Blow) -> list[Pair]:
    """All directions between the parts: victims, those `against`, and the rest."""
    nodes = blow.world.nodes
    named = [[peer for peer in part if peer in nodes] for part in (blow.victims, blow.against)]
    rest = [p for p in blow.members.present() if p not in named[0] and p not in named[1]]
    parts = [*named, rest]
    return [
        pair
        for one, other in product(range(3), range(3))
        if one != other
        for pair in product(parts[one], parts[other])
    ]


def _ascending(blow: Blow) -> list[Pair]:
    """Each link once, whoever of its ends is a victim."""
    return sorted({(min(pair), max(pair)) for pair in blow.sides()})


def _clog(blow: Blow) -> Undo | None:
    pairs = blow.sides()
    for source, target in pairs:
        blow.world.clog(source, target, blow.fault.duration_s)
    return _nothing if pairs else None


def _slow(blow: Blow) -> Undo | None:
    """`amount` times slower at work, and at the end of a long, thin, lossy line."""
    living, members, factor = blow.living(), blow.members, blow.fault.amount
    if not living:
        return None
    for node in living:
        members.slow_down(node.peer, factor)
    pairs = [pair for one, other in blow.sides() for pair in ((one, other), (other, one))]
    for pair in pairs:
        members.reasons["slow", pair] += 1
        if members.reasons["slow", pair] == 1:
            members.lines[pair] = blow.world.network.direction(*pair).link
            blow.world.set_link(*pair, SLOW_LINK)

    def speed_up() -> None:
        for node in living:
            members.speed_up(node.peer, factor)
        for pair in pairs:
            members.reasons["slow", pair] -= 1
            if not members.reasons["slow", pair]:
                blow.world.set_link(*pair, members.lines.pop(pair))

    return speed_up


def _times(span_s: Seconds, factor: float) -> Seconds:
    return (span_s[0] * factor, span_s[1] * factor)


def _fill_disk(blow: Blow) -> Undo | None:
    living, world = blow.living(), blow.world
    for node in living:
        world.fill_disk(node.peer)

    def free() -> None:
        for node in living:
            world.free_disk(node.peer)
        # A full disk ends a node; its operator makes room and starts it again.
        blow.members.restart(living)

    return free if living else None


def _sum_wrongly(blow: Blow) -> Undo | None:
    living = blow.living()
    for node in living:
        node.sums_wrongly = node.has_erred = True

    def mend() -> None:
        for node in living:
            node.sums_wrongly = False

    return mend if living else None


BLOWS: Mapping[str, Callable[[Blow], Undo | None]] = {
    "crash": _crash,
    "leave": _leave,
    "join": _join,
    "bounce": partial(_down, _unhurt),
    "power_off": partial(_down, _power_off),
    "lose_disk": partial(_down, _lose_disk),
    "spoil_slots": partial(_spoil, "slots"),
    "spoil_chain": partial(_spoil, "chain"),
    "spoil_result": partial(_spoil, "result"),
    "spoil_checkpoint": partial(_spoil, "checkpoint"),
    "roll_back": _roll_back,
    "freeze": _freeze,
    "nap": _freeze,
    "partition": partial(_between, World.block, World.unblock, _crossing),
    "mute": partial(_between, World.block, World.unblock, Blow.sides),
    "cut": partial(_between, World.cut, World.heal, _ascending),
    "hold": partial(_between, World.hold, World.release, Blow.sides),
    "clog": _clog,
    "slow": _slow,
    "wrong_sum": _sum_wrongly,
    "disk_full": _fill_disk,
}
"""None of a blow says that there was nobody to hurt; else what it gives undoes it."""


# The timetable ------------------------------------------------------------------------------------

DISK_ENDED = "disk:"
"""How the reason begins for which a process ends that its disk has failed."""

CLOSERS = {CLOSER: 0, NEXT_CLOSER: 1}
"""Roles, and the attempt of which their node is the closer."""

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
        roster = max(bases, key=lambda base: base.index).seals.named.roster
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
            closes = CLOSERS.get(role)
            is_closer = closes is not None and view.closer(closes) == node.peer
            if role == ANY or is_closer or self._names.get(node.peer) == role:
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
