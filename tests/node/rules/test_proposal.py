"""R2: who is complete, and what the closer of an attempt may propose."""

import random
from dataclasses import replace

import pytest

from protocol.messages import Have, Held, Kind, List
from protocol.rounds import proposal
from protocol.rounds.agreement import statements
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.lapses import LearnedDeadline, note_lapses
from protocol.rounds.proposal import (
    BRANCH_TIME_OUTS_MAX,
    complete_senders,
    held_runs,
    is_hopeless,
    leaves_out,
    propose,
    short_senders,
)
from protocol.rounds.reducers import pack_senders, unpack_senders
from tests.node.builders import CONFIG, Voice, digest_of, head_of, list_body, peers_named, view_of

PEERS = peers_named(3)
A, B, C = PEERS
HEAD = head_of(PEERS)
a, b, c = (Voice(peer, HEAD.value) for peer in PEERS)
COMMITS = [voice.commit() for voice in (a, b, c)]
ALL, NOT_C, NOBODY = b"\x07", b"\x03", b"\x00"
EMPTY = List(commits=(), drifts=(), certificate=())


def proposed(heard, *, attempt=0, now_s=0.0, **fields):
    view = view_of(A, HEAD, heard, attempt=attempt, opened_s=0.0, **fields)
    return propose(view, now_s=now_s, deadline_s=1.0)


def test_bit_map_of_senders_comes_back_and_ignores_bits_beyond_the_roster(seed):
    rng = random.Random(seed)
    members = peers_named(19)
    for _ in range(30):
        senders = {peer for peer in members if rng.random() < 0.5}
        assert unpack_senders(pack_senders(senders, members), members) == senders
    assert pack_senders({members[0]}, members) == b"\x01\x00\x00"
    assert pack_senders({members[9]}, members) == b"\x00\x02\x00"
    assert unpack_senders(b"\xff" * 8, members) == set(members)
    assert unpack_senders(b"", members) == set()


def test_sender_is_complete_if_every_cell_is_held_by_some_reducer():
    def have(voice, *runs):
        held = tuple(Held(first=f, stop=s, senders=bits) for f, s, bits in runs)
        return voice.say(Kind.HAVE, Have(held=held))

    view = view_of(A, HEAD, [*COMMITS, have(a, (0, 1, ALL)), have(b, (1, 3, NOT_C))])
    assert complete_senders(view) == {A, B}
    view = view_of(A, HEAD, [*COMMITS, have(a, (0, 2, ALL)), have(b, (1, 3, ALL))])
    assert complete_senders(view) == {A, B, C}
    view = view_of(A, HEAD, [*COMMITS, have(a, (0, 2, ALL))])
    assert complete_senders(view) == set()


def test_sender_without_a_commit_is_never_complete_whatever_reducers_say():
    assert complete_senders(view_of(A, HEAD, [*COMMITS[:2], a.have(ALL)])) == {A, B}


def test_have_of_an_earlier_attempt_proves_nothing_in_this_one():
    assert complete_senders(view_of(A, HEAD, [*COMMITS, a.have(ALL, 0)], attempt=1)) == set()


def test_closer_lists_everybody_at_once_when_nobody_is_missing():
    assert proposed([*COMMITS, a.have(ALL)]) == list_body(COMMITS)


def test_closer_waits_for_the_missing_until_its_deadline_then_lists_the_complete():
    heard = [*COMMITS[:2], a.have(NOT_C)]
    assert proposed(heard, now_s=1.49) is None
    assert proposed(heard, now_s=1.5) == list_body(COMMITS[:2])


def test_closer_waits_longer_for_who_committed_while_a_reducer_is_silent_that_may_hold_its_parts():
    heard = [*COMMITS, a.have(NOT_C)]
    assert proposed(heard, now_s=1.99) is None
    assert proposed(heard, now_s=2.0) == list_body(COMMITS[:2])
    without = frozenset({"second-call"})
    assert proposed(heard, now_s=1.5, without=without) == list_body(COMMITS[:2])


def test_closer_waits_for_the_second_call_where_somebody_holds_what_too_few_do():
    said = [*COMMITS, a.have(ALL, cells=1), b.have(NOT_C), c.have(NOT_C)]
    assert proposed(said, now_s=0.5) is None, "one of three cells of C is held"
    assert proposed([*said, b.hold(ALL)], now_s=0.5) == list_body(COMMITS)
    assert proposed(said, now_s=2.0) == list_body(COMMITS[:2])


def test_closer_does_not_wait_once_every_reducer_that_is_expected_has_spoken():
    heard = [*COMMITS, a.have(NOT_C), b.have(NOT_C), c.have(NOT_C)]
    assert proposed(heard) == list_body(COMMITS[:2])


def test_closer_does_not_wait_for_a_suspect():
    assert proposed([*COMMITS[:2], a.have(NOT_C)], suspects=frozenset({C})) == list_body(
        COMMITS[:2]
    )


def test_closer_lists_a_suspect_whose_parts_are_all_here():
    assert proposed([*COMMITS, a.have(ALL)], suspects=frozenset({C})) == list_body(COMMITS)


def test_closer_proposes_nothing_before_the_fourth_attempt_where_nobody_is_complete():
    heard = [*COMMITS, *(v.report(attempt) for v in (a, b) for attempt in (1, 2, 3))]
    assert proposed(heard, now_s=99.0) is None
    assert proposed(heard, attempt=2, now_s=99.0) is None
    assert proposed(heard, attempt=3, now_s=1.0) is None
    assert proposed(heard, attempt=3, now_s=99.0) == EMPTY


def test_later_closer_needs_the_reports_of_a_quorum():
    heard = [*COMMITS, a.have(ALL, 1), a.report(1)]
    assert proposed(heard, attempt=1) is None
    assert proposed([*heard, c.report(1)], attempt=1) == list_body(COMMITS)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_later_closer_takes_up_the_highest_proven_lock_with_its_certificate(is_reversed):
    x, y = COMMITS[:2], COMMITS[1:]
    votes_x = [v.vote(x, 0) for v in (a, b)]
    votes_y = [v.vote(y, 1) for v in (b, c)]
    locks = [(1, y), (0, x)] if is_reversed else [(0, x), (1, y)]
    reports = [voice.report(2, lock) for voice, lock in zip((a, c), locks, strict=True)]
    heard = [*COMMITS, *votes_x, *votes_y, a.have(ALL, 2), *reports]
    found = proposed(heard, attempt=2)
    assert found is not None
    assert found.commits == list_body(y).commits


def test_reported_lock_without_its_certificate_binds_nobody():
    x = COMMITS[:2]
    heard = [*COMMITS, a.vote(x, 0), a.have(ALL, 1), a.report(1), c.report(1, (0, x))]
    assert proposed(heard, attempt=1) == list_body(COMMITS)


def test_certificate_that_nobody_is_locked_on_binds_nobody():
    # The violation of looser rules: {A} is certified, A is gone with the only copy of its part.
    x = COMMITS[:1]
    heard = [*COMMITS, *(v.vote(x, 0) for v in (b, c)), a.propose(x), b.report(1), c.report(1)]
    heard.append(b.have(b"\x06", 1))
    found = proposed(heard, attempt=1, suspects=frozenset({C}), now_s=99.0)
    assert found == list_body(COMMITS[1:])


def test_certified_list_of_which_the_closer_holds_the_whole_result_is_proposed_again():
    x = COMMITS[:2]
    heard = [*COMMITS, a.propose(x), a.vote(x), b.vote(x), a.report(1), b.report(1), a.have(ALL, 1)]
    summed = {digest_of(HEAD.value, x): set(range(CONFIG.num_cells(1)))}
    found = proposed(heard, attempt=1, results=summed)
    assert found is not None
    assert found.commits == list_body(x).commits
    assert len(found.certificate) == 2


@pytest.mark.parametrize("is_locked", [True, False])
def test_report_carries_the_lock_with_its_proof_or_else_the_missing_cells(is_locked):
    x = COMMITS[:2]
    digest = digest_of(HEAD.value, x)
    view = view_of(
        A,
        HEAD,
        [*COMMITS, a.propose(x), a.vote(x), b.vote(x)],
        results={digest: {1}},
        lock=(0, digest) if is_locked else None,
    )
    report = proposal.lock_report(view)
    if is_locked:
        assert (report.lock_attempt, report.commits) == (0, list_body(x).commits)
        assert len(report.certificate) == 2
        assert report.missing == ()
    else:
        assert (report.lock_attempt, report.commits, report.certificate) == (-1, (), ())
        assert report.missing == (0, 2)


def test_have_tells_runs_of_equal_cells_and_leaves_out_what_nobody_sent():
    head = head_of(PEERS[:2])
    view = view_of(A, head, [Voice(peer, head.value).commit() for peer in PEERS[:2]])
    view.suspect(frozenset({B}))  # So that A sums every slice.
    ids = [digest for _, digest, _ in view.commits()]
    view.cells.parts.update({ids[0]: {1, 2}, ids[1]: {2}})
    found = {cell: run.senders for run in held_runs(view) for cell in range(run.first, run.stop)}
    assert found == {1: b"\x01", 2: b"\x03"}
    view.cells.parts.clear()
    assert list(held_runs(view)) == []


def test_have_tells_only_of_cells_that_its_signer_sums():
    view = view_of(A, HEAD, COMMITS)
    view.cells.parts.update({heard.message.digest: {0, 1, 2} for heard in COMMITS})
    (own,) = [piece for piece in view.slices if piece.reducers[0] == A]
    assert list(held_runs(view)) == [Held(first=own.first, stop=own.stop, senders=ALL)]
    view.attempt = 2
    assert sum(run.stop - run.first for run in held_runs(view)) == CONFIG.num_cells(1)


@pytest.mark.parametrize(
    ("haves", "suspects", "hopeless"),
    [
        ((), frozenset(), False),
        ((a,), frozenset(), False),  # Others may still speak.
        ((a, b), frozenset({C}), True),
        ((a, b, c), frozenset(), True),
    ],
)
def test_closer_gives_an_attempt_up_once_all_have_spoken_and_nobody_is_complete(
    haves, suspects, hopeless
):
    attempt = next(n for n in range(3) if view_of(A, HEAD).closer(n) == A)
    heard = [*COMMITS, *(voice.have(NOBODY, attempt) for voice in haves)]
    view = view_of(A, HEAD, heard, attempt=attempt, suspects=suspects)
    times = {"now_s": 99.0, "deadline_s": 1.0}
    assert is_hopeless(view, **times) is hopeless
    other = view_of(B, HEAD, heard, attempt=attempt, suspects=suspects)
    assert not is_hopeless(other, **times)
    whole = [*COMMITS, *(voice.have(ALL, attempt) for voice in (a, b, c))]
    assert not is_hopeless(view_of(A, HEAD, whole, attempt=attempt), **times)


def test_list_of_a_branch_gives_way_where_its_bytes_did_not_come_in_several_attempts():
    of_branch = COMMITS[1:2]
    heard = [*COMMITS, b.propose(of_branch), *(voice.have(ALL) for voice in (a, b, c))]

    def at(time_outs):
        return proposed(heard, bound=digest_of(HEAD.value, of_branch), time_outs=time_outs)

    assert at(0) == at(BRANCH_TIME_OUTS_MAX - 1) == list_body(of_branch)
    assert at(BRANCH_TIME_OUTS_MAX) == list_body(COMMITS)


# What a LIST may be without (open runs) ---------------------------------------------------------

SIX = peers_named(6)
OPEN = head_of(SIX)
"""Of six voters one may lie."""
voices = [Voice(peer, OPEN.value) for peer in SIX]
OF_SIX = [voice.commit() for voice in voices]
HELD = [voices[number].have(b"\x3f") for number in (0, 1, 2)]
"""Three reducers hold all parts of all six: whoever of them is judged, two others do."""


def test_nobody_waits_for_a_second_call_of_parts_whose_sender_is_not_in_reach():
    some = [voices[0].have(b"\x3f"), *(voices[number].have(b"\x1f") for number in (1, 2))]
    reached = view_of(SIX[0], OPEN, [*OF_SIX, *some], trust="open", opened_s=0.0)
    gone = view_of(
        SIX[0], OPEN, [*OF_SIX, *some], trust="open", opened_s=0.0, suspects=frozenset(SIX[5:])
    )
    found = [short_senders(view, complete_senders(view)) for view in (reached, gone)]
    assert found == [{SIX[5]}, set()]


def is_refused(listed, *, heard=(), is_late=False, certificate=(), **fields) -> bool:
    around = {"trust": "open", "opened_s": 0.0} | fields
    view = view_of(SIX[0], OPEN, [*OF_SIX, *heard], **around)
    body = replace(list_body(listed), certificate=certificate)
    return leaves_out(view, body, is_late=is_late)


def test_list_without_more_than_may_lie_waits_until_haves_are_due_and_then_asks_them():
    for missing in range(6):
        listed = OF_SIX[missing:]
        assert is_refused(listed) == (missing > 1)
        assert not is_refused(listed, is_late=True), "nobody is known to be complete"
        assert is_refused(listed, heard=HELD, is_late=True) == (missing > 1)
    # The sixth has withheld its parts from the reducers, and the fifth: that is no closer's fault.
    some = [voices[number].have(b"\x0f") for number in (0, 1, 2)]
    assert not is_refused(OF_SIX[:4], heard=some, is_late=True)
    assert not is_refused(OF_SIX[1:4], heard=some, is_late=True)
    assert is_refused(OF_SIX[2:4], heard=some, is_late=True)


def test_vote_for_a_list_that_leaves_others_out_waits_until_haves_are_due():
    alone, deadline = OF_SIX[:1], LearnedDeadline(floor_s=1.0, cap_s=10.0)
    view = view_of(SIX[1], OPEN, OF_SIX, trust="open", opened_s=2.0)
    listed = Voice(view.closer(0), OPEN.value).propose(alone)
    view.ballots.add(BallotEntry(listed.message, listed.body))
    votes = [
        [s for s in statements(view, deadline, now_s=now_s) if s.kind is Kind.VOTE]
        for now_s in (2.0, 3.9, 4.0)
    ]
    assert [len(found) for found in votes] == [0, 0, 1], "after the second call"


@pytest.mark.parametrize("listed", [OF_SIX[:1], []])
def test_list_that_is_shown_certified_or_comes_after_many_attempts_is_free(listed):
    assert is_refused(listed)
    assert not is_refused(listed, certificate=(b"vote",))
    assert [is_refused(listed, attempt=attempt) for attempt in range(4)] == [True] * 3 + [False]
    assert not is_refused(listed, lock=(0, bytes(32)))
    assert not is_refused(listed, trust="friends")
    assert not is_refused(listed, without=frozenset({"inclusion"}))


@pytest.mark.parametrize("num_listed", range(7))
def test_closer_that_leaves_out_whom_it_had_to_list_keeps_others_waiting(num_listed):
    haves = [voice.have(b"\x3f") for voice in voices]
    view = view_of(SIX[1], OPEN, [*OF_SIX, *haves], trust="open", opened_s=0.0)
    listed = Voice(view.closer(0), OPEN.value).propose(OF_SIX[:num_listed])
    view.ballots.add(BallotEntry(listed.message, listed.body))
    note_lapses(view, now_s=0.5, deadline_s=1.0)
    assert view.lapses.lapsed == ({view.closer(0)} if num_listed < 6 else set())


def test_convicted_senders_belong_in_no_list():
    convicted = frozenset(SIX[2:])
    assert is_refused(OF_SIX[:2])
    assert not is_refused(OF_SIX[:2], convicted=convicted)


def test_where_nobody_may_lie_any_list_will_do():
    three = head_of(SIX[:3])
    of_three = [Voice(peer, three.value).commit() for peer in SIX[:3]]
    view = view_of(SIX[0], three, of_three, opened_s=0.0, trust="open")
    assert not leaves_out(view, list_body(of_three[:1]), is_late=False)
