"""A Python that does not do is told so in one line, before anything else goes wrong."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import node
from node.own_packages import BESIDE_US, require_own_packages
from node.python_version import require_python

ROOT = Path(__file__).parents[2]

PRETEND = """
import sys
sys.version_info = {version}
import {module}
"""


@pytest.mark.parametrize("version", [(3, 11), (3, 12, 4), (3, 13, 99)])
def test_python_that_does_is_let_pass(version, capsys):
    require_python(version)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 10, 14), (3, 14), (4, 0)])
def test_other_python_is_told_which_one_is_needed(version, capsys):
    with pytest.raises(SystemExit) as caught:
        require_python(version)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs Python 3.11, 3.12 or 3.13" in said
    assert ".".join(map(str, version)) in said


@pytest.mark.slow
@pytest.mark.parametrize("module", ["node", "node.cli", "node.network_main"])
def test_package_and_command_look_at_the_version_first(module):
    done = subprocess.run(
        [sys.executable, "-P", "-c", PRETEND.format(version=(3, 10, 1), module=module)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "this is 3.10.1" in done.stderr


@pytest.mark.parametrize(
    "path",
    [node.__file__, require_python.__code__.co_filename, require_own_packages.__code__.co_filename],
)
def test_what_an_old_python_reads_has_only_syntax_that_it_knows(path):
    ast.parse(Path(path).read_text("utf-8"), feature_version=(3, 7))


@pytest.mark.parametrize("name", BESIDE_US)
@pytest.mark.parametrize("intruder", ["{}.py", "{}/__init__.py"])
@pytest.mark.parametrize("before", ["", "import {}\n"])
def test_a_file_or_folder_of_the_users_that_is_called_like_ours_is_named(
    tmp_path, name, intruder, before
):
    path = tmp_path / intruder.format(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("RATE = 1\n")
    done = run_script(tmp_path, f"{before.format(name)}from node import DiLoCo, Swarm\n")

    said = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert said.startswith(f"ImportError: {path.resolve()} is loaded as {name!r}, which is")
    assert "rename that file or folder" in said
    assert "diloco" not in done.stderr


def test_a_folder_of_such_a_name_without_an_init_is_in_nobodys_way(tmp_path):
    for name in BESIDE_US:
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").touch()
    assert run_script(tmp_path, "from node import Swarm\n").returncode == 0


def run_script(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train_me.py").write_text(text)
    # Ours come behind the script's folder, as installed ones do.
    return subprocess.run(
        [sys.executable, "train_me.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
