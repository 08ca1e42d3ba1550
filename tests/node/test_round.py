"""R2, R3, R6, R7: the machine of one shard's rounds among scripted peers."""

from dataclasses import replace

import pytest

from protocol import events as ev
from protocol.frames import Bulk
from protocol.identity import KeyedHashSigner
from protocol.messages import Commit, Kind, Leave, SealValue, decode_body
from protocol.rounds.chain import seal_value
from protocol.rounds.restart import Restart
from protocol.rounds.round_machine import RoundMachine
from sim.world.world import peer_named
from tests.node.builders import (
    CONFIG,
    ROOT,
    Voice,
    contributed,
    digest_of,
    head_of,
    machine_of,
    results,
    signed,
)
from tests.node.script import FIRST, HEAD, ME, OTHERS, PEERS, SECOND, Script, lists_of, one, two


def test_round_among_timely_peers_is_committed_voted_sealed_and_adopted():
    script = Script()
    _, everybody = lists_of(script.begin())
    digest = digest_of(HEAD.value, everybody)
    script.tell(one.propose(everybody))
    assert [attempt for attempt, _ in script.signed(Kind.VOTE)] == [0]
    script.tell(one.vote(everybody), *results(digest))
    assert script.seals() == [(0, digest)]
    assert not script.adopted()  # One SEAL of three: the old anchor stays (R7).
    value = script.value(everybody)
    script.tell(two.seal(value))
    (adopt,) = script.adopted()
    assert adopt.certificate.value == value
    assert adopt.was_listed
    assert script.machine.head == value


def test_last_commit_before_a_list_is_when_the_exchange_began():
    script, seen = Script(), []
    told = [contributed(5), OTHERS[0], one.propose([OTHERS[0]]), OTHERS[1]]
    for now_s, event in enumerate(told):
        script.tell(event, now_s=float(now_s))
        seen.append(script.machine.view.times.committed_s)
    assert seen == [None, 1.0, 1.0, 1.0]


def test_signature_is_recorded_before_it_is_broadcast():
    script = Script()
    script.tell(contributed(5))
    kinds = [type(action) for action in script.done if not isinstance(action, ev.Push)]
    assert kinds == [ev.RecordSlot, ev.Broadcast]


def test_nothing_is_sealed_before_the_list_is_certified_and_its_state_is_here():
    script = Script()
    _, everybody = lists_of(script.begin())
    digest = digest_of(HEAD.value, everybody)
    arrived, applied = results(digest)
    script.tell(one.propose(everybody), arrived, applied)
    assert script.seals() == []
    script = Script()
    script.begin()
    script.tell(one.propose(everybody), one.vote(everybody), arrived)
    assert script.seals() == []
    script.tell(applied)
    assert script.seals() == [(0, digest)]


def test_result_of_an_attempt_that_was_left_is_not_sealed_there():
    # The violation of looser rules: a late SEAL of X(0) and then Y(1) make two final seals.
    script = Script()
    x, y = lists_of(script.begin())
    script.tell(one.propose(x), one.vote(x))
    script.tell(two.report(1), two.propose(y, 1))
    assert [attempt for attempt, _ in script.signed(Kind.VOTE)] == [0, 1]
    script.tell(*results(digest_of(HEAD.value, x)))
    assert script.seals() == []
    script.tell(two.vote(y, 1), *results(digest_of(HEAD.value, y)))
    assert script.seals() == [(1, digest_of(HEAD.value, y))]


def test_member_that_is_shown_a_quorum_of_seals_adds_its_own_even_of_an_attempt_it_left():
    script = Script()
    x, _ = lists_of(script.begin())
    script.tell(one.propose(x), one.vote(x), two.report(1))
    script.tell(*results(digest_of(HEAD.value, x)))
    value = script.value(x)
    script.tell(one.seal(value, 0))
    assert script.seals() == []
    script.tell(two.seal(value, 0))
    assert script.seals() == [(0, digest_of(HEAD.value, x))]
    assert script.machine.head == value


def test_member_that_slept_adds_no_seal_before_it_heard_where_the_others_are():
    script = Script()
    x, _ = lists_of(script.begin())
    script.tell(one.propose(x), one.vote(x), two.report(1))
    script.tell(*results(digest_of(HEAD.value, x)), ev.Woke())
    value = script.value(x)
    script.tell(one.seal(value), two.seal(value))
    assert script.machine.head == value
    assert script.seals() == []


def sealed_by_others(machine: RoundMachine, **said) -> SealValue:
    """A round that the two others make final by themselves; `said` is what their COMMITs say."""
    view, head = machine.view, machine.head
    voices = [Voice(peer, head) for peer in (FIRST, SECOND)]
    attempt = next(number for number in range(3) if view.closer(number) == FIRST)
    for voice in voices:
        machine.handle(voice.commit(**said), 0.0)
    entries = [view.ballots.find(digest) for _, digest, _ in view.commits()]
    commits = [ev.Heard(entry.message, entry.body) for entry in entries if entry is not None]
    digest = digest_of(head, commits)
    votes = [voice.vote(commits, attempt) for voice in voices]
    for heard in (voices[0].propose(commits, attempt), *votes):
        machine.handle(heard, 0.0)
    for event in results(digest):
        machine.handle(event, 0.0)
    value = seal_value(view, digest, KeyedHashSigner(ME), CONFIG.clock)
    assert value is not None
    for voice in voices:
        machine.handle(voice.seal(value, attempt), 0.0)
    assert machine.head == value
    return value


def test_vote_of_a_branch_is_remembered_after_a_restart_until_its_round_is_under_way_again():
    """R12: two rounds behind the last final seal; else this node would fill the slot twice."""
    known = machine_of(ME, HEAD)
    later = [sealed_by_others(known) for _ in range(2)][-1]
    voted = Voice(ME, later).vote([])
    machine = machine_of(ME, HEAD)
    machine.resume(Restart(chain=(HEAD,), messages=(voted.message,)), now_s=0.0)
    machine.handle(voted, 0.0)  # That others have it, too, is no sign of a lost disk.
    assert [sealed_by_others(machine) for _ in range(2)][-1] == later
    assert machine.view.ballots.of(Kind.VOTE)[ME].message == voted.message
    assert not machine.may_contradict


def test_leaver_that_is_seated_again_is_not_said_to_have_left():
    leaver = peer_named("leaver")
    machine = machine_of(ME, head_of(PEERS, (leaver,)))
    machine.handle(Voice(leaver, machine.head).say(Kind.LEAVE, Leave(reason="")), 0.0)
    assert leaver not in sealed_by_others(machine, gone=(leaver,)).roster.members
    machine.handle(contributed(6), 0.0)  # Absent twice it would lose its own seat.
    assert leaver in sealed_by_others(machine, joins=(leaver,)).roster.members
    (commit,) = signed(machine.handle(contributed(7), 0.0), Kind.COMMIT)
    body = decode_body(commit)
    assert isinstance(body, Commit)
    assert body.gone == ()


def test_seals_of_two_attempts_do_not_make_a_round_final():
    # The violation of looser rules: "two SEALs for X", one of attempt 0 and one of attempt 2.
    script = Script()
    x, y = lists_of(script.begin())
    script.tell(one.propose(x), one.report(3), *results(digest_of(HEAD.value, x)))
    value = script.value(x)
    script.tell(one.seal(value, 0), two.seal(value, 2))
    assert not script.adopted()
    script.tell(two.seal(script.value(x), 0))
    assert len(script.adopted()) == 1
    del y


def test_lock_is_kept_through_a_second_certificate_for_the_same_list():
    # The violation of looser rules: X is certified again in attempt 1, and that frees for Y.
    script = Script(me=SECOND)
    me, third = SECOND, Voice(ME, HEAD.value)
    own = signed(script.tell(contributed(5)), Kind.COMMIT)[0]
    commits = [one.commit(), third.commit()]
    script.tell(*commits)
    entry = script.machine.view.ballots.find(own.digest)
    assert entry is not None
    everybody = [*commits, ev.Heard(entry.message, entry.body)]
    x, digest = commits, digest_of(HEAD.value, commits)
    script.tell(one.propose(x), one.vote(x), *results(digest))
    assert script.seals() == [(0, digest)]
    script.tell(one.vote(x, 1), third.vote(x, 1), third.report(2), third.propose(everybody, 2))
    assert 2 not in [attempt for attempt, _ in script.signed(Kind.VOTE)]
    script.tell(one.vote(everybody, 1))  # Not a certificate yet, and one vote per slot anyway.
    assert 2 not in [attempt for attempt, _ in script.signed(Kind.VOTE)]
    assert me == script.machine.view.me


def test_report_of_a_locked_voter_carries_lock_and_certificate_into_every_attempt():
    script = Script()
    x, _ = lists_of(script.begin())
    script.tell(one.propose(x), one.vote(x), *results(digest_of(HEAD.value, x)))
    script.tell(two.report(1), two.report(5))
    for attempt, message in script.signed(Kind.NEWATTEMPT):
        entry = script.machine.view.ballots.find(message.digest)
        assert entry is not None
        assert (attempt, entry.body.lock_attempt) in ((1, 0), (5, 0))  # type: ignore[union-attr]
        assert len(entry.body.certificate) == 2  # type: ignore[union-attr]
    assert len(script.signed(Kind.NEWATTEMPT)) == 2


def test_attempt_of_a_dead_closer_ends_once_it_is_suspected():
    script = Script()
    script.begin()
    assert not script.signed(Kind.NEWATTEMPT)
    script.tell(ev.SuspicionsChanged(frozenset({FIRST})))
    assert [attempt for attempt, _ in script.signed(Kind.NEWATTEMPT)] == [1]


def test_attempt_of_a_silent_closer_ends_with_the_time_out():
    script = Script()
    script.begin()
    script.tell(ev.Tick(), now_s=2.9)
    assert not script.signed(Kind.NEWATTEMPT)
    assert script.machine.wakeup_s() <= 3.0
    script.tell(ev.Tick(), now_s=3.0)
    assert [attempt for attempt, _ in script.signed(Kind.NEWATTEMPT)] == [1]


def test_time_outs_grow_while_attempts_that_were_skipped_for_a_dead_closer_do_not_count():
    script = Script()
    script.begin()
    script.tell(ev.SuspicionsChanged(frozenset({FIRST})))
    assert (script.machine.view.attempt, script.machine.view.times.time_outs) == (1, 0)
    now_s = 0.0
    for time_out_s in (3.0, 4.5, 6.75):
        script.tell(ev.Tick(), now_s=now_s + time_out_s - 0.1)
        before = script.machine.view.attempt
        now_s += time_out_s
        script.tell(ev.Tick(), now_s=now_s)
        assert script.machine.view.attempt > before
    assert script.machine.view.times.time_outs == 3


def test_sealed_without_me_is_told_so_that_the_contribution_is_taken_back():
    script = Script()
    x, _ = lists_of(script.begin())
    script.tell(one.propose(x), one.vote(x), *results(digest_of(HEAD.value, x)))
    script.tell(two.seal(script.value(x)))
    (adopt,) = script.adopted()
    assert not adopt.was_listed


def test_commit_of_the_next_round_carries_the_own_seal_of_this_one():
    script = Script()
    _, everybody = lists_of(script.begin())
    script.tell(one.propose(everybody), one.vote(everybody))
    script.tell(*results(digest_of(HEAD.value, everybody)))
    script.tell(two.seal(script.value(everybody)))
    (own,) = [m for _, m in script.signed(Kind.SEAL)]
    (commit,) = signed(script.tell(contributed(6)), Kind.COMMIT)
    entry = script.machine.view.ballots.find(commit.digest)
    assert entry is not None
    assert entry.body.seal == own.encoded  # type: ignore[union-attr]


def test_contribution_to_another_round_is_not_committed():
    script = Script()
    assert not signed(script.tell(contributed(4), contributed(6)), Kind.COMMIT)


def test_contribution_is_committed_once():
    script = Script()
    assert len(signed(script.tell(contributed(5), contributed(5, "other")), Kind.COMMIT)) == 1


def test_founder_waits_for_the_seats_it_was_told_of_but_not_for_ever():
    start = head_of(PEERS)
    start = replace(start, value=replace(start.value, round=0))
    config = replace(CONFIG, wait_seats=1, wait_seats_s=20.0)
    for seats, now_s, commits in ((0, 19.9, 0), (0, 20.0, 1), (1, 0.0, 1)):
        machine = RoundMachine(config, KeyedHashSigner(ME), start, now_s=0.0)
        for number in range(seats):
            joiner = peer_named(f"joiner {number}")
            machine.handle(ev.SeatChecked(joiner, start.value.digest, True), 0.0)
        actions = machine.handle(contributed(1), now_s)
        assert len(signed(actions, Kind.COMMIT)) == commits


# R3 ---------------------------------------------------------------------------------------------


def test_peer_that_slept_fills_no_slot_before_a_quorum_including_itself_told_where_it_is():
    script = Script()
    script.tell(ev.Woke())
    assert script.is_muted()
    _, everybody = lists_of(OTHERS)
    script.tell(contributed(5), *OTHERS, one.propose(everybody), one.vote(everybody))
    script.tell(*results(digest_of(HEAD.value, everybody)), ev.Tick(), now_s=50.0)
    assert not [action for action in script.done if isinstance(action, ev.RecordSlot)]
    script.tell(ev.StatusHeard(FIRST, 0))
    assert not script.is_muted()
    assert script.signed(Kind.COMMIT)


def test_own_words_that_come_back_are_no_sign_of_a_lost_disk():
    script = Script()
    commits = script.begin()
    script.tell(*commits)
    assert not script.is_muted()
    script.tell(Voice(ME, HEAD.value).commit("never said"))
    assert script.is_muted()


def test_status_of_members_that_do_not_vote_wakes_nobody():
    stranger = peer_named("stranger")
    script = Script()
    script.tell(ev.Woke(), ev.StatusHeard(stranger, 0), ev.StatusHeard(ME, 0))
    assert script.is_muted()


def test_two_of_three_that_slept_together_wake_each_other():
    scripts = [Script(me=FIRST), Script(me=SECOND)]
    for script, other in zip(scripts, (SECOND, FIRST), strict=True):
        script.tell(ev.Woke(), ev.StatusHeard(other, 0))
        assert not script.is_muted()


def test_cells_of_the_round_before_are_no_progress_of_this_one():
    script = Script()
    everybody = script.begin()
    digest = digest_of(HEAD.value, everybody)
    script.tell(one.propose(everybody), one.vote(everybody), *results(digest))
    script.tell(two.seal(script.value(everybody)))
    view = script.machine.view
    assert view.index == HEAD.value.round + 2
    before_s = view.times.progress_s
    part = ev.CellsArrived(Bulk.PART, everybody[0].message.digest, (0,))
    script.tell(part, ev.CellsArrived(Bulk.RESULT, digest, (0,)), now_s=3.0)
    assert (view.cells.parts, view.cells.results, view.times.progress_s) == ({}, {}, before_s)


def test_held_machine_listens_and_decides_nothing():
    script = Script()
    script.machine.is_held = True
    script.tell(contributed(5), *OTHERS, ev.Tick(), now_s=99.0)
    assert script.done == []
    script.machine.is_held = False
    script.tell(ev.Tick(), now_s=99.0)
    assert script.signed(Kind.COMMIT)


def test_parts_of_a_list_that_is_summed_reach_every_other_member():
    script = Script()
    commits = script.begin()
    script.tell(one.propose(commits), one.vote(commits))
    (piece,) = [p for p in script.machine.view.slices if p.reducers[0] == ME]
    for heard in commits:
        script.tell(ev.CellsArrived(Bulk.PART, heard.message.digest, (piece.first,)))
    (reduce,) = [action for action in script.done if isinstance(action, ev.Reduce)]
    found = script.tell(ev.Reduced(reduce.list_digest, piece.first, piece.stop, ROOT))
    assert len(signed(found, Kind.AGG)) == 1
    pushes = {(a.to, a.cells) for a in found if isinstance(a, ev.Push)}
    assert pushes == {(FIRST, (piece.first,)), (SECOND, (piece.first,))}


@pytest.mark.parametrize(
    ("mark", "was_listed", "is_doubtful"),
    [(None, False, True), ("mine", True, False), ("other", False, False)],
    ids=["not given yet", "given again", "of another life"],
)
def test_sealed_commit_that_only_others_remember_is_in_doubt_until_the_trainer_gives(
    mark, was_listed, is_doubtful
):
    before = Script()
    commits = before.begin()
    script = Script()
    script.tell(*commits)  # Its own, too, and its journal knows nothing of it.
    assert script.is_muted()
    if mark is not None:
        script.tell(contributed(5, mark))
    digest = digest_of(HEAD.value, commits)
    script.tell(one.propose(commits), one.vote(commits), two.vote(commits), *results(digest))
    value = script.value(commits)
    script.tell(one.seal(value), two.seal(value))
    (adopted,) = script.adopted()
    assert (adopted.was_listed, adopted.is_doubtful) == (was_listed, is_doubtful)
