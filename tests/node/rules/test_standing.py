"""R4: on which seal a node stands, and what it keeps of branches that it left."""

from dataclasses import replace

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Kind, List, SealCertificate, SealValue, Vote
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.restart import Restart, refill
from protocol.rounds.round_view import RoundView
from protocol.rounds.standing import Reach, Standing
from protocol.wire import encode
from tests.node.builders import (
    CONFIG,
    Voice,
    contributed,
    head_of,
    peers_named,
    roster_of,
    view_of,
)

A, B, C, D = peers_named(4)
HEAD = head_of((A, B, C))


def entry_of(said) -> BallotEntry:
    return BallotEntry(said.message, said.body)


def link(before: SealValue, name: int) -> SealCertificate:
    clock = replace(before.clock, step=before.clock.step + name)
    value = replace(
        before, round=before.round + 1, before=before.digest, basis=before.digest, clock=clock
    )
    return SealCertificate(value=value, seals=())


def new_view(certificate: SealCertificate) -> RoundView:
    return view_of(A, certificate, final=HEAD.value)


def standing_on(*names: int) -> tuple[Standing, list[SealCertificate]]:
    standing = Standing(HEAD, [view_of(A, HEAD)])
    links: list[SealCertificate] = []
    for name in names:
        links.append(link(standing.head.value, name))
        standing.advance(links[-1], new_view)
    return standing, links


def test_there_is_a_view_of_every_round_of_the_branch():
    standing, links = standing_on(1, 2)
    assert standing.base.seals.head == HEAD.value
    assert standing.top.seals.head == links[-1].value
    assert [view.index for view in standing.views] == [5, 6, 7]
    assert standing.position.final == HEAD.value
    assert standing.position.head == links[-1].value
    assert standing.bound == links[0].value.list_digest


def test_confirmed_round_leaves_the_rest_of_the_branch_as_it_is():
    standing, links = standing_on(1, 2)
    top = standing.top
    final = replace(links[0], seals=(b"a quorum",))
    standing.confirm(final)
    assert (standing.final, standing.branch) == (final, links[1:])
    assert standing.top is top
    assert {view.seals.final for view in standing.views} == {final.value}


def test_view_of_a_branch_that_was_left_is_there_again_with_what_was_signed():
    standing, links = standing_on(1, 2)
    second = standing.views[1]
    standing.fall_back()
    assert standing.views == [standing.base]
    assert standing.bound == b""
    standing.advance(link(HEAD.value, 9), new_view)
    assert standing.top is not second
    standing.fall_back()
    standing.advance(links[0], new_view)
    assert standing.top is second


def test_views_are_forgotten_once_their_branch_cannot_become_final():
    standing, links = standing_on(1, 2)
    standing.fall_back()
    assert set(standing.given_up) == {one.value.digest for one in links}
    standing.adopt(link(HEAD.value, 9), new_view)
    assert standing.given_up == {}


def test_own_words_of_a_branch_that_is_over_are_remembered_until_their_rounds_have_passed():
    standing, links = standing_on(1, 2)
    said = [Voice(peer, links[1].value).commit() for peer in (A, B)]
    for one in said:
        standing.top.ballots.add(entry_of(one))
    own, other = (one.message for one in said)
    standing.fall_back()
    assert standing.has_signed(own)
    final = [link(HEAD.value, 7)]
    standing.adopt(final[0], new_view)
    assert not standing.given_up
    assert standing.has_signed(own)
    assert not standing.has_signed(other)
    for _ in range(3):
        assert standing.has_signed(own) == (standing.base.index <= own.slot.round)
        final.append(link(final[-1].value, 7))
        standing.adopt(final[-1], new_view)
    assert not standing.has_signed(own)


def test_view_of_the_branch_stays_when_the_seal_before_it_becomes_final():
    standing, links = standing_on(1, 2)
    third = standing.top
    standing.fall_back()
    standing.adopt(links[0], new_view)
    assert set(standing.given_up) == {links[1].value.digest}
    standing.advance(links[1], new_view)
    assert standing.top is third


def test_seals_that_are_followed_are_ahead_until_they_are_reached():
    standing, _ = standing_on()
    first = link(HEAD.value, 1)
    second = link(first.value, 2)
    standing.ahead = (first, second)
    assert standing.bound == first.value.list_digest
    standing.advance(first, new_view)
    assert list(standing.ahead) == [second]
    standing.advance(link(first.value, 3), new_view)
    assert not standing.ahead


# Reach ------------------------------------------------------------------------------------------

FRIENDS = replace(CONFIG, survive="any", grace_s=3.0)


def sealers_of(reach: Reach, suspects: set[PeerId], now_s: float):
    standing, _ = standing_on(1)
    opening, sealers = reach.sealers(standing.position, suspects, now_s=now_s)
    assert opening.is_provisional == bool(sealers)
    return sealers


def test_branch_begins_only_after_the_quorum_was_gone_for_a_while():
    reach = Reach(FRIENDS, A)
    assert sealers_of(reach, {B}, 1.0) == frozenset()
    assert sealers_of(reach, {B, C}, 2.0) == frozenset()
    assert reach.due_s == 5.0
    assert sealers_of(reach, {B, C}, 4.9) == frozenset()
    assert sealers_of(reach, {B, C}, 5.0) == {A}
    assert sealers_of(reach, {C}, 5.1) == frozenset()
    assert sealers_of(reach, {B, C}, 5.2) == frozenset()
    assert sealers_of(reach, set(), 8.1) == frozenset()
    assert sealers_of(reach, {B, C}, 8.3) == frozenset(), "counted from when it was lost again"


def test_without_leave_to_survive_nobody_branches():
    for config in (replace(FRIENDS, survive="quorum"), replace(FRIENDS, trust="open")):
        reach = Reach(config, A)
        assert sealers_of(reach, {B, C}, 0.0) == frozenset()
        assert sealers_of(reach, {B, C}, 99.0) == frozenset()


def test_a_seat_is_in_reach_unless_all_who_have_one_are_suspected_and_the_own_always_is():
    reach = Reach(FRIENDS, A)
    assert reach.has_member(roster_of((B, C)), {B})
    assert not reach.has_member(roster_of((B, C)), {B, C, D})
    assert reach.has_member(roster_of((A, B)), {A, B})
    assert reach.due_s == 0.0, "there is no grace to wait for"


# Ballots of a provisional round -------------------------------------------------------------------


def test_provisional_certificate_needs_all_sealers_and_binds_nobody():
    voices = {peer: Voice(peer, HEAD.value) for peer in (A, B, C)}
    proposed = voices[A].propose([])
    view = view_of(A, HEAD, [proposed])
    assert isinstance(proposed.body, List)
    digest = view.ballots.list_digest(proposed.body)
    vote = Vote(list_digest=digest)
    for peer in (A, B, C):
        assert view.ballots.add(entry_of(voices[peer].say(Kind.PVOTE, vote))) == "new"
    assert view.ballots.certified() == ()
    view.elect_sealers(frozenset({A, B}))
    assert view.ballots.certified() == ((0, digest),)
    assert view.ballots.certificate(0, digest) == ()
    view.elect_sealers(frozenset({A, B, D}))
    assert view.ballots.certified() == ()
    view.elect_sealers(frozenset())
    assert view.ballots.certified() == ()


def test_pseals_make_nothing_final():
    view = view_of(A, HEAD)
    value = link(HEAD.value, 1).value
    for peer in (A, B, C):
        voice = Voice(peer, HEAD.value)
        body = voice.seal(value).body
        said = voice.say(Kind.PSEAL, body, subject=HEAD.value.digest)
        assert view.ballots.add(entry_of(said)) == "new"
    assert view.ballots.sealed(HEAD.value.digest) is None
    assert view.ballots.psealed(HEAD.value.digest) is None
    view.elect_sealers(frozenset({A, B}))
    sealed = view.ballots.psealed(HEAD.value.digest)
    assert sealed is not None
    assert sealed[0].value == value.digest
    assert len(sealed[1]) == 3
    assert view.ballots.sealed(HEAD.value.digest) is None


def test_certificate_of_more_speakers_than_it_has_room_for_has_the_sealers():
    many = peers_named(70)
    sealers = frozenset(many[-3:])
    view = view_of(A, HEAD)
    view.elect_sealers(sealers)
    value = link(HEAD.value, 1).value
    for peer in many:
        voice = Voice(peer, HEAD.value)
        said = voice.say(Kind.PSEAL, voice.seal(value).body, subject=HEAD.value.digest)
        assert view.ballots.add(entry_of(said)) == "new"
    sealed = view.ballots.psealed(HEAD.value.digest)
    assert sealed is not None
    assert len(sealed[1]) == limits.SEATS_MAX
    assert sealers <= {message.sender for message in sealed[1]}
    encoded = tuple(message.encoded for message in sealed[1])
    encode(SealCertificate(value=value, seals=encoded))


def test_pseals_of_two_attempts_never_add_up():
    view = view_of(A, HEAD)
    value = link(HEAD.value, 1).value
    for attempt, peer in enumerate((A, B)):
        voice = Voice(peer, HEAD.value)
        body = voice.seal(value).body
        said = voice.say(Kind.PSEAL, body, attempt, subject=HEAD.value.digest)
        view.ballots.add(entry_of(said))
    view.elect_sealers(frozenset({A, B}))
    assert view.ballots.psealed(HEAD.value.digest) is None


def test_pseals_count_for_the_seal_that_they_stand_on_alone():
    """With two rounds in flight (R5) the same round is sealed on several branches."""
    view = view_of(A, HEAD)
    value = link(HEAD.value, 1).value
    other = bytes(32)
    for subject, peers in ((HEAD.value.digest, (A, B)), (other, (A,))):
        for peer in peers:
            voice = Voice(peer, HEAD.value)
            view.ballots.add(entry_of(voice.say(Kind.PSEAL, voice.seal(value).body, 0, subject)))
    view.elect_sealers(frozenset({A, B}))
    assert view.ballots.psealed(HEAD.value.digest) is not None
    assert view.ballots.psealed(other) is None


# Restart ------------------------------------------------------------------------------------------


def test_restarted_node_never_votes_in_an_attempt_in_which_it_voted_provisionally():
    """It begins as an ordinary round, whatever it was before; of two kinds is no attempt."""
    said = Voice(A, HEAD.value).say(Kind.PVOTE, Vote(list_digest=bytes(32)), 3)
    view = view_of(A, HEAD)
    refill(view, Restart(chain=(HEAD,), messages=(said.message,)), now_s=7.0)
    assert (view.attempt, view.times.entered_s) == (4, 7.0)
    again = Voice(A, HEAD.value).say(Kind.VOTE, Vote(list_digest=bytes(32)), 4)
    restart = Restart(chain=(HEAD,), messages=(said.message, again.message))
    view = view_of(A, HEAD)
    refill(view, restart, now_s=7.0)
    assert view.attempt == 4


def test_what_a_trainer_gave_before_it_began_anew_is_in_no_seal_for_it():
    """R6: on a branch that comes back a COMMIT is listed of which the trainer holds nothing."""
    said = Voice(A, HEAD.value).commit("mine")
    standing, _ = standing_on(1)
    base, left = standing.views
    base.ballots.add(entry_of(said), is_own=True)
    base.own.commit = said.message.digest
    base.take_contribution(contributed(base.index))
    listing = replace(HEAD.value, commits=(said.message.digest,))
    assert base.is_listed_in(listing)
    standing.fall_back()
    standing.resynced()
    assert not base.is_listed_in(listing)
    assert not left.own.is_out_of_hand, "nothing of it was committed"
    base.take_contribution(contributed(base.index, "another"))
    assert not base.is_listed_in(listing)
    base.take_contribution(contributed(base.index))
    assert base.is_listed_in(listing), "the same bytes again"
