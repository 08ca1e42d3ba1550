"""R2: what a round's messages certify and seal."""

from dataclasses import replace

from protocol import limits
from protocol.messages import Kind
from protocol.rounds.ballots import BallotEntry, Ballots
from tests.node.builders import (
    ROOT,
    Voice,
    digest_of,
    head_of,
    list_body,
    peers_named,
    roster_of,
    view_of,
)

A, B, C, D = peers_named(4)
HEAD = head_of((A, B, C), (D,))
a, b, c, d = (Voice(peer, HEAD.value) for peer in (A, B, C, D))
COMMITS = [voice.commit() for voice in (a, b, c)]
X, Y = COMMITS[:2], COMMITS[1:]
VALUE = replace(HEAD.value, round=5, before=HEAD.value.digest, basis=HEAD.value.digest)


def ballots_of(*heard) -> Ballots:
    return view_of(D, HEAD, heard).ballots


def test_message_filed_again_is_known_and_a_second_one_in_its_slot_is_a_conflict():
    ballots = ballots_of(a.commit("one"))
    one, other = a.commit("one"), a.commit("other")
    assert ballots.add(BallotEntry(one.message, one.body)) == "known"
    assert ballots.add(BallotEntry(other.message, other.body)) == "conflict"
    assert ballots.commits[A][0] == one.message.digest
    # A LIST that names it can be read: its closer may not have known better.
    assert ballots.commit_of(other.message.digest) == (A, other.body)


def test_second_vote_of_one_sender_in_one_slot_does_not_count():
    ballots = ballots_of(a.vote(X), b.vote(Y))
    second = a.vote(Y)
    ballots.add(BallotEntry(second.message, second.body))
    assert ballots.certified() == ()


FOUR = head_of((A, B, C, D))
VOICES = [Voice(peer, FOUR.value) for peer in (A, B, C, D)]


def open_ballots(*heard) -> Ballots:
    """Of four voters, of whom one may lie."""
    ballots = Ballots(FOUR.value.digest, 0, 5, FOUR.value.roster, "open")
    for said in heard:
        ballots.add(BallotEntry(said.message, said.body))
    return ballots


def test_liar_that_votes_for_everything_is_part_of_every_quorum():
    """Else whoever heard it say something else first could never be shown what a lock rests on."""
    one, two, three, liar = VOICES
    commits = [voice.commit() for voice in VOICES]
    listed = [commits[:count] for count in (1, 2, 3)]
    wanted = digest_of(FOUR.value, listed[2])
    twice = [liar.vote(listed[0]), liar.vote(listed[2])]
    votes = [one.vote(listed[2]), two.vote(listed[2])]
    assert open_ballots(*twice, *votes).certified() == ((0, wanted),)
    # A third is kept only where an honest voter said the same, so that nobody fills the memory.
    thrice = [liar.vote(listed[0]), liar.vote(listed[1]), liar.vote(listed[2])]
    late = open_ballots(*thrice, *votes)
    assert (late.certified(), late.find(thrice[2].message.digest)) == ((), None)
    late.add(BallotEntry(thrice[2].message, thrice[2].body))
    assert late.certified() == ((0, wanted),)
    assert open_ballots(*thrice[:2], votes[0], thrice[2]).find(thrice[2].message.digest) is None
    assert open_ballots(*votes, three.vote(listed[2])).certified() == ((0, wanted),)


def test_third_commit_is_read_where_an_honest_voter_voted_for_a_list_that_names_it():
    one, two, _, liar = VOICES
    first, second, third = (liar.commit(mark) for mark in ("one", "two", "three"))
    named = [one.commit(), third]
    ballots = open_ballots(first, second, third, one.propose(named), one.vote(named))
    digest = third.message.digest
    ballots.add(BallotEntry(third.message, third.body))
    assert ballots.commit_of(digest) is None
    for said in (two.vote(named), third):
        ballots.add(BallotEntry(said.message, said.body))
    assert ballots.commit_of(digest) == (D, third.body)
    assert ballots.commits[D][0] == first.message.digest


def test_member_that_contradicts_itself_without_end_fills_no_memory():
    for said in (
        [VOICES[0].have(bytes([number])) for number in range(8)],
        [VOICES[0].commit(str(number)) for number in range(8)],
        [VOICES[0].seal(replace(VALUE, root=bytes([number]) * 32)) for number in range(8)],
    ):
        ballots = open_ballots()
        for heard in said:
            ballots.add(BallotEntry(heard.message, heard.body))
        assert len(ballots) <= 2, "the evidence, and no more"


def test_votes_certify_once_a_quorum_agrees_in_one_attempt():
    x, y = digest_of(HEAD.value, X), digest_of(HEAD.value, Y)
    ballots = ballots_of(a.vote(X), b.vote(Y, 1))
    assert ballots.certified() == ()
    for voice, listed, attempt in ((b, X, 1), (c, Y, 1), (c, X, 2), (a, X, 2)):
        heard = voice.vote(listed, attempt)
        ballots.add(BallotEntry(heard.message, heard.body))
    assert ballots.certified() == ((2, x), (1, y))
    assert [m.sender for m in ballots.certificate(2, x)] == [A, C]
    assert ballots.certificate(1, x) == ()


def test_votes_of_members_that_do_not_vote_certify_nothing():
    assert ballots_of(a.vote(X), d.vote(X)).certified() == ()


def test_seals_of_two_attempts_never_add_up():
    ballots = ballots_of(a.seal(VALUE, 0), b.seal(VALUE, 2))
    assert ballots.sealed(HEAD.value.digest) is None
    third = c.seal(VALUE, 2)
    ballots.add(BallotEntry(third.message, third.body))
    found = ballots.sealed(HEAD.value.digest)
    assert found is not None
    assert found[0].value == VALUE.digest
    assert [(m.sender, m.slot.attempt) for m in found[1]] == [(B, 2), (C, 2)]


def test_seals_that_differ_in_any_field_do_not_add_up():
    for other in (replace(VALUE, root=bytes(32)), replace(VALUE, commits=(ROOT,))):
        assert ballots_of(a.seal(VALUE), b.seal(other)).sealed(HEAD.value.digest) is None


def test_seals_with_another_seal_before_do_not_count():
    assert ballots_of(a.seal(VALUE), b.seal(VALUE)).sealed(ROOT) is None


def test_commits_are_ascending_by_sender_however_they_came():
    ballots = ballots_of(c.commit(), a.commit(), b.commit())
    assert list(ballots.commits) == [A, B, C]


def test_list_is_found_from_whichever_attempt_it_was_proposed_in():
    ballots = ballots_of(a.propose(X), b.propose(Y, 1))
    assert ballots.list_of(digest_of(HEAD.value, X)) == list_body(X)
    assert ballots.list_of(digest_of(HEAD.value, Y)) == list_body(Y)
    assert ballots.list_of(digest_of(HEAD.value, COMMITS)) is None


def test_full_ballots_refuse_others_and_keep_room_for_the_own_messages():
    ballots = ballots_of()
    room = limits.MESSAGES_PER_ROUND_MAX - limits.SEATS_ASKED_MAX
    for attempt in range(room // len(ballots.roster.members)):
        for voice in (a, b, c, d):
            heard = voice.vote(X, attempt=attempt)
            assert ballots.add(BallotEntry(heard.message, heard.body)) == "new"
    late, own = b.commit(), d.commit()
    assert ballots.add(BallotEntry(late.message, late.body)) == "full"
    assert ballots.add(BallotEntry(own.message, own.body), is_own=True) == "new"
    # What was refused may come again later: it left no trace.
    assert ballots.of(Kind.COMMIT).keys() == {D}


def test_member_that_says_all_that_it_can_leaves_the_others_their_room():
    ballots = ballots_of()
    own = (limits.MESSAGES_PER_ROUND_MAX - limits.MESSAGES_SHARED_MAX) // 4
    filed = [
        ballots.add(BallotEntry(heard.message, heard.body))
        for heard in (a.vote(X, attempt=attempt) for attempt in range(own + 1100))
    ]
    assert filed.count("new") == own + limits.MESSAGES_SHARED_MAX - limits.SEATS_ASKED_MAX
    for attempt in range(own):
        heard = b.vote(X, attempt=attempt)
        assert ballots.add(BallotEntry(heard.message, heard.body)) == "new"


def test_list_digest_depends_on_the_round_it_belongs_to():
    ballots = Ballots(HEAD.value.digest, 0, 5, roster_of((A, B)), "friends")
    later = Ballots(HEAD.value.digest, 0, 6, roster_of((A, B)), "friends")
    assert ballots.list_digest(list_body(X)) == digest_of(HEAD.value, X)
    assert ballots.list_digest(list_body(X)) != later.list_digest(list_body(X))
