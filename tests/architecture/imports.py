"""The rules about imports: directions, places, cycles, and what must not load torch."""

import ast
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.architecture.source import FACE, PACKAGES, Module, dotted_name, within

# Who may import whom among our own modules.
MAY_IMPORT = {
    "protocol": ("protocol",),
    "dht": ("protocol", "dht"),
    "training": (
        "protocol.errors",
        "protocol.gram_wire",
        "protocol.grid",
        "protocol.leases",
        "protocol.limits",
        "protocol.manifest",
        "protocol.segments",
        "training",
    ),
    "node": ("protocol", "dht", "training", "node"),
    "sim": PACKAGES,
    FACE: ("node", FACE),
}
# The one seam between the commands and the simulator: a single import inside a function.
SIM_DOOR = "node.cli"
PROTOCOL_LIBRARIES = ("numpy", "msgpack", "cryptography", "blake3", "base58")
# safetensors.torch is the part of safetensors that loads torch.
TORCH = ("torch", "safetensors.torch")
# training/ must run with the cable cut.
NETWORKING = ("trio", "anyio", "asyncio", "socket", "ssl", "h11", "libp2p")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name: `lazy` inside a function, `typing_only` under TYPE_CHECKING."""

    target: str
    line: int
    lazy: bool
    typing_only: bool


def imports_of(module: Module, known: Collection[str]) -> Iterator[Import]:
    """Everything the module imports; `known` are our modules, to tell `a.b` from b in a."""

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        if node.level:
            here = module.name.split(".")
            drop = node.level - module.is_package
            base = ".".join([*here[: len(here) - drop], *filter(None, [node.module])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            # Of a library nobody can tell a submodule from a value, and no rule needs to.
            yield full if full in known or not within(base, PACKAGES) else base

    for node, lazy, typing_only in _import_statements(module):
        for target in targets(node):
            yield Import(target=target, line=node.lineno, lazy=lazy, typing_only=typing_only)


@cache
def _import_statements(module: Module) -> list[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """The statements, and of each whether it is lazy, and for types only."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool, bool]] = []

    def walk(node: ast.AST, *, lazy: bool, typing_only: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, lazy, typing_only))
        if isinstance(node, ast.If) and dotted_name(node.test).endswith("TYPE_CHECKING"):
            for statement in node.body:
                walk(statement, lazy=lazy, typing_only=True)
            children: list[ast.AST] = [*node.orelse]
        else:
            parts = ast.iter_child_nodes(node)
            children = [part for part in parts if not isinstance(part, ast.expr)]
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in children:
            walk(child, lazy=inside, typing_only=typing_only)

    walk(module.tree, lazy=False, typing_only=False)
    return found


def all_imports(modules: Sequence[Module]) -> Iterator[tuple[Module, Import]]:
    known = {module.name for module in modules}
    for module in modules:
        for found in imports_of(module, known):
            yield module, found


def import_directions(modules: Sequence[Module]) -> list[str]:
    """protocol <- dht <- node <- sim, training beside dht; sim only through its one door; nobody
    imports the face."""
    broken = []
    doors = 0
    for module, found in all_imports(modules):
        is_ours = within(found.target, (*PACKAGES, FACE))
        if not is_ours or module.package not in MAY_IMPORT:
            continue
        if module.name == SIM_DOOR and within(found.target, ["sim"]) and found.lazy:
            doors += 1
            if doors == 1:
                continue
        if not within(found.target, MAY_IMPORT[module.package]):
            broken.append(f"{module.path}:{found.line} must not import {found.target}")
    return broken


def library_places(modules: Sequence[Module]) -> list[str]:
    """Which package may use which library."""
    broken = []
    for module, found in all_imports(modules):
        stem = Path(module.path).stem
        at_import = not (found.lazy or found.typing_only)
        root = found.target.partition(".")[0]
        reason = None
        if within(found.target, ["libp2p"]) and not stem.startswith("libp2p_"):
            reason = "libp2p belongs to modules named libp2p_*.py"
        elif within(found.target, ["h11"]) and module.name != "node.status.server":
            reason = "h11 belongs to node/status/server.py"
        elif module.package == "training" and within(found.target, NETWORKING):
            reason = "training runs without a network"
        elif (
            module.package == "protocol"
            and at_import
            and root not in (*PROTOCOL_LIBRARIES, *PACKAGES, *sys.stdlib_module_names)
        ):
            reason = "protocol stands on " + ", ".join(PROTOCOL_LIBRARIES)
        if reason:
            broken.append(f"{module.path}:{found.line} imports {found.target}: {reason}")
    return broken


def import_cycles(modules: Sequence[Module]) -> list[str]:
    """No module may need itself; an import for types alone counts, because readers follow it."""
    edges: dict[str, list[str]] = {module.name: [] for module in modules}
    for module, found in all_imports(modules):
        if not found.lazy and found.target in edges and found.target != module.name:
            edges[module.name].append(found.target)

    broken: list[str] = []
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            broken.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for target in edges[name]:
                visit(target, [*trail, name])
            done.add(name)

    for name in sorted(edges):
        visit(name, [])
    return broken


def torch_reached_from(entries: Sequence[str], modules: Sequence[Module]) -> list[str]:
    """The chains of imports by which loading one of the entries would load torch."""
    edges: dict[str, list[str]] = {module.name: [] for module in modules}
    for module, found in all_imports(modules):
        if not (found.lazy or found.typing_only):
            edges[module.name].append(found.target)

    broken = []
    seen = set(entries)
    chains = [[entry] for entry in entries]
    while chains:
        chain = chains.pop()
        for target in edges.get(chain[-1], []):
            if within(target, TORCH):
                broken.append(" -> ".join([*chain, target]))
            parts = target.split(".")
            # Importing a.b.c runs a and a.b first.
            for end in range(1, len(parts) + 1):
                loaded = ".".join(parts[:end])
                if loaded not in seen:
                    seen.add(loaded)
                    chains.append([*chain, loaded])
    return broken


def torch_in_network_process(modules: Sequence[Module]) -> list[str]:
    """What the network process and the command load must not load torch."""
    entries = [FACE, f"{FACE}.__main__", "node", "node.cli", "node.network_main"]
    return torch_reached_from(entries, modules)
