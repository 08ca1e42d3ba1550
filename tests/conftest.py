"""Coroutine tests under trio, the virtual clock, the seed, and what the quick suite leaves out."""

import faulthandler
import gc
import inspect
import logging
import os
import random
import re
import signal
from collections.abc import Generator
from functools import partial

import hypothesis
import pytest
import trio
import trio.testing

SEED = 2026
"""That of the gate: what passes in one checkout passes in the next. `make hunt` draws others."""

SLOW_TIMEOUT_S = 3600.0
"""After which a slow test that hangs fails; others have `faulthandler_timeout`."""

QUICK_EXAMPLES = 20
"""Examples of Hypothesis for one test where `extended` tests are left out; 100 otherwise."""

# A busy machine holds any example up for a second.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=QUICK_EXAMPLES)

LEFT_OUT = pytest.StashKey[list[pytest.Item]]()
"""The tests that `-m` and `-k` leave out of this run."""

_STDERR = pytest.StashKey[int]()
"""Where stacks are written: at a time-out standard error is a file of the test's."""


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "the number behind the fixture `seed` and Hypothesis; -1 draws one"
    parser.addoption("--seed", type=int, help=help_)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed, before workers start and have it from here.

    A shell that runs us in the background has us ignore Ctrl+C, and all our children with us.
    """
    config.stash[_STDERR] = os.dup(2)
    config.stash[LEFT_OUT] = []
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.seed is None:
        config.option.seed = SEED
    if config.option.seed < 0:
        config.option.seed = random.SystemRandom().randrange(2**32)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(config.option.seed)
    # What is imported and collected stays to the end: hardly anything of it is garbage.
    gc.set_threshold(100_000, 50, 100)
    # Before any module of tests is imported: its decorators copy what is loaded here.
    is_quick = "not extended" in config.option.markexpr
    hypothesis.settings.load_profile("quick" if is_quick else "untimed")


def pytest_report_header(config: pytest.Config) -> str:
    examples = hypothesis.settings().max_examples
    return f"seed: {config.option.seed}, examples of Hypothesis: {examples}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that the quick suite leaves out, before `-m` is applied.

    Where workers share a run, one of them has all tests with real sockets: they are timed. It has
    them first, or the others would wait for it in the end.
    """
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family in families.values():
        kept = quick_cases(family)
        for item in family:
            if item not in kept:
                item.add_marker(pytest.mark.extended)
    items.sort(key=lambda item: item.get_closest_marker("net") is None)
    for item in items:
        if item.get_closest_marker("net"):
            item.add_marker(pytest.mark.xdist_group("net"))
        group = item.get_closest_marker("xdist_group")
        if group and "PYTEST_XDIST_WORKER" in os.environ:
            # The scheduler reads groups in names. pytest-xdist 3.8 writes them into an attribute
            # that pytest 9.2 does not read any more.
            item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")


def quick_cases(family: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of one parametrised test that its marker `quick` keeps."""
    mark = family[0].get_closest_marker("quick")
    assert mark is not None
    if "each" not in mark.kwargs:
        (count,) = mark.args
        last = len(family) - 1
        return [family[last * at // max(1, count - 1)] for at in range(count)]
    kinds: dict[int, list[pytest.Item]] = {}
    for item in family:
        assert isinstance(item, pytest.Function)
        kinds.setdefault(id(item.callspec.params[mark.kwargs["each"]]), []).append(item)
    # Each kind has another one of its cases: the values of the other parameters all have a turn.
    return [cases[at % len(cases)] for at, cases in enumerate(kinds.values())]


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT].append(item)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end. Each collection of garbage would look through all of
    them, and some tests ask for one to see who holds what. The others it need not disturb often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end, on the virtual clock if it asks for one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    clock = next((a for a in arguments.values() if isinstance(a, trio.abc.Clock)), None)
    trio.run(partial(pyfuncitem.obj, **arguments), clock=clock)
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow"):
        # Chaos and kill loops take longer than the limit that the runner has set just before.
        file = item.config.stash[_STDERR]
        faulthandler.dump_traceback_later(SLOW_TIMEOUT_S, exit=True, file=file)
    if item.get_closest_marker("gpu"):
        # Here and not above: most runs need no torch, and it takes a second to load.
        import torch

        if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
            pytest.skip("needs a CUDA or MPS device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hostile text that a test logged is escaped: a report is sent between processes as UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """A clock that leaps to the next deadline as soon as every task waits."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """One number for all tests of a run; a failure says how to have the same one again."""
    number: int = request.config.option.seed
    name = re.sub(r"@\w+$", "", request.node.nodeid)
    replay = f'python -m pytest "{name}" --seed {number}'
    request.node.add_report_section("setup", "seed", replay)
    return number


@pytest.fixture(autouse=True)
def _log_levels() -> Generator[None]:
    """What a command silences in its own process is heard again in the next test."""
    loggers = [logging.getLogger(name) for name in ("node", "sim")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
