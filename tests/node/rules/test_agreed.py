"""Open runs: two copies, b + 1 voters; nothing on the word of liars (R1, R2, R8)."""

import math
from dataclasses import replace

import pytest

from protocol.events import CellsArrived, Pull, Push, Reduced
from protocol.frames import Bulk
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Agg, Have, Held, Kind, Vote, slice_subject
from protocol.rounds import supply
from protocol.rounds.admission import attempt_shown
from protocol.rounds.agreed import (
    agreed_root,
    call_substitutes,
    caught,
    is_agreed,
    result_place,
    take_own_sum,
)
from protocol.rounds.agreement import is_given_up
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.proposal import (
    complete_senders,
    held_runs,
    holds_all_expected,
)
from protocol.rounds.reducers import pack_senders
from protocol.rounds.roster import blocking, has_quorum, liars
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundView
from sim.world.world import peer_named
from tests.node import builders
from tests.node.builders import CONFIG, Voice, digest_of, head_of, peers_named, roster_of

PEERS = peers_named(6)
HEAD = head_of(PEERS)
VOICES = {peer: Voice(peer, HEAD.value) for peer in PEERS}
COMMITS = [VOICES[peer].commit() for peer in PEERS]
DIGEST = digest_of(HEAD.value, COMMITS)
OPEN = replace(CONFIG, trust="open")


def view_of(me: PeerId, heard=COMMITS, **fields) -> RoundView:
    view = builders.view_of(me, HEAD, **{"trust": "open", "opened_s": 0.0, **fields})
    hear(view, *heard)
    return view


def hear(view: RoundView, *heard) -> None:
    for event in heard:
        assert view.ballots.add(BallotEntry(event.message, event.body)) == "new"


PIECE = view_of(PEERS[0]).slices[0]
FIRST, SECOND, THIRD, FOURTH, *REST = PIECE.reducers
CERTIFIED = [
    *COMMITS,
    VOICES[view_of(PEERS[0]).closer(0)].propose(COMMITS),
    *(VOICES[peer].vote(COMMITS) for peer in PEERS[:5]),
]


def agg(peer: PeerId, root: bytes = b"a" * 32):
    body = Agg(list_digest=DIGEST, first=PIECE.first, stop=PIECE.stop, root=root)
    return VOICES[peer].say(Kind.AGG, body, subject=slice_subject(DIGEST, PIECE.first, PIECE.stop))


# Quorums ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_voters", "needed"), [(3, 2), (4, 3), (5, 4), (7, 5), (9, 6), (10, 7)]
)
def test_quorum_of_an_open_run_is_two_thirds_from_four_voters_on(num_voters, needed):
    everybody = peers_named(num_voters)
    roster = roster_of(everybody)
    assert has_quorum(roster, everybody[:needed], trust="open")
    assert not has_quorum(roster, everybody[: needed - 1], trust="open")


def test_two_voters_of_an_open_run_decide_as_friends_do():
    everybody = peers_named(2)
    roster = roster_of(everybody)
    assert has_quorum(roster, everybody[:1], trust="open")  # The eldest of equals is the lowest id.
    assert not has_quorum(roster, everybody[1:], trust="open")
    assert [liars(count, "open") for count in (1, 2, 3, 4, 6, 7, 10)] == [0, 0, 0, 1, 1, 2, 3]
    assert not liars(10, "friends")


@pytest.mark.parametrize("num_voters", range(4, 20))
def test_so_many_have_an_honest_voter_of_every_quorum_among_them(num_voters):
    quorum, asked = -(-2 * num_voters // 3), blocking(num_voters, "open")
    assert asked + quorum - num_voters > liars(num_voters, "open")
    assert asked - 1 + quorum - num_voters <= liars(num_voters, "open")


# Attempts -----------------------------------------------------------------------------------------


SEVEN = peers_named(7)
SEVENTH = head_of(SEVEN)
SPEAKERS = {peer: Voice(peer, SEVENTH.value) for peer in SEVEN}


def entered(*heard, trust: str = "open") -> int:
    config = replace(OPEN, trust=trust)
    machine = RoundMachine(config, KeyedHashSigner(SEVEN[0]), SEVENTH, now_s=0.0)
    for event in (*(SPEAKERS[peer].commit() for peer in SEVEN), *heard):
        machine.handle(event, 0.1)
    return machine.view.attempt


def test_attempt_is_entered_once_more_voters_are_in_it_than_may_lie():
    reports = [SPEAKERS[peer].report(3) for peer in SEVEN[1:4]]
    assert entered(*reports[:2]) == 0
    assert entered(*reports) == 3
    assert entered(reports[0], trust="friends") == 3


def test_of_several_attempts_the_latest_with_enough_voters_in_it_or_beyond_is_entered():
    one, two, three = (SPEAKERS[peer] for peer in SEVEN[1:4])
    assert entered(one.report(9), two.report(4), three.report(6)) == 4
    assert entered(one.report(9), one.report(4), one.report(6)) == 0


def test_later_attempt_is_timed_once_a_quorum_is_seen_in_it():
    """Whoever comes to it first would else leave it when the others come, and so for ever."""
    machine = RoundMachine(OPEN, KeyedHashSigner(SEVEN[0]), SEVENTH, now_s=0.0)
    for event in (SPEAKERS[peer].commit() for peer in SEVEN):
        machine.handle(event, 0.1)
    reports = [SPEAKERS[peer].report(3) for peer in SEVEN[1:5]]
    for report in reports[:3]:
        machine.handle(report, 5.0)
    assert (machine.view.attempt, machine.view.attempt_start_s) == (3, math.inf)
    assert not is_given_up(machine.view, machine._deadline, now_s=1000.0)
    machine.handle(reports[3], 6.0)
    assert machine.view.attempt_start_s == 6.0
    assert is_given_up(machine.view, machine._deadline, now_s=1000.0)


def test_votes_show_an_attempt_too_and_members_without_a_vote_show_none():
    vote = Vote(list_digest=DIGEST)
    votes = [SPEAKERS[peer].say(Kind.VOTE, vote, 2) for peer in SEVEN[1:4]]
    assert entered(*votes) == 2
    joined = head_of(SEVEN[:4], SEVEN[4:])
    view = replace_head(joined)
    said = [Voice(peer, joined.value).say(Kind.HAVE, Have(held=()), 2) for peer in SEVEN[4:]]
    hear(view, *said)
    assert attempt_shown(view, BallotEntry(said[-1].message, said[-1].body)) == 0


def replace_head(head) -> RoundView:
    return builders.view_of(SEVEN[0], head, trust="open")


# Two copies ---------------------------------------------------------------------------------------


def have(peer: PeerId, senders, attempt: int = 0):
    held = Held(first=0, stop=CONFIG.num_cells(1), senders=pack_senders(senders, PEERS))
    return VOICES[peer].say(Kind.HAVE, Have(held=(held,)), attempt)


def test_sender_is_complete_when_two_others_hold_every_cell():
    view = view_of(PEERS[0])
    hear(view, have(FIRST, [FIRST, SECOND, THIRD]), have(SECOND, [FIRST, SECOND, FOURTH]))
    assert complete_senders(view) == set(), "nobody is held by two others"
    hear(view, have(THIRD, [FIRST, SECOND, FOURTH]))
    assert complete_senders(view) == {FIRST, SECOND, FOURTH}


def test_own_word_counts_only_where_nobody_else_is_in_reach():
    view = view_of(FIRST, suspects=frozenset(PEERS) - {FIRST})
    hear(view, have(FIRST, [FIRST]))
    assert complete_senders(view) == {FIRST}


def test_parts_go_to_the_first_two_others_and_to_the_next_when_one_is_suspected():
    for me, targets in (
        (FOURTH, {FIRST, SECOND}),
        (FIRST, {SECOND, THIRD}),
        (SECOND, {FIRST, THIRD}),
    ):
        digest = COMMITS[PEERS.index(me)].message.digest
        view = view_of(me, commit=digest, parts={digest: set(range(CONFIG.num_cells(1)))})
        pushed = [p for p in supply.push_parts(view) if isinstance(p, Push)]
        assert {p.to for p in pushed if PIECE.first in p.cells} == targets
        view.suspect(frozenset({SECOND}) - {me})
        again = [p for p in supply.push_parts(view) if isinstance(p, Push)]
        expected = {THIRD} if me == FOURTH else {FOURTH} if me == FIRST else set()
        assert {p.to for p in again if PIECE.first in p.cells} == expected


def test_third_in_rank_keeps_the_parts_of_those_who_sum_and_sums_nothing():
    view = view_of(THIRD)
    gathering = view.gathering()
    assert PIECE in view.kept_slices()
    assert PIECE not in view.own_slices()
    assert [peer for peer in PEERS if gathering.holds(PIECE, peer)] == sorted({FIRST, SECOND})
    assert PIECE in view_of(SECOND).own_slices()
    assert PIECE not in view_of(FOURTH).kept_slices()
    mine = COMMITS[PEERS.index(FIRST)].message.digest
    view.cells.parts[mine] = set(range(PIECE.first, PIECE.stop))
    assert any(run.first == PIECE.first for run in held_runs(view))


def test_have_waits_for_those_parts_alone_that_its_reducer_is_to_hold():
    view = view_of(THIRD)
    gathering = view.gathering()
    for piece in view.kept_slices():
        for sender, digest, _ in view.commits():
            if gathering.holds(piece, sender):
                view.cells.parts.setdefault(digest, set()).update(range(piece.first, piece.stop))
    assert holds_all_expected(view)
    view.cells.parts[COMMITS[PEERS.index(FIRST)].message.digest].discard(PIECE.first)
    assert not holds_all_expected(view)


# Two sums -----------------------------------------------------------------------------------------


def test_result_is_believed_once_two_reducers_say_the_same():
    view = view_of(FOURTH, [*CERTIFIED, agg(FIRST)])
    assert agreed_root(view, DIGEST, PIECE) is None
    assert result_place(view, DIGEST, PIECE.first) is None
    hear(view, agg(SECOND, b"b" * 32))
    assert agreed_root(view, DIGEST, PIECE) is None
    assert not caught(view, DIGEST, PIECE)
    hear(view, agg(THIRD, b"b" * 32))
    assert agreed_root(view, DIGEST, PIECE) == b"b" * 32
    assert caught(view, DIGEST, PIECE) == {FIRST}
    hear(view, agg(FOURTH, b"a" * 32), *(agg(peer, b"a" * 32) for peer in REST))
    stranger = view_of(FOURTH, [*CERTIFIED, agg(SECOND, b"b" * 32), agg(THIRD, b"b" * 32)])
    assert agreed_root(stranger, DIGEST, PIECE) == b"b" * 32
    hear(stranger, *(agg(peer) for peer in (FIRST, *REST)))
    assert agreed_root(stranger, DIGEST, PIECE) == b"b" * 32, "one sum only, the first believed"


def test_member_out_of_reach_of_all_others_believes_no_single_word():
    others = frozenset(PEERS) - {FOURTH}
    view = view_of(FOURTH, [*CERTIFIED, agg(FIRST)], suspects=others)
    assert agreed_root(view, DIGEST, PIECE) is None
    hear(view, agg(SECOND, b"b" * 32))
    assert agreed_root(view, DIGEST, PIECE) is None


def test_observer_takes_a_single_word_only_of_who_is_left_in_reach_and_unopposed():
    observer, others = peer_named("observer"), frozenset(PEERS) - {FIRST}
    found = []
    for heard, suspects in (
        ([agg(FIRST)], frozenset()),
        ([agg(FIRST)], others),
        ([agg(FIRST), agg(SECOND, b"b" * 32)], others),
    ):
        view = view_of(observer, [*CERTIFIED, *heard], suspects=suspects)
        found.append(agreed_root(view, DIGEST, PIECE))
    assert found == [None, b"a" * 32, None]


def test_friends_believe_one_and_whoever_sums_believes_itself():
    view = view_of(FIRST, [*CERTIFIED, agg(FIRST), agg(SECOND, b"b" * 32), agg(THIRD, b"b" * 32)])
    assert agreed_root(view, DIGEST, PIECE) == b"a" * 32
    friends = view_of(FOURTH, (), trust="friends")
    (piece,) = [p for p in friends.slices if p.first == 0]
    body = Agg(list_digest=DIGEST, first=piece.first, stop=piece.stop, root=b"c" * 32)
    subject = slice_subject(DIGEST, piece.first, piece.stop)
    hear(friends, VOICES[FIRST].say(Kind.AGG, body, subject=subject))
    assert agreed_root(friends, DIGEST, piece) == b"c" * 32


def test_third_is_called_when_two_differ_or_one_does_not_come():
    differing = view_of(THIRD, [*CERTIFIED, agg(FIRST), agg(SECOND, b"b" * 32)])
    call_substitutes(differing, now_s=0.0, deadline_s=1.0)
    assert PIECE in differing.own_slices()
    silent = view_of(THIRD, [*CERTIFIED, agg(FIRST)], certified_s={DIGEST: 5.0})
    call_substitutes(silent, now_s=5.9, deadline_s=1.0)
    assert PIECE not in silent.own_slices()
    call_substitutes(silent, now_s=6.0, deadline_s=1.0)
    assert PIECE in silent.own_slices()
    agreeing = view_of(THIRD, [*CERTIFIED, agg(FIRST), agg(SECOND)], certified_s={DIGEST: 5.0})
    call_substitutes(agreeing, now_s=9.0, deadline_s=1.0)
    assert PIECE not in agreeing.own_slices()
    assert PIECE in view_of(THIRD, suspects=frozenset({FIRST})).own_slices()
    assert PIECE in view_of(THIRD, attempt=1).own_slices()


def test_result_is_pushed_by_the_first_and_only_once_another_says_the_same():
    view = view_of(FIRST, [*CERTIFIED, agg(FIRST)])
    assert not list(supply.push_results(view, DIGEST, PIECE))
    hear(view, agg(SECOND))
    assert is_agreed(view, DIGEST, PIECE)
    assert {p.to for p in supply.push_results(view, DIGEST, PIECE) if isinstance(p, Push)} == (
        set(PEERS) - {FIRST}
    )
    second = view_of(SECOND, [*CERTIFIED, agg(FIRST), agg(SECOND)])
    assert not list(supply.push_results(second, DIGEST, PIECE)), "the first does"
    wrong = view_of(SECOND, [*CERTIFIED, agg(FIRST, b"x" * 32), agg(SECOND), agg(THIRD)])
    assert list(supply.push_results(wrong, DIGEST, PIECE)), "the first is caught"


def test_result_is_never_asked_of_who_was_caught():
    heard = [*CERTIFIED, agg(FIRST, b"x" * 32), agg(SECOND), agg(THIRD)]
    view = view_of(FOURTH, heard, certified_s={DIGEST: 0.0})
    asked = set()
    for step in range(40):
        found = supply.pull_results(view, now_s=1.0 + step, deadline_s=1.0)
        asked |= {p.source for p in found if isinstance(p, Pull) and PIECE.first in p.cells}
    assert {SECOND, THIRD} <= asked
    assert FIRST not in asked


def test_second_agg_lets_the_first_push_at_once():
    machine = RoundMachine(OPEN, KeyedHashSigner(FIRST), HEAD, now_s=0.0)
    for event in [e for e in CERTIFIED if e.message.sender != FIRST]:
        machine.handle(event, 0.1)
    assert peer_named("nobody") not in PEERS
    view = machine.view
    hear(view, *(e for e in CERTIFIED if e.message.sender == FIRST), agg(FIRST))
    view.cells.results[DIGEST] = set(range(CONFIG.num_cells(1)))
    view.cells.requested.add(("reduce", DIGEST, PIECE.first, FIRST))
    pushes = [a for a in machine.handle(agg(SECOND), 0.2) if isinstance(a, Push)]
    assert any(p.bulk is Bulk.RESULT and PIECE.first in p.cells for p in pushes)


@pytest.mark.parametrize(("trust", "is_own"), [("open", False), ("friends", True)])
def test_sum_that_cannot_be_said_is_no_result_of_an_open_run(trust, is_own):
    config = replace(CONFIG, trust=trust)
    machine = RoundMachine(config, KeyedHashSigner(FIRST), HEAD, now_s=0.0)
    for event in CERTIFIED:  # Its own COMMIT among them, of which its journal knows nothing.
        machine.handle(event, 0.1)
    view = machine.view
    assert machine.is_muted
    (piece,) = [p for p in view.slices if p.reducers[0] == FIRST][:1]
    view.cells.requested.add(("reduce", DIGEST, piece.first, FIRST))
    # Cells that were checked came before: the sum is written over them.
    machine.handle(CellsArrived(Bulk.RESULT, DIGEST, tuple(range(piece.first, piece.stop))), 0.2)
    machine.handle(Reduced(DIGEST, piece.first, piece.stop, b"x" * 32), 0.2)
    assert not view.agg_of(DIGEST, piece)
    assert (piece.first not in view.cells.missing_results(DIGEST)) == is_own


def test_sum_that_was_said_before_signatures_were_lost_is_a_result():
    view = view_of(FIRST, [*CERTIFIED, agg(FIRST)])
    take_own_sum(view, DIGEST, PIECE, b"x" * 32, is_mute=True)
    assert PIECE.first in view.cells.missing_results(DIGEST)
    take_own_sum(view, DIGEST, PIECE, b"a" * 32, is_mute=True)
    assert PIECE.first not in view.cells.missing_results(DIGEST)


def test_cells_of_others_take_the_place_of_a_sum_that_cannot_be_said():
    view = view_of(FIRST, [*CERTIFIED, agg(SECOND), agg(THIRD)], certified_s={DIGEST: 0.0})
    take_own_sum(view, DIGEST, PIECE, b"x" * 32, is_mute=True)
    pulls = list(supply.pull_results(view, now_s=1.0, deadline_s=1.0))
    asked = [p.source for p in pulls if isinstance(p, Pull) and PIECE.first in p.cells]
    assert asked == [min(SECOND, THIRD)]


def test_part_that_was_not_pushed_is_asked_of_one_more_at_once_than_may_lie():
    cells, everybody = CONFIG.num_cells(1), pack_senders(PEERS, tuple(sorted(PEERS)))
    held = Held(first=0, stop=cells, senders=everybody)
    haves = [VOICES[peer].say(Kind.HAVE, Have(held=(held,))) for peer in (SECOND, THIRD)]
    view, sender = view_of(FIRST, [*COMMITS, *haves]), FOURTH
    digest = next(one.message.digest for one in COMMITS if one.message.sender == sender)
    for commit in COMMITS:
        if commit.message.sender != sender:
            view.cells.parts[commit.message.digest] = set(range(cells))
    assert not list(supply.pull_parts(view, now_s=0.4, deadline_s=1.0)), "it is pushed"
    found = list(supply.pull_parts(view, now_s=0.5, deadline_s=1.0))
    assert {p.subject for p in found if isinstance(p, Pull)} == {digest}
    asked = [p.source for p in found if isinstance(p, Pull) and PIECE.first in p.cells]
    assert asked[0] == sender
    assert len(set(asked)) == 2 == liars(len(PEERS), "open") + 1
    found = list(supply.pull_parts(view, now_s=1.0, deadline_s=1.0))
    again = [p.source for p in found if isinstance(p, Pull) and PIECE.first in p.cells]
    assert set(asked) | set(again) == {sender, SECOND, THIRD}, "each in turn"
