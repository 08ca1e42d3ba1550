"""How long COMMITs are held for those who take the state: while they make progress, and within
bounds whatever they do (R11)."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from protocol.identity import PeerId
from protocol.messages import SealCertificate
from protocol.rounds.giving import (
    AHEAD_MAX,
    COMES_BACK,
    ERA_OF_TAKERS,
    LOOK_S,
    PROOF_S,
    SHORT_ROUND,
    SLOWEST_LINE,
    STILL_S,
    TAKERS_MAX,
    WORK_TIMES,
    Ending,
    Giving,
    taking_cap_s,
)
from protocol.rounds.lapses import DEADLINE_SHARE
from protocol.rounds.round_view import RoundView
from tests.node import builders
from tests.node.builders import Voice, head_of, peers_named

ME, OTHER, TAKER, SECOND = peers_named(4)
CAP_S = 60.0
DEADLINE_S = 5.0
LONG_S = SHORT_ROUND * CAP_S
"""What the work of a round takes that is not short."""

HEAD = 4
"""The round of the last seal in most of these tests: the one under way is the next."""

FAR = Ending(1000)


@cache
def seal_of(voters: tuple[PeerId, ...], head: int, new: tuple[PeerId, ...]) -> SealCertificate:
    found = head_of(voters, new)
    return replace(found, value=replace(found.value, round=head))


def view_of(
    *voters: PeerId, head: int = HEAD, new: tuple[PeerId, ...] = (), started_s: float = 0.0
) -> RoundView:
    """`new` are members that have SEALed nothing yet."""
    view = builders.view_of(ME, seal_of(voters or (ME, OTHER), head, new))
    view.times.started_s = started_s
    return view


def holds(giving: Giving, view: RoundView, now_s: float, ending: Ending = FAR) -> bool:
    return giving.holds(view, ending, deadline_s=DEADLINE_S, now_s=now_s)


def held_s(giving: Giving, view: RoundView, now_s: float, *, asks: bool = True) -> float:
    """For how long the COMMIT is held from now on, where the taker asks on and on."""
    began_s = now_s
    while holds(giving, view, now_s):
        now_s += LOOK_S
        if asks:
            giving.gave(TAKER, view.index - 1, now_s)
    return now_s - began_s


def test_nothing_is_held_while_nobody_takes_anything():
    assert not holds(Giving(CAP_S), view_of(), 0.0)


@pytest.mark.quick(1)
def test_run_goes_one_round_ahead_of_the_state_and_waits_there_until_the_seat_is_proved():
    giving = Giving(CAP_S)
    giving.gave(TAKER, HEAD, LONG_S)
    assert not holds(giving, view_of(), LONG_S)
    giving, view = Giving(CAP_S), view_of()
    giving.gave(TAKER, HEAD - AHEAD_MAX, LONG_S)
    assert holds(giving, view, LONG_S)
    giving.told(TAKER, 2, LONG_S + STILL_S - 1.0)
    assert holds(giving, view, LONG_S + STILL_S - 1.0)
    giving.told(TAKER, 0, LONG_S + STILL_S)
    assert holds(giving, view, LONG_S + STILL_S)
    view.seats.proven.add(TAKER)
    assert not holds(giving, view, LONG_S + STILL_S)


def test_no_short_round_is_sealed_while_a_state_is_given():
    # What it took is what it took when the COMMIT was ready first, however long it is held.
    giving, view = Giving(CAP_S), view_of()
    giving.gave(TAKER, HEAD, 0.0)
    assert holds(giving, view, 0.0)
    giving.gave(TAKER, HEAD, LONG_S)
    assert holds(giving, view, LONG_S)


def test_who_has_the_state_and_proves_no_seat_is_not_waited_for():
    giving, view = Giving(CAP_S), view_of()
    giving.gave(TAKER, HEAD - 1, 0.0)
    assert holds(giving, view, 1.0)
    giving.told(TAKER, 0, 1.0)
    assert holds(giving, view, 0.9 + PROOF_S)
    assert not holds(giving, view, 1.0 + PROOF_S)


@pytest.mark.parametrize("how", ["silent", "still", "gone", "convicted", "committed"])
def test_who_makes_no_progress_is_not_waited_for(how):
    new = (TAKER,) if how == "committed" else ()
    giving, view = Giving(CAP_S), view_of(new=new)
    giving.gave(TAKER, HEAD - 1, 0.0)
    assert holds(giving, view, 1.0)
    if how == "gone":
        giving.left(TAKER)
    elif how == "convicted":
        view.suspect(frozenset(), frozenset({TAKER}))
    elif how == "committed":
        seal = seal_of((ME, OTHER), HEAD, new)
        view = builders.view_of(ME, seal, [Voice(TAKER, seal.value).commit()])
    elif how == "still":
        giving.told(TAKER, 2, STILL_S)
    now_s = {"silent": 1.1 + view.config.grace_s, "still": STILL_S}.get(how, 1.0)
    assert not holds(giving, view, now_s)


def test_member_that_has_the_state_is_awaited_for_twice_what_the_own_work_took():
    giving, view, took_s = Giving(CAP_S), view_of(new=(TAKER,)), 10.0
    giving.gave(TAKER, HEAD, took_s)
    assert holds(giving, view, took_s)
    here_s = took_s + 1.0
    for number in range(int(WORK_TIMES * took_s)):
        giving.told(TAKER, 0, here_s + number)
        assert holds(giving, view, here_s + number)
    assert not holds(giving, view, here_s + WORK_TIMES * took_s)


def test_member_that_had_the_state_before_this_node_was_ready_holds_nothing():
    giving = Giving(CAP_S)
    giving.gave(TAKER, HEAD, 1.0)
    giving.told(TAKER, 0, 2.0)
    assert not holds(giving, view_of(new=(TAKER,)), 10.0)


def test_taker_has_one_cap_before_its_seat_and_one_behind_it():
    giving = Giving(CAP_S)
    giving.gave(TAKER, HEAD, 0.0)
    assert held_s(giving, view_of(), 0.0) == pytest.approx(CAP_S, abs=LOOK_S)
    assert not holds(giving, view_of(), 2 * CAP_S)
    giving.gave(TAKER, HEAD, 2 * CAP_S)
    seated = view_of(new=(TAKER,), started_s=2 * CAP_S)
    assert held_s(giving, seated, 2 * CAP_S) == pytest.approx(CAP_S, abs=LOOK_S)


def test_member_that_has_sealed_is_late_with_its_own_work_and_holds_nothing():
    giving = Giving(CAP_S)
    giving.gave(TAKER, HEAD, 0.0)
    assert holds(giving, view_of(new=(TAKER,)), 0.0), "it joins"
    assert not holds(giving, view_of(ME, OTHER, TAKER, head=HEAD + 1), 0.0)


@pytest.mark.parametrize("was_voter", [False, True])
def test_who_lost_its_seat_for_being_late_joins_anew_an_era_later(was_voter):
    giving, head = Giving(CAP_S), HEAD + 1
    # Nobody takes anything while it has its seat.
    assert not holds(giving, view_of(ME, TAKER) if was_voter else view_of(new=(TAKER,)), 0.0)
    giving.gave(TAKER, HEAD, 1.0)
    assert holds(giving, view_of(head=head, started_s=1.0), 1.0) != was_voter
    # A new seat makes it no joiner either.
    assert holds(giving, view_of(head=head + 1, new=(TAKER,), started_s=2.0), 2.0) != was_voter
    assert holds(giving, view_of(head=HEAD + ERA_OF_TAKERS, started_s=3.0), 3.0)


def test_whom_the_others_have_left_behind_is_listed_with_them():
    giving, view = Giving(CAP_S), view_of()
    giving.gave(TAKER, HEAD - 1, 0.0)
    view.times.opened_s = 2.0
    assert holds(giving, view, 2.0)
    assert giving.until_s <= 2.0 + DEADLINE_SHARE * DEADLINE_S
    assert not holds(giving, view, 2.0 + DEADLINE_SHARE * DEADLINE_S)


@pytest.mark.parametrize(("rounds", "is_held"), [(6, True), (7, False)])
def test_last_round_that_could_list_a_joiner_is_held_though_it_is_not_ahead(rounds, is_held):
    # Its seat comes with the seal of the round before the last, and so is to be proved for that.
    giving = Giving(CAP_S)
    giving.gave(TAKER, HEAD, LONG_S)
    assert holds(giving, view_of(), LONG_S, Ending(rounds)) == is_held
    assert holds(giving, view_of(), LONG_S, Ending(1000, is_now=True))
    assert not holds(giving, view_of(new=(TAKER,)), LONG_S, Ending(rounds)), "it has its seat"


def test_each_taker_costs_at_most_one_cap_in_an_era_even_if_it_comes_again():
    giving, now_s, total_s = Giving(CAP_S), 0.0, 0.0
    for index in range(HEAD, HEAD + 40):
        giving.gave(TAKER, index - 1, now_s)
        took_s = held_s(giving, view_of(head=index), now_s)
        total_s, now_s = total_s + took_s, now_s + took_s + 1.0
        giving.left(TAKER)
    assert CAP_S <= total_s <= CAP_S + LOOK_S
    giving.gave(SECOND, HEAD, now_s)
    assert holds(giving, view_of(head=HEAD + 50), now_s), "another taker has its own"
    giving.gave(TAKER, ERA_OF_TAKERS, now_s)
    assert holds(giving, view_of(head=ERA_OF_TAKERS + 1), now_s), "a new era"


def test_cap_grows_with_the_state_among_friends_alone():
    sizes = replace(builders.CONFIG.cell_sizes, state=(SLOWEST_LINE,) * 100)
    config = replace(builders.CONFIG, cell_sizes=sizes)
    assert taking_cap_s(config) == config.deadline_cap_s + 100.0
    assert taking_cap_s(replace(config, trust="open")) == config.deadline_cap_s


def test_hundred_who_take_at_once_cost_what_one_does():
    giving, view, now_s = Giving(CAP_S), view_of(), 0.0
    while True:
        for peer in peers_named(100):
            giving.gave(peer, HEAD - 1, now_s)
        if not holds(giving, view, now_s):
            break
        now_s += LOOK_S
    assert now_s <= CAP_S * (1 + 100 // TAKERS_MAX)


@pytest.mark.quick(1)
@pytest.mark.parametrize("is_open", [True, False])
def test_keys_that_cost_nothing_share_one_cap(is_open):
    giving, now_s, total_s = Giving(CAP_S, is_open=is_open), 0.0, 0.0
    for key in set(peers_named(22)) - {ME, OTHER}:
        view = view_of()
        giving.gave(key, HEAD - 1, now_s)
        while holds(giving, view, now_s):
            now_s += LOOK_S
            total_s += LOOK_S
            giving.gave(key, HEAD - 1, now_s)
    if is_open:
        assert total_s <= CAP_S + COMES_BACK * now_s + 20 * LOOK_S
    else:
        assert total_s >= 20 * CAP_S


# Every order of events -------------------------------------------------------------------------

STEPS = 5
SMALL_CAP_S = 3.0
WORDS = ("asks", "arrives", "falls behind", "goes", "proves")


def _orders() -> Iterator[tuple[str, ...]]:
    return product(WORDS, repeat=STEPS)


def _total_held_s(giving: Giving, words: tuple[str, ...]) -> float:
    """What one taker costs that does this, a second between two words."""
    view, head, total_s = view_of(), HEAD, 0.0
    giving.gave(TAKER, HEAD - 1, 0.0)
    for number, word in enumerate(words):
        now_s = number * LOOK_S
        if holds(giving, view, now_s):
            total_s += LOOK_S
        else:
            head += 1
            view = view_of(head=head)
        match word:
            case "asks":
                giving.gave(TAKER, head - 1, now_s)
            case "arrives":
                giving.told(TAKER, 0, now_s)
            case "falls behind":
                giving.told(TAKER, 1, now_s)
            case "goes":
                giving.left(TAKER)
            case "proves":
                view.seats.proven.add(TAKER)
    return total_s


def test_no_order_of_what_a_taker_does_costs_more_than_its_cap():
    worst_s = max(_total_held_s(Giving(SMALL_CAP_S), words) for words in _orders())
    assert worst_s == SMALL_CAP_S
    # Looser: what was spent is forgotten with the link.
    assert max(_total_held_s(_Forgetful(SMALL_CAP_S), words) for words in _orders()) > SMALL_CAP_S


class _Forgetful(Giving):
    """As one that forgets with the link what was spent."""

    def left(self, peer: PeerId) -> None:
        super().left(peer)
        self._spent_s.clear()
