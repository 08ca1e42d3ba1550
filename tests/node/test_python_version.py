"""A Python that does not do is told so in one line, before anything else goes wrong."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import node
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


@pytest.mark.parametrize("path", [node.__file__, require_python.__code__.co_filename])
def test_what_an_old_python_reads_has_only_syntax_that_it_knows(path):
    ast.parse(Path(path).read_text("utf-8"), feature_version=(3, 7))
