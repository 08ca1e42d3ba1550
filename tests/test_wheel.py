"""The wheel holds one package with all others inside, and runs where the source tree is not."""

import ast
import json
import os
import runpy
import subprocess
import zipfile
from pathlib import Path

import pytest

import barnraise
import node
from tests.architecture.imports import imports_of
from tests.architecture.source import PACKAGES, module_from_source, within
from tests.wheel import ROOT, build_wheel, install_wheel
from training.kernels import KERNELS
from training.kernels.building import LIBRARY

HOOK = runpy.run_path(str(ROOT / "hatch_build.py"))
USERS = ("protocol", "dht", "training", "node", "sim")
MODULES = {"node.cli", "training.trainer_main", "node"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of scripts of an environment that holds the wheel and sees our dependencies."""
    return install_wheel(wheel, tmp_path_factory.mktemp("environment"))


def run(command: list[str], cwd: Path) -> str:
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("import sim", "import barnraise.sim as sim"),
        ("import node.cli", "import barnraise.node.cli, barnraise.node as node"),
        ("import os, node.cli as c", "import os, barnraise.node.cli as c"),
        ("from node import cli", "from barnraise.node import cli"),
        ("def f():\n    from  node.cli import (\n        a,\n    )", None),
        ("from . import cli\nfrom .cli import main", "from . import cli\nfrom .cli import main"),
        ("import nodes, simple", "import nodes, simple"),
        ("x = 'é', ['-m', 'node.cli']", "x = 'é', ['-m', 'barnraise.node.cli']"),
        ("x = 'python -m node.cli --x'", "x = 'python -m barnraise.node.cli --x'"),
        ('"""Run `python -m node.cli`."""', '"""Run `python -m barnraise.node.cli`."""'),
        ("x = 'node', 'node.toml', '-m node'", "x = 'node', 'node.toml', '-m node'"),
    ],
)
def test_prefix_is_put_where_a_module_is_named(source: str, wanted: str | None) -> None:
    wanted = wanted or source.replace("node.cli", "barnraise.node.cli")
    assert HOOK["prefixed"]("node/a.py", source, MODULES) == wanted


def test_what_cannot_have_a_prefix_ends_the_build() -> None:
    source = "x = f'python -m node.cli {y}'"
    with pytest.raises(HOOK["PrefixError"], match=r"node/a\.py:1"):
        HOOK["prefixed"]("node/a.py", source, MODULES)


def test_face_of_a_clone_has_what_users_import() -> None:
    assert {name: getattr(barnraise, name) for name in barnraise.__all__} == {
        name: getattr(node, name) for name in node.__all__
    }
    with pytest.raises(AttributeError, match="DiLoco"):
        _ = barnraise.DiLoco  # type: ignore[attr-defined]


@pytest.mark.slow
def test_wheel_holds_every_file_of_the_packages_and_no_tests(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tree = {
        file.relative_to(ROOT / "barnraise" if package == "barnraise" else ROOT).as_posix()
        for package in ("barnraise", *PACKAGES)
        for file in (ROOT / package).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    assert held == {f"barnraise/{path}" for path in tree}
    is_compiled = f"barnraise/{LIBRARY.relative_to(ROOT).as_posix()}" in held
    assert wheel.name.endswith("-none-any.whl") is not is_compiled


@pytest.mark.slow
def test_wheel_has_one_top_level_package_and_no_import_of_a_bare_one(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    tops = {name.partition("/")[0] for name in archive.namelist()}
    (info,) = tops - {"barnraise"}
    assert info.startswith("barnraise-")
    assert info.endswith(".dist-info")
    modules = [
        module_from_source(name, archive.read(name).decode())
        for name in archive.namelist()
        if name.endswith((".py", ".pyi"))
    ]
    assert len(modules) > 100
    bare = [
        f"{module.path}:{imported.line} {imported.target}"
        for module in modules
        for imported in imports_of(module, ())
        if within(imported.target, PACKAGES)
    ]
    # As strings they would fail when they are used, in a child process, far from here.
    inner = {module.name.removeprefix("barnraise.") for module in modules}
    named = {name for name in inner if "." in name}
    bare += [
        f"{module.path}:{part.lineno} {part.value!r}"
        for module in modules
        for part in ast.walk(module.tree)
        if isinstance(part, ast.Constant) and part.value in named
    ]
    assert bare == []


@pytest.mark.slow
def test_files_of_the_user_with_the_names_of_our_folders_break_nothing(
    elsewhere: Path, tmp_path: Path
) -> None:
    for name in USERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('shadowed')", "utf-8")
    for name in ("dht", "training"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')", "utf-8")
    program = "from barnraise import DiLoCo, Swarm\nfrom barnraise.node.config import NodeConfig\n"
    (tmp_path / "train.py").write_text(program + "print(DiLoCo.__module__)", "utf-8")
    python = str(elsewhere / "python")
    assert run([python, "train.py"], tmp_path) == "barnraise.training.diloco\n"
    for command in ([python, "-m", "barnraise"], [str(elsewhere / "barnraise")]):
        assert run([*command, "--version"], tmp_path).startswith("barnraise ")
    options = ["--peers", "4", "--rounds", "4", "--seed", "1"]
    run([str(elsewhere / "barnraise"), "sim", "run", "open-calm", *options], tmp_path)


@pytest.mark.slow
def test_wheel_of_a_machine_with_a_compiler_has_its_kernels(
    elsewhere: Path, tmp_path: Path
) -> None:
    code = "from barnraise.training import kernels as k; print(k.LIBRARY.exists(), k.arithmetic())"
    told = run([str(elsewhere / "python"), "-c", code], tmp_path)
    assert told.split() in (["True", "compiled"], ["False", "numpy"])
    assert told.startswith(str(KERNELS is not None))


@pytest.mark.slow
def test_wheel_imports_come_from_its_own_environment(elsewhere: Path, tmp_path: Path) -> None:
    code = "import barnraise.node as node, sys; print(*sys.path, node.__file__)"
    printed = run([str(elsewhere / "python"), "-c", code], tmp_path).split()
    assert str(ROOT) not in printed
    assert Path(printed[-1]).is_relative_to(elsewhere.parent)


@pytest.mark.slow
def test_demo_from_the_wheel_seals_rounds_in_another_folder(
    elsewhere: Path, tmp_path: Path
) -> None:
    command = [str(elsewhere / "barnraise"), "demo", "--peers", "2", "--json"]
    report = json.loads(run(command, tmp_path).splitlines()[-1])
    assert report["peers"] == 2
    assert report["rounds_sealed"] > 0
    assert report["anchors_equal"] is True
