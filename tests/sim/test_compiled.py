"""The compiled simulator: taken for these sources only, and the same machine to the byte."""

import ast
import importlib.util
import inspect
import math
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from sim.compiled import __main__ as compiling
from sim.compiled.adapting import adapted, bases
from sim.compiled.builds import PACKAGES, build_folder, choose, is_complete, mark_complete
from sim.trials.sweep import sweep
from tests.architecture.source import read_modules
from tests.sim.trials.scenarios import scenario

ROOT = Path(__file__).parents[2]
EXTENSION = f"wire{sysconfig.get_config_var('EXT_SUFFIX')}"


@pytest.fixture
def checkout(tmp_path):
    """A folder that looks like a checkout."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f'"""{package}."""\n')
    (tmp_path / "Makefile").touch()
    return tmp_path


def made(root):
    """A build of what is in the checkout now."""
    folder = build_folder(root)
    (folder / "protocol").mkdir(parents=True)
    (folder / "protocol" / EXTENSION).write_bytes(b"native")
    mark_complete(folder)
    return folder


def test_build_of_the_present_sources_is_chosen(checkout):
    folder = made(checkout)
    choice = choose(root=checkout)
    assert (choice.folder, choice.text) == (folder, "compiled")
    assert choose(is_wanted=False, root=checkout).folder is None


def test_without_a_build_the_sources_are_interpreted_and_it_says_how_to_make_one(checkout):
    choice = choose(root=checkout)
    assert choice.folder is None
    assert choice.text.startswith("interpreted; `make compiled`")


@pytest.mark.parametrize("package", PACKAGES)
def test_build_of_other_sources_is_not_chosen(checkout, package):
    made(checkout)
    (checkout / package / "__init__.py").write_text("changed = True\n")
    choice = choose(root=checkout)
    assert choice.folder is None
    assert "other sources" in choice.text


def test_new_and_removed_modules_make_other_sources(checkout):
    made(checkout)
    (checkout / "sim" / "more.py").touch()
    assert choose(root=checkout).folder is None
    (checkout / "sim" / "more.py").unlink()
    assert choose(root=checkout).folder is not None
    (checkout / "dht" / "__init__.py").unlink()
    assert choose(root=checkout).folder is None


def test_broken_build_is_not_chosen(checkout):
    folder = made(checkout)
    module = folder / "protocol" / EXTENSION
    module.write_bytes(b"nativ")
    assert choose(root=checkout).folder is None
    module.unlink()
    assert choose(root=checkout).folder is None
    module.write_bytes(b"native")
    assert choose(root=checkout).folder == folder
    (folder / "protocol" / f"more{EXTENSION}").touch()
    assert choose(root=checkout).folder is None


@pytest.mark.parametrize("mark", ["", "[]", "{}", "{"])
def test_build_without_a_true_mark_is_not_chosen(checkout, mark):
    (made(checkout) / "complete.json").write_text(mark)
    assert choose(root=checkout).folder is None


def test_installed_package_offers_no_build(checkout):
    (checkout / "Makefile").unlink()
    made(checkout)
    assert choose(root=checkout).text == "interpreted"


def test_missing_compiler_is_named_and_nothing_is_left(checkout, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"no C compiler|setuptools|no headers"):
        compiling.build(build_folder(checkout), checkout)
    assert not (checkout / "build").exists()


def test_every_name_of_a_native_module_stands_for_one():
    found = {path.relative_to(ROOT).as_posix() for path in compiling.native_modules(ROOT)}
    for room, names in compiling.NATIVE.items():
        for name in names.split():
            assert name == "*" or f"{room}/{name}.py" in found


def native_and_other_trees():
    native = {path.relative_to(ROOT).as_posix() for path in compiling.native_modules(ROOT)}
    modules = read_modules(ROOT, PACKAGES)
    ours = [module.tree for module in modules if module.path in native]
    return ours, [module.tree for module in modules if module.path not in native]


@cache
def native_and_other_nodes():
    """By kind, for all questions: to walk through everything takes seconds."""
    return [_by_kind(trees) for trees in native_and_other_trees()]


def _by_kind(trees):
    found = defaultdict(list)
    for tree in trees:
        for node in ast.walk(tree):
            found[type(node)].append(node)
    return found


@pytest.mark.xdist_group("tree")
def test_no_interpreted_class_inherits_from_a_native_one():
    """It could be defined, but none of its objects made. Of a Protocol there are none."""
    native, others = native_and_other_nodes()
    ours = {node.name for node in native[ast.ClassDef]}
    theirs = {node.name for node in others[ast.ClassDef]}
    bases_of_others = {
        ast.unparse(base).partition("[")[0].rpartition(".")[2]
        for node in others[ast.ClassDef]
        if "Protocol" not in map(ast.unparse, node.bases)
        for base in node.bases
        if not ast.unparse(base).startswith("trio.")
    }
    assert "Edge" in ours
    assert (bases_of_others & ours) - theirs == set()


@pytest.mark.xdist_group("tree")
def test_no_native_function_gives_errors_of_two_sorts_one_name():
    """mypyc gives the name the type of the first."""
    native, _ = native_and_other_nodes()
    for function in native[ast.FunctionDef]:
        named: dict[str, set[str]] = {}
        for item in ast.walk(function):
            if isinstance(item, ast.ExceptHandler) and item.name and item.type:
                named.setdefault(item.name, set()).add(ast.unparse(item.type))
        assert all(len(kinds) == 1 for kinds in named.values()), (function.name, named)


@pytest.mark.xdist_group("tree")
def test_no_native_module_joins_a_set_and_a_view_by_an_operator():
    """A frozenset less the keys of a dictionary is a set, and mypyc has it be a frozenset: the
    build stops there with a TypeError. `difference` and the others take the dictionary itself."""
    native, _ = native_and_other_nodes()
    joined = [(node.op, node.right) for node in native[ast.BinOp]]
    joined += [(node.op, node.value) for node in native[ast.AugAssign]]
    views = {
        ast.unparse(right)
        for op, right in joined
        if isinstance(op, ast.Sub | ast.BitAnd | ast.BitOr | ast.BitXor)
        and isinstance(right, ast.Call)
        and isinstance(right.func, ast.Attribute)
        and right.func.attr in {"keys", "items"}
    }
    assert views == set()


@pytest.mark.xdist_group("tree")
def test_no_native_module_copies_objects():
    native, _ = native_and_other_nodes()
    imported = {
        name.name for node in native[ast.Import] + native[ast.ImportFrom] for name in node.names
    }
    assert "copy" not in imported


SOURCE = """\
import math
from functools import cached_property

class Base:
    pass

@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    some: tuple[int, ...]
    other: float = math.inf
    note: str = field(default="", compare=False, repr=False)
    seen: set[int] = field(default_factory=set, compare=False)

@dataclass(frozen=True)
class Both:
    some: tuple[int, ...]
    other: "Both | None" = None
    size: int = field(init=False, default=7)
    names: dict[str, int] = field(init=False, default_factory=dict)
    def __post_init__(self) -> None:
        if not self.some:
            raise ValueError("nothing")
    @cached_property
    def total(self) -> int:
        ASKED.append(self.some)
        return sum(self.some)

@dataclass(slots=True)
class Changed:
    count: int = 0
"""


def thawed(*args, **options):
    """`dataclass`, but one that the interpreter lets an `__init__` as compiled code has it fill."""
    if args:
        return dataclass(*args)
    return dataclass(**{name: value for name, value in options.items() if name != "frozen"})


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Imports a text as a module."""

    def import_text(text, decorator=dataclass):
        name = f"made_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(text)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        vars(module).update(dataclass=decorator, field=field, ASKED=[])
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return import_text


@pytest.fixture
def pair(imported):
    """A module as it is, and as it is adapted."""
    return imported(SOURCE), imported(adapted(SOURCE), thawed)


@pytest.mark.parametrize("name", ["Plain", "Both", "Changed"])
def test_adapted_classes_are_called_as_dataclasses_are(pair, name):
    ours, theirs = (inspect.signature(vars(module)[name]) for module in reversed(pair))
    parameters = [list(signature.parameters.values()) for signature in (ours, theirs)]
    assert [(p.name, p.kind) for p in parameters[0]] == [(p.name, p.kind) for p in parameters[1]]
    for our, their in zip(*parameters, strict=True):
        assert (our.default is our.empty) == (their.default is their.empty)


def test_adapted_classes_hold_compare_and_hash_what_dataclasses_do(pair):
    told = []
    for module in pair:
        plain, both, nan = module.Plain, module.Both, float("nan")
        one = plain(some=(1,), note="a")
        first, second = both((1, 2)), both((1, 2), both((3,)))
        told.append(
            [
                (one.some, one.other, one.note, one.seen, first.size, first.names),
                one == plain(some=(1,), note="b", seen={1}),
                one == plain(some=(2,)),
                one == module.Changed(),
                plain(some=(), other=nan) == plain(some=(), other=nan),
                hash(one) == hash(plain(some=(1,), note="b")),
                hash(one) == hash(((1,), math.inf)),
                first == second,
                second == both((1, 2), both((3,))),
                replace(second, other=None) == first,
                [item.name for item in fields(both)],
                one.seen is plain(some=(1,)).seen,
                first.names is second.names,
                module.Changed().__hash__,
            ]
        )
        with pytest.raises(ValueError, match="nothing"):
            both(())
    assert told[0] == told[1]
    # What wrong text would make equal, too.
    assert told[0][1:6] == [True, False, False, True, True]


def test_kept_property_is_asked_once_of_each_object(pair):
    for module in pair:
        one, other = module.Both((1, 2)), module.Both((1, 2))
        assert [one.total, one.total, other.total, replace(one, some=(5,)).total] == [3, 3, 3, 5]
        assert module.ASKED == [(1, 2), (1, 2), (5,)]
        assert one == other


def test_annotations_are_written_back_behind_the_class():
    assert adapted(SOURCE).splitlines()[-2] == (
        """vars(Both)["__annotations__"].update({'some': 'tuple[int, ...]', """
        """'other': 'Both | None', 'size': 'int', 'names': 'dict[str, int]'})"""
    )


def test_class_that_others_inherit_from_is_left_to_dataclasses(imported):
    others = "@dataclass\nclass More(Plain):\n    more: int = 0\n"
    assert bases([SOURCE, others]) == {"Plain"}
    changed = adapted(SOURCE + others, bases([SOURCE, others]))
    module = imported(changed, thawed)
    assert "def __init__" in changed
    assert module.More(some=(1,), more=2).some == (1,)


def test_what_is_kept_without_fields_to_keep_it_in_is_refused():
    with pytest.raises(AssertionError, match="no __init__"):
        adapted(SOURCE.replace("@dataclass(frozen=True)\nclass Both", "class Both"))


def test_numbers_and_texts_become_final_and_nothing_else(imported):
    source = (
        '"""Limits."""\n'
        "import math\n"
        "KIB = 1 << 10\n"
        "_MOST, BOTH = 4, 5\n"
        "SIZE_MAX: int = (\n    64 * KIB\n)\n"
        "NAME = b'x'\n"
        "T = TypeVar('T')\n"
        "FAR = math.inf\n"
        "TWICE = 1\n"
        "TWICE = 2\n"
        "Digest = 1\n"
    )
    changed = adapted(source)
    assert "KIB: _Final = 1 << 10\n" in changed
    assert "SIZE_MAX: int = (\n    64 * KIB\n)\n" in changed
    assert "NAME: _Final = b'x'\n" in changed
    assert changed.count("_Final") == 3
    module = imported(changed.replace("T = TypeVar('T')", ""))
    assert (module.SIZE_MAX, module.TWICE, module.NAME) == (1 << 16, 2, b"x")


def test_unions_of_isinstance_become_tuples(imported):
    source = (
        "from dataclasses import dataclass\n\n"
        "def ask(x, y):\n"
        "    return isinstance(x, int | str) and isinstance(\n"
        "        y, (int | bytes)\n"
        "        | float\n"
        "    ), isinstance(x, int), isinstance(y, bool | None.__class__)\n"
    )
    changed = adapted(source)
    assert "isinstance(x, (int, str))" in changed
    assert "(int, bytes, float)" in changed
    assert "isinstance(x, int)," in changed
    one, other = imported(source), imported(changed)
    for x in (1, "a", 2.0, None):
        for y in (1, b"b", 2.0, None, "c"):
            assert one.ask(x, y) == other.ask(x, y), (x, y)


def test_only_a_field_that_may_be_none_keeps_its_class_as_it_is():
    head = "from dataclasses import dataclass, field\n\n@dataclass\nclass Some:\n    x: "
    made = " = field(default_factory=dict)\n"
    assert "def __init__" in adapted(f"{head}dict[int, int | None]{made}")
    assert "def __init__" not in adapted(f"{head}dict[int, int] | None{made}")


@pytest.mark.slow
def test_compiled_worlds_are_the_interpreted_ones_to_the_byte(tmp_path):
    """Minutes: compiles a clone."""
    try:
        compiling.check_tools()
    except ConfigError as error:
        pytest.skip(str(error))
    folder = tmp_path / build_folder(ROOT).name
    compiling.build(folder, ROOT)
    assert is_complete(folder)
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import sim.world.world; print(sim.world.world.__file__)"],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip().endswith(EXTENSION.removeprefix("wire"))
    scenarios = {"small": scenario("rounds = 4\n", name="small")}
    ends = [
        sweep(scenarios, range(3), jobs=2, came=lambda _: None, build=build)
        for build in (None, folder)
    ]
    assert ends[0].trace_hash == ends[1].trace_hash
    assert not ends[0].failures()
