"""Coroutine tests under trio, the virtual clock, the seed."""

import faulthandler
import gc
import inspect
import logging
import os
import random
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

# A busy machine holds any example up for a second.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

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
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.seed is None:
        config.option.seed = SEED
    if config.option.seed < 0:
        config.option.seed = random.SystemRandom().randrange(2**32)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(config.option.seed)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where workers share a run, one of them has all tests with real sockets: they are timed.

    It has them first, or the others would wait for it in the end.
    """
    items.sort(key=lambda item: item.get_closest_marker("net") is None)
    for item in items:
        if item.get_closest_marker("net"):
            item.add_marker(pytest.mark.xdist_group("net"))


def pytest_collection_finish() -> None:
    """Nine thousand tests stay to the end. Each collection of garbage would look through all of
    them, and some tests ask for one to see who holds what. The others it need not disturb often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


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
    replay = f'python -m pytest "{request.node.nodeid}" --seed {number}'
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
