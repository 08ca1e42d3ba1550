"""R1, R2, R11: what a round machine must not count, and what it tells the others."""

from dataclasses import replace

import pytest

from protocol import events as ev
from protocol.identity import KeyedHashSigner
from protocol.join_puzzle import solve
from protocol.manifest import AdmissionSpec
from protocol.messages import Kind, Leave, Seal, Seat, Work, sign_message
from sim.world.world import peer_named
from tests.node.builders import (
    CLOCK_RULES,
    ROOT,
    Voice,
    contributed,
    digest_of,
    head_of,
    list_body,
    machine_of,
    results,
)
from tests.node.script import FIRST, HEAD, ME, SECOND, Script, faults, lists_of, one, two


def test_second_commit_of_one_sender_is_a_fault_and_is_not_counted():
    script = Script()
    script.tell(one.commit("first"))
    assert "two different COMMIT" in faults(script.tell(one.commit("second")))[0]
    assert len(script.machine.view.ballots.commits) == 1


def test_list_of_somebody_who_is_not_the_closer_is_a_fault_and_gets_no_vote():
    script = Script()
    commits = script.begin()
    assert "not its to propose" in faults(script.tell(two.propose(commits, 0)))[0]
    assert not script.signed(Kind.VOTE)


BAD_COMMITS = [{"base": ROOT}, {"cell_norms": (1.0,)}, {"tokens": 0}]


@pytest.mark.parametrize("changes", BAD_COMMITS, ids=lambda changes: next(iter(changes)))
def test_commit_that_could_not_be_summed_is_a_fault_and_is_not_listed(changes):
    script = Script()
    assert faults(script.tell(one.commit("bad", **changes)))
    assert not script.machine.view.ballots.commits


def test_commit_without_the_work_that_audits_run_again_is_a_fault():
    """R10: all that looks at it may rely on its being there."""
    machine = machine_of(ME, HEAD, clock=replace(CLOCK_RULES, segments=2))
    found = []
    for peer, segments in ((FIRST, None), (SECOND, 1), (FIRST, 2)):
        trace = (bytes(32),) * (0 if segments is None else segments + 1)
        one_work = Work(onion=ROOT, device="cpu", trace=trace, before=ROOT, after=ROOT)
        work = () if segments is None else (one_work,)
        heard = Voice(peer, HEAD.value).commit(work=work)
        found.append(bool(faults(machine.handle(heard, 0.0))))
    assert found == [True, True, False]


FALSE_CLAIMS = [
    ({"samples": 11, "tokens": 11}, "11 samples of a lease of 10"),
    ({"tokens": 11}, "11 tokens for 10 samples of 1"),
    ({"samples": 9}, "10 tokens for 9 samples of 1"),
]


@pytest.mark.parametrize(("changes", "wrong"), FALSE_CLAIMS)
def test_commit_that_claims_other_work_than_its_lease_allows_is_a_fault(changes, wrong):
    script = Script()
    assert faults(script.tell(one.commit("bad", **changes))) == [f"COMMIT of {wrong}"]
    assert not faults(script.tell(two.commit("less", samples=3, tokens=3)))
    assert script.machine.view.ballots.commits.keys() == {SECOND}


def test_statements_of_strangers_and_seats_of_members_are_ignored():
    stranger = Voice(peer_named("stranger"), HEAD.value)
    script = Script()
    seat = Seat(proof=bytes(32), device="")
    assert not script.tell(stranger.commit(), stranger.vote([]), one.say(Kind.SEAT, seat))
    assert not list(script.machine.view.ballots.messages())


def test_seal_with_another_seal_before_it_is_a_fault():
    script = Script()
    body = Seal(value=ROOT, list_digest=ROOT, root=ROOT)
    assert faults(script.tell(one.say(Kind.SEAL, body, subject=ROOT)))
    assert not faults(script.tell(one.say(Kind.SEAL, body, subject=HEAD.value.digest)))


@pytest.mark.parametrize(("survive", "is_fault"), [("quorum", True), ("any", False)])
def test_seal_of_two_rounds_in_flight_stands_on_one_seal_unless_there_are_branches(
    survive, is_fault
):
    machine = machine_of(ME, HEAD, clock=replace(CLOCK_RULES, lag=2), survive=survive)
    slot = machine.view.slot(Kind.SEAL, subject=ROOT)
    body = Seal(value=ROOT, list_digest=ROOT, root=ROOT)
    message = sign_message(KeyedHashSigner(FIRST), slot, body)
    assert bool(faults(machine.handle(ev.Heard(message, body), 0.0))) is is_fault


def test_joiner_whose_proof_is_wrong_is_not_named_and_one_whose_proof_is_right_is():
    liar, joiner = peer_named("liar"), peer_named("joiner")
    script = Script()
    seat = Seat(proof=bytes(32), device="")
    said = [Voice(peer, HEAD.value).say(Kind.SEAT, seat) for peer in (liar, joiner)]
    assert script.tell(*said) == [ev.CheckSeat(liar, HEAD.value.digest, bytes(32))]
    told = script.tell(ev.SeatChecked(liar, HEAD.value.digest, False))
    assert told == [ev.CheckSeat(joiner, HEAD.value.digest, bytes(32))]
    script.tell(
        ev.SeatChecked(joiner, HEAD.value.digest, True),
        ev.SeatChecked(peer_named("late"), ROOT, True),
    )
    script.tell(contributed(5))
    (_, commit) = next(iter(script.machine.view.ballots.commits.values()))
    assert commit.joins == (joiner,)


def test_seat_without_the_join_puzzle_is_a_fault_and_its_proof_is_not_even_looked_at():
    joiner, law = peer_named("joiner"), AdmissionSpec(puzzle_bits=8)
    machine = machine_of(ME, HEAD, clock=replace(CLOCK_RULES, admission=law))
    run = HEAD.value.run
    for work in (b"", solve(bytes(32), joiner, 8), solve(run, peer_named("other"), 8)):
        seat = Seat(proof=bytes(32), device="", work=work)
        actions = machine.handle(Voice(joiner, HEAD.value).say(Kind.SEAT, seat), 0.0)
        assert not any(isinstance(action, ev.CheckSeat) for action in actions)
        assert any("without the work" in text for text in faults(actions))
    # One slot holds one SEAT: it is another one that has done its work.
    paid = Seat(proof=bytes(32), device="", work=solve(run, peer_named("other"), 8))
    actions = machine.handle(Voice(peer_named("other"), HEAD.value).say(Kind.SEAT, paid), 0.0)
    assert any(isinstance(action, ev.CheckSeat) for action in actions)


def test_leave_is_told_to_the_others_by_every_commit_until_the_seal_that_drops_it():
    script = Script()
    script.tell(one.say(Kind.LEAVE, Leave(reason="")), contributed(5))
    assert script.machine.view.ballots.commits[ME][1].gone == (FIRST,)


def test_leave_of_a_round_that_was_caught_up_over_is_told_to_nobody():
    # Whoever left may have taken a seat again meanwhile: one COMMIT that names it would drop it.
    script = Script()
    script.tell(one.say(Kind.LEAVE, Leave(reason="")))
    later = head_of(HEAD.value.roster.members)
    script.machine.reset(later, now_s=0.0)
    script.tell(contributed(later.value.round + 1))
    assert script.machine.view.ballots.commits[ME][1].gone == ()


def test_slice_that_was_summed_for_a_round_gone_by_says_nothing_in_this_one():
    script = Script()
    script.begin()
    assert not script.tell(ev.Reduced(ROOT, 0, 1, ROOT))
    assert not script.tell(ev.Reduced(ROOT, 77, 78, ROOT))


def test_messages_of_the_next_round_are_kept_until_it_begins():
    script = Script()
    _, everybody = lists_of(script.begin())
    script.tell(one.propose(everybody), one.vote(everybody))
    script.tell(*results(digest_of(HEAD.value, everybody)))
    value = script.value(everybody)
    early = Voice(FIRST, value).commit("early")
    script.tell(early, early, two.seal(value))
    assert script.machine.view.ballots.commits.keys() == {FIRST}


def test_state_that_differs_from_the_sealed_one_asks_for_a_resync_and_never_replaces_the_anchor():
    script = Script()
    _, everybody = lists_of(script.begin())
    digest = digest_of(HEAD.value, everybody)
    honest = replace(
        HEAD.value, round=5, before=HEAD.value.digest, basis=HEAD.value.digest, root=ROOT
    )
    honest = replace(honest, commits=list_body(everybody).commits)
    arrived, applied = results(digest)
    script.tell(one.propose(everybody), one.vote(everybody), arrived, applied)
    script.tell(one.seal(honest), two.seal(honest))
    assert not script.adopted()
    assert any(isinstance(action, ev.Resync) for action in script.done)
    assert script.machine.head == HEAD.value
