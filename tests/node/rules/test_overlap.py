"""R5: which rounds are in flight, and why each has one roster for everybody."""

from dataclasses import replace
from itertools import combinations

import pytest

from protocol.rounds.roster import has_quorum, voters
from tests.node.builders import CLOCK_RULES, head_of, machine_of, peers_named, roster_of

A, B, C, D = peers_named(4)


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
