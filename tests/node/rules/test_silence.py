"""R3, R12: when a node must not sign, and what ends that."""

from dataclasses import replace

import pytest

from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, SealCertificate, SignedMessage
from protocol.rounds.restart import Restart, Silence
from protocol.rounds.roster import blocking, has_quorum
from protocol.rounds.round_view import RoundView
from tests.node.builders import CONFIG, Voice, digest_of, head_of, peers_named, view_of
from tests.node.cores import MANIFEST

PEERS = peers_named(5)
ME, *OTHERS = PEERS
HEAD = head_of(PEERS)
VIEW = view_of(ME, HEAD)


def silence_after(**restart) -> Silence:
    silence = Silence()
    silence.restarted(Restart(chain=(HEAD,), **restart), VIEW, now_s=0.0)
    return silence


def heard(silence: Silence, *peers, round_index: int = 5) -> bool:
    """Whether the node may sign once those have told where they are."""
    for peer in peers:
        silence.status(peer, round_index)
    silence.settle(VIEW, VIEW)
    return not silence.is_on(VIEW)


def test_restarted_node_signs_once_a_quorum_with_itself_is_heard():
    silence = silence_after()
    assert not heard(silence, OTHERS[0])
    assert heard(silence, OTHERS[1])


def test_node_without_memory_asks_more_and_says_nothing_in_the_round_that_is_open():
    silence = silence_after(is_lost=True)
    forgotten = [silence.has_forgotten]
    for others in (OTHERS[:2], OTHERS[2:3]):
        assert not heard(silence, *others)
        forgotten.append(silence.has_forgotten)
    assert forgotten == [True, True, False]
    assert silence.has_lost(VIEW)
    later = view_of(ME, replace(HEAD, value=replace(HEAD.value, round=5)))
    assert not silence.is_on(later)


def test_only_voter_without_memory_says_nothing_before_somebody_has_told_where_the_run_is():
    # A founder that lost its disk is back at genesis, and there alone: the run may have gone on.
    alone = view_of(ME, head_of((ME,)))
    silence = Silence()
    silence.restarted(Restart(chain=(HEAD,), is_lost=True), alone, now_s=0.0)
    silence.settle(alone, alone)
    assert silence.is_on(alone)
    silence.status(OTHERS[0], alone.index + 4)
    silence.settle(alone, alone)
    assert silence.is_on(alone)
    caught_up = view_of(ME, replace(HEAD, value=replace(HEAD.value, round=alone.index + 4)))
    for peer in OTHERS[:3]:
        silence.status(peer, alone.index + 4)
    silence.settle(caught_up, caught_up)
    assert not silence.is_on(caught_up)


@pytest.mark.parametrize("num_voters", [1, 2])
def test_whoever_was_a_quorum_alone_stays_silent_without_its_memory(num_voters):
    voters = PEERS[:num_voters]
    view = view_of(voters[0], head_of(voters))
    silence = Silence()
    silence.restarted(Restart(chain=(HEAD,), is_lost=True), view, now_s=0.0)
    for later in range(4):
        for peer in PEERS[1:]:
            silence.status(peer, view.index)
        head = head_of(voters)
        now = view_of(voters[0], replace(head, value=replace(head.value, round=4 + later)))
        silence.settle(now, now)
        assert silence.is_on(now)
        assert silence.has_forgotten


def test_other_of_two_voters_goes_on_with_what_the_eldest_tells():
    view = view_of(PEERS[1], head_of(PEERS[:2]))
    silence = Silence()
    silence.restarted(Restart(chain=(HEAD,), is_lost=True), view, now_s=0.0)
    forgotten = []
    for peer in (PEERS[2], PEERS[0]):
        silence.status(peer, view.index)
        silence.settle(view, view)
        forgotten.append(silence.has_forgotten)
    assert forgotten == [True, False]
    assert silence.has_lost(view)


def test_node_without_memory_asks_on_while_others_are_rounds_ahead():
    silence = silence_after(is_lost=True)
    assert not heard(silence, *OTHERS, round_index=9)
    assert silence.is_asking


def test_rounds_that_may_hold_forgotten_signatures_stay_silent():
    silence = silence_after(silent_through=5)
    assert not heard(silence, *OTHERS)
    assert not silence.is_asking


def test_signature_that_comes_back_from_others_silences_its_round():
    silence = Silence()
    assert not silence.is_on(VIEW)
    silence.rolled_back(5)
    assert silence.is_on(VIEW)


def test_lock_whose_list_is_lost_silences_its_round():
    silence = Silence()
    locked = view_of(ME, HEAD)
    locked.own.lock = (0, bytes(32))
    silence.restarted(Restart(chain=(HEAD,)), locked, now_s=0.0)
    for peer in OTHERS:
        silence.status(peer, 5)
    silence.settle(locked, locked)
    assert silence.is_on(locked)


def test_lock_whose_list_is_here_silences_nothing():
    commits = [Voice(peer, HEAD.value).commit() for peer in PEERS[:3]]
    listed = Voice(OTHERS[0], HEAD.value).propose(commits)
    locked = view_of(ME, HEAD, [*commits, listed], lock=(1, digest_of(HEAD.value, commits)))
    silence = Silence()
    silence.restarted(Restart(chain=(HEAD,)), locked, now_s=0.0)
    for peer in OTHERS:
        silence.status(peer, 5)
    silence.settle(locked, locked)
    assert not silence.is_on(locked)


# Its state is lost, its signatures are not ------------------------------------------------------

NEXT = SealCertificate(
    value=replace(HEAD.value, round=5, before=HEAD.value.digest, basis=HEAD.value.digest), seals=()
)
"""The seal behind HEAD: the node signed in the round after it, and comes back to HEAD."""


def back_at(restart: Restart, head: SealCertificate = NEXT) -> tuple[Silence, RoundView]:
    """The node has fetched the state of `head`, and a quorum has told where it is."""
    silence = Silence()
    silence.restarted(restart, view_of(ME, HEAD), now_s=0.0)  # What is recalled is filed in it.
    view = view_of(ME, head)
    silence.recall(view, now_s=1.0)
    for peer in OTHERS:
        silence.status(peer, view.index)
    silence.settle(view, view)
    return silence, view


def signed_in(head: SealCertificate, *, is_voted: bool = False) -> tuple[SignedMessage, ...]:
    voice = Voice(ME, head.value)
    commit = voice.commit()
    return (commit.message, voice.vote([commit]).message) if is_voted else (commit.message,)


def test_signatures_of_the_round_that_a_fetched_state_leads_to_are_filed_and_it_may_go_on():
    sealed = Voice(ME, HEAD.value).seal(NEXT.value).message
    given_up = replace(NEXT.value, root=b"o" * 32)
    earlier = Voice(ME, HEAD.value).seal(given_up, 1).message
    own, vote = signed_in(NEXT, is_voted=True)
    restart = Restart(chain=(HEAD,), messages=(earlier, sealed, own, vote), silent_through=6)
    silence, view = back_at(restart)
    assert not silence.is_on(view)
    assert view.own.commit == own.digest
    assert ME in view.ballots.of(Kind.VOTE, 0)
    assert view.own.seal == sealed.encoded, "its next COMMIT proves that it had that seal"


def test_words_of_others_in_the_log_are_filed_as_theirs():
    theirs = Voice(OTHERS[0], NEXT.value)
    messages = (*signed_in(NEXT), theirs.commit().message, theirs.report(3).message)
    _, view = back_at(Restart(chain=(HEAD,), messages=messages, silent_through=6))
    assert view.own.commit == messages[0].digest
    assert view.attempt == 0
    assert set(view.ballots.commits) == {ME, OTHERS[0]}


@pytest.mark.parametrize("lost", [{}, {"is_lost": True}, {"silent_through": 5}])
def test_residual_is_dropped_after_a_restart_that_lost_signatures_and_kept_after_others(lost):
    """R6: whoever cannot know what became of its contributions begins with e = 0."""
    core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(ME), HEAD, now_s=0.0)
    restart = Restart(chain=(HEAD,), messages=signed_in(HEAD), **lost)
    (train,) = [a for a in core.start(0.0, restart) if isinstance(a, ev.Train)]
    assert train.is_resync == bool(lost)


def test_round_behind_the_state_that_the_disk_has_stays_silent_where_signatures_are_missing():
    restart = Restart(chain=(HEAD, NEXT), messages=signed_in(NEXT), silent_through=6)
    silence, view = back_at(restart)
    assert silence.has_lost(view)


@pytest.mark.parametrize(
    "why",
    [
        "lost",
        "nothing signed on it",
        "words of others alone",
        "log cut before it",
        "lock without its list",
    ],
)
def test_round_of_which_not_all_is_known_stays_silent(why):
    messages = signed_in(NEXT)
    if why == "nothing signed on it":
        other = replace(NEXT, value=replace(NEXT.value, root=b"o" * 32))
        messages = signed_in(other)
    elif why == "words of others alone":
        messages = (Voice(OTHERS[0], NEXT.value).commit().message,)
    elif why == "log cut before it":
        later = replace(NEXT, value=replace(NEXT.value, round=7))
        messages += signed_in(later)
    elif why == "lock without its list":
        value = replace(NEXT.value, round=6, before=NEXT.value.digest, basis=NEXT.value.digest)
        messages += (Voice(ME, NEXT.value).seal(value).message,)
    restart = Restart(chain=(HEAD,), messages=messages, silent_through=8, is_lost=why == "lost")
    silence, view = back_at(restart)
    assert silence.has_lost(view)


def test_signature_that_comes_back_and_is_not_in_the_log_silences_a_recalled_round_too():
    silence, view = back_at(Restart(chain=(HEAD,), messages=signed_in(NEXT), silent_through=6))
    assert not silence.is_on(view)
    silence.rolled_back(view.index)
    assert silence.is_on(view)


def test_other_rounds_up_to_what_was_signed_stay_silent():
    restart = Restart(chain=(HEAD,), messages=signed_in(NEXT), silent_through=6)
    silence, _ = back_at(restart)
    assert silence.is_on(VIEW)


@pytest.mark.parametrize("trust", ["friends", "open"])
@pytest.mark.parametrize("num_voters", range(1, 12))
def test_so_many_others_leave_no_quorum_without_one_of_them(num_voters, trust):
    peers = peers_named(num_voters)
    roster = head_of(peers).value.roster
    asked = blocking(num_voters, trust)
    liars = (num_voters - 1) // 3 if trust == "open" else 0
    for silent in (peers[: num_voters - asked + liars], peers[asked - liars :]):
        assert not has_quorum(roster, silent, trust=trust)


def test_round_that_a_doubted_peer_says_is_open_silences_no_later_one():
    silence = silence_after(is_lost=True)
    for peer in OTHERS[1:]:
        silence.status(peer, VIEW.index)
    silence.status(OTHERS[0], 1 << 22)
    is_asking = []
    for doubted in (set(), {OTHERS[0]}):
        silence.settle(VIEW, VIEW, doubted)
        is_asking.append(silence.is_asking)
    assert is_asking == [True, False]
    assert silence.is_on(VIEW)
    later = view_of(ME, NEXT)
    silence.settle(later, later)
    assert not silence.is_on(later)
