"""A signal ends a bench, and whatever it began."""

import os
import signal
import sys

import pytest

from protocol.errors import BarnraiseError, ConfigError, StateError
from sim.bench.link import PathOptions, bench_path
from sim.processes.shaper import shape_named
from sim.processes.sitting import Interrupted, run_until_signal, until_signal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_block_is_left_in_order_at_a_signal(number: signal.Signals) -> None:
    put_away = []
    before = signal.getsignal(number)

    def work() -> None:
        with until_signal():
            try:
                os.kill(os.getpid(), number)
                signal.pause()
            finally:
                put_away.append(True)

    with pytest.raises(Interrupted) as raised:
        work()
    assert raised.value.status == 128 + number
    assert put_away == [True]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("kind", [ConfigError, StateError])
def test_error_that_a_user_can_read_comes_as_itself_and_not_in_a_group(
    kind: type[BarnraiseError],
) -> None:
    async def play() -> None:
        raise kind("a folder that is read-only")

    with pytest.raises(kind, match="read-only"):
        run_until_signal(play)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_path_leaves_no_end_at_a_signal(number: signal.Signals) -> None:
    """The taker lives of its connection: a parent that just died left it waiting for ever."""

    def end(line: str) -> None:
        os.kill(os.getpid(), number)

    options = PathOptions(shape=shape_named("1mbit,60ms"), mib=64)
    with pytest.raises(Interrupted) as raised:
        bench_path(options, end)
    assert raised.value.status == 128 + number
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
