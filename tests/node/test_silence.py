"""R3, R12: when a node must not sign, and what ends that."""

from dataclasses import replace

import pytest

from node.restart import Restart
from node.roster import blocking, has_quorum
from node.silence import Silence
from tests.node.builders import head_of, peers_named, view_of

PEERS = peers_named(5)
ME, *OTHERS = PEERS
HEAD = head_of(PEERS)
VIEW = view_of(ME, HEAD)


def silence_after(**restart) -> Silence:
    silence = Silence()
    silence.restarted(Restart(chain=(HEAD,), **restart), VIEW)
    return silence


def heard(silence: Silence, *peers, round_index: int = 5) -> bool:
    """Whether the node may sign once those have told where they are."""
    for peer in peers:
        silence.status(peer, round_index)
    silence.settle(VIEW)
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
    silence.restarted(Restart(chain=(HEAD,), is_lost=True), alone)
    silence.settle(alone)
    assert silence.is_on(alone)
    silence.status(OTHERS[0], alone.index + 4)
    silence.settle(alone)
    assert silence.is_on(alone)
    caught_up = view_of(ME, replace(HEAD, value=replace(HEAD.value, round=alone.index + 4)))
    for peer in OTHERS[:3]:
        silence.status(peer, alone.index + 4)
    silence.settle(caught_up)
    assert not silence.is_on(caught_up)


@pytest.mark.parametrize("num_voters", [1, 2])
def test_whoever_was_a_quorum_alone_stays_silent_without_its_memory(num_voters):
    voters = PEERS[:num_voters]
    view = view_of(voters[0], head_of(voters))
    silence = Silence()
    silence.restarted(Restart(chain=(HEAD,), is_lost=True), view)
    for later in range(4):
        for peer in PEERS[1:]:
            silence.status(peer, view.index)
        head = head_of(voters)
        now = view_of(voters[0], replace(head, value=replace(head.value, round=4 + later)))
        silence.settle(now)
        assert silence.is_on(now)
        assert silence.has_forgotten


def test_other_of_two_voters_goes_on_with_what_the_eldest_tells():
    view = view_of(PEERS[1], head_of(PEERS[:2]))
    silence = Silence()
    silence.restarted(Restart(chain=(HEAD,), is_lost=True), view)
    forgotten = []
    for peer in (PEERS[2], PEERS[0]):
        silence.status(peer, view.index)
        silence.settle(view)
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
    locked.lock = (0, bytes(32))
    silence.restarted(Restart(chain=(HEAD,)), locked)
    for peer in OTHERS:
        silence.status(peer, 5)
    silence.settle(locked)
    assert silence.is_on(locked)


@pytest.mark.parametrize("trust", ["friends", "open"])
@pytest.mark.parametrize("num_voters", range(1, 12))
def test_so_many_others_leave_no_quorum_without_one_of_them(num_voters, trust):
    peers = peers_named(num_voters)
    roster = head_of(peers).value.roster
    asked = blocking(num_voters, trust)
    liars = (num_voters - 1) // 3 if trust == "open" else 0
    for silent in (peers[: num_voters - asked + liars], peers[asked - liars :]):
        assert not has_quorum(roster, silent, trust=trust)
