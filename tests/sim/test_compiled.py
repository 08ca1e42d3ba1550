"""The compiled simulator: taken for these sources only, and the same machine to the byte."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from sim.compiled import __main__ as compiling
from sim.compiled.adapting import adapted
from sim.compiled.builds import PACKAGES, build_folder, choose, is_complete, mark_complete
from sim.compiled.kept import keep
from sim.trials.sweep import sweep
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


def test_adapted_module_says_what_mypyc_forgets():
    source = (
        "from functools import cached_property\n"
        "@dataclass(frozen=True)\n"
        "class Both:\n"
        "    some: tuple[int, ...]\n"
        "    other: 'Both'\n"
        "    @cached_property\n"
        "    def total(self) -> int:\n"
        "        return sum(self.some)\n"
    )
    lines = adapted(source).splitlines()
    assert lines[0] == (
        "from mypy_extensions import mypyc_attr; from sim.compiled.kept import keep"
    )
    assert lines[1:3] == [source.splitlines()[0], "@mypyc_attr(native_class=False)"]
    assert lines[3:-2] == source.splitlines()[1:]
    assert lines[-2] == "keep(Both, ('total',))"
    hints = "{'some': 'tuple[int, ...]', 'other': 'Both'}"
    assert lines[-1] == f'vars(Both)["__annotations__"].update({hints})'


def test_kept_property_is_asked_once():
    class Counted:
        asked = 0

        @property
        def total(self) -> int:
            self.asked += 1
            return self.asked

    keep(Counted, ("total",))
    one = Counted()
    assert (one.total, one.total, Counted().total) == (1, 1, 1)


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
        [sys.executable, "-P", "-c", "import sim.world; print(sim.world.__file__)"],
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
