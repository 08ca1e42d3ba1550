"""R4 in running machines, explored: clean as they are, broken by each looser wording."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from protocol.messages import Seal, decode_message
from sim.exploration.cases import RUNNING, RUNNING_IN_FLIGHT, RUNNING_LARGE, UNLIKE
from sim.exploration.explorer import Bound, explore, walk
from sim.exploration.peers import fork
from sim.exploration.running_branches import BranchSpan, RunningBranches
from tests.sim import looser_running as looser

STATES = {
    "2 voters, 2 changes of links": 649,
    "2 voters, a change, a restart": 468,
}
IN_FLIGHT = partial(BranchSpan, is_brisk=True, lag=2, fragment_cells=(1, 1))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", RUNNING)
def test_running_machines_keep_their_promises_on_branches(name):
    found = explore(RunningBranches(RUNNING[name]), Bound())
    assert (found.outcome, found.violation, found.trace) == ("exhausted", "", ())
    # The number is no promise; that it does not shrink unseen is what keeps the search a search.
    assert found.states == STATES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNING_LARGE)
def test_running_machines_keep_their_promises_within_larger_bounds(name):
    found = explore(RunningBranches(RUNNING_LARGE[name]), Bound(states=20_000))
    assert not found.violation, found.trace
    assert found.states > 1500


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNING_IN_FLIGHT)
def test_running_machines_with_two_rounds_in_flight_keep_their_promises_on_branches(name):
    found = explore(RunningBranches(RUNNING_IN_FLIGHT[name]), Bound(states=20_000))
    assert (found.outcome, found.violation, found.trace) == ("exhausted", "", ())
    assert found.states > 300


@pytest.mark.slow
def test_running_machines_with_two_rounds_in_flight_keep_them_on_random_walks(seed):
    span = replace(UNLIKE, lag=2, fragment_cells=(1, 1))
    result = walk(RunningBranches(span), Bound(states=60, depth=60), seed=seed)
    assert not result.violation, (result.seed, result.trace)


@pytest.mark.extended
def test_branch_that_becomes_final_follows_nobody_of_before():
    # It had followed others, who met it again; then its first seal became final, and the round
    # behind it, left as it had been, went on from a seal that was not there.
    result = walk(RunningBranches(UNLIKE), Bound(states=100, depth=80), seed=1)
    assert not result.violation, result.trace


@pytest.mark.extended
def test_running_machines_keep_their_promises_on_random_walks(seed):
    result = walk(RunningBranches(UNLIKE), Bound(states=60, depth=60), seed=seed)
    assert not result.violation, (result.seed, result.trace)


@pytest.mark.extended
def test_exploration_goes_where_branches_begin_meet_are_left_and_become_final():
    model = RunningBranches(RUNNING["2 voters, 2 changes of links"])
    explore(model, Bound())
    peers = [model.peers.at(number) for number in range(len(model.peers.states))]
    provisional = {link.value.digest for peer in peers for link in peer.branch}
    assert any(peer.machine.head.digest in provisional for peer in peers), "no branch became final"
    lost = [peer for peer in peers if provisional & {*_own_seals(peer)} - {*_path(peer)}]
    assert any(len(peer.chain) > 1 for peer in lost), "no branch was lost to another final seal"
    assert any(peer.machine.standing.ahead for peer in peers), "nobody followed anybody"


def _own_seals(peer):
    for message in peer.journal.values():
        body = decode_message(message.encoded)[1]
        if message.sender == peer.machine.view.me and isinstance(body, Seal):
            yield body.value


def _path(peer):
    return (link.value.digest for link in (*peer.chain, *peer.branch))


@pytest.mark.extended
def test_remembered_steps_on_branches_are_those_of_machines_that_were_never_exchanged(seed):
    """Equal keys mean equal futures, with all that a branch adds to a machine."""
    rng = random.Random(seed)
    model = Recorded(replace(UNLIKE, is_brisk=False))
    steps = 0
    for _ in range(3):
        state = model.start()
        own = [fork(model.peers.at(number)) for number in state.peers]
        for _ in range(40):
            choices = list(model.recorded_moves(state))
            if not choices:
                break
            seat, deeds, state = rng.choice(choices)
            for deed in deeds:
                model.peers._carry_out(own[seat], deed)
            assert own[seat].key() == model.peers.at(state.peers[seat]).key()
            steps += bool(deeds)
    assert steps > 40


def test_nobody_goes_on_from_a_seal_that_names_nobody_in_reach():
    """At this seed one sealed for two, was left alone, and fell back from there without an end."""
    rng = random.Random(246)
    model = RunningBranches(replace(UNLIKE, is_brisk=False))
    state = model.start()
    for _ in range(30):
        moves = list(model.moves(state))
        assert not [following.wrong for _, following in moves if following.wrong]
        _, state = rng.choice(moves)


class Recorded(RunningBranches):
    """Says what was done to whom in each move."""

    done: dict[str, Any]

    def _after(self, state, seat, label, deeds):
        for words, following in super()._after(state, seat, label, deeds):
            if hasattr(self, "done"):
                self.done[words] = (seat, deeds)
            yield words, following

    def recorded_moves(self, state):
        self.done = {}
        for words, following in list(self.moves(state)):
            yield *self.done.get(words, (0, ())), following


MEETING = (
    "links become A|B|CDE",
    "A knows BCDE",
    "B knows ACDE",
    "links become AB|CDE",
)
DROPPED = (
    "links become AB|C",
    "C knows AB to be out of reach",
    "links become AC|B",
    "C has trained",
    "A meets C",
    "A hears C",
)
"""C went on alone, then with A; the LIST of their round names C alone, the second that does."""

BROKEN = [
    pytest.param(
        looser.slots_without_the_branch,
        BranchSpan(voters=2, rounds=2, ahead=2, changes=2, is_brisk=True, rules=False),
        (),
        ("S3: two different COMMIT in one slot", 6),
        id="6, slots do not know the branch",
    ),
    pytest.param(
        looser.finality_by_the_roster_of_the_branch,
        BranchSpan(voters=2, rounds=4, ahead=4, changes=1, is_brisk=True, rules=False),
        (),
        ("S1: two peers have adopted different seals of one round", 3),
        id="7, the branch's own roster",
    ),
    pytest.param(
        looser.finality_by_counting,
        BranchSpan(voters=4, rounds=1, ahead=1, changes=2, is_brisk=True),
        (
            "links become AB|CD",
            "C knows AB",
            "D knows AB",
            "C hears D",
            "D hears C",
            "links become ABCD",
            "C hears D",
            "D hears C",
        ),
        ("R4: a seal is final of which no quorum of voters gave a SEAL", 5),
        id="8, finality by counting",
    ),
    pytest.param(
        looser.locks_of_provisional_seals,
        BranchSpan(voters=3, rounds=1, changes=1, is_brisk=True, every=1),
        (),
        ("L1: the living never seal", 4),
        id="PSEAL locks",
    ),
    pytest.param(
        looser.barren_heads,
        BranchSpan(voters=3, rounds=2, ahead=2, changes=4),
        DROPPED,
        ("L1: it may seal a round, but nobody in reach may contribute", 4),
        id="a head that names nobody in reach",
    ),
    pytest.param(
        looser.attempts_that_start_anew,
        BranchSpan(voters=2, rounds=1, changes=2, is_brisk=True),
        (),
        ("R4: a VOTE and a PVOTE of one peer in one attempt", 6),
        id="an attempt number is used again",
    ),
    pytest.param(
        looser.kinds_share_an_attempt,
        BranchSpan(voters=2, rounds=1, changes=2, is_brisk=True),
        (),
        ("R4: a VOTE and a PVOTE of one peer in one attempt", 6),
        id="a change of kind stays in its attempt",
    ),
    pytest.param(
        looser.restarted_in_the_same_attempt,
        BranchSpan(voters=2, rounds=1, changes=2, restarts=1, is_brisk=True, every=1),
        (),
        ("R4: a VOTE and a PVOTE of one peer in one attempt", 7),
        id="a restart stays in its attempt",
    ),
    pytest.param(
        looser.slots_without_the_branch,
        IN_FLIGHT(voters=2, rounds=3, ahead=3, changes=2, rules=False),
        (),
        ("S3: two different COMMIT in one slot", 6),
        id="6 with two rounds in flight",
    ),
    pytest.param(
        looser.finality_by_the_roster_of_the_branch,
        IN_FLIGHT(voters=2, rounds=4, ahead=4, changes=1, rules=False),
        (),
        ("S1: two peers have adopted different seals of one round", 3),
        id="7 with two rounds in flight",
    ),
    pytest.param(
        looser.left_in_the_same_attempt,
        # Absence comes a round later than it did: with five voters these moves lead to it no more.
        IN_FLIGHT(voters=7, rounds=2, ahead=2, changes=2),
        MEETING,
        ("R4: a VOTE and a PVOTE of one peer in one attempt", 3),
        id="the round that a branch leaves beside the next one stays in its attempt",
    ),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("loosen", "span", "before", "expected"), BROKEN)
def test_looser_wording_of_branches_is_found_in_running_machines(loosen, span, before, expected):
    violation, length = expected
    with loosen():
        found = explore(looser.model_of(span, before), Bound(states=4000))
    assert found.violation.startswith(violation), found
    assert len(found.trace) == length, found
    clean = explore(looser.model_of(span, before), Bound(depth=length, states=found.states))
    assert (clean.violation, clean.trace) == ("", ())


@pytest.mark.extended
def test_locks_that_have_no_say_when_branches_meet_cost_work_and_no_promise():
    """10: without a quorum only; with one, nobody follows a branch, and closers take up locks.

    That the outcome depends on who meets first then is shown in tests/node/rules/test_branches.py.
    """
    with looser.merge_by_tokens():
        found = explore(RunningBranches(BranchSpan(voters=2, rounds=1, is_brisk=True)), Bound())
    assert (found.outcome, found.violation) == ("exhausted", "")
