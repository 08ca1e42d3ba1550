"""Called by an installation: compiles the kernels and lays out the wheel.

In the repository `protocol/`, `dht/`, `training/`, `node/` and `sim/` are top-level packages. In
site-packages such names would clash with those of users, whose own `training/` or `protocol.py`
comes first on the path. A wheel therefore has one top-level package, `barnraise`, with all others
inside, and every import of ours is written with that prefix when the wheel is built:

    from node.state.config import NodeConfig      from barnraise.node.config import NodeConfig
    import sim                              import barnraise.sim as sim
    import node.cli                         import barnraise.node.cli, barnraise.node as node
    [..., "-m", "training.trainer_main"]    [..., "-m", "barnraise.training.trainer_main"]

The places are found in the syntax tree, never by a search for text; what cannot be rewritten with
certainty ends the build. An editable installation has no copy of the source: there the packages
stay at the top.
"""

import ast
import re
import runpy
import shutil
import sysconfig
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FACE = "barnraise"
INNER = ("protocol", "dht", "training", "node", "sim")

Edit = tuple[int, int, str]
"""Byte offsets of the beginning and end of a piece of the source, and what stands there instead."""


class PrefixError(Exception):
    """A name that cannot be given a prefix; the message says where it is and what to write."""


def prefixed(path: str, text: str, modules: Collection[str]) -> str:
    """The source of a module as it is in the wheel; `modules` are the dotted names of all of ours.

    Raises PrefixError.
    """
    tree = ast.parse(text, path)
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[node.end_lineno - 1] + node.end_col_offset

    edits: list[Edit] = []
    in_fstrings = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_ours(node.module or ""):
            begin, end = span(node)
            source = data[begin:end].decode()
            changed = re.sub(r"\Afrom(\s+)", rf"from\1{FACE}.", source)
            edits.append((begin, end, changed))
        elif isinstance(node, ast.Import):
            edits += [
                (*span(alias), _prefixed_alias(alias))
                for alias in node.names
                if _is_ours(alias.name)
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            wanted = prefixed_string(node.value, modules)
            if wanted == node.value:
                continue
            begin, end = span(node)
            changed = prefixed_string(data[begin:end].decode(), modules, is_source=True)
            if id(node) in in_fstrings or ast.literal_eval(changed) != wanted:
                raise PrefixError(f"{path}:{node.lineno}: name the module in a plain string")
            edits.append((begin, end, changed))
    for begin, end, changed in sorted(edits, reverse=True):
        data = data[:begin] + changed.encode() + data[end:]
    return data.decode()


def prefixed_string(value: str, modules: Collection[str], *, is_source: bool = False) -> str:
    """A string that is the dotted name of a module of ours, or says `-m` and such a name.

    A name without a dot, such as "node", is a word like any other. `is_source` takes the string as
    it stands in a program, in its quotes.
    """

    def prefix(found: re.Match[str]) -> str:
        return f"{found[1]}{FACE}.{found[2]}" if found[2] in modules else found[0]

    whole = r"""(\A[rRuU]?["']+)([\w.]+)(?=["']+\Z)""" if is_source else r"(\A)([\w.]+)\Z"
    named = re.fullmatch(whole + r"""["']*""", value)
    if named and "." in named[2]:
        return re.sub(whole, prefix, value)
    return re.sub(r"(-m\s+)(\w+(?:\.\w+)+)", prefix, value)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in INNER


def _prefixed_alias(alias: ast.alias) -> str:
    """`a.b as c` behind `import`; a name that is bound stays bound to the same."""
    package = alias.name.partition(".")[0]
    if alias.asname or alias.name == package:
        return f"{FACE}.{alias.name} as {alias.asname or package}"
    # `import node.cli` loads node.cli and binds node.
    return f"{FACE}.{alias.name}, {FACE}.{package} as {package}"


def module_names(root: Path) -> set[str]:
    """The dotted names of all modules and packages within the inner packages."""
    found = set()
    for file in source_files(root, INNER):
        if file.suffix == ".py":
            parts = file.relative_to(root).with_suffix("").parts
            found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def source_files(root: Path, packages: Collection[str]) -> Iterator[Path]:
    """Every file that belongs into a wheel, apart from compiled kernels."""
    for package in packages:
        for file in sorted((root / package).rglob("*")):
            parts = file.relative_to(root).parts
            is_hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            if file.is_file() and not is_hidden and file.suffix not in (".pyc", ".so"):
                yield file


def lay_out(root: Path, target: Path) -> None:
    """Write the package as a wheel has it: all others inside, every import with its prefix."""
    modules = module_names(root)
    for file in source_files(root, (FACE, *INNER)):
        inside = file.relative_to(root / FACE if file.is_relative_to(root / FACE) else root)
        place = target / inside
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".py", ".pyi"):
            source = file.read_text("utf-8")
            place.write_text(prefixed(inside.as_posix(), source, modules), "utf-8")
        else:
            shutil.copyfile(file, place)


class WheelHook(BuildHookInterface):  # type: ignore[type-arg]  # its configuration is our own
    """A wheel with compiled kernels is of this kind of machine, any other one of all."""

    _package: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the files are collected; of an editable installation beside the source."""
        root = Path(self.root)
        building = runpy.run_path(str(root / "training" / "kernels" / "building.py"))
        self.app.display_info(f"kernels: {building['build']()}")
        if version == "editable":
            return
        self._package = Path(tempfile.mkdtemp(prefix="barnraise-wheel-"))
        lay_out(root, self._package)
        build_data["force_include"][str(self._package)] = FACE
        library: Path = building["LIBRARY"]
        if library.exists():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            shutil.copyfile(library, self._package / library.relative_to(root))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """When the wheel is written."""
        if self._package is not None:
            shutil.rmtree(self._package)
