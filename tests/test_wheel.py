"""The wheel holds the five packages whole and runs where the source tree is not."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGES
from training.kernels import KERNELS
from training.kernels.building import LIBRARY

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (built,) = folder.glob("barnraise-*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of scripts of an environment that holds the wheel and sees our dependencies."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    places = {"base": str(home), "platbase": str(home)}
    scripts = Path(sysconfig.get_path("scripts", "venv", places))
    # Folders named in a .pth file have their own .pth files ignored, so an editable installation
    # of the source tree, which is one, stays out.
    site = Path(sysconfig.get_path("purelib", "venv", places))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python")]
    options = ["--no-deps", "--quiet", "--ignore-installed"]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True)
    return scripts


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


def test_wheel_holds_every_file_of_the_packages_and_no_tests(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tree = {
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    assert held == tree
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    is_compiled = LIBRARY.relative_to(ROOT).as_posix() in held
    assert wheel.name.endswith("-none-any.whl") is not is_compiled


def test_wheel_of_a_machine_with_a_compiler_has_its_kernels(
    elsewhere: Path, tmp_path: Path
) -> None:
    code = "from training import kernels; print(kernels.LIBRARY.exists(), kernels.arithmetic())"
    told = run([str(elsewhere / "python"), "-c", code], tmp_path)
    assert told.split() in (["True", "compiled"], ["False", "numpy"])
    assert told.startswith(str(KERNELS is not None))


def test_wheel_imports_come_from_its_own_environment(elsewhere: Path, tmp_path: Path) -> None:
    code = "import protocol, dht, training, node, sim, sys; print(*sys.path, node.__file__)"
    printed = run([str(elsewhere / "python"), "-c", code], tmp_path).split()
    assert str(ROOT) not in printed
    assert Path(printed[-1]).is_relative_to(elsewhere.parent)


def test_demo_from_the_wheel_seals_rounds_in_another_folder(
    elsewhere: Path, tmp_path: Path
) -> None:
    command = [str(elsewhere / "barnraise"), "demo", "--peers", "2", "--json"]
    report = json.loads(run(command, tmp_path).splitlines()[-1])
    assert report["peers"] == 2
    assert report["rounds_sealed"] > 0
    assert report["anchors_equal"] is True
