"""R9: seals are the clock: leases, what comes back, steps, and the end of a run."""

import random
from dataclasses import replace
from typing import Any

import pytest

from protocol.leases import lease_size
from protocol.messages import Interval, SealClock, SealValue
from protocol.rounds import roster as rosters
from protocol.rounds.reducers import pack_senders
from protocol.rounds.roster import InFlight, ListedContribution, next_clock, next_roster
from tests.node.builders import CLOCK_RULES as RULES
from tests.node.builders import peers_named, roster_of
from tests.node.rules.test_roster import HEAD, A, B, C, after, listed, random_entry

# Leases and clock -------------------------------------------------------------------------------


def test_leases_are_disjoint_and_none_is_lost_over_many_rounds(seed):
    rng = random.Random(seed)
    everybody = peers_named(7)
    value = HEAD
    spent: set[int] = set()
    for index in range(5, 40):
        leased, _ = rosters.leases(value, 10)
        numbers = [n for lease in leased.values() for a, b in lease for n in range(a, b)]
        assert len(numbers) == len(set(numbers)) == 10 * len(value.roster.members)
        assert not spent & set(numbers)
        present = [peer for peer in value.roster.members if rng.random() < 0.7]
        entries = [random_entry(rng, peer, everybody) for peer in present]
        for entry in entries:
            mine = [n for a, b in leased[entry.sender] for n in range(a, b)]
            spent |= set(mine[: entry.commit.samples])
        clock = next_clock(value, entries, RULES)
        unused = {n for gap in clock.unused for n in range(gap.first, gap.stop)}
        assert spent | unused == set(range(clock.cursor))
        assert not spent & unused
        value = replace(value, round=index, clock=clock, roster=after(value.roster, *entries))


def test_returned_samples_are_leased_again_before_new_ones():
    clock = next_clock(HEAD, [listed(A)], RULES)
    second, _ = rosters.leases(replace(HEAD, clock=clock), 10)
    assert (clock.cursor, lease_size(second[A])) == (30, 10)
    assert second == {A: ((10, 20),), B: ((20, 30),), C: ((30, 40),)}


def test_member_that_claims_more_samples_than_it_leased_spends_its_lease_only():
    clock = next_clock(HEAD, [listed(A, samples=10**6), listed(B), listed(C)], RULES)
    assert (clock.cursor, clock.unused) == (30, ())


@pytest.mark.parametrize(
    ("steps_and_tokens", "median"),
    [
        ([(10, 1)], 10),
        ([(10, 1), (20, 1), (30, 1)], 20),
        ([(10, 9), (20, 1), (30, 1)], 10),
        ([(30, 5), (10, 1), (20, 1)], 30),
        ([(10, 1), (20, 1)], 10),
        ([], 0),
    ],
)
def test_clock_advances_by_the_token_weighted_median_of_the_steps(steps_and_tokens, median):
    entries = [
        listed(peer, steps=steps, tokens=tokens)
        for peer, (steps, tokens) in zip((A, B, C), steps_and_tokens, strict=False)
    ]
    value = replace(HEAD, clock=SealClock(step=100, tokens=7, cursor=0, unused=(), ends_run=False))
    clock = next_clock(value, entries, RULES)
    assert clock.step == 100 + median
    assert clock.tokens == 7 + sum(tokens for _, tokens in steps_and_tokens)


def test_empty_list_gives_every_lease_back_and_stops_the_clock():
    clock = next_clock(HEAD, [], RULES)
    assert (clock.step, clock.tokens) == (0, 0)
    again, _ = rosters.leases(replace(HEAD, clock=clock), 10)
    assert again == rosters.leases(HEAD, 10)[0]


def test_digest_of_a_seal_covers_its_roster_and_clock():
    other: list[SealValue] = [
        replace(HEAD, roster=roster_of((A, B))),
        replace(HEAD, clock=replace(HEAD.clock, cursor=1)),
        replace(HEAD, round=9),
        replace(HEAD, before=bytes(32)),
    ]
    assert len({value.digest for value in (HEAD, *other)}) == 5


def test_seal_between_two_rounds_in_flight_leases_what_neither_of_them_has():
    rules = replace(RULES, lag=2)
    start = replace(HEAD, round=0)
    first, second = (rosters.leased_for(index, start, 10) for index in (1, 2))
    assert first == {A: ((0, 10),), B: ((10, 20),), C: ((20, 30),)}
    assert second == {A: ((30, 40),), B: ((40, 50),), C: ((50, 60),)}
    clock = next_clock(start, [listed(A), listed(C)], rules, basis=start)
    # Round 1 gives back what B had, and says nothing of round 2, which is under way.
    assert (clock.cursor, clock.unused) == (60, (Interval(first=10, stop=20),))
    one = replace(HEAD, round=1, clock=clock)
    assert rosters.leased_for(3, one, 10) == {A: ((10, 20),), B: ((60, 70),), C: ((70, 80),)}
    clock = next_clock(one, [listed(B), listed(C)], rules, basis=start)
    assert (clock.cursor, clock.unused) == (80, (Interval(first=30, stop=40),))


def test_member_seated_between_two_rounds_in_flight_is_not_absent_from_the_first():
    roster = roster_of((A, B), (C,))
    late = tuple(replace(seat, seated=4 if seat.peer == C else 0) for seat in roster.seats)
    of_round = roster = replace(roster, seats=late)  # The seal of round 4 seated C.
    saw = pack_senders({A, B}, roster.members)
    entries = [listed(A, committed=saw), listed(B, committed=saw)]
    for index, absent in ((5, 0), (6, 0), (7, 0), (8, 1)):
        # Two rounds are in flight: that of seal 4 is round 6, of which the COMMITs of round 8 tell.
        roster = next_roster(
            roster, index, entries, trust="friends", in_flight=InFlight(of_round, 2)
        )
        assert [seat.absent for seat in roster.seats if seat.peer == C] == [absent], index
    roster = next_roster(roster, 9, entries, trust="friends", in_flight=InFlight(roster, 2))
    assert C not in roster.members


def test_clock_asks_for_the_seal_that_leased_the_round():
    with pytest.raises(AssertionError, match="another seal leased"):
        next_clock(HEAD, [listed(A)], replace(RULES, lag=2))


# The end of the run -----------------------------------------------------------------------------


def ends_run(*entries: ListedContribution, **rules: Any) -> bool:
    return next_clock(HEAD, entries, replace(RULES, **rules)).ends_run


@pytest.mark.parametrize(("rounds", "is_last"), [(4, True), (5, True), (6, False)])
def test_seal_of_the_last_round_ends_the_run_even_if_it_carries(rounds, is_last):
    assert ends_run(listed(A), rounds=rounds) == is_last
    assert ends_run(rounds=rounds) == is_last


@pytest.mark.parametrize(("tokens", "is_last"), [(0, False), (19, True), (20, True), (21, False)])
def test_seal_that_reaches_the_tokens_of_the_run_ends_it(tokens, is_last):
    assert ends_run(listed(A), listed(B), tokens=tokens) == is_last


@pytest.mark.parametrize(
    ("past_end", "is_last"),
    [((), False), ((True,), True), ((True, False), False), ((True, True, False), True)],
)
def test_run_ends_once_most_listed_commits_are_signed_past_its_date(past_end, is_last):
    entries = [listed(p, is_past_end=e) for p, e in zip((A, B, C), past_end, strict=False)]
    assert ends_run(*entries) == is_last
