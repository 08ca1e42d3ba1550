"""R11: the chain from a peer that is ahead, then the state of its last seal."""

from dataclasses import replace

import pytest

from node.catchup import STALL_S, STUCK_S, CatchUp
from node.chain import certify
from node.events import FetchState, Send
from protocol import limits
from protocol.errors import ProofError
from protocol.frames import WantChain
from protocol.identity import KeyedHashSigner
from protocol.messages import SealCertificate
from tests.node.builders import Voice, head_of, peers_named

A, B, C = peers_named(3)
HEAD = head_of((A, B, C))


def chain_of(length: int) -> list[SealCertificate]:
    """Proven seals of the rounds 5, 6, ... on HEAD."""
    chain = []
    last = HEAD.value
    for _ in range(length):
        value = replace(last, round=last.round + 1, before=last.digest)
        seals = tuple(Voice(peer, last).seal(value).message for peer in (A, B))
        chain.append(certify(value, seals))
        last = value
    return chain


CHAIN = chain_of(6)


def catchup(**fields) -> CatchUp:
    return CatchUp(KeyedHashSigner(C), "friends", **fields)


def begun(rounds=None, **fields) -> CatchUp:
    found = catchup(**fields)
    assert found.consider(HEAD.value, rounds or {A: 11}, moved_s=0.0, now_s=0.0)
    return found


def begun_again(machine: CatchUp) -> bool:
    """Whether a catch-up is under way."""
    return machine.source is not None or machine.wanted is not None


@pytest.mark.parametrize(
    ("working_on", "is_forced", "starts"),
    [
        (5, False, False),
        (6, False, False),  # One round behind needs no state: messages and results are still there.
        (7, False, True),
        (5, True, False),
        (6, True, True),
    ],
)
def test_catch_up_starts_if_somebody_is_far_enough_ahead(working_on, is_forced, starts):
    found = catchup(is_forced=is_forced).consider(
        HEAD.value, {A: working_on, B: 3}, moved_s=0.0, now_s=0.0
    )
    assert found == ([Send(A, WantChain(first=5))] if starts else [])


def test_peer_that_is_furthest_ahead_is_asked_and_nobody_else_meanwhile():
    machine = catchup()
    rounds = {A: 8, B: 11}
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=0.0) == [
        Send(B, WantChain(first=5))
    ]
    assert machine.consider(HEAD.value, {**rounds, A: 99}, moved_s=0.0, now_s=1.0) == []


def test_state_of_the_last_verified_seal_is_fetched_once_the_chain_is_whole():
    machine = begun()
    assert machine.extend(A, tuple(CHAIN[:4]), now_s=0.0) == []
    assert machine.extend(A, tuple(CHAIN[4:]), now_s=0.0) == [FetchState(A, CHAIN[5])]
    assert machine.wanted == CHAIN[5]
    assert machine.finish() == CHAIN
    assert not begun_again(machine)


def test_pieces_that_come_after_the_fetch_began_change_nothing():
    machine = begun({A: 8})
    assert machine.extend(A, tuple(CHAIN[:3]), now_s=0.0) == [FetchState(A, CHAIN[2])]
    assert machine.extend(A, tuple(CHAIN[3:]), now_s=0.0) == []
    assert machine.finish() == CHAIN[:3]


def test_full_page_is_followed_by_a_question_for_the_next():
    whole = chain_of(limits.CHAIN_PAGE_SEALS + 2)
    machine = begun({A: 5 + len(whole)})
    page = tuple(whole[: limits.CHAIN_PAGE_SEALS])
    assert machine.extend(A, page, now_s=0.0) == [Send(A, WantChain(first=5 + len(page)))]
    rest = tuple(whole[limits.CHAIN_PAGE_SEALS :])
    assert machine.extend(A, rest, now_s=0.0) == [FetchState(A, whole[-1])]


def test_chain_of_somebody_who_was_not_asked_is_ignored():
    assert begun().extend(B, tuple(CHAIN), now_s=0.0) == []
    assert catchup().extend(A, tuple(CHAIN), now_s=0.0) == []


def test_forged_link_is_an_error_and_the_next_source_is_asked():
    machine = begun({A: 11, B: 10})
    forged = SealCertificate(value=CHAIN[1].value, seals=CHAIN[1].seals[:1])
    with pytest.raises(ProofError):
        machine.extend(A, (CHAIN[0], forged), now_s=0.0)
    assert machine.consider(HEAD.value, {A: 11, B: 10}, moved_s=0.0, now_s=0.1) == [
        Send(B, WantChain(first=5))
    ]


def test_links_that_are_known_already_are_skipped_and_a_gap_gives_the_source_up():
    machine = begun()
    machine.extend(A, tuple(CHAIN[:2]), now_s=0.0)
    assert machine.extend(A, tuple(CHAIN[:6]), now_s=0.0) == [FetchState(A, CHAIN[5])]
    machine = begun()
    assert machine.extend(A, tuple(CHAIN[1:]), now_s=0.0) == []
    assert machine.source is None


@pytest.mark.parametrize("has_chain", [False, True])
def test_source_from_which_nothing_comes_is_given_up_for_another(has_chain):
    rounds = {A: 11, B: 10}
    machine = begun(rounds)
    if has_chain:
        machine.extend(A, tuple(CHAIN), now_s=0.0)
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=STALL_S - 0.1) == []
    machine.moved(A, now_s=STALL_S - 0.1)
    machine.moved(B, now_s=99.0)
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=STALL_S + 0.1) == []
    asked = machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=2 * STALL_S)
    assert asked == [Send(B, WantChain(first=5))]
    assert machine.wanted is None
    # When everybody has failed, all get another chance.
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=4 * STALL_S) == [
        Send(A, WantChain(first=5))
    ]


def test_source_that_is_no_longer_linked_is_given_up_at_once():
    assert begun().consider(HEAD.value, {B: 10}, moved_s=0.0, now_s=0.1) == [
        Send(B, WantChain(first=5))
    ]


def test_abandoned_catch_up_blames_nobody():
    machine = begun()
    machine.extend(A, tuple(CHAIN), now_s=0.0)
    machine.abandon()
    assert machine.wanted is None
    assert machine.consider(HEAD.value, {A: 11, B: 10}, moved_s=0.0, now_s=0.0) == [
        Send(A, WantChain(first=5))
    ]


def test_one_round_behind_is_left_to_the_messages_until_nothing_moves_any_more():
    machine = catchup()
    for now_s in (0.0, STUCK_S):
        assert machine.consider(HEAD.value, {A: 6}, moved_s=0.0, now_s=now_s) == []
    moving = machine.consider(HEAD.value, {A: 6}, moved_s=STUCK_S, now_s=2 * STUCK_S)
    assert moving == []
    stuck = machine.consider(HEAD.value, {A: 6}, moved_s=STUCK_S, now_s=2 * STUCK_S + 0.1)
    assert stuck == [Send(A, WantChain(first=5))]


def test_time_as_one_of_the_first_does_not_count_as_stuck():
    machine = catchup()
    machine.consider(HEAD.value, {A: 5}, moved_s=0.0, now_s=0.0)
    assert machine.consider(HEAD.value, {A: 6}, moved_s=0.0, now_s=9 * STUCK_S) == []
