"""R5: what a round stands on, and what may be signed before what."""

from dataclasses import replace
from itertools import combinations

import pytest

from protocol.rounds.overlap import (
    RoundsInFlight,
    base_version,
    fragment_of,
    may_commit,
    may_open,
    may_seal,
    naming_round,
    proof_round,
)
from protocol.rounds.roster import has_quorum, voters
from tests.node.builders import CLOCK_RULES, head_of, machine_of, peers_named, roster_of

A, B, C, D = peers_named(4)


def flight(*sealed: bool, lag: int = 2, fragments: int = 2, own=()) -> RoundsInFlight:
    return RoundsInFlight(lag=lag, num_fragments=fragments, sealed=sealed, own_seals=frozenset(own))


def test_fragment_is_the_round_modulo_their_number_whatever_was_sealed():
    for sealed in ((), (True, True), (False, False), (True, False, False)):
        assert [fragment_of(flight(*sealed, fragments=3), r) for r in range(1, 7)] == [1, 2, 0] * 2


def test_two_rounds_in_flight_are_on_different_fragments():
    for fragments in range(2, 6):
        state = flight(fragments=fragments)
        for number in range(1, 12):
            assert fragment_of(state, number) != fragment_of(state, number + 1)


@pytest.mark.parametrize(("lag", "named"), [(1, [0, 1, 2, 3]), (2, [0, 0, 1, 2])])
def test_roster_comes_from_the_seal_that_lies_as_far_back_as_rounds_may_fly(lag, named):
    for known in range(4):
        state = flight(*(True,) * known, lag=lag)
        assert [naming_round(state, r) for r in range(1, 5)] == named
        assert [proof_round(state, r) for r in range(1, 5)] == named


def test_list_and_vote_of_a_round_may_precede_the_seal_before_it_and_its_seal_may_not():
    state = flight(True, True)
    assert [may_open(state, r) for r in range(1, 7)] == [False, False, True, True, False, False]
    assert [may_seal(state, r) for r in range(1, 7)] == [False, False, True, False, False, False]


def test_voter_commits_once_it_has_sealed_what_named_the_roster():
    assert [may_commit(flight(), r) for r in (1, 2, 3)] == [True, True, False]
    assert not may_commit(flight(True), 3)
    assert may_commit(flight(True, own=(1,)), 3)
    assert not may_commit(flight(True, own=(1,)), 1)
    assert not may_commit(flight(own=(1,)), 3)


def test_with_one_round_in_flight_the_commit_waits_for_the_seal_before_it():
    assert not may_commit(flight(True, lag=1), 2)
    assert may_commit(flight(True, lag=1, own=(1,)), 2)
    assert not may_commit(flight(lag=1, own=(1,)), 2)


def test_base_version_counts_the_sums_of_the_own_fragment():
    state = flight(True, False, True, True)  # Fragments 1, 0, 1, 0.
    assert base_version(state, 5) == 2
    assert base_version(state, 6) == 1
    assert base_version(state, 3) == 1


def test_base_version_is_known_before_the_round_before_is_sealed():
    for fragments in (1, 2, 3):
        known = [flight(*(True,) * final, fragments=fragments) for final in (2, 3)]
        assert len({base_version(state, 4) for state in known}) == 1


def test_version_on_one_fragment_is_as_old_as_rounds_are_in_flight():
    alone, delayed = (flight(*(True,) * 9, lag=lag, fragments=1) for lag in (1, 2))
    assert [base_version(alone, r) for r in range(1, 6)] == [0, 1, 2, 3, 4]
    assert [base_version(delayed, r) for r in range(1, 6)] == [0, 0, 1, 2, 3]
    # A round that was carried left no version.
    carried = flight(True, False, True, lag=2, fragments=1)
    assert [base_version(carried, r) for r in range(3, 6)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("rounds", "ends_run", "is_open"), [(6, False, True), (5, False, False), (6, True, False)]
)
def test_no_round_is_opened_beside_the_last_one(rounds, ends_run, is_open):
    head = head_of((A, B, C))
    clock = replace(head.value.clock, ends_run=ends_run)
    head = replace(head, value=replace(head.value, clock=clock))
    rules = replace(CLOCK_RULES, lag=2, rounds=rounds)
    beside = machine_of(A, head, clock=rules).standing.beside
    assert (None if beside is None else beside.index) == (6 if is_open else None)


def test_quorums_of_neighbouring_rosters_can_be_disjoint():
    """Why a round has one roster for everybody, and not the newest that each happens to know."""
    old, new = roster_of((A, B)), roster_of((B, C, D))

    def quorums(roster):
        electorate = voters(roster)
        for size in range(1, len(electorate) + 1):
            for some in combinations(electorate, size):
                if has_quorum(roster, some, trust="friends"):
                    yield set(some)

    assert any(not one & other for one in quorums(old) for other in quorums(new))
    assert all(one & other for one in quorums(new) for other in quorums(new))
    assert all(one & other for one in quorums(old) for other in quorums(old))
