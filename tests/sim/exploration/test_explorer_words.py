"""R1 in open runs: whatever is listed and whatever one liar says, it is they who keep their
seats and votes who were there; each part of that rule is needed."""

import pytest

from sim.exploration.cases import WORDS
from sim.exploration.explorer import Bound, explore
from sim.exploration.rosters import Words
from tests.sim import looser_omissions as looser

LOSES_SEAT = "I9: an honest voter loses its seat"
LOSES_VOTE = "I9: an honest voter loses its vote"


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", WORDS)
def test_one_liar_takes_no_seat_and_no_vote_by_what_it_says_of_others(name):
    result = explore(WORDS[name](), Bound(states=200_000))
    assert (result.outcome, result.violation) == ("exhausted", ""), result.trace
    assert result.transitions > 500


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("loosened", "scope", "violation"),
    [
        pytest.param(
            looser.absent_by_list,
            {"rounds": 5, "has_gone": False, "small": 0},
            LOSES_SEAT,
            id="absent by LIST",
        ),
        pytest.param(
            looser.any_number_of_words_judges,
            {"rounds": 5, "has_gone": False, "small": 2},
            LOSES_SEAT,
            id="few words judge",
        ),
        pytest.param(
            looser.one_word_vouches,
            {"rounds": 8, "small": 0},
            "R1: who is gone votes for ever",
            id="one word vouches",
        ),
        pytest.param(
            looser.one_word_sets_back,
            {"rounds": 2, "small": 0},
            "R8: an honest voter is set back",
            id="one word sets back",
        ),
        pytest.param(
            looser.all_lose_their_votes_at_once,
            {"rounds": 4, "has_gone": False, "small": 4, "may_lose": 1},
            LOSES_VOTE,
            id="all lose their votes at once",
        ),
    ],
)
def test_looser_rule_takes_seats_or_votes_or_leaves_them_with_the_gone(loosened, scope, violation):
    with loosened():
        found = explore(Words(**scope), Bound(states=200_000))
    assert found.violation == violation, found
    shipped = explore(Words(**scope), Bound(states=found.states))
    assert not shipped.violation, shipped.trace
