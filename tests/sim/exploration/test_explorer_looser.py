"""Each of the rules is needed: loosened, the explorer finds its violation; as shipped, none.

The same bound is explored both ways. Where the way to a violation is long, the search begins behind
a trace that the shipped rules allow as well; what is found from there is shortest from there.
"""

import pytest

from protocol.frames import Bulk
from protocol.messages import Seal
from sim.exploration.agreement import Agreement, AgreementScope, Losses, Supply
from sim.exploration.cases import LAGGARD
from sim.exploration.explorer import Bound, Exploration, Later, explore
from sim.exploration.machines import holds
from sim.exploration.rosters import LeavingModel, Windows
from sim.exploration.rounds import Rounds, Span
from sim.exploration.waking import Waking
from tests.sim import looser

PROMISES = {"rules": False}
"""Only what is promised is asked for: that a loosened rule is broken would be no news."""

TWO_SEALS = "S1: two values are final in one round"
SPLIT = "S1: two seals of one round can be adopted"


def both_ways(loosened, make, *, states: int) -> Exploration:
    """The violation that is found with the loosened rule, after the shipped one has shown none."""
    with loosened():
        found = explore(make(), Bound(states=states))
    assert found.outcome == "violated", f"not found within {found.states} states"
    shipped = explore(make(), Bound(states=found.states))
    assert not shipped.violation, shipped.trace
    return found


def test_1_seal_of_an_attempt_that_was_left_makes_two_values_final():
    def make():
        # Both LISTs are certified, {R} in attempt 0 and {A, R} in 1; no result has arrived.
        before = (
            "A finds {R} complete",
            "C hears the LIST of attempt 0",
            "A enters attempt 1",
            "B enters attempt 1",
            "B, told of the locks of A, finds {A, R} complete",
            "A hears the LIST of attempt 1",
        )
        return Later(Agreement(AgreementScope(voters=3, attempts=2, **PROMISES)), before)

    found = both_ways(looser.late_seal, make, states=2000)
    assert found.violation == TWO_SEALS
    assert len(found.trace) == 4


@pytest.mark.extended
def test_2_seals_that_add_up_over_attempts_make_two_values_final():
    before = (
        "A proposes {R} in attempt 0",
        "B hears the LIST of attempt 0",
        "A gets the result",
        "B enters",
        "B proposes {A, R}",
        "C hears the LIST of attempt 1",
        "C gets the result of {A, R}",
        "C enters",
        "C proposes {R}",
        "A hears the LIST of attempt 2",
        "B hears the LIST of attempt 2",
        "B gets the result of {R}, certified in attempt 2",
    )

    def make():
        scope = AgreementScope(voters=3, attempts=4, dutiful=False, **PROMISES)
        return Later(Agreement(scope), before)

    found = both_ways(looser.seals_add_up, make, states=4000)
    assert found.violation == SPLIT
    assert found.trace[-1].count("adopts it") == 2


@pytest.mark.extended
def test_3_any_later_certificate_that_unlocks_makes_two_values_final():
    before = (
        "A proposes {R}",
        "B hears the LIST",
        "A gets the result",
        "B gets the result",
        "B enters attempt 1",
        "B proposes {R} in attempt 1",
        "C hears the LIST of attempt 1",
    )

    def make():
        scope = AgreementScope(voters=3, attempts=3, dutiful=False, **PROMISES)
        return Later(Agreement(scope), before)

    found = both_ways(looser.any_certificate_unlocks, make, states=4000)
    assert found.violation == TWO_SEALS
    assert any("is shown the certificate of {R} in attempt 1" in label for label in found.trace)


def test_4_closer_bound_by_a_mere_certificate_waits_for_the_dead():
    def make():
        model = Supply(AgreementScope(voters=3, attempts=2, every=1), Losses(deaths=1))
        return Later(model, ("A has waited", "B hears the LIST of attempt 0"))

    found = both_ways(looser.latest_certificate_binds, make, states=400)
    assert found.violation.startswith("L1")
    assert "A dies" in found.trace


def test_5_woken_peers_that_answer_no_status_wait_for_each_other():
    found = both_ways(looser.woken_stay_silent, lambda: Waking(voters=3, sleepers=3), states=1000)
    assert found.trace == tuple(f"{name} freezes and wakes" for name in "ABC")


@pytest.mark.parametrize(
    "loosened", [looser.founder_votes_for_ever, looser.empty_rounds_age_the_window]
)
def test_11_voters_without_a_living_quorum_though_nobody_died_since(loosened):
    found = both_ways(loosened, lambda: Windows(voters=3, rounds=5), states=2000)
    assert found.violation.startswith("L1")


def test_turns_that_take_any_voter_leave_no_living_quorum():
    found = both_ways(
        looser.turns_take_any_voter, lambda: Windows(voters=4, waiting=1, rounds=5), states=2000
    )
    assert found.violation.startswith("L1")
    assert found.trace == ("A dies", "round 1 lists {C, D}", "round 2 lists {B, D}")


def leaving(trust: str = "friends", *, is_founding: bool = False) -> LeavingModel:
    return LeavingModel(others=2, rounds=3, leavers=1, is_founding=is_founding, trust=trust)


@pytest.mark.parametrize("trust", ["friends", "open"])
def test_only_voter_that_leaves_at_once_leaves_no_quorum(trust):
    found = both_ways(looser.voters_leave_at_once, lambda: leaving(trust), states=200)
    assert found.violation.startswith("L1")
    assert found.trace == ("A wants to leave", "A goes")


@pytest.mark.extended
def test_leaver_that_is_dropped_though_the_rest_may_be_dead_leaves_no_quorum():
    found = both_ways(looser.leavers_are_dropped_whoever_follows, leaving, states=2000)
    assert found.violation.startswith("L1")
    assert any(step.endswith(" dies") for step in found.trace)


def test_only_voter_without_successors_is_kept_for_ever():
    found = both_ways(looser.nobody_succeeds_a_leaver, lambda: leaving("open"), states=200)
    assert found.violation.startswith("L2")


@pytest.mark.extended
def test_12_lost_disk_that_asks_only_a_quorum_signs_twice_in_one_slot():
    before = (
        *LAGGARD,
        "B loses its disk",
        "B hears the COMMIT of A of round 1",
        "B hears the LIST of A of round 1",
        "B hears the SEAL of A of round 1",
        "B hears the SEAL of B of round 1",
    )

    def make():
        span = Span(voters=3, rounds=2, disks=1, is_late=True, active="B")
        return Later(Rounds(span, before=LAGGARD), before[len(LAGGARD) :])

    found = both_ways(looser.lost_disk_asks_a_quorum, make, states=2000)
    assert found.violation == "S3: two different COMMIT in one slot"
    assert found.trace[0] == "B hears that C is in round 1"


class StrictSupply(Supply):
    """S2 to the letter: every listed part of a sealed round is with somebody alive."""

    def check(self, state):
        facts = self.post.facts(state.sent)
        final = facts.final.get(self.table.head.value.digest, set())
        for (_, _, value), seals in facts.seals.items():
            body = seals[0].body
            assert isinstance(body, Seal)
            commits = self.listed(state, body.list_digest) if value in final else ()
            living = self._living(state)
            if any(not any(holds(p, Bulk.PART, commit, 0) for p in living) for commit in commits):
                return "S2 to the letter: sealed, and nobody alive has a listed part"
        return state.wrong

    def listed(self, state, digest):
        views = [self.peers.states[number].machine.view for number in state.peers]
        bodies = [view.ballots.list_of(digest) for view in views]
        return next((body.commits for body in bodies if body is not None), ())


def test_14_listed_bytes_may_die_with_their_sender_and_the_round_goes_on():
    """Not harm but how it is: the result is alive, the bytes that were summed are not."""
    strict = StrictSupply(AgreementScope(voters=3, attempts=1), Losses(deaths=1))
    found = explore(strict, Bound(states=3000))
    assert found.violation.startswith("S2 to the letter")
    assert found.trace[-1] == "A dies"
    # From the very state on, the living make the round final.
    model = Supply(AgreementScope(voters=3, attempts=1), Losses(deaths=1))
    assert model.fails_to_finish(Later(model, found.trace).start()) == ""
