"""`make install` on a machine that has Python and make, but no compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMPILERS = ("cc", "gcc", "g++", "clang", "c++", "cl")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs make and a POSIX shell"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which every compiler fails and no trace of ours is left."""
    folder = tmp_path_factory.mktemp("compilers")
    for name in COMPILERS:
        (folder / name).write_text(f"#!/bin/sh\necho '{name} was called' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "CC", "CXX", "MAKEFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return environment | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a clone would hold if the work tree were committed as it is."""
    folder = tmp_path_factory.mktemp("clone") / "barnraise"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def make(target: str, checkout: Path, machine: dict[str, str], *settings: str) -> str:
    done = subprocess.run(
        ["make", target, *settings],
        cwd=checkout,
        env=machine,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_install_without_a_compiler_gives_a_working_environment(
    checkout: Path, machine: dict[str, str]
) -> None:
    told = make("install", checkout, machine, f"PYTHON={sys.executable}")
    assert told.rstrip().endswith("arithmetic: numpy")
    python = checkout / ".venv" / "bin" / "python"
    code = "import libp2p, torch, numpy, node, training.kernels as k; assert k.KERNELS is None; "
    code += "print(node.__file__)"
    done = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(checkout.resolve())

    assert "installing" not in make("install", checkout, machine)

    os.utime(checkout / "requirements.lock")
    assert "installing the pinned" in make("install", checkout, machine)


def test_install_without_a_fitting_python_says_what_is_needed(
    tmp_path: Path, machine: dict[str, str]
) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy2(ROOT / name, tmp_path / name)
    done = subprocess.run(
        ["make", "install", "PYTHON=false"],
        cwd=tmp_path,
        env=machine,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (tmp_path / ".venv").exists()
