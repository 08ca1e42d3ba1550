"""The edge of searches: what has been said in time is heard, also by a machine that is busy."""

import time

import trio
from trio.testing import MockClock

from dht.kademlia.searching import _Answer, _next
from tests.dht.network import peer_id


async def test_answer_that_lies_unread_behind_other_tasks_is_heard_after_a_late_waking() -> None:
    answers_in, answers = trio.open_memory_channel[_Answer](4)

    async def say() -> None:
        for _ in range(6):  # As many turns of the loop as an answer takes from the socket.
            await trio.lowlevel.checkpoint()
        answers_in.send_nowait((peer_id(1), None))

    async with trio.open_nursery() as nursery:
        busy_until_s = time.monotonic() + 0.03
        deadline_s = trio.current_time() + 0.01
        nursery.start_soon(say)
        while time.monotonic() < busy_until_s:
            pass  # Another task keeps the loop beyond the deadline.
        with trio.fail_after(5.0):
            assert await _next(answers, deadline_s) == (peer_id(1), None)


async def test_silence_ends_with_the_deadline_where_nobody_is_late(
    autojump_clock: MockClock,
) -> None:
    _, answers = trio.open_memory_channel[_Answer](4)
    assert await _next(answers, trio.current_time() + 0.5) is None
    assert trio.current_time() <= 0.51
