"""The rules of the house hold for the tree, and each of them can fail."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.architecture import imports, shape
from tests.architecture.source import FACE, PACKAGES, Module, Rule, module_from_source, read_modules

ROOT = Path(__file__).parent.parent
LIBRARY = (*PACKAGES, FACE)
TESTS = ("tests",)
EVERYWHERE = (*LIBRARY, *TESTS, "examples")

# The whole tree is parsed in one process of those that share the tests.
pytestmark = pytest.mark.xdist_group("tree")

RULES: list[tuple[Rule, Sequence[str]]] = [
    (imports.import_directions, LIBRARY),
    (imports.library_places, LIBRARY),
    (imports.import_cycles, LIBRARY),
    (imports.torch_in_network_process, LIBRARY),
    (shape.module_sizes, EVERYWHERE),
    (shape.function_sizes, EVERYWHERE),
    (shape.parameter_counts, EVERYWHERE),
    (shape.broad_excepts, EVERYWHERE),
    (shape.banned_tools, EVERYWHERE),
    (shape.stdlib_names, EVERYWHERE),
    (shape.real_sleeps, TESTS),
]

LONG_FUNCTION = "def f():\n" + "    x = 1\n" * shape.FUNCTION_LINES_MAX
SLEEP_ON_CLOCK = "async def test_a({}):\n    async def b():\n        await trio.sleep(1)\n"

Files = dict[str, str]
BROKEN: list[tuple[Rule, Files]] = [
    (imports.import_directions, {"protocol/wire.py": "import node"}),
    (imports.import_directions, {"dht/reach.py": "from training import outer"}),
    (
        imports.import_directions,
        {"dht/reach.py": "def f():\n    import node.daemon.driver"},
    ),
    (imports.import_directions, {"training/outer.py": "from protocol.wire import encode"}),
    (
        imports.import_directions,
        {"training/a.py": "from protocol import wire", "protocol/wire.py": ""},
    ),
    (imports.import_directions, {"training/outer.py": "from ..dht import reach"}),
    (imports.import_directions, {"node/cli.py": "import sim.run"}),
    (imports.import_directions, {"node/cli.py": "from barnraise import Swarm"}),
    (imports.import_directions, {"barnraise/__init__.py": "import training.diloco"}),
    (
        imports.import_directions,
        {"protocol/rounds/round_machine.py": "def f():\n    import sim.run"},
    ),
    (
        imports.import_directions,
        {"node/cli.py": "def f():\n    import sim\n    from sim import run"},
    ),
    (imports.library_places, {"dht/reach.py": "def f():\n    from libp2p import new_host"}),
    (imports.library_places, {"node/status/board.py": "import h11"}),
    (imports.library_places, {"training/inner.py": "import trio"}),
    (imports.library_places, {"protocol/transport.py": "import trio"}),
    (imports.import_cycles, {"dht/a.py": "import dht.b", "dht/b.py": "from dht import a"}),
    (
        imports.import_cycles,
        {"dht/__init__.py": "from .a import x", "dht/a.py": "from dht import y"},
    ),
    (
        imports.import_cycles,
        {"dht/a.py": "import dht.b", "dht/b.py": "if TYPE_CHECKING:\n    from dht.a import x"},
    ),
    (
        imports.torch_in_network_process,
        {
            "node/network_main.py": "import training.outer",
            "training/__init__.py": "from .inner import x",
            "training/inner.py": "try:\n    from torch import nn\nfinally:\n    pass",
            "training/outer.py": "",
        },
    ),
    (imports.torch_in_network_process, {"node/__init__.py": "from safetensors import torch"}),
    (shape.module_sizes, {"node/a.py": "\n" * (shape.MODULE_LINES_MAX + 1)}),
    (shape.function_sizes, {"node/a.py": LONG_FUNCTION}),
    (shape.parameter_counts, {"node/a.py": "def f(a, b, /, c, d, *e, g, h): pass"}),
    (shape.broad_excepts, {"node/a.py": "try:\n    x\nexcept:\n    pass"}),
    (shape.broad_excepts, {"node/a.py": "try:\n    x\nexcept (OSError, Exception):\n    pass"}),
    (shape.broad_excepts, {"node/a.py": "try:\n    x\nexcept* builtins.BaseException:\n    pass"}),
    (shape.broad_excepts, {"node/a.py": "with contextlib.suppress(Exception):\n    x"}),
    (
        shape.broad_excepts,
        {
            "node/supervisor.py": "try:\n    x\nexcept Exception:\n    pass\n"
            "try:\n    y\nexcept Exception:\n    pass"
        },
    ),
    (shape.banned_tools, {"node/a.py": "import pickle"}),
    (shape.banned_tools, {"node/a.py": "def f():\n    from multiprocessing import Process"}),
    (shape.banned_tools, {"node/a.py": "from torch import multiprocessing"}),
    (shape.banned_tools, {"node/a.py": "from concurrent.futures import ProcessPoolExecutor"}),
    (shape.banned_tools, {"node/a.py": "eval('1')"}),
    (shape.banned_tools, {"node/a.py": "import torch as t\nt.load('x')"}),
    (shape.banned_tools, {"node/a.py": "np.load('x', allow_pickle=True)"}),
    (shape.stdlib_names, {"node/http.py": ""}),
    (shape.stdlib_names, {"node/queue/__init__.py": ""}),
    (shape.real_sleeps, {"tests/test_a.py": "import time\ntime.sleep(1)"}),
    (shape.real_sleeps, {"tests/test_a.py": "from time import sleep as nap\nnap(1)"}),
    (shape.real_sleeps, {"tests/test_a.py": "asyncio.sleep(1)"}),
    (shape.real_sleeps, {"tests/test_a.py": SLEEP_ON_CLOCK.format("")}),
]

ALLOWED: list[tuple[Rule, Files]] = [
    (imports.import_directions, {"training/a.py": "from protocol.errors import StateError"}),
    (imports.import_directions, {"node/cli.py": "def f():\n    from sim import run"}),
    (
        imports.import_directions,
        {"sim/world.py": "import node.daemon.driver, training.outer"},
    ),
    (imports.library_places, {"dht/libp2p_host.py": "import libp2p"}),
    (imports.library_places, {"protocol/wire.py": "import struct, numpy, msgpack"}),
    (imports.import_cycles, {"dht/a.py": "import dht.b", "dht/b.py": "def f():\n    import dht.a"}),
    (imports.import_cycles, {"dht/__init__.py": "from dht.a import x", "dht/a.py": "import dht.b"}),
    (imports.torch_in_network_process, {"node/__init__.py": "def f():\n    import torch"}),
    (imports.torch_in_network_process, {"node/__init__.py": "if TYPE_CHECKING:\n    import torch"}),
    (imports.torch_in_network_process, {"training/inner.py": "import torch", "node/cli.py": ""}),
    (shape.parameter_counts, {"node/a.py": "class A:\n    def f(self, b, c, d, e, f, g): pass"}),
    (shape.parameter_counts, {"node/cli.py": "@app.command()\ndef f(a, b, c, d, e, f, g): pass"}),
    (shape.broad_excepts, {"node/supervisor.py": "try:\n    x\nexcept Exception:\n    pass"}),
    (shape.broad_excepts, {"node/a.py": "try:\n    x\nexcept trio.Cancelled:\n    pass"}),
    (shape.banned_tools, {"node/a.py": "model.eval()"}),
    (shape.stdlib_names, {"protocol/errors.py": "", "protocol/__init__.py": ""}),
    (shape.real_sleeps, {"tests/test_a.py": SLEEP_ON_CLOCK.format("autojump_clock")}),
]


def parse(files: Files) -> list[Module]:
    return [module_from_source(path, text) for path, text in files.items()]


@pytest.mark.parametrize(("rule", "folders"), RULES)
def test_tree_keeps_the_rule(rule: Rule, folders: Sequence[str]) -> None:
    modules = read_modules(ROOT, folders)
    assert {module.path.partition("/")[0] for module in modules} == set(folders)
    assert rule(modules) == []


@pytest.mark.parametrize(("rule", "files"), BROKEN)
def test_rule_sees_a_violation(rule: Rule, files: Files) -> None:
    assert len(rule(parse(files))) == 1


@pytest.mark.parametrize(("rule", "files"), ALLOWED)
def test_rule_lets_pass_what_is_allowed(rule: Rule, files: Files) -> None:
    assert rule(parse(files)) == []


def test_every_rule_is_shown_to_fail() -> None:
    assert {rule for rule, _ in RULES} == {rule for rule, _ in BROKEN}


def test_test_folders_are_packages() -> None:
    folders = sorted({file.parent for file in (ROOT / "tests").rglob("*.py")})
    assert shape.folders_without("__init__.py", folders) == []


def test_packages_are_typed() -> None:
    assert shape.folders_without("py.typed", [ROOT / name for name in LIBRARY]) == []


def test_missing_file_is_seen(tmp_path: Path) -> None:
    assert shape.folders_without("py.typed", [tmp_path, tmp_path / "absent"]) == [
        f"{tmp_path} lacks py.typed"
    ]


def run_python(code: str) -> str:
    """The last line that the code prints in a fresh interpreter which sees the tree."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_imports_load_no_torch() -> None:
    modules = [
        "barnraise",
        "node",
        "node.network_main",
        # Processes that say how many threads torch may have, before it is there.
        *("sim.methods.compare_main", "training.stepping_main", "training.yardstick_main"),
    ]
    # One interpreter has them all, in this order; the first that loads it is the last one named.
    code = f"""
import importlib, sys
for name in {modules}:
    importlib.import_module(name)
    if "torch" in sys.modules:
        break
print("torch" in sys.modules, name)
"""
    assert run_python(code) == f"False {modules[-1]}"


def test_torch_in_a_process_is_seen() -> None:
    # Not torch itself, which takes a second: the look-up is what is on trial.
    assert (
        run_python("import sys; sys.modules['torch'] = sys; print('torch' in sys.modules)")
        == "True"
    )


def test_help_of_the_command_loads_no_torch_and_takes_under_a_second() -> None:
    # Seconds of CPU and not on the wall: other tests may be running beside this one.
    code = """
import contextlib, sys, time
from node.cli import main
sys.argv = ["barnraise", "--help"]
with contextlib.suppress(SystemExit):
    main()
print("torch" in sys.modules, time.process_time() < 1.0)
"""
    assert run_python(code) == "False True"
