"""What the rules of the house look at: modules as syntax trees."""

import ast
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

PACKAGES = ("protocol", "dht", "training", "node", "sim")
FACE = "barnraise"
"""What users import; it hands on, and no package of ours needs it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module:
    """One source file; `name` is dotted, and that of the package for an `__init__.py`."""

    name: str
    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")


Node = TypeVar("Node", bound=ast.AST)

# A rule returns one line for each violation, with file and line number. It is a plain function, so
# that the tests can hand it the real tree as well as a few lines that break it.
Rule = Callable[[Sequence[Module]], list[str]]


def module_from_source(path: str, text: str) -> Module:
    """The module that a file at `path`, relative to the root, would be."""
    parts = Path(path).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name=name, path=path, text=text, tree=ast.parse(text, path))


@cache
def _nodes_by_kind(module: Module) -> dict[type[ast.AST], list[ast.AST]]:
    """All nodes of its tree, which is walked once for all rules."""
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(module.tree):
        found.setdefault(type(node), []).append(node)
    return found


def nodes_of(module: Module, *kinds: type[Node]) -> Iterator[Node]:
    """The nodes of these kinds, one kind after the other."""
    for kind in kinds:
        yield from cast("list[Node]", _nodes_by_kind(module).get(kind, []))


def dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` as text; what is no name before its dots, such as a call, is `?`."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


@cache
def _read_module(root: Path, file: Path) -> Module:
    return module_from_source(file.relative_to(root).as_posix(), file.read_text("utf-8"))


def read_modules(root: Path, folders: Sequence[str]) -> list[Module]:
    """Every Python file below the folders; a folder that does not exist has none.

    A file is parsed once per process: ask in a test, not on import, where every process pays.
    """
    files = sorted(file for folder in folders for file in (root / folder).rglob("*.py"))
    # Millions of nodes, which stay to the end: collections of garbage, which find none among them,
    # would take longer than the parser does.
    gc.disable()
    try:
        modules = [_read_module(root, file) for file in files]
    finally:
        gc.enable()
    gc.freeze()
    return modules


def within(name: str, prefixes: Sequence[str]) -> bool:
    """Whether a dotted name is one of the prefixes or lies below one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
