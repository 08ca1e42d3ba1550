"""A hundred keys of which one member proves that they hold the state: none of them gets a seat."""

from dataclasses import replace
from itertools import pairwise

import pytest

from node.reporting.tracing import Adopted, Record
from sim.trials.scenario import overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import Outcome, run_trial

PEERS, ROUNDS = 5, 8


def haunted(seed: int, **changes) -> tuple[Outcome, list[int]]:
    """How it ended, and how many sat in each round's roster."""
    seats: dict[int, int] = {}

    def saw(record: Record) -> None:
        if isinstance(record, Adopted):
            value = record.certificate.value
            seats[value.round] = len(value.roster.seats)

    calm = overridden(read_scenario("open-calm"), peers=PEERS, rounds=ROUNDS, attack="ghosts:0.2")
    outcome = run_trial(replace(calm, **changes), seed, tracer=saw)
    return outcome, [seats[index] for index in sorted(seats)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(2))
def test_ghosts_sit_where_nobody_looks_who_is_linked_and_are_not_waited_for(seed):
    outcome, seats = haunted(seed, without=("links",))
    assert max(seats) > PEERS, "the attack works"
    # A few at a time, and of none an honest peer says that it saw anything: it goes again.
    assert max(after - before for before, after in pairwise(seats)) <= 2
    assert (outcome.honest_seats_lost, outcome.honest_votes_lost) == (0, 0)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(2))
def test_ghosts_without_a_link_of_their_own_get_no_seat(seed):
    outcome, seats = haunted(seed)
    assert outcome.violation is None
    assert seats == [PEERS] * ROUNDS
    assert outcome.rounds_sealed == ROUNDS
