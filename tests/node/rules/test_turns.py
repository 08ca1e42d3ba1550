"""R1, MoDeST: more peers than seats take turns, and no quorum is lost by it."""

import random
from dataclasses import replace

import pytest

from protocol import limits
from protocol.manifest import AdmissionSpec
from protocol.rounds.agreement import Seen, commit_body
from protocol.rounds.reducers import Rates
from protocol.rounds.roster import ListedContribution, next_roster, voters
from protocol.rounds.seating import TURN_ROUNDS, Turns, in_turn
from tests.node import builders
from tests.node.builders import head_of, peers_named, roster_of

PEERS = peers_named(40)
FOUR = AdmissionSpec(seats=4)
HEAD = head_of(PEERS[:4]).value


def listed(peer, *, joins=(), proved=True):
    return ListedContribution(peer, builders.commit_body(HEAD, joins=joins), proved)


def after(roster, index, *, joins=(), absent=(), proved=True, **rules):
    """The roster when that round listed all members but these, and all name those joiners."""
    rules = {"trust": "friends", "law": FOUR, **rules}
    entries = [listed(p, joins=joins, proved=proved) for p in roster.members if p not in absent]
    return next_roster(roster, index, entries, **rules)


def test_nobody_gives_way_where_nobody_waits_or_there_is_room():
    roster = roster_of(PEERS[:4])
    assert after(roster, 50).members == PEERS[:4]
    grown = after(roster_of(PEERS[:3]), 50, joins=PEERS[3:4])
    assert grown.members == PEERS[:4]


def test_nobody_gives_way_before_its_turn_is_over():
    roster = roster_of(PEERS[:4])
    assert after(roster, TURN_ROUNDS - 1, joins=PEERS[4:6]).members == PEERS[:4]
    turned = after(roster, TURN_ROUNDS, joins=PEERS[4:6])
    assert len(turned.members) == 4
    assert len(set(turned.members) & set(PEERS[4:6])) == 1


def test_longest_seated_gives_way_first_and_the_order_of_the_round_decides_among_equals():
    roster = roster_of(PEERS[:4])
    seats = tuple(replace(s, seated=0 if s.peer == PEERS[2] else 3) for s in roster.seats)
    turned = after(replace(roster, seats=seats), 20, joins=PEERS[4:5])
    assert turned.members == (*PEERS[:2], PEERS[3], PEERS[4])
    out = {*PEERS[:4]} - {*after(roster, 20, joins=PEERS[4:5]).members}
    assert out == {in_turn(20, PEERS[:4])[0]}


def test_no_seat_is_given_up_while_a_quarter_of_the_members_proved_nothing_in_the_round():
    roster = roster_of(PEERS[:4])
    assert after(roster, 20, joins=PEERS[4:5], absent=PEERS[:1]).members == PEERS[:4]
    assert after(roster, 20, joins=PEERS[4:5], proved=False).members == PEERS[:4]


def test_members_without_a_vote_give_way_however_few_vote():
    roster = roster_of(PEERS[:1], PEERS[1:4])
    turned = after(roster, 20, joins=PEERS[4:5], proved=False)
    assert PEERS[0] in turned.members
    assert PEERS[4] in turned.members


def test_voters_of_an_open_run_keep_their_seats():
    roster = roster_of(PEERS[:4])
    assert after(roster, 20, joins=PEERS[4:8], trust="open").members == PEERS[:4]
    mixed = roster_of(PEERS[:4], PEERS[4:6])
    turned = after(mixed, 20, joins=PEERS[6:8], trust="open", law=AdmissionSpec(seats=6))
    assert set(turned.members) > set(PEERS[:4])
    assert len(set(turned.members) & set(PEERS[6:8])) == 1


def test_where_work_counts_slowly_a_turn_is_four_ramps_longer():
    law = AdmissionSpec(seats=6, probation=2, ramp=5)
    roster = roster_of(PEERS[:4], PEERS[4:6])
    length = TURN_ROUNDS + 4 * 7
    early = after(roster, length - 1, joins=PEERS[6:8], trust="open", law=law)
    assert early.members == PEERS[:6]
    assert early.members != after(roster, length, joins=PEERS[6:8], trust="open", law=law).members


def test_whoever_gives_way_does_not_count_any_more_when_weight_is_shared_out():
    """Where nobody who counts is left, those count who have earned most, with this very seal."""
    law = AdmissionSpec(seats=4, ramp=1)
    roster = roster_of(PEERS[:2], PEERS[2:4])
    full = replace(roster.seats[2], seated=2, earned=1)
    voting = tuple(replace(seat, seated=9, earned=0) for seat in roster.seats[:2])
    seats = (*voting, full, replace(roster.seats[3], seated=9, earned=0))
    turned = after(replace(roster, seats=seats), 50, joins=PEERS[4:5], trust="open", law=law)
    assert PEERS[2] not in turned.members
    weight = {seat.peer: seat.earned for seat in turned.seats}
    assert any(weight.values()), "nobody counts"
    assert weight[PEERS[4]] == 0


def test_an_eighth_of_the_seats_changes_in_a_round_at_most():
    roster = roster_of(PEERS[:24])
    turned = after(roster, 20, joins=PEERS[24:], law=AdmissionSpec(seats=24))
    assert len(set(turned.members) - set(PEERS[:24])) == 3


def test_free_seats_are_drawn_not_given_to_low_ids():
    firsts = dict.fromkeys(PEERS[:8], 0)
    for index in range(400):
        (first,) = Turns(index, FOUR, "friends").with_joiners({}, PEERS[20:23], PEERS[:8])
        firsts[first] += 1
    # Of 400 draws among eight each has 50, with a deviation of 6.6.
    assert all(25 <= count <= 75 for count in firsts.values()), firsts


def test_order_of_a_round_is_that_of_any_set_of_the_same_peers_and_another_in_the_next():
    assert in_turn(7, PEERS) == in_turn(7, PEERS[::-1]) == in_turn(7, set(PEERS))
    assert in_turn(7, PEERS) != in_turn(8, PEERS)
    assert in_turn(7, PEERS[:9]) == [peer for peer in in_turn(7, PEERS) if peer in PEERS[:9]]


def test_members_name_those_whose_turn_is_first_not_those_with_low_ids():
    everybody = peers_named(limits.SEATS_MAX + 40)
    view = builders.view_of(everybody[0], head_of(everybody[:4]))
    view.seats.proven |= set(everybody)
    seen = Seen(frozenset(), set(), False, Rates())
    body = commit_body(view, builders.contributed(view.index), seen)
    expected = in_turn(view.index, everybody[4:])[: limits.SEATS_MAX]
    assert body.joins == tuple(sorted(expected))


@pytest.mark.quick(1)
@pytest.mark.parametrize("most", [2, 4, 8, 20])
def test_all_come_to_sit_for_whole_turns_and_a_quorum_votes_throughout(most, seed):
    rng = random.Random(seed)
    law = AdmissionSpec(seats=most)
    roster = roster_of(PEERS[:most])
    sat = dict.fromkeys(PEERS, 0)
    came = dict.fromkeys(PEERS[:most], 0)
    for index in range(5, 600):
        waiting = tuple(peer for peer in PEERS if peer not in roster.members)
        # Now and then somebody is late, never twice.
        late = [s.peer for s in roster.seats if not s.absent and s.proved != -1]
        absent = {rng.choice(late)} if late and rng.random() < 0.1 else set()
        before = roster
        roster = after(before, index, joins=waiting, absent=absent, law=law)
        assert len(roster.members) <= most
        assert voters(roster)
        assert 4 * len(voters(roster)) >= 2 * len(roster.members)
        for peer in set(before.members) - set(roster.members):
            assert index - came.pop(peer) >= TURN_ROUNDS
        for peer in set(roster.members) - set(before.members):
            came[peer] = index
        for peer in roster.members:
            sat[peer] += 1
    assert all(sat.values()), "somebody never sat"
