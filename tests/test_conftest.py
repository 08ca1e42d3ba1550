"""What the tests themselves stand on: coroutine tests really run, failures name their seed, and
`make test` and what it leaves out are together everything."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.conftest import LEFT_OUT

ROOT = Path(__file__).parent.parent


async def test_coroutine_on_virtual_clock_sleeps_an_hour_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    start_s = autojump_clock.current_time()
    await trio.sleep(3600)
    assert autojump_clock.current_time() - start_s >= 3600


async def test_coroutine_without_a_clock_runs_on_the_real_one() -> None:
    assert isinstance(trio.lowlevel.current_clock(), trio.abc.Clock)
    assert not isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)


def run_inner(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest over a file of its own, with our `conftest.py` and without our settings."""
    (folder / "test_inner.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull]
    return subprocess.run(
        [*command, "-W", "ignore", "--rootdir", str(folder), str(folder), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_failing_coroutine_fails_and_names_its_seed(tmp_path: Path) -> None:
    done = run_inner(tmp_path, "async def test_a(seed):\n    assert seed == 0\n", "--seed", "41")
    assert done.returncode == 1
    assert "assert 41 == 0" in done.stdout
    assert "--seed 41" in done.stdout
    assert "1 failed" in done.stdout


FAMILIES = """
import pytest

@pytest.mark.quick(3)
@pytest.mark.parametrize("number", range(9))
def test_number(number): pass

@pytest.mark.quick(each="kind")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", "xyz")
def test_kind(kind, size): pass

@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_size(size): pass

@pytest.mark.extended
def test_more(): pass
"""


@pytest.mark.extended
def test_quick_suite_and_the_cases_that_it_leaves_out_are_everything(tmp_path: Path) -> None:
    def names(expression: str) -> set[str]:
        done = run_inner(tmp_path, FAMILIES, "--collect-only", "-q", "-m", expression)
        return set(re.findall(r"(?<=::test_)\S+", done.stdout))

    quick, extended = names("not slow and not extended"), names("extended and not slow")
    kinds = {"kind[x-1]", "kind[y-2]", "kind[z-1]"}
    assert quick == {"number[0]", "number[4]", "number[8]", *kinds, "size[1]"}
    assert quick | extended == names("not slow")
    assert not quick & extended


def test_nothing_but_two_markers_leaves_a_test_out(request: pytest.FixtureRequest) -> None:
    if request.config.option.keyword:
        pytest.skip("`-k` leaves out what it likes")
    left_out = request.config.stash[LEFT_OUT]
    markers = {item: {mark.name for mark in item.iter_markers()} for item in left_out}
    assert [item.nodeid for item in left_out if not markers[item] & {"slow", "extended"}] == []
    if "extended" in request.config.option.markexpr:
        quick = {item.path for item in request.session.items}
        assert {item.path for item in left_out if "slow" not in markers[item]} <= quick


def test_make_test_all_leaves_out_slow_tests_alone() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    expression = settings["addopts"][settings["addopts"].index("-m") + 1]
    assert expression == "not slow and not extended"
    recipes = (ROOT / "Makefile").read_text("utf-8").split("\n\n")
    (quick,) = [recipe for recipe in recipes if recipe.startswith("test:")]
    (everything,) = [recipe for recipe in recipes if recipe.startswith("test-all:")]
    assert " -m " not in quick.replace("python -m pytest", "")
    assert everything.partition(":")[2] == quick.partition(":")[2].replace(
        "loadgroup", 'loadgroup -m "not slow"'
    )
    assert "make test-all" in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()


GROUPS = """
import os
import pytest

@pytest.mark.net
@pytest.mark.parametrize("number", range(8))
def test_net(number):
    print(f"net on {os.environ['PYTEST_XDIST_WORKER']}.")
"""


@pytest.mark.extended
def test_tests_with_sockets_share_one_worker(tmp_path: Path) -> None:
    done = run_inner(tmp_path, GROUPS, "-n", "2", "--dist", "loadgroup", "-rP")
    assert "8 passed" in done.stdout
    assert len(set(re.findall(r"net on (\w+)\.", done.stdout))) == 1
