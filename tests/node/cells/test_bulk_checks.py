"""Checks that wait for the worker go there together, and each of them answers for itself."""

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.plane.bulk import TOGETHER_MAX, Checks
from protocol.errors import ProofError


class Worker:
    """The driver's: one thread, which the test holds."""

    def __init__(self):
        self.limiter = trio.CapacityLimiter(1)
        self.trips = 0

    async def compute(self, work):
        def counted():
            self.trips += 1
            work()

        await trio.to_thread.run_sync(counted, limiter=self.limiter)


async def held(worker, free):
    """Keep the worker until `free`."""
    async with worker.limiter:
        await free.wait()


async def test_checks_that_wait_go_together_in_their_order():
    worker, free, done = Worker(), trio.Event(), []
    checks = Checks(worker.compute)
    count = 2 * TOGETHER_MAX + 1

    async def check(number):
        await checks.run(lambda: done.append(number))
        assert number in done

    async with trio.open_nursery() as nursery:
        nursery.start_soon(held, worker, free)
        await wait_all_tasks_blocked()
        for number in range(count):
            nursery.start_soon(check, number)
            await wait_all_tasks_blocked()
        assert not done
        free.set()
    assert done == list(range(count))
    assert worker.trips == 3


async def test_cell_that_is_wrong_is_told_to_its_own_stream_alone():
    worker, free, found = Worker(), trio.Event(), []
    checks = Checks(worker.compute)

    def wrong():
        raise ProofError("wrong bytes")

    async def check(work):
        try:
            await checks.run(work)
            found.append("right")
        except ProofError as error:
            found.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(held, worker, free)
        await wait_all_tasks_blocked()
        for work in (lambda: None, wrong, lambda: None):
            nursery.start_soon(check, work)
            await wait_all_tasks_blocked()
        free.set()
    assert found == ["right", "wrong bytes", "right"]
    assert worker.trips == 1


@pytest.mark.parametrize("gone", [0, 1])
async def test_check_that_is_cancelled_is_not_done_and_the_others_are(gone):
    worker, free, done = Worker(), trio.Event(), []
    checks = Checks(worker.compute)
    scopes = [trio.CancelScope() for _ in range(3)]

    async def check(number):
        with scopes[number]:
            await checks.run(lambda: done.append(number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(held, worker, free)
        await wait_all_tasks_blocked()
        for number in range(3):
            nursery.start_soon(check, number)
            await wait_all_tasks_blocked()
        # The first has the turn and waits for the worker, the others wait for the turn.
        scopes[gone].cancel()
        await wait_all_tasks_blocked()
        free.set()
    assert done == [number for number in range(3) if number != gone]
    assert scopes[gone].cancelled_caught


async def test_check_that_nobody_is_before_waits_for_the_worker_alone():
    done: list[int] = []

    async def compute(work):
        work()

    checks = Checks(compute)
    for number in range(3):
        with pytest.raises(StopIteration):  # Through, without a step of the loop.
            checks.run(partial(done.append, number)).send(None)
    assert done == [0, 1, 2]
