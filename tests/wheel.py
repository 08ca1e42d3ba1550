"""Builds the wheel, installs it, and runs tests against the installation: `make test-wheel`.

    python -m tests.wheel                  the tests of protocol/
    python -m tests.wheel tests/dht -x     others, with options of pytest

The tests are copied to a folder without the source tree, with the prefix that the imports have in
the wheel. Tests that hand a child process a program as text, or that read the source tree, fail
there; those of protocol/ do neither.
"""

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEFAULT = ["-m", "not slow", "tests/protocol"]


def build_wheel(folder: Path) -> Path:
    """Build it from the source tree; the file."""
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (built,) = folder.glob("barnraise-*.whl")
    return built


def install_wheel(wheel: Path, home: Path) -> Path:
    """Make an environment that holds the wheel and sees our dependencies; its folder of scripts."""
    venv.create(home, with_pip=False)
    places = {"base": str(home), "platbase": str(home)}
    scripts = Path(sysconfig.get_path("scripts", "venv", places))
    # Folders named in a .pth file have their own .pth files ignored, so an editable installation
    # of the source tree, which is one, stays out.
    site = Path(sysconfig.get_path("purelib", "venv", places))
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join(libraries) + "\n", "utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python")]
    options = ["--no-deps", "--quiet", "--ignore-installed"]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True)
    return scripts


def copy_tests(folder: Path) -> None:
    """Copy the tests and what pytest reads of the project, every import with its prefix."""
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))
    modules = hook["module_names"](ROOT)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for file in hook["source_files"](ROOT, ["tests"]):
        path = file.relative_to(ROOT)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".py":
            source = hook["prefixed"](path.as_posix(), file.read_text("utf-8"), modules)
            (folder / path).write_text(source, "utf-8")
        else:
            shutil.copyfile(file, folder / path)


def main(arguments: list[str]) -> int:
    """Run pytest with the arguments; its status."""
    with tempfile.TemporaryDirectory(prefix="barnraise-wheel-") as name:
        folder = Path(name)
        scripts = install_wheel(build_wheel(folder), folder / "environment")
        (folder / "copy").mkdir()
        copy_tests(folder / "copy")
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        return subprocess.run(
            [scripts / "python", "-m", "pytest", *(arguments or DEFAULT)],
            cwd=folder / "copy",
            env=environment,
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
