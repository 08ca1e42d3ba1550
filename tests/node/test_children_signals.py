"""Signals that go to the whole group are the parent's to understand."""

import signal

import pytest

from training.channel.child_process import leave_interrupts_to_parent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_child_leaves_signals_of_the_group_to_its_parent(number: signal.Signals) -> None:
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        leave_interrupts_to_parent()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
