"""R5 on the running machines: two rounds in flight, explored, and what looser wordings break."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest

import protocol.rounds.restart
import protocol.rounds.round_machine
from protocol.messages import Kind
from protocol.rounds.chain import certify
from protocol.rounds.round_machine import RoundMachine
from sim.exploration.cases import COMMITTED
from sim.exploration.explorer import Bound, explore, walk
from sim.exploration.rounds import Rounds, Span
from tests.sim import looser_running as looser

FLYING = Span(voters=2, rounds=2, fragment_cells=(1, 2), lag=2)
ALONE = Span(voters=1, members=1, rounds=2, fragment_cells=(1, 2), lag=2)
"""A makes rounds final alone, and B, who has a seat, need not know."""

CLOSING = (
    "A has trained",
    "B has trained",
    "A hears the COMMIT of B of round 1",
    "A gets the part of B",
    "B hears the COMMIT of A of round 1",
    "B gets the part of A",
    "A hears the HAVE of B of round 1",
)
"""A has proposed the LIST of round 1; nobody has trained for round 2."""


def own_seal_is_enough():
    """Whoever has SEALed a round takes it for final, where the one behind it is certified."""
    shipped = RoundMachine._final

    def final(machine, now_s):
        yield from shipped(machine, now_s)
        view, beside = machine.standing.base, machine.standing.beside
        if view.own.lock is None or beside is None or not beside.ballots.certified_lists():
            return
        own = view.ballots.of(Kind.SEAL, view.own.lock[0], view.seals.before)[view.me]
        value = machine._value(view, view.own.lock[1])
        yield from machine._adopt(certify(value, (own.message,)), now_s)

    return mock.patch.object(RoundMachine, "_final", final)


def second_round_is_forgotten():
    """After a restart only the round that is final next has what was signed in it (R12)."""
    shipped = protocol.rounds.restart.refill

    def refill(view, restart, *, now_s):
        if not view.seals.is_beside:
            shipped(view, restart, now_s=now_s)

    return mock.patch.object(protocol.rounds.round_machine, "refill", refill)


@pytest.mark.parametrize(
    ("loosened", "span", "violation"),
    [
        (second_round_is_forgotten, replace(FLYING, restarts=1), "COMMIT signed twice in one slot"),
        pytest.param(
            own_seal_is_enough,
            FLYING,
            "R5: a SEAL of a round before the one before it is final",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_rule_of_overlap_is_needed(loosened, span, violation):
    with loosened():
        found = explore(Rounds(span), Bound(states=20_000))
    assert violation in found.violation, f"not found within {found.states} states"
    shipped = explore(Rounds(span), Bound(states=found.states))
    assert not shipped.violation, shipped.trace


class InFlight(Rounds):
    """Whether overlap is reached at all; where it is, that counts as found."""

    def check(self, state):
        for number in state.peers:
            rounds = self.peers.states[number].machine.standing.under_way
            if sum(bool(view.own.commit) and view.own.lock is None for view in rounds) > 1:
                return "two rounds are in flight"
        return super().check(state)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("loosened", "lag", "is_reached"),
    [
        (nullcontext, 2, True),
        (nullcontext, 1, False),
        (looser.commit_carries_the_seal_of_the_round_before, 2, False),
    ],
)
def test_two_rounds_are_in_flight_only_if_a_commit_carries_the_seal_that_named_its_roster(
    loosened, lag, is_reached
):
    with loosened():
        found = explore(InFlight(replace(FLYING, rounds=1, lag=lag)), Bound())
    assert found.outcome == ("violated" if is_reached else "exhausted")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("loosened", "fragment_cells", "violation"),
    [
        (looser.rosters_by_the_newest_seal, (1, 2), "S4: two seals name the roster of round 2"),
        (
            partial(looser.fragment_advances_with_sums, (1, 2)),
            (1, 2),
            "an honest peer is blamed: COMMIT of 2 cells instead of 1",
        ),
        # With one-step delay as well: both rounds are about one fragment.
        *(
            (looser.base_is_the_newest_version, cells, "an honest peer is blamed: COMMIT on anothe")
            for cells in ((1, 2), (2,))
        ),
    ],
)
def test_what_a_round_stands_on_is_the_same_whether_the_round_before_is_sealed_here_or_not(
    loosened, fragment_cells, violation
):
    span = replace(ALONE, fragment_cells=fragment_cells)
    with loosened():
        found = explore(Rounds(span, CLOSING), Bound(states=4000))
    assert violation in found.violation, found
    shipped = explore(Rounds(span, CLOSING), Bound(states=found.states))
    assert not shipped.violation, shipped.trace


@pytest.mark.slow
def test_two_rounds_in_flight_end_in_every_order_of_what_follows_their_commits():
    """The whole space, and from a share of the states that a good run ends both rounds (L1)."""
    model = Rounds(replace(FLYING, fragment_cells=(1, 1), every=50), COMMITTED)
    result = explore(model, Bound(states=20_000))
    assert (result.outcome, result.violation) == ("exhausted", ""), result.trace
    assert result.states > 5000


@pytest.mark.extended
@pytest.mark.parametrize("fragment_cells", [(1, 2), (2,)])
def test_random_walks_with_two_rounds_in_flight_break_nothing(seed, fragment_cells):
    """Also where both are about one fragment: a round of delay."""
    span = replace(FLYING, rounds=3, restarts=1, sleeps=1, fragment_cells=fragment_cells)
    result = walk(Rounds(span), Bound(states=400, depth=60), seed=seed)
    assert not result.violation, (result.seed, result.trace)
