"""R11: the chain from a peer that is ahead, then the state of its last seal."""

from dataclasses import replace

import pytest

from protocol import limits
from protocol.catching_up.catchup import BACK_WITHIN_S, LACKED_S, STALL_S, STUCK_S, CatchUp
from protocol.catching_up.cell_fetch import HOPELESS_S
from protocol.catching_up.chain_sources import ALONE_S
from protocol.errors import ProofError
from protocol.events import (
    CellsFetched,
    CoreAction,
    Fault,
    FetchBegun,
    FetchState,
    FetchSteps,
    HistoryKnown,
    Send,
    StepFailed,
)
from protocol.frames import Bulk, Want, WantChain
from protocol.grid import CellSizes
from protocol.identity import KeyedHashSigner
from protocol.messages import SealCertificate
from protocol.rounds.chain import certify
from tests.node.builders import Voice, head_of, peers_named

A, B, C = peers_named(3)
HEAD = head_of((A, B, C))


SIZES = CellSizes(state=(4096,) * 4, result=((2048,) * 2,))
"""Four steps have as many bytes as a state."""


def chain_of(length: int, *, is_full: bool = True) -> list[SealCertificate]:
    """Proven seals of the rounds 5, 6, ... on HEAD; each lists somebody if `is_full`."""
    chain = []
    last = HEAD.value
    for _ in range(length):
        commits = (bytes([last.round % 256]) * 32,) if is_full else ()
        value = replace(
            last, round=last.round + 1, before=last.digest, basis=last.digest, commits=commits
        )
        seals = tuple(Voice(peer, last).seal(value).message for peer in (A, B))
        chain.append(certify(value, seals))
        last = value
    return chain


CHAIN = chain_of(6)


def catchup(**fields) -> CatchUp:
    return CatchUp(KeyedHashSigner(C), "friends", SIZES, **fields)


def begun(rounds=None, **fields) -> CatchUp:
    found = catchup(**fields)
    assert found.consider(HEAD.value, rounds or {A: 11}, moved_s=0.0, now_s=0.0)
    return found


def alone(machine: CatchUp, working_on: int) -> list[CoreAction]:
    """What it does once nobody else has come who tells the history."""
    known, *orders = machine.consider(
        HEAD.value, {A: working_on}, moved_s=0.0, now_s=0.0
    ) or machine.consider(HEAD.value, {A: working_on}, moved_s=0.0, now_s=ALONE_S)
    assert known == HistoryKnown(working_on - 1, A, 0, False)
    return orders


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
    assert machine.extend(A, tuple(CHAIN[4:]), now_s=0.0) == [FetchState(CHAIN[5])]
    assert machine.wanted == CHAIN[5]
    assert machine.finish() == CHAIN
    assert not begun_again(machine)


def test_pieces_that_come_after_the_fetch_began_change_nothing():
    machine = begun({A: 8})
    assert machine.extend(A, tuple(CHAIN[:3]), now_s=0.0) == [FetchSteps(tuple(CHAIN[:3]))]
    assert machine.extend(A, tuple(CHAIN[3:]), now_s=0.0) == []
    assert machine.finish() == CHAIN[:3]


def test_full_page_is_followed_by_a_question_for_the_next():
    whole = chain_of(limits.CHAIN_PAGE_SEALS + 2)
    machine = begun({A: 5 + len(whole)})
    page = tuple(whole[: limits.CHAIN_PAGE_SEALS])
    assert machine.extend(A, page, now_s=0.0) == [Send(A, WantChain(first=5 + len(page)))]
    rest = tuple(whole[limits.CHAIN_PAGE_SEALS :])
    assert machine.extend(A, rest, now_s=0.0) == []
    assert alone(machine, 5 + len(whole)) == [FetchState(whole[-1])]


def test_chain_of_somebody_who_was_not_asked_is_ignored():
    assert begun().extend(B, tuple(CHAIN), now_s=0.0) == []
    assert catchup().extend(A, tuple(CHAIN), now_s=0.0) == []


def test_forged_link_is_an_error_and_the_next_source_is_asked():
    machine = begun({A: 11, B: 10})
    forged = SealCertificate(value=CHAIN[1].value, seals=CHAIN[1].seals[:1])
    with pytest.raises(ProofError):
        machine.extend(A, (CHAIN[0], forged), now_s=0.0)
    # The link that held is not asked for again.
    assert machine.consider(HEAD.value, {A: 11, B: 10}, moved_s=0.0, now_s=0.1) == [
        Send(B, WantChain(first=6))
    ]


def test_links_that_are_known_already_are_skipped_and_a_gap_gives_the_source_up():
    machine = begun()
    machine.extend(A, tuple(CHAIN[:2]), now_s=0.0)
    assert machine.extend(A, tuple(CHAIN[:6]), now_s=0.0) == [FetchState(CHAIN[5])]
    machine = begun()
    assert machine.extend(A, tuple(CHAIN[1:]), now_s=0.0) == []
    assert machine.source is None


def test_source_of_the_chain_from_which_nothing_comes_is_given_up_and_its_links_stay():
    rounds = {A: 11, B: 10}
    machine = begun(rounds)
    machine.extend(A, tuple(CHAIN[:2]), now_s=1.0)
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=STALL_S + 0.9) == []
    asked = machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=STALL_S + 1.0)
    assert asked == [Send(B, WantChain(first=7))]
    # When everybody has failed, all get another chance.
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=3 * STALL_S) == [
        Send(A, WantChain(first=7))
    ]


# The state --------------------------------------------------------------------------------------


def wants(machine: CatchUp, rounds, now_s: float = 0.0) -> list[tuple[bytes, Want]]:
    actions = machine.pull(rounds, lag_s=0.0, now_s=now_s)
    return [(a.peer, a.frame) for a in actions if isinstance(a, Send) and isinstance(a.frame, Want)]


def fetching(rounds=None, **fields) -> CatchUp:
    """A state is being fetched, and nothing of it is here."""
    machine = begun(rounds, **fields)
    machine.extend(A, tuple(CHAIN), now_s=0.0)
    assert machine.wanted == CHAIN[5]
    list(machine.take(FetchBegun(CHAIN[5].value.digest, {}), now_s=0.0))
    return machine


def test_state_is_asked_of_all_who_are_past_its_seal_and_of_nobody_else():
    machine = fetching()
    asked = wants(machine, {A: 11, B: 14, C: 10})
    assert {peer for peer, _ in asked} == {A, B}
    assert sorted(cell for _, want in asked for cell in want.cells) == [0, 1, 2, 3]
    assert {(want.bulk, want.subject) for _, want in asked} == {(Bulk.STATE, CHAIN[5].value.digest)}


def test_nothing_is_asked_before_it_is_known_what_is_on_the_disk():
    machine = begun()
    machine.extend(A, tuple(CHAIN), now_s=0.0)
    assert wants(machine, {A: 11}) == []
    held = {CHAIN[5].value.digest: (0, 1, 2)}
    list(machine.take(FetchBegun(CHAIN[5].value.digest, held), now_s=0.0))
    assert [want.cells for _, want in wants(machine, {A: 11})] == [(3,)]


def test_few_rounds_are_stepped_through_and_many_are_not():
    for rounds, action in ((4, FetchSteps(tuple(CHAIN[:4]))), (5, FetchState(CHAIN[4]))):
        machine = begun({A: 5 + rounds})
        assert machine.extend(A, tuple(CHAIN[:rounds]), now_s=0.0) == [action]
    # Rounds without a result cost nothing; but peers tell of so many only.
    for length, kind in ((limits.RESULT_ROUNDS_KEPT, FetchSteps), (17, FetchState)):
        chain = chain_of(length, is_full=False)
        machine = begun({A: 5 + length})
        orders = machine.extend(A, tuple(chain), now_s=0.0) or alone(machine, 5 + length)
        assert [type(order) for order in orders] == [kind]


def test_from_a_state_that_was_just_fetched_it_is_steps_however_many_bytes_they_take():
    machine = fetching()
    machine.finish()
    whole = chain_of(14)
    assert machine.consider(CHAIN[5].value, {A: 19}, moved_s=0.0, now_s=1.0)
    assert machine.extend(A, tuple(whole[6:]), now_s=1.0) == [FetchSteps(tuple(whole[6:]))]
    wanted = [(want.bulk, want.subject) for _, want in wants_begun(machine, {A: 19})]
    assert wanted[0] == (Bulk.STEP, whole[6].value.digest)


def wants_begun(machine: CatchUp, rounds):
    assert machine.wanted is not None
    list(machine.take(FetchBegun(machine.wanted.value.digest, {}), now_s=1.0))
    return wants(machine, rounds, now_s=1.0)


def test_diverged_node_does_not_step_from_its_own_state():
    machine = begun({A: 7}, is_forced=True)
    assert machine.extend(A, tuple(CHAIN[:2]), now_s=0.0) == [FetchState(CHAIN[1])]


@pytest.mark.parametrize(("num_bytes", "round_index"), [(8192, 10), (8193, 8)])
def test_state_that_was_begun_is_fetched_to_its_end_where_that_takes_fewer_bytes(
    num_bytes, round_index
):
    # Of the seal of round 8 two cells are here; two steps from there have as many bytes.
    machine = begun(begun=(CHAIN[3].value.digest, num_bytes))
    machine.extend(A, tuple(CHAIN), now_s=0.0)
    assert machine.wanted is not None
    assert machine.wanted.value.round == round_index


def test_state_that_nobody_gives_any_more_is_given_up_for_the_newest():
    machine = begun(begun=(CHAIN[3].value.digest, 3 * 4096))
    machine.extend(A, tuple(CHAIN), now_s=0.0)
    list(machine.take(FetchBegun(CHAIN[3].value.digest, {}), now_s=0.0))
    for step in range(50):
        wants(machine, {A: 11}, now_s=0.5 * step)
        if machine.wanted is None:
            break
    assert HOPELESS_S <= 0.5 * step <= HOPELESS_S + 1.0
    again_s = 0.5 * step + STALL_S
    assert machine.consider(HEAD.value, {A: 11}, moved_s=0.0, now_s=again_s - 0.1) == []
    assert machine.consider(HEAD.value, {A: 11}, moved_s=0.0, now_s=again_s) == [
        FetchState(CHAIN[5])
    ]


def test_state_that_all_say_they_lack_is_given_up_at_once_for_the_newest():
    machine = begun({A: 8, B: 8}, is_forced=True)
    machine.extend(max(A, B), tuple(CHAIN[:3]), now_s=0.0)
    subject = CHAIN[2].value.digest
    list(machine.take(FetchBegun(subject, {}), now_s=0.0))
    wants(machine, {A: 8, B: 8})
    machine.lacks(A, Bulk.STATE, subject)
    wants(machine, {A: 11, B: 11}, now_s=0.2)
    assert begun_again(machine), "B may have it"
    machine.lacks(B, Bulk.STATE, subject)
    wants(machine, {A: 11, B: 11}, now_s=0.3)
    assert not begun_again(machine)
    rounds = {A: 11, B: 11}
    early_s = 0.2 + LACKED_S
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=early_s) == []
    due = machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=0.3 + LACKED_S)
    assert due == [Send(max(A, B), WantChain(first=8))], "its links stay"
    actions = machine.extend(max(A, B), tuple(CHAIN[3:]), now_s=1.5)
    assert actions == [FetchState(CHAIN[5])]


def test_steps_that_nobody_gives_are_given_up_for_the_state():
    machine = begun({A: 9})
    machine.extend(A, tuple(CHAIN[:4]), now_s=0.0)
    list(machine.take(FetchBegun(CHAIN[3].value.digest, {}), now_s=0.0))
    assert wants(machine, {A: 9}, now_s=HOPELESS_S + 0.1)[:0] == []
    assert machine.wanted is None
    actions = machine.consider(HEAD.value, {A: 9}, moved_s=0.0, now_s=HOPELESS_S + 6.0)
    assert actions == [FetchState(CHAIN[3])]


def test_fetch_whose_sources_are_all_gone_is_held_up_and_goes_on_with_what_is_here():
    machine = fetching()
    wants(machine, {A: 11})
    list(machine.take(CellsFetched(A, CHAIN[5].value.digest, (0, 1)), now_s=0.5))
    assert wants(machine, {B: 4}, now_s=0.6) == []
    assert wants(machine, {B: 4}, now_s=0.1 + BACK_WITHIN_S) == []
    assert machine.wanted is None
    assert machine.begun == (CHAIN[5].value.digest, 8192)
    # No link of the chain is asked for again.
    assert machine.consider(HEAD.value, {B: 11}, moved_s=0.0, now_s=4.0) == [FetchState(CHAIN[5])]


def test_source_that_is_back_soon_is_asked_for_the_rest_at_once():
    machine = fetching()
    wants(machine, {A: 11})
    list(machine.take(CellsFetched(A, CHAIN[5].value.digest, (0, 1)), now_s=0.5))
    for now_s in (0.6, BACK_WITHIN_S - 0.1):
        assert wants(machine, {}, now_s=now_s) == []
    asked = wants(machine, {A: 11}, now_s=BACK_WITHIN_S)
    # As much as it gives in a moment, and nothing that is here.
    assert [cell for _, want in asked for cell in want.cells] == [2]
    # Then it is gone for as long again, counted from now.
    assert wants(machine, {}, now_s=2 * BACK_WITHIN_S - 0.1) == []
    assert machine.wanted is not None
    assert wants(machine, {}, now_s=2 * BACK_WITHIN_S + 0.1) == []
    assert machine.wanted is None


def test_result_that_leads_elsewhere_is_the_fault_of_whoever_sent_all_of_it():
    machine = begun({A: 7})
    machine.extend(A, tuple(CHAIN[:2]), now_s=0.0)
    list(machine.take(FetchBegun(CHAIN[1].value.digest, {}), now_s=0.0))
    ((_, want), *_) = wants(machine, {A: 7})
    list(machine.take(CellsFetched(A, want.subject, want.cells), now_s=0.1))
    (fault,) = machine.take(StepFailed(want.subject), now_s=0.1)
    assert isinstance(fault, Fault)
    assert fault.peer == A
    assert wants(machine, {A: 7}, now_s=99.0) == []


def test_source_that_is_no_longer_linked_is_given_up_at_once():
    assert begun().consider(HEAD.value, {B: 10}, moved_s=0.0, now_s=0.1) == [
        Send(B, WantChain(first=5))
    ]


def test_abandoned_catch_up_blames_nobody():
    machine = begun()
    machine.extend(A, tuple(CHAIN[:2]), now_s=0.0)
    machine.abandon()
    assert not begun_again(machine)
    assert machine.consider(HEAD.value, {A: 11, B: 10}, moved_s=0.0, now_s=0.0) == [
        Send(A, WantChain(first=7))
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
