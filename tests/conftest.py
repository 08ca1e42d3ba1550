"""Coroutine tests under trio, the virtual clock, the seed."""

import inspect
import random
import signal
from functools import partial

import pytest
import trio
import trio.testing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="the number behind the fixture `seed`")


def pytest_configure() -> None:
    """A shell that runs us in the background has us ignore Ctrl+C, and all our children with us."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
    if item.get_closest_marker("gpu"):
        # Here and not above: most runs need no torch, and it takes a second to load.
        import torch

        if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
            pytest.skip("needs a CUDA or MPS device")


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """A clock that leaps to the next deadline as soon as every task waits."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture(scope="session")
def session_seed(pytestconfig: pytest.Config) -> int:
    given: int | None = pytestconfig.getoption("--seed")
    return random.SystemRandom().randrange(2**32) if given is None else given


@pytest.fixture
def seed(request: pytest.FixtureRequest, session_seed: int) -> int:
    """A fresh number for each session; a failure says how to have the same one again."""
    replay = f'python -m pytest "{request.node.nodeid}" --seed {session_seed}'
    request.node.add_report_section("setup", "seed", replay)
    return session_seed
