"""What liars leave unsaid, say late, say to one or deny costs nobody else a seat, a vote or a place
in the LIST; with each rule loosened the same search finds whom it costs what."""

import pytest

from protocol.messages import Kind
from sim.exploration.cases import OMISSIONS
from sim.exploration.explorer import Bound, explore
from sim.exploration.omissions import (
    CLAIM,
    DENY,
    GONE,
    LATE,
    NEVER,
    ONE,
    OWED,
    PARTS,
    TWICE,
    Habit,
    OmissionPlan,
    Omissions,
    silences,
    slights,
)
from tests.sim import looser_omissions as looser

BACK = "R8: an honest voter is set back"
UNNAMED = "R8: who keeps the others waiting is named by nobody"
LEFT_OUT = "R2: an honest closer leaves out an honest sender"
UNSUMMABLE = "R2: somebody is listed whose parts nobody honest holds"


@pytest.mark.extended
@pytest.mark.parametrize("liar", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_one_liar_of_four_who_omits_the_same_for_rounds_harms_nobody_else(liar):
    result = explore(Omissions(OmissionPlan(rounds=6, liar=liar)), Bound(states=20_000))
    assert (result.outcome, result.violation) == ("exhausted", ""), result.trace
    assert result.states > 6 * 100


def test_every_kind_is_tried_never_late_to_one_and_denying():
    tried = {(habit.kind, habit.how) for habit in (*silences(), *slights("A"))}
    assert {kind for kind, how in tried if how == NEVER} == set(OWED)
    assert {kind for kind, how in tried if how == ONE} == set(OWED)
    assert (Kind.HAVE, DENY) in tried
    assert (None, PARTS) in tried


@pytest.mark.slow
@pytest.mark.parametrize("name", OMISSIONS)
def test_liars_who_change_what_they_omit_harm_nobody_else(name):
    result = explore(Omissions(OMISSIONS[name]), Bound(seconds=40))
    assert not result.violation, result.trace
    assert result.states > 300


def claiming(*more: Habit) -> tuple[Habit, ...]:
    return (Habit(None, PARTS), Habit(Kind.HAVE, CLAIM), *more)


DENIES = (Habit(Kind.HAVE, DENY, "A"), Habit(Kind.COMMIT, DENY, "A"))
TOLD_TO_ONE = tuple(Habit(Kind.COMMIT, ONE, name) for name in "ABC")
"""With slow gossip it comes to the others when HAVEs are due: those who sum hold its parts already,
and the closer has not heard of it."""


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("loosened", "plan", "violation"),
    [
        pytest.param(
            looser.one_word_sets_back,
            OmissionPlan(rounds=4, habits=DENIES),
            BACK,
            id="set back by one word",
        ),
        pytest.param(
            looser.closers_know_what_all_know,
            OmissionPlan(rounds=4, habits=TOLD_TO_ONE, relay=1.0),
            BACK,
            id="a closer is named for what came just then",
        ),
        pytest.param(
            looser.late_haves_are_not_named,
            OmissionPlan(rounds=8, habits=(Habit(Kind.HAVE, NEVER),)),
            UNNAMED,
            id="a HAVE that others speak in place of is forgotten",
        ),
        pytest.param(
            looser.late_lists_are_not_named,
            OmissionPlan(rounds=20, habits=(Habit(Kind.LIST, LATE, late=1.45),)),
            UNNAMED,
            id="a LIST that comes at last is forgotten",
        ),
        pytest.param(
            looser.members_without_a_vote_hold,
            OmissionPlan(rounds=1, members=2, habits=claiming(), at_once=2),
            UNSUMMABLE,
            id="members without a vote hold",
        ),
        pytest.param(
            looser.senders_hold_their_own,
            OmissionPlan(rounds=1, voters=7, habits=claiming(), at_once=2),
            UNSUMMABLE,
            id="senders hold their own",
        ),
        pytest.param(
            looser.who_moves_up_owes_a_have_at_once,
            OmissionPlan(
                rounds=2,
                habits=(Habit(Kind.COMMIT, NEVER), Habit(None, GONE, late=1.2)),
                at_once=2,
            ),
            BACK,
            id="who takes the place of one that died had to have spoken",
        ),
        pytest.param(
            looser.who_moved_up_had_to_hold,
            OmissionPlan(rounds=2, habits=(Habit(Kind.HAVE, TWICE, "B"),)),
            BACK,
            id="who takes the place of a liar denied what it was not sent",
        ),
        pytest.param(
            looser.holders_wait_for_their_turn,
            OmissionPlan(rounds=2, members=2, habits=(Habit(None, PARTS, "B"),)),
            BACK,
            id="who holds parts at last is not asked at once",
        ),
        pytest.param(
            looser.one_is_called_for_each_that_lacks_it,
            OmissionPlan(rounds=5, voters=7, liar=1, habits=(Habit(Kind.HAVE, NEVER),)),
            LEFT_OUT,
            id="a second liar is the one substitute",
        ),
    ],
)
def test_looser_rule_costs_the_honest_what_is_theirs(loosened, plan, violation):
    with loosened():
        found = explore(Omissions(plan), Bound(states=2000))
    assert found.violation == violation, found
    shipped = explore(Omissions(plan), Bound(states=found.states))
    assert not shipped.violation, shipped.trace


def test_list_without_a_second_call_leaves_out_whom_one_denies():
    plan = OmissionPlan(rounds=3, habits=DENIES, without=frozenset({"second-call"}))
    found = explore(Omissions(plan), Bound())
    assert found.violation == LEFT_OUT, found
    shipped = explore(Omissions(OmissionPlan(rounds=3, habits=DENIES)), Bound())
    assert (shipped.outcome, shipped.violation) == ("exhausted", ""), shipped.trace
