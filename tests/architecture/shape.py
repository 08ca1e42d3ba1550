"""The rules about the shape of code: sizes, names, and what no module may use."""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.architecture.imports import all_imports
from tests.architecture.source import Module, dotted_name, nodes_of, within

MODULE_LINES_MAX = 800
LONG_BECAUSE = "More than 800 lines, because"
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 6

# The one place that may catch whatever a peer's task raises: it logs, then strikes or restarts.
SUPERVISOR = "node.supervisor"

# What unpickles runs code of whoever wrote the bytes; forked children inherit threads and locks.
BANNED_MODULES = (
    *("pickle", "cloudpickle", "dill", "marshal", "shelve"),
    *("multiprocessing", "torch.multiprocessing", "concurrent.futures.ProcessPoolExecutor"),
)
# Code from strings, imports that these rules cannot follow, loaders that unpickle.
BANNED_CALLS = (
    *("eval", "exec", "__import__", "importlib.import_module", "torch.load", "torch.save"),
)
BROAD = ("Exception", "BaseException")
REAL_SLEEPS = ("time.sleep", "asyncio.sleep", "anyio.sleep")
CLOCKED_SLEEPS = ("trio.sleep", "trio.sleep_until")

FunctionDef = ast.FunctionDef | ast.AsyncFunctionDef


def module_sizes(modules: Sequence[Module]) -> list[str]:
    """A module is as long as its idea; one that is too long for one sitting says why at its top."""
    lengths = [(module, len(module.text.splitlines())) for module in modules]
    return [
        f"{module.path} has {length} lines, more than {MODULE_LINES_MAX}, and its docstring does "
        f"not say why ({LONG_BECAUSE!r})"
        for module, length in lengths
        if length > MODULE_LINES_MAX and LONG_BECAUSE not in (ast.get_docstring(module.tree) or "")
    ]


def functions_of(module: Module) -> Iterator[FunctionDef]:
    yield from nodes_of(module, ast.FunctionDef)
    yield from nodes_of(module, ast.AsyncFunctionDef)


def function_sizes(modules: Sequence[Module]) -> list[str]:
    """No function is too long for a screen; its docstring counts, its decorators do not."""
    broken = []
    for module in modules:
        for node in functions_of(module):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                broken.append(
                    f"{module.path}:{node.lineno} {node.name} has {length} lines, "
                    f"more than {FUNCTION_LINES_MAX}"
                )
    return broken


def is_command(node: FunctionDef) -> bool:
    """The parameters of a command are its options: no code passes them by hand."""
    return any(
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr in ("command", "callback")
        for decorator in node.decorator_list
    )


def parameter_counts(modules: Sequence[Module]) -> list[str]:
    """Beyond six parameters there is a config object; `self` and `cls` are free."""
    broken = []
    for module in modules:
        for node in functions_of(module):
            given = node.args
            named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            named += [star for star in (given.vararg, given.kwarg) if star]
            count = len(named) - bool(named and named[0].arg in ("self", "cls"))
            if count > PARAMETERS_MAX and not is_command(node):
                broken.append(
                    f"{module.path}:{node.lineno} {node.name} takes {count} parameters, "
                    f"more than {PARAMETERS_MAX}"
                )
    return broken


def broad_excepts(modules: Sequence[Module]) -> list[str]:
    """Nobody catches everything, but for one handler in the supervisor."""
    broken = []
    supervised = 0
    for module in modules:
        handlers: list[ast.ExceptHandler | ast.Call] = list(nodes_of(module, ast.ExceptHandler))
        for node in (*handlers, *nodes_of(module, ast.Call)):
            if isinstance(node, ast.ExceptHandler):
                caught = [node.type] if node.type else []
                bare = node.type is None
            elif dotted_name(node.func).endswith("suppress"):
                caught, bare = node.args, False
            else:
                continue
            names = {
                part.id if isinstance(part, ast.Name) else part.attr
                for kind in caught
                for part in ast.walk(kind)
                if isinstance(part, ast.Name | ast.Attribute)
            }
            if not bare and names.isdisjoint(BROAD):
                continue
            if module.name == SUPERVISOR:
                supervised += 1
                if supervised == 1:
                    continue
            broken.append(f"{module.path}:{node.lineno} catches everything")
    return broken


def calls_of(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Each call with the dotted name that is called, seen through `import ... as`."""
    names: dict[str, str] = {}
    for plain in nodes_of(module, ast.Import):
        names |= {alias.asname: alias.name for alias in plain.names if alias.asname}
    for statement in nodes_of(module, ast.ImportFrom):
        if statement.module and not statement.level:
            names |= {a.asname or a.name: f"{statement.module}.{a.name}" for a in statement.names}
    for node in nodes_of(module, ast.Call):
        if isinstance(node.func, ast.Name | ast.Attribute):
            first, dot, rest = dotted_name(node.func).partition(".")
            yield names.get(first, first) + dot + rest, node


def banned_tools(modules: Sequence[Module]) -> list[str]:
    """No pickle, no multiprocessing, no code from strings."""
    broken = [
        f"{module.path}:{found.line} imports {found.target}"
        for module, found in all_imports(modules)
        if within(found.target, BANNED_MODULES)
    ]
    for module in modules:
        for name, call in calls_of(module):
            unpickles = any(
                keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"
                for keyword in call.keywords
            )
            if name in BANNED_CALLS or unpickles:
                broken.append(f"{module.path}:{call.lineno} calls {name}")
    return broken


def real_sleeps(modules: Sequence[Module]) -> list[str]:
    """Tests wait for events; trio's sleep is free where a test runs on the virtual clock."""
    broken = []
    for module in modules:
        virtual = {
            inner
            for function in functions_of(module)
            if any(argument.arg == "autojump_clock" for argument in function.args.args)
            for inner in ast.walk(function)
        }
        for name, call in calls_of(module):
            if name in REAL_SLEEPS or (name in CLOCKED_SLEEPS and call not in virtual):
                broken.append(f"{module.path}:{call.lineno} sleeps for real: {name}")
    return broken


def stdlib_names(modules: Sequence[Module]) -> list[str]:
    """Run from inside its folder, a module named like a standard one would replace it."""
    return [
        f"{module.path} has the name of a module of the standard library"
        for module in modules
        if module.name.rpartition(".")[2] in sys.stdlib_module_names
    ]


def folders_without(file: str, folders: Sequence[Path]) -> list[str]:
    """The existing folders that lack the file."""
    return [
        f"{folder} lacks {file}"
        for folder in folders
        if folder.is_dir() and not (folder / file).is_file()
    ]
