"""A newcomer's way to its weight: by seals alone, and never faster than R1's cap."""

import random
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from protocol.errors import DecodeError
from protocol.identity import PeerId
from protocol.manifest import NO_ADMISSION, AdmissionSpec
from protocol.messages import Roster, SeatRecord
from protocol.rounds.reducers import pack_senders
from protocol.rounds.roster import ClockRules, ListedContribution, next_clock, next_roster
from protocol.rounds.seating import ERA_ROUNDS, counting, earned, parts, weighed
from protocol.wire import decode, encode
from tests.node.builders import (
    CLOCK_RULES,
    commit_body,
    head_of,
    peers_named,
    roster_of,
    toy_manifest,
)

LAW = AdmissionSpec(probation=3, ramp=10)
PEERS = peers_named(64)
FOUNDING, WAVE = PEERS[:8], PEERS[8:40]
HEAD = head_of(FOUNDING).value


def says(peer: PeerId, **changes) -> ListedContribution:
    return ListedContribution(peer, commit_body(HEAD, **changes), True)


def played(
    rounds: int, *, law: AdmissionSpec, wave: tuple[PeerId, ...] = WAVE, **bent
) -> list[Roster]:
    """Rosters of rounds 5 and on, which name the wave until all of it sits; its COMMITs then say
    `bent`."""
    roster, found = roster_of(FOUNDING), []
    for index in range(5, 5 + rounds):
        waiting = tuple(sorted(set(wave) - roster.member_set))
        entries = [says(p, **(bent if p in wave else {"joins": waiting})) for p in roster.members]
        roster = next_roster(roster, index, entries, trust="open", law=law)
        found.append(roster)
    return found


def with_wave() -> Roster:
    """The roster of round 7, with all of the wave, which sits since round 5 and was listed once."""
    joined = [SeatRecord(peer=p, seated=5, voter_since=-1, proved=-1, absent=0) for p in WAVE]
    seats = sorted([*roster_of(FOUNDING).seats, *joined], key=lambda seat: seat.peer)
    roster = Roster(seats=tuple(seats), window=(2, 3, 4, 5))
    entries = [says(peer) for peer in roster.members]
    return next_roster(roster, 6, entries, trust="open", law=LAW)


def share(roster: Roster, law: AdmissionSpec, wave: tuple[PeerId, ...] = WAVE) -> float:
    """Of the weight of all, were all listed with equal tokens, what the wave has."""
    weights = {seat.peer: parts(seat, law) for seat in roster.seats}
    return sum(w for p, w in weights.items() if p in wave) / sum(weights.values())


def test_wave_without_a_ramp_outweighs_all_others_as_soon_as_it_sits():
    """A quarter of the roster comes in a round at most."""
    shares = [share(roster, NO_ADMISSION) for roster in played(8, law=NO_ADMISSION)]
    assert shares[0] == 0.2
    assert shares[-1] == 0.8


def test_wave_weighs_nothing_in_probation_and_a_fifth_at_most_after_an_era():
    rosters = played(3 + ERA_ROUNDS, law=LAW)
    assert [share(roster, LAW) for roster in rosters[:4]] == [0.0] * 4
    assert 0.0 < share(rosters[-1], LAW) <= 1 / 5
    assert max(share(roster, LAW) for roster in rosters) <= 1 / 5


@pytest.mark.parametrize("founding", [1, 3, 4, 8, 16])
def test_no_more_come_to_count_in_an_era_than_r1_lets_in(founding, seed):
    luck = random.Random(seed)
    roster, counted = roster_of(PEERS[:founding]), [founding]
    for index in range(5, 5 + 6 * ERA_ROUNDS):
        # Founding members stay: whoever loses its seat makes no room for a faster growth.
        stay = PEERS[:founding]
        present = [p for p in roster.members if p in stay or luck.random() < 0.9]
        entries = [says(p, joins=WAVE if index == 5 else ()) for p in present]
        roster = next_roster(roster, index, entries, trust="open", law=LAW)
        counted.append(len(counting(roster, LAW)))
        era_ago = counted[max(0, len(counted) - 1 - ERA_ROUNDS)]
        assert counted[-1] <= era_ago + max(1, max(counted) // 4) + 1


def test_honest_newcomer_counts_fully_in_the_end_and_its_weight_never_falls():
    one = WAVE[:1]
    grown = [share(roster, LAW, one) for roster in played(40, law=LAW, wave=one)]
    assert grown == sorted(grown)
    assert grown[-1] == 1 / 9


def test_nobody_earns_more_than_its_full_weight_and_nothing_where_there_is_no_ramp():
    one = WAVE[:1]
    assert max(seat.earned for seat in played(40, law=LAW, wave=one)[-1].seats) == 13
    grown = played(40, law=NO_ADMISSION, wave=one)[-1]
    assert {seat.earned for seat in grown.seats} == {0}


def test_where_nobody_counts_those_do_who_have_earned_most():
    base = SeatRecord(peer=PEERS[0], seated=5, voter_since=-1, proved=-1, absent=0)
    seats = {peer: replace(base, peer=peer, earned=k % 3) for k, peer in enumerate(PEERS[:8])}
    found = earned(seats, (), 9, LAW)
    assert [found[peer].earned for peer in PEERS[:8]] == [0, 1, 4, 0, 1, 4, 0, 1]


@pytest.mark.parametrize("law", [NO_ADMISSION, LAW])
def test_wave_that_suspects_all_but_one_takes_no_seat_with_or_without_a_ramp(law):
    """It has no votes, and voters alone have a say; where all have, it takes seven of eight."""
    bent: dict[str, Any] = {"suspects": FOUNDING[1:], "is_past_end": True}
    held = played(3 + ERA_ROUNDS, law=law, **bent)[-1]
    assert set(FOUNDING) <= set(held.members)
    with patch("protocol.rounds.roster.counts_of", lambda *_: True):
        open_door = played(12, law=NO_ADMISSION, **bent)[-1]
    assert set(FOUNDING) & set(open_door.members) == {FOUNDING[0]}


def test_wave_neither_ends_the_run_nor_moves_its_clock():
    roster = with_wave()
    value = replace(HEAD, round=6, roster=roster)
    entries = [
        says(p, **({"is_past_end": True, "steps": 100_000} if p in WAVE else {}))
        for p in roster.members
    ]
    for law, is_moved in ((NO_ADMISSION, True), (LAW, False)):
        clock = next_clock(value, entries, replace(CLOCK_RULES, admission=law))
        assert clock.ends_run is is_moved
        assert (clock.step > 1000) is is_moved


def test_rows_of_newcomers_are_left_out_and_a_list_of_nobody_else_weighs_nothing():
    roster = with_wave()
    rows = [(peer, peer, commit_body(HEAD)) for peer in roster.members]
    assert {peer for peer, _, _ in weighed(roster, LAW, rows)} == set(FOUNDING)
    alone = weighed(roster, LAW, [row for row in rows if row[0] in WAVE])
    assert len(alone) == len(WAVE)
    assert {weight for _, _, weight in alone} == {0}
    everybody = weighed(roster, NO_ADMISSION, rows)
    assert {weight for _, _, weight in everybody} == {10}


@pytest.mark.parametrize(("founding", "turn"), [(8, 24), (7, 32), (1, 32)])
def test_rounds_that_do_not_list_a_newcomer_earn_it_nothing_and_are_not_its_turn(founding, turn):
    """A quarter of those who count come to count in an era, and at least one; so where eight do,
    every eighth round is somebody's turn."""
    one, roster, earned = WAVE[0], roster_of(FOUNDING[:founding]), []
    for index in range(5, turn + 1):
        # Twice in a row would cost the seat.
        is_there = index not in (5, 7, 9, 16)
        present = (*FOUNDING[:founding], one) if is_there else FOUNDING[:founding]
        entries = [says(p, joins=(one,) if index == 5 else ()) for p in present]
        roster = next_roster(roster, index, entries, trust="open", law=LAW)
        earned += [seat.earned for seat in roster.seats if seat.peer == one]
    assert earned == [0, 1, 1, 2, 2, *[LAW.probation] * (turn - 10), LAW.probation + 1]


def test_whoever_is_seated_by_the_first_round_weighs_as_the_founder_does():
    founder = SeatRecord(peer=PEERS[0], seated=0, voter_since=0, proved=0, absent=0)
    weights = [parts(replace(founder, seated=index), LAW) for index in range(3)]
    assert weights == [LAW.ramp, LAW.ramp, 0]


def test_turns_do_not_follow_peer_ids():
    rosters = played(6 * ERA_ROUNDS, law=LAW)
    first = next(c - set(FOUNDING) for r in rosters if (c := counting(r, LAW)) - set(FOUNDING))
    late = counting(rosters[-1], LAW) - set(FOUNDING)
    assert first != {min(WAVE)}
    assert late != set(sorted(WAVE)[: len(late)])


def test_seat_lost_and_taken_again_begins_anew_also_of_a_founding_member():
    one = FOUNDING[0]
    roster = roster_of(FOUNDING)
    saw = pack_senders(set(FOUNDING[1:]), FOUNDING)
    gone = [says(p, committed=saw) for p in FOUNDING[1:]]
    for index in (7, 8):
        roster = next_roster(roster, index, gone, trust="open", law=LAW)
    assert one not in roster.members
    entries = [says(p, joins=(one,)) for p in FOUNDING[1:]]
    roster = next_roster(roster, 9, entries, trust="open", law=LAW)
    seat = next(seat for seat in roster.seats if seat.peer == one)
    assert (seat.seated, parts(seat, LAW)) == (9, 0)


def test_newcomers_come_to_vote_where_founding_members_are_gone():
    roster = with_wave()
    # Of the eight that are gone two lose their votes in four rounds: as many as may lie.
    for index in range(15, 48):
        saw = pack_senders(set(WAVE), roster.members)
        entries = [says(p, committed=saw) for p in roster.members if p in WAVE]
        voting = [says(p, committed=saw) for p in roster.voters if p not in WAVE]
        told = sorted([*entries, *voting[:7]], key=lambda entry: entry.sender)
        roster = next_roster(roster, index, told, trust="open", law=LAW)
    assert set(roster.voters) & set(WAVE)


def test_newcomers_wait_on_while_founding_members_are_kept_for_want_of_other_voters():
    roster = played(3, law=LAW)[-1]
    for index in (8, 9, 10):
        # No founding member is listed, and no newcomer votes: the founding members stay.
        listed = [ListedContribution(peer, commit_body(HEAD), False) for peer in WAVE]
        before, roster = roster, next_roster(roster, index, listed, trust="open", law=LAW)
        assert set(roster.voters) == set(FOUNDING)
        assert not counting(roster, LAW) - set(FOUNDING)
        earned = {seat.peer: seat.earned for seat in before.seats}
        assert all(s.earned <= max(LAW.probation, earned[s.peer]) for s in roster.seats)


def test_friends_have_no_ramp_and_a_probation_needs_one():
    manifest = toy_manifest(PEERS[0])
    with pytest.raises(ValueError, match="friends weigh"):
        replace(manifest, admission=LAW)
    assert ClockRules.from_manifest(replace(manifest, trust="open", admission=LAW)).admission == LAW
    with pytest.raises(ValueError, match="no end"):
        AdmissionSpec(probation=3)


def test_seat_says_what_it_has_earned_within_bounds():
    seat = SeatRecord(peer=PEERS[0], seated=9, voter_since=-1, proved=-1, absent=0, earned=2000)
    assert decode(SeatRecord, encode(seat)) == seat
    with pytest.raises(DecodeError):
        decode(SeatRecord, encode(replace(seat, earned=2001)))
