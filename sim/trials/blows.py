"""What each kind of fault does to a world, and how it is undone."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import prod

from protocol.identity import PeerId
from sim.trials.faults import WorldFault
from sim.world.links import Link
from sim.world.nodes import Device, Seconds
from sim.world.world import SimNode, World

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
    do: Callable[[World, Pair], object],
    undo: Callable[[World, Pair], object],
    pairs_of: Callable[[Blow], list[Pair]],
    blow: Blow,
) -> Undo | None:
    """A link is broken by the first fault that says so, and mended with the last."""
    pairs, reasons = pairs_of(blow), blow.members.reasons
    name = do.__name__
    for pair in pairs:
        reasons[name, pair] += 1
        if reasons[name, pair] == 1:
            do(blow.world, pair)

    def mend() -> None:
        for pair in pairs:
            reasons[name, pair] -= 1
            if not reasons[name, pair]:
                undo(blow.world, pair)

    return mend if pairs else None


def _block(world: World, pair: Pair) -> None:
    world.block(*pair)


def _unblock(world: World, pair: Pair) -> None:
    world.unblock(*pair)


def _cut(world: World, pair: Pair) -> None:
    world.cut(*pair)


def _heal(world: World, pair: Pair) -> None:
    world.heal(*pair)


def _hold(world: World, pair: Pair) -> None:
    world.hold(*pair)


def _release(world: World, pair: Pair) -> None:
    world.release(*pair)


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
    "partition": partial(_between, _block, _unblock, _crossing),
    "mute": partial(_between, _block, _unblock, Blow.sides),
    "cut": partial(_between, _cut, _heal, _ascending),
    "hold": partial(_between, _hold, _release, Blow.sides),
    "clog": _clog,
    "slow": _slow,
    "wrong_sum": _sum_wrongly,
    "disk_full": _fill_disk,
}
"""None of a blow says that there was nobody to hurt; else what it gives undoes it."""
