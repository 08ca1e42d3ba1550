"""Classes that were cut into chains of bases, and class names that mean several things."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tests.architecture.source import Module

SEAM_BASES = ("Protocol", "ABC")
ABSTRACT = "abstractmethod"
ASK_ABOUT_A_CLASS = ("isinstance", "issubclass", "cast", "super")
"""Functions that take a class and make no instance of it."""

_REEXPORTS_MAX = 16
"""So many hops from an import to a definition are followed; longer chains are cycles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinedClass:
    """A class at the top level of a module, or within another class."""

    name: str
    module: str
    path: str
    node: ast.ClassDef

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno} {self.name}"


@dataclass(slots=True)
class Uses:
    """What modules do with each class, by the full name of the class."""

    subclasses: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    values: set[str] = field(default_factory=set)
    annotated: set[str] = field(default_factory=set)


def classes_of(modules: Sequence[Module]) -> list[DefinedClass]:
    """Every class of the modules, those within functions and classes as well."""
    return [
        DefinedClass(name=node.name, module=module.name, path=module.path, node=node)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]


def duplicate_class_names(modules: Sequence[Module]) -> dict[str, list[DefinedClass]]:
    """By `package.Name`: the classes of that name, where several modules of a package have one."""
    by_name: dict[str, list[DefinedClass]] = {}
    for one in classes_of(modules):
        by_name.setdefault(f"{one.module.partition('.')[0]}.{one.name}", []).append(one)
    return {
        name: found
        for name, found in sorted(by_name.items())
        if len({one.module for one in found}) > 1
    }


def single_subclass_bases(
    product: Sequence[Module], others: Sequence[Module] = ()
) -> list[DefinedClass]:
    """Classes of the product that have exactly one subclass and no instance of their own.

    Subclasses are looked for in `others` (the tests) too. A seam is spared: an abstract class or
    Protocol that an annotation names, because it separates who calls from what is called.
    """
    names = Names([*product, *others])
    uses = uses_of(names, product, others)
    bases = []
    for one in classes_of(product):
        full = f"{one.module}.{one.name}"
        is_seam = full in uses.annotated and is_abstract(one.node)
        if len(uses.subclasses[full]) == 1 and full not in uses.values and not is_seam:
            bases.append(one)
    return bases


def is_abstract(node: ast.ClassDef) -> bool:
    """Whether the class is a Protocol, an ABC, or has abstract methods."""
    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
    decorators = [
        ast.unparse(decorator).rpartition(".")[2]
        for inner in node.body
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in inner.decorator_list
    ]
    return any(base in SEAM_BASES for base in bases) or ABSTRACT in decorators


class Names:
    """Finds what a name in a module stands for, through imports and re-exports."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self.modules = {module.name: module for module in modules}
        self._imported: dict[str, dict[str, str]] = {
            module.name: dict(_imported_names(module)) for module in modules
        }
        self._found: dict[tuple[str, str], str | None] = {}
        self._defined = {f"{one.module}.{one.name}" for one in classes_of(modules)}

    def full_name(self, module: Module, expression: ast.expr) -> str | None:
        """The full name of the class of ours that the expression names, if it names one."""
        if isinstance(expression, ast.Subscript):
            expression = expression.value
        parts = []
        while isinstance(expression, ast.Attribute):
            parts.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return None
        # `ev.FrameArrived`, and in a class `Outer.Inner`: only the last part is the class.
        key = module.name, ".".join([expression.id, *reversed(parts)])
        if key not in self._found:
            self._found[key] = self._look_up(*key)
        return self._found[key]

    def _look_up(self, module: str, dotted: str) -> str | None:
        for _ in range(_REEXPORTS_MAX):
            first, _, rest = dotted.partition(".")
            here = f"{module}.{dotted.rpartition('.')[2]}"
            if first in self._imported.get(module, {}):
                dotted = ".".join(filter(None, [self._imported[module][first], rest]))
            elif here in self._defined:
                return here
            else:
                return None
            module, dotted = self._split(dotted)
        return None

    def _split(self, dotted: str) -> tuple[str, str]:
        """A full name as the longest module of ours that it begins with, and the rest."""
        parts = dotted.split(".")
        for end in range(len(parts) - 1, 0, -1):
            if ".".join(parts[:end]) in self.modules:
                return ".".join(parts[:end]), ".".join(parts[end:])
        return "", dotted


def _imported_names(module: Module) -> Iterator[tuple[str, str]]:
    """Each name that an import of the module binds, and what it stands for."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.name.split(".")
                drop = node.level - module.is_package
                base = ".".join([*here[: len(here) - drop], *filter(None, [node.module])])
            for alias in node.names:
                yield alias.asname or alias.name, f"{base}.{alias.name}"


def uses_of(names: Names, product: Sequence[Module], others: Sequence[Module]) -> Uses:
    """What the product does with each class, and which subclasses the other modules add."""
    uses, in_others = Uses(), Uses()
    for modules, found in ((product, uses), (others, in_others)):
        for module in modules:
            _UseVisitor(names, module, found).visit(module.tree)
    for base, subclasses in in_others.subclasses.items():
        uses.subclasses[base] |= subclasses
    return uses


class _UseVisitor(ast.NodeVisitor):
    """Goes through a module; what it has not put elsewhere is a class that is used as a value.

    A value may be called, now or later: a registry gets the class itself.
    """

    def __init__(self, names: Names, module: Module, uses: Uses) -> None:
        self._names = names
        self._module = module
        self._uses = uses

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            if full := self._names.full_name(self._module, base):
                self._uses.subclasses[full].add(f"{self._module.name}.{node.name}:{node.lineno}")
        for part in [*node.keywords, *node.decorator_list, *node.body]:
            self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._annotate(node.returns)
        for part in [*node.decorator_list, node.args, *node.body]:
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> None:
        self._annotate(node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotate(node.annotation)
        if node.value:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        asks = isinstance(node.func, ast.Name) and node.func.id in ASK_ABOUT_A_CLASS
        self.visit(node.func)
        if not asks:
            for part in [*node.args, *node.keywords]:
                self.visit(part)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        for part in node.body:
            self.visit(part)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for part in [*node.patterns, *node.kwd_patterns]:
            self.visit(part)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        # `Registry[Merge]("merge")` makes a Registry, and names Merge as a type only.
        self.visit(node.value)
        if not self._names.full_name(self._module, node.value):
            self.visit(node.slice)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if full := self._names.full_name(self._module, node):
            self._uses.values.add(full)
        elif not isinstance(node.value, ast.Name):
            # `Base.method` of a plain name calls a method of the class and makes nothing.
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if full := self._names.full_name(self._module, node):
            self._uses.values.add(full)

    def _annotate(self, annotation: ast.expr | None) -> None:
        for part in ast.walk(annotation) if annotation else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                with suppress(SyntaxError):  # The words of a Literal are no annotation.
                    self._annotate(ast.parse(part.value, mode="eval").body)
            elif isinstance(part, ast.expr) and (full := self._names.full_name(self._module, part)):
                self._uses.annotated.add(full)
