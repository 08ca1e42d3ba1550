"""What has to be said in other words for mypyc, by rule and in the copy only.

- mypyc puts erased types in the place of annotations (`tuple` for `tuple[int, ...]`); the strict
  decoder reads annotations. They are written back, as text, behind the class.
- A native class has no `__dict__`, which `cached_property` needs; such a class stays ordinary.
  mypyc makes a plain property of it, too, which works each time; it is replaced behind the class.
"""

import ast

_IMPORTS = "from mypy_extensions import mypyc_attr; from sim.compiled.kept import keep"


def adapted(text: str) -> str:
    """The module that mypyc compiles to what Python makes of `text`."""
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    ordinary = [_first_line(node) for node in classes if _kept(node)]
    lines = text.splitlines()
    for number in sorted(ordinary, reverse=True):
        lines.insert(number - 1, "@mypyc_attr(native_class=False)")
    if ordinary:
        lines.insert(_first_import(tree) - 1, _IMPORTS)
    for node in classes:
        if names := _kept(node):
            lines.append(f"keep({node.name}, {names!r})")
        hints = _annotations(node)
        if hints and _is_dataclass(node):
            lines.append(f'vars({node.name})["__annotations__"].update({hints!r})')
    return "\n".join(lines) + "\n"


def _decorators(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _first_import(tree: ast.Module) -> int:
    return min(node.lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))


def _kept(node: ast.ClassDef) -> tuple[str, ...]:
    return tuple(
        item.name
        for item in node.body
        if isinstance(item, ast.FunctionDef) and "cached_property" in _decorators(item)
    )


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(text.startswith("dataclass") for text in _decorators(node))


def _annotations(node: ast.ClassDef) -> dict[str, str]:
    return {
        item.target.id: _annotation(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _annotation(node: ast.expr) -> str:
    # One that is a text already is the text, and no text in a text.
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node)
