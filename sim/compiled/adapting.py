"""What has to be said in other words for mypyc, by rule and in the copy only.

- mypyc puts erased types in the place of annotations (`tuple` for `tuple[int, ...]`); the strict
  decoder reads annotations. They are written back, as text, behind the class.
- A native class has no `__dict__`, which `cached_property` needs, and mypyc makes a plain property
  of it, which works each time. It becomes a property that keeps what it gave in fields of its own.
- dataclasses writes `__init__`, `__eq__` and `__hash__` in Python, where mypyc does not see them.
  They are written out, so that it does; dataclasses leaves alone what is there already.
- `isinstance(x, A | B)` makes the union and asks it, each time; of a tuple each class is compared.
- A number of a module is looked up by name each time it is used, unless it is `Final`.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_LITERAL = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
"""What a constant may consist of: mypyc puts its value in the place of the name."""


def bases(texts: Iterable[str]) -> frozenset[str]:
    """The names of all classes of these modules that others inherit from."""
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    classes = (node for node in nodes if isinstance(node, ast.ClassDef))
    return frozenset(ast.unparse(base) for node in classes for base in node.bases)


def adapted(text: str, inherited: frozenset[str] = frozenset()) -> str:
    """The module that mypyc compiles to what Python makes of `text`.

    `inherited` are classes that others inherit from, whose `__init__` dataclasses has to write: it
    knows the fields of both.
    """
    text = _with_tuples(text)
    tree = ast.parse(text)
    lines = text.splitlines()
    behind: list[str] = []
    # From the end on, so that the numbers of the lines before it stay right.
    for node in reversed(tree.body):
        if isinstance(node, ast.ClassDef):
            if node.name not in inherited:
                _adapt_class(node, lines)
            hints = _annotations(node)
            if hints and _dataclass_options(node) is not None:
                behind.append(f'vars({node.name})["__annotations__"].update({hints!r})')
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            _make_final(node, tree, lines)
    lines.insert(_first_import(tree) - 1, "from typing import Final as _Final")
    return "\n".join(lines + behind[::-1]) + "\n"


def _with_tuples(text: str) -> str:
    """The classes of `isinstance` as a tuple where they are a union that is written out."""
    lines = text.encode().splitlines()
    found = [
        node.args[1]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and isinstance(node.args[1], ast.BinOp)
    ]
    # From the end on, so that the places before it stay right.
    for union in sorted(found, key=lambda node: (-node.lineno, -node.col_offset)):
        assert union.end_lineno is not None
        rest = lines[union.end_lineno - 1][union.end_col_offset :]
        head = lines[union.lineno - 1][: union.col_offset]
        classes = ", ".join(map(ast.unparse, _united(union)))
        lines[union.lineno - 1 : union.end_lineno] = [head + f"({classes})".encode() + rest]
    return b"\n".join(lines).decode() + "\n"


def _united(union: ast.expr) -> list[ast.expr]:
    if isinstance(union, ast.BinOp):
        return [*_united(union.left), *_united(union.right)]
    return [union]


# Constants ----------------------------------------------------------------------------------------


def _make_final(node: ast.Assign | ast.AnnAssign, tree: ast.Module, lines: list[str]) -> None:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if not isinstance(target, ast.Name) or not _CONSTANT.fullmatch(target.id):
        return
    if node.value is None or not all(isinstance(one, _LITERAL) for one in ast.walk(node.value)):
        return
    stores = (
        other
        for other in ast.walk(tree)
        if isinstance(other, ast.Name) and other.id == target.id and type(other.ctx) is ast.Store
    )
    if sum(1 for _ in stores) > 1:
        return
    hint = "_Final"
    if isinstance(node, ast.AnnAssign):
        hint += f"[{ast.unparse(node.annotation)}]"
    elif len(node.targets) > 1:
        return
    head = f"{target.id}: {hint} = "
    rest = lines[node.value.lineno - 1].encode()[node.value.col_offset :].decode()
    # A value in brackets of its own begins behind them, perhaps on a line of its own.
    before = lines[node.value.lineno - 1].encode()[: node.value.col_offset].decode()
    if before.rstrip().endswith("="):
        lines[node.lineno - 1 : node.value.lineno] = [head + rest]
    elif isinstance(node, ast.Assign):
        first = lines[node.lineno - 1]
        lines[node.lineno - 1] = head + first.split("=", 1)[1].lstrip()


# Classes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    hint: str
    default: str = ""
    factory: str = ""
    is_given: bool = True
    is_compared: bool = True


def _adapt_class(node: ast.ClassDef, lines: list[str]) -> None:
    kept = [item for item in node.body if _is_kept(item)]
    own = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    options = _dataclass_options(node)
    fields = _fields(node)
    is_written = (
        options is not None and fields is not None and not node.bases and "__init__" not in own
    )
    assert not kept or is_written, f"{node.name}: no __init__ can be written for what it keeps"
    if not is_written:
        return
    assert options is not None
    assert fields is not None
    made = _init(fields, own, kept, is_kw_only="kw_only" in options)
    if "frozen" in options and "eq" not in options:
        made += _comparison(node.name, fields, own)
    assert node.end_lineno is not None
    lines[node.end_lineno : node.end_lineno] = made
    for item in reversed(kept):
        assert isinstance(item, ast.FunctionDef)
        _keep(item, lines)


def _init(
    fields: list[_Field], own: set[str], kept: list[ast.stmt], *, is_kw_only: bool
) -> list[str]:
    given = [field for field in fields if field.is_given]
    parameters = ["self", *(["*"] if is_kw_only and given else []), *map(_parameter, given)]
    body = [f"    def __init__({', '.join(parameters)}) -> None:"]
    for field in fields:
        value = field.name if field.is_given else field.default
        if field.factory:
            value = f"{field.factory}()"
            if field.is_given:
                value = f"{value} if {field.name} is None else {field.name}"
        if value:
            body.append(f"        self.{field.name} = {value}  # type: ignore")
    for item in kept:
        assert isinstance(item, ast.FunctionDef)
        body.append(f"        self._has_{item.name} = False  # type: ignore")
    if "__post_init__" in own:
        body.append("        self.__post_init__()")
    return body if len(body) > 1 else [*body, "        pass"]


def _parameter(field: _Field) -> str:
    if field.factory:
        return f"{field.name}: {field.hint} | None = None"
    return f"{field.name}: {field.hint}" + (f" = {field.default}" if field.default else "")


def _comparison(name: str, fields: list[_Field], own: set[str]) -> list[str]:
    compared = [field.name for field in fields if field.is_compared]
    ours, theirs = (
        "(" + "".join(f"{who}.{field}, " for field in compared) + ")" for who in ("self", "other")
    )
    made: list[str] = []
    # Of boxed tuples, as dataclasses does it: what is the same thing is equal, even a NaN.
    if "__eq__" not in own:
        made += [
            "    def __eq__(self, other: object) -> bool:",
            f"        if type(other) is not {name}: return NotImplemented",
            f"        assert isinstance(other, {name})",
            f"        ours: object = {ours}",
            f"        theirs: object = {theirs}",
            "        return ours == theirs",
        ]
    if "__hash__" not in own:
        made += [
            "    def __hash__(self) -> int:",
            f"        ours: object = {ours}",
            "        return hash(ours)",
        ]
    return made


def _keep(item: ast.FunctionDef, lines: list[str]) -> None:
    """A property that gives back what the function gave first, in the place of the function."""
    assert item.returns is not None
    name, hint = item.name, ast.unparse(item.returns)
    number = item.lineno - 1
    lines[number] = lines[number].replace(f"def {name}(", f"def _make_{name}(", 1)
    made = [
        "    @property",
        f"    def {name}(self) -> {hint}:",
        f"        if not self._has_{name}:",
        f"            self._kept_{name}: {hint} = self._make_{name}()  # type: ignore",
        f"            self._has_{name}: bool = True  # type: ignore",
        f"        return self._kept_{name}",
    ]
    (decorator,) = item.decorator_list
    lines[decorator.lineno - 1 : decorator.lineno] = made


def _fields(node: ast.ClassDef) -> list[_Field] | None:
    """The fields of a dataclass, or None if one is of a sort that is not spelt out here."""
    found = []
    for item in node.body:
        if not isinstance(item, ast.AnnAssign):
            continue
        assert isinstance(item.target, ast.Name)
        field: _Field | None = _Field(item.target.id, _annotation(item.annotation, is_code=True))
        assert field is not None
        if "ClassVar" in field.hint or "InitVar" in field.hint:
            return None
        if item.value is not None:
            field = _with_value(field, item.value)
        if field is None or (field.factory and _is_optional(field.hint)):
            return None
        found.append(field)
    return found


def _is_optional(hint: str) -> bool:
    """Whether None is a value of the field itself: it then cannot stand for one not given."""
    return any(ast.unparse(part) == "None" for part in _united(ast.parse(hint, mode="eval").body))


def _with_value(field: _Field, value: ast.expr) -> _Field | None:
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "field"):
        return _Field(field.name, field.hint, default=ast.unparse(value))
    options = {word.arg: ast.unparse(word.value) for word in value.keywords}
    if not options.keys() <= {"default", "default_factory", "init", "repr", "compare"}:
        return None
    return _Field(
        field.name,
        field.hint,
        default=options.get("default", ""),
        factory=options.get("default_factory", ""),
        is_given=options.get("init") != "False",
        is_compared=options.get("compare") != "False",
    )


def _dataclass_options(node: ast.ClassDef) -> set[str | None] | None:
    """What is switched on or off of a dataclass, or None for any other class."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "dataclass":
            return {word.arg for word in decorator.keywords}
        if ast.unparse(decorator) == "dataclass":
            return set()
    return None


def _is_kept(item: ast.stmt) -> bool:
    return isinstance(item, ast.FunctionDef) and "cached_property" in map(
        ast.unparse, item.decorator_list
    )


def _first_import(tree: ast.Module) -> int:
    numbers = (node.lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    # A module of constants alone imports nothing: behind its docstring, then.
    docstring = tree.body[0].end_lineno
    assert docstring is not None
    return min(numbers, default=docstring + 1)


def _annotations(node: ast.ClassDef) -> dict[str, str]:
    return {
        item.target.id: _annotation(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _annotation(node: ast.expr, *, is_code: bool = False) -> str:
    # One that is a text already is the text, and no text in a text.
    if not is_code and isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node)
