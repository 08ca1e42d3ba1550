"""Cells from several sources: all are asked, nobody waits for the slow, nothing comes twice."""

import random
from itertools import count

import pytest

from protocol.catching_up.cell_fetch import (
    CELL_S,
    GROWTH,
    HOPELESS_S,
    NO_CELL_S,
    REST_S,
    STALL_S,
    WINDOW_BYTES_MAX,
    CellBatch,
    CellFetch,
)
from protocol.frames import Bulk
from protocol.identity import PeerId
from tests.node.builders import peers_named

A, B, C, D = peers_named(4)
SUBJECT, OTHER = b"s" * 32, b"o" * 32
MIB = 1 << 20


def fetch_of(cells: int = 8, *, size: int = MIB, batches: int = 1, held=()) -> CellFetch:
    subjects = (SUBJECT, OTHER)[:batches]
    kind = Bulk.STATE if batches == 1 else Bulk.STEP
    fetch = CellFetch(
        [CellBatch(kind, subject, (size,) * cells) for subject in subjects], now_s=0.0
    )
    fetch.begin({SUBJECT: held}, now_s=0.0)
    return fetch


def asked(fetch: CellFetch, able, now_s: float = 0.0, lag_s: float = 0.0):
    """By source the cells that it is asked for now."""
    found: dict[PeerId, list[int]] = {}
    for peer, _, _, cells in fetch.due(able, lag_s=lag_s, now_s=now_s):
        found.setdefault(peer, []).extend(cells)
    return found


class Line:
    """A source that gives one cell after the other, at its rate; 0 never gives any."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.waiting: list[int] = []
        self.free = 0.0
        self.given = 0

    def step(self, now_s: float, step_s: float) -> list[int]:
        self.free = min(self.free + step_s * self.bytes_per_s, MIB) if self.waiting else 0.0
        if self.free < MIB or not self.waiting:
            return []
        self.free = 0.0
        self.given += 1
        return [self.waiting.pop(0)]


def played(lines: dict[PeerId, Line], cells: int, *, max_s: float = 500.0) -> float:
    """Fetch to the end; how long it took."""
    fetch = fetch_of(cells)
    for tick in count():
        now_s = 0.05 * tick
        assert now_s < max_s, "it never ends"
        for peer, found in asked(fetch, lines, now_s).items():
            lines[peer].waiting += found
        for peer, line in lines.items():
            for cell in line.step(now_s, 0.05):
                fetch.arrived(peer, SUBJECT, (cell,), now_s=now_s)
        if fetch.is_whole:
            assert fetch.here_bytes == fetch.total_bytes == cells * MIB
            return now_s
    raise AssertionError


def test_first_cells_are_asked_of_everybody_and_each_of_one():
    found = asked(fetch_of(), (A, B, C))
    assert sorted(found) == sorted((A, B, C))
    cells = [cell for of_one in found.values() for cell in of_one]
    assert len(cells) == len(set(cells)) == 6


def test_all_lines_together_are_used():
    lines = {peer: Line(4 * MIB) for peer in (A, B, C)}
    assert played(lines, 120) == pytest.approx(10.0, rel=0.2)
    assert all(30 <= line.given <= 50 for line in lines.values())


def test_a_slow_source_gives_what_it_can_and_holds_nobody_up():
    lines = {A: Line(8 * MIB), B: Line(8 * MIB), C: Line(0.05 * MIB)}
    assert played(lines, 80) < 80 / 16 * 1.5
    # Nothing but the last cells came twice.
    assert sum(line.given + len(line.waiting) for line in lines.values()) <= 80 + 4


def test_cells_of_a_silent_source_are_given_by_the_others_after_a_while():
    lines = {A: Line(4 * MIB), B: Line(0)}
    assert played(lines, 40) < 40 / 4 + STALL_S + 2.0


def test_source_that_dies_in_the_middle_costs_nothing_but_its_share():
    fetch = fetch_of(4)
    first = asked(fetch, (A, B))
    fetch.arrived(A, SUBJECT, first[A][:1], now_s=0.5)
    again = asked(fetch, (A,), now_s=0.6)
    assert set(again[A]) <= set(first[B]) | set(first[A])
    assert first[A][0] not in again[A]


def test_silent_source_rests_and_gets_another_chance_later():
    fetch = fetch_of(64)
    asked(fetch, (A, B))
    fetch.arrived(B, SUBJECT, (2,), now_s=0.1)
    late_s = STALL_S + 0.1
    fetch.moved(B, now_s=late_s)
    assert A not in asked(fetch, (A, B), now_s=late_s)
    fetch.moved(B, now_s=late_s + REST_S)
    assert A in asked(fetch, (A, B), now_s=late_s + REST_S)


def test_source_rests_twice_as_long_each_time_up_to_a_limit_until_it_gives():
    fetch, now_s = fetch_of(4), 0.0
    asked(fetch, (A,))
    for times in (1, 2, 4, 8, 8):
        fetch.rest(A, now_s=now_s)
        assert asked(fetch, (A,), now_s + times * REST_S - 0.1) == {}
        now_s += times * REST_S
        assert A in asked(fetch, (A,), now_s)
    fetch.arrived(A, SUBJECT, (0,), now_s=now_s)
    fetch.rest(A, now_s=now_s)
    assert A in asked(fetch, (A,), now_s + REST_S)


def test_source_without_work_leaves_alone_what_comes_half_as_fast_as_it_could_give_it():
    fetch = fetch_of(4, size=4 * MIB)
    first = asked(fetch, (A, B))
    fetch.arrived(A, SUBJECT, first[A][:1], now_s=2.0)
    fetch.arrived(B, SUBJECT, first[B], now_s=2.0)
    # A needs two seconds for its last one, B would need one.
    assert asked(fetch, (A, B), 2.0) == {}
    assert B in asked(fetch, (A, B), 3.0 + STALL_S)


def test_source_without_work_gives_what_would_be_long_in_coming():
    fetch = fetch_of(5, size=4 * MIB)
    first = asked(fetch, (A, B))
    fetch.arrived(B, SUBJECT, first[B], now_s=1.0)
    fetch.arrived(B, SUBJECT, asked(fetch, (A, B), 1.0)[B], now_s=1.5)
    fetch.arrived(A, SUBJECT, first[A][:1], now_s=5.0)
    # A needs five seconds for its last one, B hardly two.
    assert asked(fetch, (A, B), 5.0) == {B: first[A][1:]}
    assert asked(fetch, (A, B), 5.1) == {}


def test_fast_source_is_asked_for_what_it_has_given_twice_and_no_more_than_a_window():
    fetch, here = fetch_of(512), 0
    cells = asked(fetch, (A,))[A]
    for step in range(1, 8):
        fetch.arrived(A, SUBJECT, cells, now_s=1e-3 * step)
        here += len(cells)
        cells = asked(fetch, (A,), 1e-3 * step)[A]
        assert len(cells) * MIB == min(WINDOW_BYTES_MAX, GROWTH * here * MIB)


def test_time_that_this_node_lost_itself_is_nobodys_silence():
    fetch = fetch_of(2)
    asked(fetch, (A,))
    assert asked(fetch, (A, B), now_s=STALL_S + 1.0, lag_s=2.0) == {}
    assert asked(fetch, (A, B), now_s=STALL_S + 1.0, lag_s=0.0)[B] == [0, 1]


def test_bytes_of_a_long_cell_are_progress():
    fetch = fetch_of(2)
    asked(fetch, (A,))
    for step in range(1, 10):
        fetch.moved(A, now_s=0.9 * STALL_S * step)
        assert B not in asked(fetch, (A, B), now_s=0.9 * STALL_S * step)


def test_liar_is_never_asked_again_and_its_cells_are_open():
    fetch = fetch_of(4)
    mine = asked(fetch, (A, B))[A]
    fetch.lied(A)
    fetch.arrived(B, SUBJECT, (2, 3), now_s=0.1)
    assert asked(fetch, (A, B), now_s=0.1) == {B: mine}
    assert asked(fetch, (A,), now_s=1e6) == {}


def test_what_is_held_is_not_asked_for_and_the_rest_is():
    fetch = fetch_of(4, held=(0, 1, 3))
    assert asked(fetch, (A, B)) in ({A: [2]}, {B: [2]})
    assert fetch.here_bytes == 3 * MIB


def test_nobody_gives_anything_for_long_is_hopeless_and_one_byte_is_hope():
    fetch = fetch_of(4)
    asked(fetch, (A,))
    assert not fetch.is_hopeless(HOPELESS_S, lag_s=0.0)
    assert fetch.is_hopeless(HOPELESS_S + 0.1, lag_s=0.0)
    assert not fetch.is_hopeless(HOPELESS_S + 0.1, lag_s=0.2), "it was late itself"
    fetch.moved(A, now_s=1.0)
    assert not fetch.is_hopeless(HOPELESS_S + 0.1, lag_s=0.0)


def test_what_one_lacks_is_asked_of_the_others_at_once_and_never_of_it_again():
    fetch = fetch_of(4)
    cells = asked(fetch, (A, B))[A]
    fetch.lacks(A, Bulk.STATE, SUBJECT)
    assert not fetch.is_lacked((A, B))
    fetch.arrived(B, SUBJECT, (2, 3), now_s=0.1)
    assert set(asked(fetch, (A, B), 0.1)[B]) < set(cells)
    fetch.arrived(B, SUBJECT, cells[:1], now_s=0.2)
    assert asked(fetch, (A, B), 0.2) == {B: cells[1:]}
    assert A not in asked(fetch, (A, B), 1000.0)


def test_what_all_lack_is_lacked_and_whoever_comes_later_may_have_it():
    fetch = fetch_of()
    asked(fetch, (A, B))
    for peer in (A, B):
        fetch.lacks(peer, Bulk.STATE, SUBJECT)
    assert fetch.is_lacked((A, B))
    assert fetch.is_lacked((A,))
    assert not fetch.is_lacked(())
    assert not fetch.is_lacked((A, B, C))
    assert asked(fetch, (A, B, C)) == {C: [0, 1]}


def test_nobody_lacks_what_it_was_not_asked_for():
    fetch = fetch_of()
    fetch.lacks(A, Bulk.STATE, SUBJECT)
    asked(fetch, (A, B))
    for bulk, subject in ((Bulk.STEP, SUBJECT), (Bulk.STATE, OTHER)):
        fetch.lacks(A, bulk, subject)
        fetch.lacks(B, bulk, subject)
    assert not fetch.is_lacked((A, B))
    fetch.lacks(A, Bulk.STATE, SUBJECT)
    assert not fetch.is_lacked((A, B)), "not before all have said so"


def test_liars_do_not_count_among_those_who_may_have_it():
    fetch = fetch_of()
    asked(fetch, (A, B))
    fetch.lacks(A, Bulk.STATE, SUBJECT)
    fetch.lied(B)
    assert fetch.is_lacked((A, B))


def test_a_giver_out_of_reach_and_what_was_here_before_are_reasons_to_wait():
    fetch = fetch_of()
    asked(fetch, (A, B))
    fetch.arrived(A, SUBJECT, (0,), now_s=0.1)
    fetch.lacks(B, Bulk.STATE, SUBJECT)
    assert not fetch.is_lacked((B,)), "A gave some of it, and may be back"
    unasked = fetch_of()
    asked(unasked, (B,))
    unasked.arrived(C, SUBJECT, (0,), now_s=0.1)
    unasked.lacks(B, Bulk.STATE, SUBJECT)
    assert not unasked.is_lacked((B,)), "C gave a cell that nobody asked it for, and may have more"
    resumed = fetch_of(held=(0,))
    asked(resumed, (B,))
    resumed.lacks(B, Bulk.STATE, SUBJECT)
    assert not resumed.is_lacked((B,)), "somebody had it before this node was restarted"


def test_who_lacks_one_step_still_gives_the_others():
    fetch = fetch_of(4, size=1, batches=2)
    asked(fetch, (A, B))
    for step in range(4):
        fetch.arrived(A, SUBJECT, (step,), now_s=0.1 * step)
    of_a = asked(fetch, (A,), 0.4)[A]
    fetch.lacks(A, Bulk.STEP, OTHER)
    assert not any(fetch.is_asked(A, OTHER, cell) for cell in of_a)
    for now_s in (0.5, 1.5, 20.0):
        assert A not in asked(fetch, (A, B), now_s), "also not to help out whoever is slow"


def test_steps_are_lacked_as_soon_as_one_of_them_is():
    fetch = fetch_of(1, batches=2)
    assert asked(fetch, (A,)) == {A: [0, 0]}
    assert not fetch.is_lacked((A,))
    fetch.lacks(A, Bulk.STEP, OTHER)
    assert fetch.is_lacked((A,))


def test_unknown_subjects_and_cells_that_nobody_asked_for_change_nothing():
    fetch = fetch_of(4)
    fetch.arrived(A, OTHER, (0,), now_s=0.0)
    assert fetch.here_bytes == 0
    assert not fetch.is_asked(A, SUBJECT, 0)
    mine = asked(fetch, (A,))[A]
    assert fetch.is_asked(A, SUBJECT, mine[0])
    assert not fetch.is_asked(B, SUBJECT, mine[0])


def test_batches_come_in_their_order():
    fetch = fetch_of(2, batches=2)
    found = [(subject, cells) for _, subject, _, cells in fetch.due((A,), lag_s=0.0, now_s=0.0)]
    assert found == [(SUBJECT, (0, 1))]


@pytest.mark.parametrize("cells", [4, 40])
def test_wrong_batch_of_several_sources_is_fetched_again_from_one(cells):
    fetch = fetch_of(cells, batches=2)
    givers: set[PeerId] = set()
    for step in range(1, 120):
        if step == 60:
            assert fetch.is_whole
            assert fetch.redo(SUBJECT) is None, "either may have lied"
            givers.clear()
        for peer, subject, _, given in list(fetch.due((A, B), lag_s=0.0, now_s=0.1 * step)):
            givers |= {peer} if subject == SUBJECT else set()
            fetch.arrived(peer, subject, given, now_s=0.1 * step)
    assert len(givers) == 1
    assert fetch.is_whole
    (liar,) = givers
    assert fetch.redo(SUBJECT) == liar
    honest = ({A, B} - {liar}).pop()
    assert set(asked(fetch, (A, B), now_s=20.0)) == {honest}


def test_wrong_batch_is_fetched_from_another_where_the_one_that_is_asked_lacks_it():
    fetch = fetch_of(4, batches=2)
    for peer, cells in asked(fetch, (A, B)).items():
        fetch.arrived(peer, SUBJECT, tuple(cells), now_s=0.1)
    assert fetch.redo(SUBJECT) is None
    asked_of: list[PeerId] = []
    for step in range(2, 30):
        for peer, subject, kind, cells in fetch.due((A, B), lag_s=0.0, now_s=0.1 * step):
            asked_of += [peer] if subject == SUBJECT else []
            if subject == SUBJECT and peer == asked_of[0]:
                fetch.lacks(peer, kind, subject)
            else:
                fetch.arrived(peer, subject, cells, now_s=0.1 * step)
    assert fetch.is_whole
    assert set(asked_of[1:]) == {A, B} - {asked_of[0]}


def test_any_order_of_answers_losses_and_deaths_comes_to_an_end(seed):
    rng = random.Random(seed)
    fetch = fetch_of(40, size=1000)
    waiting: dict[PeerId, list[int]] = {A: [], B: [], C: [], D: []}
    lacking = rng.sample((A, B, C), rng.randrange(4))
    for step in range(4000):
        now_s = 0.25 * step
        able = [peer for peer in waiting if peer == D or rng.random() < 0.8]
        for peer in waiting.keys() - set(able):
            waiting[peer].clear()
        for peer, cells in asked(fetch, able, now_s).items():
            assert peer in able
            waiting[peer] += cells
        assert not fetch.is_lacked(able), "D has it"
        for source in fetch._sources.values():
            assert source.asked_bytes == 1000 * len(source.asked)
        for peer in lacking:
            if waiting[peer] and rng.random() < 0.3:
                fetch.lacks(peer, Bulk.STATE, SUBJECT)
                waiting[peer].clear()
        for peer in sorted(waiting.keys() - set(lacking)):
            if waiting[peer] and rng.random() < 0.3:
                cell = waiting[peer].pop(rng.randrange(len(waiting[peer])))
                if rng.random() < 0.7:  # The others are lost on the way.
                    fetch.arrived(peer, SUBJECT, (cell,), now_s=now_s)
        if fetch.is_whole:
            return
    raise AssertionError("it never ended")


def test_source_whose_pieces_never_make_a_cell_rests_and_then_all_is_hopeless():
    fetch = fetch_of(4)
    assert asked(fetch, (A,)) == {A: [0, 1]}
    times, now_s = [], 0.0
    while not fetch.is_hopeless(now_s, lag_s=0.0):
        now_s += STALL_S - 1.0
        fetch.moved(A, now_s=now_s)
        if asked(fetch, (A,), now_s):
            times.append(now_s)
    assert NO_CELL_S < now_s < NO_CELL_S + STALL_S
    assert len(times) == 1
    assert CELL_S + REST_S < times[0] < CELL_S + REST_S + 2 * STALL_S


def test_source_that_gives_a_cell_now_and_then_is_waited_for():
    fetch = fetch_of(4)
    asked(fetch, (A,))
    for cell in range(4):
        now_s = (cell + 1) * (CELL_S - 2 * STALL_S)
        for part in range(60):
            at_s = now_s - (60 - part) * (STALL_S - 1.0)
            fetch.moved(A, now_s=at_s)
            asked(fetch, (A,), at_s)
            assert not fetch.is_hopeless(at_s, lag_s=0.0)
        fetch.arrived(A, SUBJECT, (cell,), now_s=now_s)
        asked(fetch, (A,), now_s)
    assert fetch.is_whole
