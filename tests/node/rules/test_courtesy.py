"""How long COMMITs are held for joiners: for those who need it, and within bounds (R11)."""

import pytest

from protocol.rounds.lapses import (
    ASKED_S,
    BUDGET_S,
    DEADLINE_SHARE,
    HOLD_S,
    JOINERS_MAX,
    REFILL,
    ROUNDS_BEHIND,
    Courtesy,
)
from protocol.rounds.round_view import RoundView
from tests.node import builders
from tests.node.builders import head_of, peers_named

ME, OTHER, JOINER, LATER = peers_named(4)
DEADLINE_S = 1.2
ROUND_S = 0.1


def view_of(*members, started_s: float = 0.0) -> RoundView:
    head = head_of(members)
    view = builders.view_of(ME, head)
    view.times.started_s = started_s
    return view


def test_nothing_is_held_while_nobody_joins():
    assert not Courtesy().holds(view_of(ME), DEADLINE_S, ROUND_S)


def test_commit_is_held_for_who_asked_until_its_seat_is_proved():
    courtesy, view = Courtesy(), view_of(ME)
    courtesy.asked(JOINER, 0.0)
    assert courtesy.holds(view, DEADLINE_S, ROUND_S)
    assert courtesy.until_s == HOLD_S
    assert courtesy.holds(view, DEADLINE_S, 0.5)
    view.seats.proven.add(JOINER)
    assert not courtesy.holds(view, DEADLINE_S, 0.5)
    assert not courtesy.holds(view, DEADLINE_S, 0.6)


def test_it_ends_though_the_seat_is_never_proved():
    courtesy, view = Courtesy(), view_of(ME)
    courtesy.asked(JOINER, 0.0)
    assert courtesy.holds(view, DEADLINE_S, HOLD_S - 0.01)
    assert not courtesy.holds(view, DEADLINE_S, HOLD_S)


def test_where_others_wait_for_the_parts_it_is_shorter():
    courtesy, view = Courtesy(), view_of(ME, OTHER)
    courtesy.asked(JOINER, 0.0)
    assert courtesy.holds(view, DEADLINE_S, ROUND_S)
    assert courtesy.until_s == pytest.approx(DEADLINE_SHARE * DEADLINE_S)


def test_round_that_takes_long_anyway_is_not_held():
    courtesy = Courtesy()
    courtesy.asked(JOINER, 5.0)
    assert not courtesy.holds(view_of(ME), DEADLINE_S, 5.0)


def test_members_and_the_convicted_are_not_waited_for():
    courtesy = Courtesy()
    courtesy.asked(JOINER, 0.0)
    assert not courtesy.holds(view_of(ME, JOINER), DEADLINE_S, ROUND_S)
    view = view_of(ME)
    view.suspect(frozenset(), frozenset({JOINER}))
    assert not courtesy.holds(view, DEADLINE_S, ROUND_S)


def test_joiner_is_forgotten_when_silent_and_not_while_it_tells_that_it_is_behind():
    courtesy = Courtesy()
    courtesy.told(LATER, ROUNDS_BEHIND, 0.0)
    assert not courtesy.joiners(0.0), "it has not asked"
    courtesy.asked(JOINER, 0.0)
    courtesy.told(JOINER, ROUNDS_BEHIND, ASKED_S)
    assert courtesy.joiners(2 * ASKED_S) == {JOINER}
    courtesy.told(JOINER, ROUNDS_BEHIND - 1, 2 * ASKED_S)
    assert not courtesy.joiners(2 * ASKED_S + 0.1)


def test_what_was_not_used_is_given_back():
    courtesy = Courtesy()
    for number in range(1000):
        view = view_of(ME, started_s=number * ROUND_S)
        courtesy.asked(JOINER, view.times.started_s)
        assert courtesy.holds(view, DEADLINE_S, view.times.started_s)
        view.seats.proven.add(JOINER)
        assert not courtesy.holds(view, DEADLINE_S, view.times.started_s + 0.001)


@pytest.mark.quick(1)
@pytest.mark.parametrize("num_liars", [1, 500])
def test_nobody_holds_a_run_up_however_many_ask(num_liars):
    liars, courtesy, now_s = peers_named(num_liars), Courtesy(), 0.0
    held_s, end_s = 0.0, 400.0
    while now_s < end_s:
        for liar in liars:
            courtesy.asked(liar, now_s)
        assert len(courtesy.joiners(now_s)) <= JOINERS_MAX
        view, ready_s = view_of(ME, started_s=now_s), now_s + ROUND_S
        now_s = ready_s
        while courtesy.holds(view, DEADLINE_S, now_s):
            now_s += 0.05
        held_s += now_s - ready_s
    assert BUDGET_S < held_s <= BUDGET_S + REFILL * end_s + HOLD_S
