"""Rooms, and the imports between them.

A room is a folder of product code with modules of its own; the loose modules of a package are the
package's root room. Every import counts, also one for types alone and one inside a function:
readers follow them all. The one exception is the door from the command to the simulator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.architecture.imports import SIM_DOOR, all_imports
from tests.architecture.source import Module, within

LAYERS: tuple[tuple[str, ...], ...] = (
    ("protocol",),
    ("protocol/rounds", "protocol/gossiping"),
    ("protocol/auditing", "protocol/catching_up", "protocol/shared_state"),
    ("protocol/core",),
    ("dht/reaching",),
    ("dht/kademlia",),
    ("dht",),
    ("dht/transport",),
    ("training/kernels",),
    ("training/numeric",),
    ("training/aggregation", "training/compression", "training/outer"),
    ("training/channel",),
    ("training/device",),
    ("training/models",),
    ("training/files",),
    ("training/data",),
    ("training/audits",),
    ("training/methods",),
    ("training/loop",),
    ("training/evaluation",),
    ("training",),
    ("node/text", "node/processes"),
    ("node/state",),
    ("node/holdings",),
    ("node/status",),
    ("node/reporting",),
    ("node/plane",),
    ("node/peers",),
    ("node/trainers",),
    ("node/settings",),
    ("node/using",),
    ("node/daemon",),
    ("node/commands",),
    ("node",),
    ("sim/attacks", "sim/processes"),
    ("sim/world",),
    ("sim/checks", "sim/compiled", "sim/crowds", "sim/exploration", "sim/methods"),
    ("sim/trials",),
    ("sim/local", "sim/robustness"),
    ("sim/bench", "sim/compare", "sim/demo"),
    ("sim",),
    ("barnraise",),
)
"""The declared order of rooms, the lowest layer first. A room may import rooms of its own layer and
of those below it. Between packages the order is protocol < dht < training < node < sim < barnraise;
within a package this is the order with the fewest upward imports at the time of writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomImport:
    """One module imports another one in a different room."""

    path: str
    line: int
    module: str
    target: str
    room: str
    target_room: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.room} imports {self.target} of {self.target_room}"


def room_of(module: Module) -> str:
    """The folder of the module, with slashes."""
    return module.path.rpartition("/")[0]


def rooms_of(modules: Sequence[Module]) -> list[str]:
    """All rooms; a folder whose only module is an empty `__init__.py` is none."""
    return sorted({room_of(m) for m in modules if not m.is_package or m.tree.body})


def room_imports(modules: Sequence[Module]) -> list[RoomImport]:
    """Every import from one room into another, once for each pair of modules."""

    def found() -> Iterator[RoomImport]:
        known = {module.name: module for module in modules}
        seen = set()
        for module, imported in all_imports(modules):
            target = known.get(imported.target)
            if target is None or (module.name, target.name) in seen:
                continue
            if room_of(module) == room_of(target) or _is_door(module, target, lazy=imported.lazy):
                continue
            seen.add((module.name, target.name))
            yield RoomImport(
                path=module.path,
                line=imported.line,
                module=module.name,
                target=target.name,
                room=room_of(module),
                target_room=room_of(target),
            )

    return list(found())


def _is_door(module: Module, target: Module, *, lazy: bool) -> bool:
    return lazy and module.name == SIM_DOOR and within(target.name, ["sim"])


def room_cycles(imports: Sequence[RoomImport]) -> list[list[str]]:
    """The groups of rooms that all reach each other by imports, the largest group first."""
    reached: dict[str, set[str]] = {}
    for one in imports:
        reached.setdefault(one.room, set()).add(one.target_room)
    # There are some dozens of rooms, so that the transitive closure is quick and plain.
    grows = True
    while grows:
        grows = False
        for targets in reached.values():
            further = set().union(*(reached.get(target, set()) for target in targets))
            if not further <= targets:
                targets |= further
                grows = True
    groups = {
        frozenset(other for other in targets if room in reached.get(other, set()))
        for room, targets in reached.items()
        if room in targets
    }
    return sorted((sorted(group) for group in groups), key=lambda group: (-len(group), group))


def upward_imports(
    imports: Sequence[RoomImport], layers: Sequence[Sequence[str]]
) -> list[RoomImport]:
    """The imports of a room in a higher layer; a room that no layer declares is above them all."""
    height = {room: number for number, layer in enumerate(layers) for room in layer}
    return [
        one
        for one in imports
        if height.get(one.target_room, len(layers)) > height.get(one.room, len(layers) - 1)
    ]


def undeclared_rooms(rooms: Sequence[str], layers: Sequence[Sequence[str]]) -> list[str]:
    """The rooms that no layer declares."""
    declared = {room for layer in layers for room in layer}
    return [room for room in rooms if room not in declared]
