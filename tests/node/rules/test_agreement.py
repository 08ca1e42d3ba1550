"""R2: what a member says in the attempt it works in, and what it must never say."""

import pytest

from protocol.messages import Kind, List, Vote
from protocol.rounds.agreement import (
    Seen,
    commit_body,
    due_times,
    is_given_up,
    learn,
    statements,
    time_out_s,
)
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.lapses import LearnedDeadline
from protocol.rounds.reducers import Rates
from sim.world.world import peer_named
from tests.node.builders import (
    CONFIG,
    Voice,
    contributed,
    digest_of,
    head_of,
    list_body,
    peers_named,
    view_of,
)

PEERS = peers_named(3)
HEAD = head_of(PEERS)
FIRST = view_of(PEERS[0], HEAD).closer(0)
SECOND, THIRD = (view_of(PEERS[0], HEAD).closer(attempt) for attempt in (1, 2))
one, two, three = (Voice(peer, HEAD.value) for peer in (FIRST, SECOND, THIRD))
COMMITS = [voice.commit() for voice in (one, two, three)]
X, Y = COMMITS[:2], COMMITS[1:]
DIGEST_X, DIGEST_Y = digest_of(HEAD.value, X), digest_of(HEAD.value, Y)
CELLS = set(range(CONFIG.num_cells(1)))


def deadline_1_s() -> LearnedDeadline:
    return LearnedDeadline(floor_s=1.0, cap_s=10.0)


def said(kind, heard, *, me=THIRD, now_s=0.0, **fields):
    """What THIRD, the closer of attempt 2, says of one kind."""
    view = view_of(me, HEAD, heard, **{"opened_s": 0.0, **fields})
    return [s for s in statements(view, deadline_1_s(), now_s=now_s) if s.kind is kind]


def voted(heard, **fields):
    return [statement.body.list_digest for statement in said(Kind.VOTE, heard, **fields)]


def test_nothing_is_said_before_a_quorum_has_committed():
    assert not list(
        statements(view_of(THIRD, HEAD, COMMITS, opened_s=None), deadline_1_s(), now_s=99.0)
    )


# HAVE -------------------------------------------------------------------------------------------


def test_have_is_said_at_once_when_every_part_of_every_expected_member_is_here():
    parts = {heard.message.digest: CELLS for heard in COMMITS}
    assert len(said(Kind.HAVE, COMMITS, parts=parts)) == 1
    del parts[COMMITS[0].message.digest]
    assert not said(Kind.HAVE, COMMITS, parts=parts)
    assert said(Kind.HAVE, COMMITS, parts=parts, suspects=frozenset({FIRST}))


def test_have_waits_for_a_member_that_has_not_committed_until_the_deadline():
    parts = {heard.message.digest: CELLS for heard in X}
    assert not said(Kind.HAVE, X, parts=parts, now_s=0.99)
    assert said(Kind.HAVE, X, parts=parts, now_s=1.0)


def test_have_is_said_once_per_attempt():
    spoken = [*COMMITS, three.have(b"\x07")]
    assert not said(Kind.HAVE, spoken, now_s=99.0)
    assert said(Kind.HAVE, spoken, now_s=99.0, attempt=1)


def test_deadline_is_learned_from_rounds_that_were_complete_only():
    deadline = deadline_1_s()
    parts = {heard.message.digest: CELLS for heard in COMMITS}
    late = view_of(THIRD, HEAD, COMMITS, opened_s=0.0)
    list(statements(late, deadline, now_s=9.0))
    assert deadline.seconds() == 1.0
    whole = view_of(THIRD, HEAD, COMMITS, opened_s=50.0, parts=parts)
    list(statements(whole, deadline, now_s=53.0))
    assert deadline.seconds() == 6.0, "from when it was opened"
    assert not learn(whole, deadline, 54.0), "once a round"


# VOTE -------------------------------------------------------------------------------------------


def test_deadline_is_learned_from_parts_that_were_too_late_for_the_have():
    digest = COMMITS[0].message.digest
    deadline = deadline_1_s()
    view = view_of(THIRD, HEAD, COMMITS, opened_s=0.0)
    view.cells.parts.update({heard.message.digest: CELLS for heard in COMMITS[1:]})
    learn(view, deadline, 0.9)
    assert deadline.seconds() == 1.0, "not all is here"
    list(statements(view, deadline, now_s=1.0))
    (own,) = [piece for piece in view.slices if piece.reducers[0] == THIRD]
    view.attempt = 1
    view.cells.parts[digest] = CELLS - set(range(own.first, own.stop))
    learn(view, deadline, 2.0)
    assert deadline.seconds() == 1.0, "what it is a substitute for does not count"
    view.cells.parts[digest] = CELLS
    learn(view, deadline, 3.0)
    assert deadline.seconds() == 6.0
    learn(view, deadline, 4.0)
    assert deadline.seconds() == 6.0, "once a round"


def test_what_a_late_committer_takes_is_not_learned():
    deadline = deadline_1_s()
    view = view_of(THIRD, HEAD, COMMITS[1:], opened_s=0.0)
    view.cells.parts.update({heard.message.digest: CELLS for heard in COMMITS[1:]})
    view.cells.parts[COMMITS[1].message.digest] = set()
    list(statements(view, deadline, now_s=1.0))
    late = COMMITS[0]
    view.ballots.add(BallotEntry(late.message, late.body))
    view.cells.parts[late.message.digest] = CELLS
    view.cells.parts[COMMITS[1].message.digest] = CELLS
    learn(view, deadline, 2.0)
    assert deadline.seconds() == 4.0, "of those who had committed"
    view = view_of(THIRD, HEAD, COMMITS[1:], opened_s=0.0)
    assert list(statements(view, deadline, now_s=4.0))
    learn(view, deadline, 8.0)
    assert not view.arrivals.is_timed
    view.cells.parts.update({heard.message.digest: CELLS for heard in COMMITS[1:]})
    assert learn(view, deadline, 9.0), "whoever never commits is not waited for"


def first_have(commits, *, lacking=(), at_s=1.0, trust="friends", peers=PEERS):
    """A round and its deadline, behind a HAVE that was late, without the parts of some."""
    me = view_of(peers[0], head_of(peers), trust=trust).slices[0].reducers[0]
    view = view_of(me, head_of(peers), commits, trust=trust, opened_s=0.0)
    view.cells.parts.update({heard.message.digest: CELLS for heard in commits})
    view.cells.parts.update({heard.message.digest: set() for heard in lacking})
    deadline = deadline_1_s()
    assert Kind.HAVE in {statement.kind for statement in statements(view, deadline, now_s=at_s)}
    return view, deadline


def test_parts_that_others_give_in_their_senders_place_say_nothing_of_lines():
    late, other = COMMITS[:2]
    for source, learned_s in ((late.message.sender, 8.0), (other.message.sender, 1.0)):
        view, deadline = first_have(COMMITS, lacking=[late])
        view.note_movement(late.message.digest, source, 4.0)
        view.cells.parts[late.message.digest] = CELLS
        assert learn(view, deadline, 4.0)
        assert deadline.seconds() == learned_s
    view, deadline = first_have(COMMITS, lacking=[late, other])
    view.note_movement(other.message.digest, other.message.sender, 2.0)
    view.cells.parts[other.message.digest] = CELLS
    assert not learn(view, deadline, 2.0)
    view.note_movement(late.message.digest, other.message.sender, 4.0)
    view.cells.parts[late.message.digest] = CELLS
    assert learn(view, deadline, 4.0)
    assert deadline.seconds() == 4.0, "of those that came from their senders"
    parts = {heard.message.digest: CELLS for heard in COMMITS}
    moved_s = {(late.message.digest, other.message.sender): 0.9}
    view = view_of(THIRD, HEAD, COMMITS, opened_s=0.0, parts=parts, moved_s=moved_s)
    assert list(statements(view, deadline, now_s=0.9))
    assert deadline.seconds() == 4.0, "nor before the HAVE"


@pytest.mark.parametrize(("trust", "num_learned"), [("friends", 2), ("open", 2)])
def test_late_commits_are_learned_from_where_more_than_a_few_are_late(trust, num_learned):
    six = peers_named(6)
    commits = [Voice(peer, head_of(six).value).commit() for peer in six]
    for num_late in range(4):
        view, deadline = first_have(commits[num_late:], trust=trust, peers=six)
        for heard in commits[:num_late]:
            view.ballots.add(BallotEntry(heard.message, heard.body))
        learn(view, deadline, 3.0)
        assert (deadline.seconds() == 6.0) == (num_late >= num_learned)


def whole_round(late_s, *, trust, commits, parts_s=()):
    """A round of six and its deadline, with all parts here at last. By number of a member when its
    COMMIT came behind the beginning; parts came 0.2 s behind it, or when `parts_s` says."""
    six = peers_named(6)
    me = view_of(six[0], head_of(six), trust=trust).slices[0].reducers[0]
    view = view_of(me, head_of(six), commits, trust=trust, opened_s=0.0)
    late = dict(zip([at for at in range(6) if six[at] != me], late_s, strict=False))
    for at, heard in enumerate(commits):
        view.cells.parts[heard.message.digest] = CELLS
        if six[at] != me:
            view.arrivals.commit_s[six[at]] = late.get(at, -0.1)
            view.arrivals.parts_s[heard.message.digest] = dict(parts_s).get(
                at, late.get(at, 0.0) + 0.2
            )
        else:
            view.own.commit, view.arrivals.commit_s[me] = heard.message.digest, 9.0
    return view, deadline_1_s()


@pytest.mark.parametrize("is_asked", [True, False], ids=["with the parts", "with the HAVE"])
@pytest.mark.parametrize(
    ("trust", "late_s", "learned_s"),
    [
        ("friends", [1.4], 1.0),
        ("friends", [0.8, 1.4], 2.0),
        ("open", [1.4], 1.0),
        ("open", [0.8, 1.4], 2.0),
        ("open", [1.4, 1.4], 3.2),
        ("open", [0.8, 0.9, 1.4], 2.2),
    ],
)
def test_how_late_the_last_commits_are_is_not_learned_of_a_few(is_asked, trust, late_s, learned_s):
    """Of six one is a few: it would choose how long each of the others waits."""
    commits = [Voice(peer, head_of(peers_named(6)).value).commit() for peer in peers_named(6)]
    view, deadline = whole_round(late_s, trust=trust, commits=commits)
    if is_asked:
        assert learn(view, deadline, 1.5)
    else:
        list(statements(view, deadline, now_s=1.5))
    assert view.arrivals.is_timed
    assert deadline.seconds() == pytest.approx(learned_s)


@pytest.mark.parametrize("trust", ["friends", "open"])
@pytest.mark.parametrize(("num_slow", "learned_s"), [(1, 1.0), (2, 6.8), (3, 6.8)])
def test_how_long_parts_take_is_learned_of_more_than_a_few(trust, num_slow, learned_s):
    six = peers_named(6)
    commits = [Voice(peer, head_of(six).value).commit() for peer in six]
    me = view_of(six[0], head_of(six), trust=trust).slices[0].reducers[0]
    slow = [at for at in range(6) if six[at] != me][:num_slow]
    parts_s = [(at, 3.4) for at in slow]
    view, deadline = whole_round([], trust=trust, commits=commits, parts_s=parts_s)
    assert learn(view, deadline, 3.4)
    assert deadline.seconds() == pytest.approx(learned_s)
    view, deadline = whole_round([], trust=trust, commits=commits, parts_s=parts_s)
    for at in slow:
        view.cells.parts[commits[at].message.digest] = set()
    assert Kind.HAVE in {one.kind for one in statements(view, deadline, now_s=1.0)}
    for at in slow:
        view.cells.parts[commits[at].message.digest] = CELLS
    assert learn(view, deadline, 3.4)
    assert deadline.seconds() == pytest.approx(learned_s), "nor behind the HAVE"


def test_vote_goes_to_the_list_of_the_attempt_one_works_in():
    heard = [*COMMITS, one.propose(X), two.propose(Y, 1)]
    assert voted(heard) == [DIGEST_X]
    assert voted(heard, attempt=1) == [DIGEST_Y]
    assert voted(heard, attempt=2) == []


def test_vote_is_given_once_per_attempt():
    assert voted([*COMMITS, one.propose(X), three.vote(Y)]) == []


def test_list_with_an_unknown_commit_gets_no_vote_until_the_commit_comes():
    assert voted([*X[:1], one.propose(X)]) == []
    assert voted([*X, one.propose(X)]) == [DIGEST_X]


@pytest.mark.parametrize("commits", [(1, 0), (0, 0), (0, 1, 0)])
def test_list_that_is_not_ascending_or_names_one_twice_gets_no_vote(commits):
    ordered = sorted(COMMITS, key=lambda heard: heard.message.sender)
    digests = tuple(ordered[index].message.digest for index in commits)
    body = List(commits=digests, drifts=(), certificate=())
    assert voted([*COMMITS, one.say(Kind.LIST, body)]) == []


def test_list_that_names_a_lost_branch_gets_no_vote_before_there_are_branches():
    body = List(commits=(), drifts=(bytes(32),), certificate=())
    assert voted([*COMMITS, one.say(Kind.LIST, body)]) == []


def test_members_that_do_not_vote_say_have_and_nothing_else():
    everybody = peers_named(4)
    head = head_of(everybody[:3], everybody[3:])
    voices = [Voice(peer, head.value) for peer in everybody]
    commits = [voice.commit() for voice in voices]
    closer = view_of(everybody[3], head).closer(1)
    heard = [*commits, Voice(closer, head.value).propose(commits, 1)]
    view = view_of(everybody[3], head, heard, opened_s=0.0, attempt=1)
    assert [s.kind for s in statements(view, deadline_1_s(), now_s=99.0)] == [Kind.HAVE]


def certified(commits, attempt, voices=(one, two)):
    return [voice.vote(commits, attempt) for voice in voices]


# (LIST of attempt 2, its lock, what is certified when) -> whether THIRD votes for Y in attempt 2.
LOCKS = [
    (None, [], True),
    (None, [(X, 1)], True),
    ((0, DIGEST_Y), [], True),
    ((0, DIGEST_X), [], False),
    # The violation of looser rules: a later certificate, but for X once more.
    ((0, DIGEST_X), [(X, 1)], False),
    ((0, DIGEST_X), [(Y, 1)], True),
    # A certificate for Y from the lock's own attempt or before it is not later.
    ((1, DIGEST_X), [(Y, 0)], False),
    ((1, DIGEST_X), [(Y, 1)], False),
    ((1, DIGEST_X), [(Y, 0), (X, 1)], False),
]


@pytest.mark.parametrize(("lock", "certificates", "may_vote"), LOCKS)
def test_lock_gives_way_only_to_a_later_certificate_for_that_very_list(
    lock, certificates, may_vote
):
    # SECOND is the one that votes; THIRD proposes in attempt 2.
    heard = [*COMMITS, one.propose(X, 0), three.propose(Y, 2)]
    for commits, attempt in certificates:
        heard += certified(commits, attempt, (one, three))
    found = voted(heard, me=SECOND, attempt=2, lock=lock)
    assert found == ([DIGEST_Y] if may_vote else [])


def test_vote_of_one_voter_is_no_certificate_that_frees_a_lock():
    heard = [*COMMITS, one.propose(X), three.propose(Y, 2), one.vote(Y, 1)]
    assert voted(heard, me=SECOND, attempt=2, lock=(0, DIGEST_X)) == []


# LIST and NEWATTEMPT ----------------------------------------------------------------------------


def test_list_is_proposed_by_the_closer_of_the_attempt_only_and_only_once():
    heard = [*COMMITS, three.have(b"\x07", 2), one.report(2), two.report(2)]
    assert len(said(Kind.LIST, heard, attempt=2)) == 1
    assert not said(Kind.LIST, heard, me=SECOND, attempt=2)
    assert not said(Kind.LIST, [*heard, three.propose(X, 2)], attempt=2)


def test_report_is_made_once_in_every_attempt_but_the_first():
    assert not said(Kind.NEWATTEMPT, COMMITS)
    assert len(said(Kind.NEWATTEMPT, COMMITS, attempt=1)) == 1
    assert not said(Kind.NEWATTEMPT, [*COMMITS, three.report(1)], attempt=1)


# Time-outs --------------------------------------------------------------------------------------


def given_up(heard=(), *, me=THIRD, now_s, **fields):
    view = view_of(me, HEAD, heard, **{"opened_s": 0.0, **fields})
    return is_given_up(view, deadline_1_s(), now_s=now_s)


def test_attempt_is_given_up_after_its_time_out():
    assert not given_up(now_s=2.9)
    assert given_up(now_s=3.0)


def test_time_out_stands_still_while_bytes_arrive():
    assert not given_up(now_s=3.0, progress_s=2.5)
    assert given_up(now_s=3.5, progress_s=2.5)


def test_time_out_of_a_later_attempt_counts_from_its_start():
    assert not given_up(now_s=12.9, attempt=1, entered_s=10.0)
    assert given_up(now_s=13.0, attempt=1, entered_s=10.0)


def test_time_out_is_longer_after_a_time_out_however_many_attempts_were_skipped():
    fields = {"attempt": 9, "entered_s": 10.0, "time_outs": 1}
    assert not given_up(now_s=10.0 + 3.0 * 1.5 - 0.1, **fields)
    assert given_up(now_s=10.0 + 3.0 * 1.5, **fields)


def test_attempt_whose_closer_is_suspected_is_given_up_at_once_unless_it_spoke():
    suspects = frozenset({FIRST})
    assert given_up(now_s=0.0, suspects=suspects)
    assert not given_up([*COMMITS, one.propose(X)], now_s=0.0, suspects=suspects)
    assert not given_up(now_s=0.0, suspects=frozenset({SECOND}))


def test_attempt_in_which_nobody_is_complete_is_given_up_by_its_closer_without_a_time_out():
    heard = [*COMMITS, *(voice.have(b"\x00") for voice in (one, two, three))]
    assert given_up(heard, me=FIRST, now_s=0.0)
    assert not given_up(heard, me=SECOND, now_s=0.0)


def test_attempt_whose_list_needs_a_part_that_is_lost_is_given_up_by_who_would_sum_it():
    for gone in (FIRST, SECOND):
        (piece,) = [p for p in view_of(THIRD, HEAD).slices if p.reducers[0] == gone]
        heir = piece.reducers[1]
        chosen = [heard for heard in COMMITS if heard.message.sender != THIRD]
        heard = [*COMMITS, one.propose(chosen), one.vote(chosen), two.vote(chosen)]
        view = view_of(heir, HEAD, heard, opened_s=0.0, suspects=frozenset({gone}))
        assert is_given_up(view, deadline_1_s(), now_s=0.1)
        view.cells.parts.update({heard.message.digest: CELLS for heard in COMMITS})
        assert not is_given_up(view, deadline_1_s(), now_s=0.1)


def test_attempt_beside_another_round_waits_for_that_seal_once_all_else_is_done():
    """R5: it may not be SEALed before; a new attempt would make it no sooner."""
    view = view_of(THIRD, HEAD, COMMITS, opened_s=0.0, is_beside=True)
    digest = view.ballots.list_digest(list_body(X))
    closer = Voice(view.closer(0), HEAD.value)
    votes = [voice.say(Kind.VOTE, Vote(list_digest=digest)) for voice in (one, two)]
    given = []
    for event in (closer.propose(X), *votes):
        view.ballots.add(BallotEntry(event.message, event.body))
        given.append(is_given_up(view, deadline_1_s(), now_s=99.0))
    view.cells.results[digest] = CELLS
    assert [*given, is_given_up(view, deadline_1_s(), now_s=99.0)] == [True, True, True, False]
    view.attempt = 1
    assert is_given_up(view, deadline_1_s(), now_s=99.0), "certified in an attempt before"


def test_round_that_has_not_opened_has_no_time_out():
    assert not given_up(now_s=1e9, opened_s=None)
    view = view_of(THIRD, HEAD, opened_s=None)
    assert not list(due_times(view, deadline_1_s()))


def test_every_deadline_is_among_the_times_at_which_the_machine_wakes():
    view = view_of(THIRD, HEAD, opened_s=5.0, progress_s=9.0)
    due = set(due_times(view, deadline_1_s()))
    assert {5.5, 6.0, 6.5, time_out_s(view, deadline_1_s())} <= due


# COMMIT -----------------------------------------------------------------------------------------


def test_commit_reports_members_only_and_never_suspects_its_sender():
    stranger, joiner = peer_named("stranger"), peer_named("joiner")
    view = view_of(THIRD, HEAD, opened_s=0.0)
    view.seats.proven = {joiner, FIRST}
    body = commit_body(
        view,
        contributed(5),
        Seen(
            suspects=frozenset({FIRST, THIRD, stranger}),
            left={SECOND, stranger},
            is_past_end=False,
            rates=Rates(),
        ),
    )
    assert (body.joins, body.suspects, body.gone) == ((joiner,), (FIRST,), (SECOND,))
    assert body.base == HEAD.value.digest
