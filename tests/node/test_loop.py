"""A machine that was suspended: what is over by then, and who notices."""

import time

import trio

from node.processes.loop import BootClock, run_loop
from protocol.core.liveness import Liveness
from tests.node.builders import peers_named

NIGHT_S = 8 * 3600.0


def test_deadline_that_the_machine_slept_through_is_over_when_it_wakes() -> None:
    slept_s = [0.0]

    async def main() -> None:
        with trio.move_on_after(3600.0) as lease:
            slept_s[0] = NIGHT_S
            await trio.Event().wait()
        assert lease.cancelled_caught

    trio.run(main, clock=BootClock(lambda: time.perf_counter() + slept_s[0]))


def test_node_whose_machine_slept_knows_that_it_was_away_and_suspects_nobody_for_it() -> None:
    me, other = peers = peers_named(2)
    slept_s = [0.0]

    async def main() -> None:
        began_s = trio.current_time()
        liveness = Liveness(me, heartbeat_s=0.5, suspect_s=2.0, now_s=began_s)
        liveness.link_up(other, began_s)
        slept_s[0] = NIGHT_S
        woken_s = trio.current_time()
        assert liveness.tick(woken_s)
        assert liveness.suspects(peers, woken_s) == frozenset()

    trio.run(main, clock=BootClock(lambda: time.perf_counter() + slept_s[0]))


def test_network_process_runs_on_the_clock_that_goes_on() -> None:
    clocks = []

    async def main(word: str) -> None:
        clocks.append((word, type(trio.lowlevel.current_clock())))
        await trio.lowlevel.checkpoint()

    run_loop(main, "said")
    assert clocks == [("said", BootClock)]


def test_clock_goes_forward_from_one_reading_to_the_next() -> None:
    clock = BootClock()
    readings = [clock.current_time() for _ in range(100)]
    assert readings == sorted(readings)
    assert 0.0 < clock.deadline_to_sleep_time(clock.current_time() + 60.0) <= 60.0
