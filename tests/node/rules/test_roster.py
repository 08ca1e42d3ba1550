"""R1, R8: who takes part follows from a seal, and from nothing else."""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Roster
from protocol.rounds import roster as rosters
from protocol.rounds.reducers import pack_senders, slices
from protocol.rounds.roster import (
    ListedContribution,
    closer,
    eldest_voter,
    has_quorum,
    next_clock,
    next_roster,
    voters,
)
from tests.node.builders import CLOCK_RULES as RULES
from tests.node.builders import commit_body, head_of, peers_named, roster_of, seat

A, B, C, D, E = peers_named(5)
SYBILS = tuple(peer for peer in peers_named(40) if peer not in (A, B, C, D, E))
HEAD = head_of((A, B, C)).value


def listed(peer: PeerId, *, proved: bool = False, **changes) -> ListedContribution:
    return ListedContribution(peer, commit_body(HEAD, **changes), proved)


def after(
    roster: Roster, *entries: ListedContribution, index: int = 5, trust: str = "friends"
) -> Roster:
    return next_roster(roster, index, entries, trust=trust)


def telling(
    roster: Roster, *entries: ListedContribution, **maps: Collection[PeerId]
) -> list[ListedContribution]:
    """The same COMMITs, each of which says so of the members: by default that it saw all."""
    said = {"committed": roster.members, "sealed": (), "lapsed": ()} | maps
    bits: dict[str, Any] = {n: pack_senders(set(p), roster.members) for n, p in said.items()}
    return [replace(entry, commit=replace(entry.commit, **bits)) for entry in entries]


def test_joiner_named_by_one_listed_commit_is_seated_without_a_vote():
    grown = after(roster_of((A, B)), listed(A, joins=(D,)), listed(B))
    assert grown.members == tuple(sorted((A, B, D)))
    record = next(record for record in grown.seats if record.peer == D)
    assert (record.seated, record.voter_since, record.proved) == (5, -1, -1)


def test_joiner_in_an_open_run_needs_more_namings_than_there_are_liars():
    roster = roster_of((A, B, C, D))
    once = after(roster, listed(A, joins=(E,)), listed(B), listed(C), trust="open")
    twice = after(roster, listed(A, joins=(E,)), listed(B, joins=(E,)), listed(C), trust="open")
    assert E not in once.members
    assert E in twice.members


def test_members_without_a_vote_seat_nobody_and_throw_nobody_out_of_an_open_run():
    roster = roster_of((A, B, C, D), SYBILS)
    honest = [listed(peer, proved=True) for peer in (A, B, C, D)]
    others = (B, C, D)
    for lie in ({"joins": (E,)}, {"suspects": others}, {"gone": others}):
        entries = sorted(
            [*honest, *(listed(peer, **lie) for peer in SYBILS)], key=lambda entry: entry.sender
        )
        assert set(after(roster, *entries, trust="open").members) == set(roster.members)
        assert after(roster, *entries).members != roster.members, "friends take their word"


def test_one_liar_who_says_of_all_that_they_left_drops_nobody_from_an_open_run():
    roster = roster_of((A, B, C, D))
    liar = listed(A, gone=(B, C, D), joins=(E,), proved=True)
    entries = [liar, listed(B), listed(C), listed(D)]
    assert after(roster, *entries).members == tuple(sorted((A, E))), "friends take one word"
    assert after(roster, *entries, trust="open").members == roster.members
    both = [listed(A, gone=(D,)), listed(B, gone=(D,)), listed(C), listed(D)]
    assert after(roster, *both, trust="open").members == (A, B, C)


def test_members_without_a_vote_do_not_end_an_open_run():
    value = replace(HEAD, roster=roster_of((A, B, C, D), SYBILS))
    entries = [listed(p, is_past_end=p in SYBILS) for p in value.roster.members]
    assert next_clock(value, entries, RULES).ends_run
    assert not next_clock(value, entries, replace(RULES, trust="open")).ends_run
    voters = [listed(p, is_past_end=p not in SYBILS) for p in value.roster.members]
    assert next_clock(value, voters, replace(RULES, trust="open")).ends_run


@pytest.mark.parametrize(("accusers", "stays"), [((A,), True), ((A, B), True), ((A, B, C), False)])
def test_member_goes_only_if_more_than_half_of_the_listed_suspect_it(accusers, stays):
    entries = [listed(p, suspects=(E,) if p in accusers else ()) for p in (A, B, C, D)]
    assert (E in after(roster_of((A, B, C, D, E)), *entries).members) is stays


def test_one_commit_that_names_a_suspect_twice_counts_once():
    entries = [listed(A, suspects=(D, D, D)), listed(B), listed(C)]
    assert D in after(roster_of((A, B, C, D)), *entries).members


def test_member_whose_commit_nobody_saw_once_stays_and_twice_in_a_row_goes():
    roster = roster_of((A, B, C))
    two = telling(roster, listed(A), listed(B), committed=(A, B))
    once = after(roster, *two)
    assert C in once.members
    assert C not in after(once, *two, index=6).members
    (third,) = telling(roster, listed(C))
    back = after(once, *two, third, index=6)
    assert C in after(back, *two, index=7).members


def test_member_that_no_list_names_stays_while_one_friend_saw_its_commit():
    roster = roster_of((A, B, C))
    (one,) = telling(roster, listed(A), committed=(A, B))
    (other,) = telling(roster, listed(B), committed=(A, B, C))
    for index in range(5, 20):
        roster = after(roster, one, other, index=index)
        assert C in roster.members


OPEN = (A, B, C, D)
"""Voters of an open run, of whom one may lie."""


def seen_by(
    roster: Roster, says: Mapping[PeerId, Collection[PeerId]], **maps
) -> list[ListedContribution]:
    """COMMITs of these members, each of which saw the COMMITs of some."""
    return [
        entry
        for peer, saw in says.items()
        for entry in telling(roster, listed(peer, proved=True), committed=saw, **maps)
    ]


def absences(roster: Roster) -> dict[PeerId, int]:
    return {seat.peer: seat.absent for seat in roster.seats}


def test_one_word_of_an_open_run_keeps_nobody_and_two_are_enough():
    roster = roster_of(OPEN)
    for words, absent in ((0, 1), (1, 1), (2, 0), (3, 0)):
        says = {p: OPEN if n < words else (A, B, C) for n, p in enumerate((A, B, C))}
        found = after(roster, *seen_by(roster, says), trust="open")
        assert absences(found)[D] == absent, words


def test_list_of_too_few_words_of_an_open_run_charges_nobody():
    roster = roster_of(OPEN)
    two = seen_by(roster, dict.fromkeys((A, B), (A, B)))
    assert set(absences(after(roster, *two, trust="open")).values()) == {0}
    silent = [*two, listed(C)]  # It does not know the round before, as after a restart.
    assert set(absences(after(roster, *silent, trust="open")).values()) == {0}
    three = seen_by(roster, dict.fromkeys((A, B, C), (A, B, C)))
    assert absences(after(roster, *three, trust="open"))[D] == 1


def test_words_of_members_without_a_vote_neither_keep_nor_charge_anybody():
    roster = roster_of(OPEN, SYBILS[:8])
    members = roster.members
    away = set(members) - {D}
    entries = seen_by(roster, {p: OPEN if p in SYBILS else away for p in members if p != D})
    found = after(roster, *sorted(entries, key=lambda e: e.sender), trust="open")
    assert absences(found)[D] == 1
    assert absences(found)[SYBILS[0]] == 0


def test_voter_that_is_never_listed_keeps_its_vote_while_enough_saw_its_seals():
    roster = roster_of(OPEN)
    for index in range(5, 40):
        three = seen_by(roster, dict.fromkeys((A, B, C), OPEN), sealed=(D,))
        roster = after(roster, *three, index=index, trust="open")
        assert voters(roster) == OPEN
    for index in range(40, 52):
        three = seen_by(roster, dict.fromkeys((A, B, C), OPEN))
        roster = after(roster, *three, index=index, trust="open")
    assert D in roster.members
    assert D not in voters(roster)


def test_in_a_window_no_more_voters_are_lost_than_may_lie():
    everybody = peers_named(9)
    roster = roster_of(everybody)  # Of nine two may lie.
    left = everybody[:6]
    numbers = []
    for index in range(5, 14):
        entries = seen_by(roster, dict.fromkeys(left, left))
        roster = after(roster, *entries, index=index, trust="open")
        numbers.append(len(voters(roster)))
        assert set(roster.voter_set) <= set(roster.members), "who keeps the vote keeps the seat"
    assert numbers == [9, 9, 9, 7, 7, 7, 7, 6, 6]


def test_friends_lose_the_absent_at_once():
    roster = roster_of((A, B, C, D))
    for index in (5, 6):
        entries = telling(roster, listed(A), listed(B), committed=(A, B))
        roster = after(roster, *entries, index=index)
    assert roster.members == (A, B)


def test_suspicion_needs_most_voters_of_an_open_run_and_not_of_a_small_list():
    roster = roster_of(OPEN)
    for suspecting, stays in (((A, B), True), ((A, B, C), False)):
        entries = [listed(peer, suspects=(D,)) for peer in suspecting]
        assert (D in after(roster, *entries, trust="open").members) is stays


# Who keeps others waiting (R8) --------------------------------------------------------------------


def set_backs(roster: Roster, peer: PeerId) -> tuple[int, int]:
    (record,) = (record for record in roster.seats if record.peer == peer)
    return record.set_backs, record.set_back_until


def test_who_keeps_more_voters_waiting_than_may_lie_is_set_back_longer_each_time():
    roster = roster_of(OPEN)
    found = []
    for index in range(5, 80):
        is_free = index > set_backs(roster, D)[1]
        words = [seen_by(roster, {p: OPEN}, lapsed=(D,) if is_free else ()) for p in OPEN]
        roster = after(roster, *(entry for of in words for entry in of), index=index, trust="open")
        found.append(set_backs(roster, D))
    assert list(dict.fromkeys(found)) == [(1, 13), (2, 30), (3, 63), (4, 128)]
    assert roster.members == voters(roster) == OPEN, "it costs neither seat nor vote"


def test_one_word_sets_nobody_back_in_an_open_run_and_does_among_friends():
    roster = roster_of(OPEN)
    one = [*seen_by(roster, {A: OPEN}, lapsed=(D,)), *seen_by(roster, dict.fromkeys((B, C), OPEN))]
    assert set_backs(after(roster, *one, trust="open"), D) == (0, 0)
    assert set_backs(after(roster, *one), D) == (1, 13)


def test_what_was_late_before_it_took_effect_does_not_set_back_again():
    roster = roster_of(OPEN)
    words = seen_by(roster, dict.fromkeys((A, B), OPEN), lapsed=(D,))
    roster = after(roster, *words, index=5, trust="open")
    assert set_backs(after(roster, *words, index=6, trust="open"), D) == (1, 13)
    assert set_backs(after(roster, *words, index=7, trust="open"), D) == (2, 23)


def test_who_gave_what_it_owed_for_long_begins_anew():
    roster = roster_of(OPEN)
    words = seen_by(roster, dict.fromkeys((A, B), OPEN), lapsed=(D,))
    roster = after(roster, *words, index=5, trust="open")
    assert set_backs(after(roster, *words, index=21, trust="open"), D) == (2, 37)
    assert set_backs(after(roster, *words, index=22, trust="open"), D) == (1, 30)


def test_who_is_set_back_closes_behind_all_others_and_sums_behind_all_others():
    roster = roster_of(OPEN)
    back = replace(
        roster,
        seats=tuple(
            replace(record, set_backs=1, set_back_until=9) if record.peer == B else record
            for record in roster.seats
        ),
    )
    for number in range(20):
        basis = bytes([number]) * 32
        order = [closer(back, basis, 0, attempt) for attempt in range(4)]
        assert set(order) == set(OPEN)
        assert order[-1] == B
        for piece in slices(back, basis, 7, trust="open"):
            assert piece.reducers[-1] == B
    late = replace(back, window=(6, 7, 8, 9))
    assert any(closer(late, bytes([n]) * 32, 0, 0) == B for n in range(20)), "until then"


def test_joiners_of_an_open_run_come_a_quarter_at_a_time():
    roster = roster_of(peers_named(8))
    crowd = tuple(peer for peer in peers_named(40) if peer not in roster.members)
    for num in (10, 12, 15):
        names = [listed(p, joins=crowd) for p in peers_named(8)]
        index = 5 + num
        roster = after(roster, *telling(roster, *names), index=index, trust="open")
        assert len(roster.members) == num
    names = [listed(p, joins=crowd) for p in peers_named(8)]
    first = after(roster_of(peers_named(8)), *names, index=1, trust="open")
    assert len(first.members) == 40, "at the beginning all come at once"


def test_leaver_named_by_one_goes_with_this_seal_and_is_not_seated_by_it():
    assert C not in after(roster_of((A, B, C)), listed(A, gone=(C,)), listed(B)).members
    assert D not in after(roster_of((A, B)), listed(A, joins=(D,), gone=(D,))).members


def test_empty_list_changes_nothing_at_all():
    roster = roster_of((A, B), (C,))
    assert after(roster) == roster
    assert after(after(roster), index=6) == roster


def test_voter_without_a_proof_in_four_non_empty_rounds_loses_its_vote_and_keeps_its_seat():
    roster = roster_of((A, B))  # Both proved in round 4.
    for index in range(5, 9):
        assert voters(roster) == (A, B)
        roster = after(roster, listed(A, proved=True), listed(B), index=index)
        roster = after(roster, index=index + 100)  # Empty rounds in between do not count.
    assert voters(roster) == (A,)
    assert roster.members == (A, B)


def test_founder_ages_like_everybody_and_genesis_counts_as_a_list():
    roster = rosters.genesis_roster(A)
    roster = after(roster, listed(A, joins=(B,)), index=1)
    for index in range(2, 4):
        roster = after(roster, listed(A), listed(B, proved=True), index=index)
        assert A in voters(roster)
    roster = after(roster, listed(A), listed(B, proved=True), index=4)
    assert voters(roster) == (B,)


def test_roster_that_would_have_no_voter_keeps_the_old_ones_even_the_absent():
    roster = replace(roster_of((A,), (B, C)), window=(1, 2, 3, 4))
    for index in range(5, 12):
        entries = telling(roster, listed(B), listed(C), committed=(B, C))
        roster = after(roster, *entries, index=index)
        assert voters(roster) == (A,)
    entries = telling(roster, listed(B, proved=True), listed(C), committed=(B, C))
    roster = after(roster, *entries, index=12)
    assert voters(roster) == (B,)
    assert A not in roster.members


def test_window_filled_by_lists_of_one_peer_ends_with_a_voter_that_lives():
    # The violation of looser rules: four rounds that list only A leave a voter that may be dead.
    roster = roster_of((A, B, C))
    for index in range(5, 9):
        roster = after(roster, listed(A, proved=True), index=index)
    assert voters(roster) == (A,)
    for index in range(9, 20):
        roster = after(roster, index=index)
    assert voters(roster) == (A,)


def test_voters_at_most_double_and_lowest_peer_ids_enter_first():
    everybody = peers_named(9)
    roster = roster_of(everybody[7:8], everybody[:7] + everybody[8:])
    others = [peer for peer in everybody if peer != everybody[7]]
    entries = [listed(peer, proved=True) for peer in everybody]
    sizes = []
    for index in range(5, 9):
        roster = after(roster, *entries, index=index)
        sizes.append(len(voters(roster)))
        assert set(voters(roster)) - {everybody[7]} == set(others[: sizes[-1] - 1])
    assert sizes == [2, 4, 8, 9]


def test_voters_of_an_open_run_grow_only_every_sixteen_rounds():
    roster = replace(roster_of((A, B, C, D), (E,)), window=(13, 14))
    entries = [listed(peer, proved=True) for peer in (A, B, C, D, E)]
    assert E not in voters(after(roster, *entries, index=15, trust="open"))
    assert E in voters(after(roster, *entries, index=16, trust="open"))


@pytest.mark.parametrize(("count", "grown"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (16, 4)])
def test_voters_of_an_open_run_grow_by_a_quarter_and_by_one_at_least(count, grown):
    everybody = peers_named(count + 8)
    roster = replace(roster_of(everybody[:count], everybody[count:]), window=(14, 15))
    entries = [listed(peer, proved=True) for peer in everybody]
    assert len(voters(after(roster, *entries, index=16, trust="open"))) == count + grown


def test_roster_is_equal_for_every_order_in_which_the_listed_are_given(seed):
    rng = random.Random(seed)
    everybody = peers_named(8)
    for _ in range(50):
        entries = [random_entry(rng, peer, everybody) for peer in rng.sample(everybody, 5)]
        roster = roster_of(everybody[:3], everybody[3:5])
        expected = after(roster, *entries)
        assert after(roster, *rng.sample(entries, len(entries))) == expected


def random_entry(
    rng: random.Random, peer: PeerId, everybody: tuple[PeerId, ...]
) -> ListedContribution:
    some = [
        tuple(sorted(p for p in everybody if rng.random() < chance)) for chance in (0.3, 0.3, 0.1)
    ]
    return listed(
        peer,
        proved=rng.random() < 0.5,
        joins=some[0],
        suspects=some[1],
        gone=some[2],
        tokens=rng.randrange(1, 50),
        samples=rng.randrange(0, 12),
    )


def test_roster_never_loses_its_last_voter_nor_outgrows_its_seats(seed):
    rng = random.Random(seed)
    everybody = peers_named(limits.SEATS_MAX + 6)
    for _ in range(8):
        roster = rosters.genesis_roster(rng.choice(everybody))
        for index in range(1, 30):
            before = voters(roster)
            present = [peer for peer in roster.members if rng.random() < 0.6]
            roster = after(
                roster, *(random_entry(rng, peer, everybody) for peer in present), index=index
            )
            now = voters(roster)
            assert now
            # Those seated with the first seal come at once, and where a voter leaves up to four
            # take its place; all others double the voters at most.
            kept = set(before) & set(now)
            late = {s.peer for s in roster.seats if s.seated != 1 and s.peer in set(now) - kept}
            assert len(late) <= max(len(before), 4 - len(kept))
            assert len(roster.seats) <= limits.SEATS_MAX
            assert len(roster.window) <= limits.SEAL_WINDOW


def test_full_roster_whose_only_voter_lost_its_seat_still_fits():
    everybody = peers_named(limits.SEATS_MAX + 1)
    joiner, founder, members = everybody[0], everybody[1], everybody[2:]
    roster = roster_of((founder,), members)
    absent = tuple(replace(s, absent=1) if s.peer == founder else s for s in roster.seats)
    entries = [listed(peer, joins=(joiner,)) for peer in members]
    grown = after(replace(roster, seats=absent), *entries)
    assert voters(grown) == (founder,)
    assert grown.members == (founder, *members), "a member lost its seat to a joiner"


# Quorums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agreeing", "is_quorum"),
    [((A, B), True), ((A, C), True), ((B, C), True), ((A,), False), ((), False)],
)
def test_quorum_of_three_is_any_two(agreeing, is_quorum):
    assert has_quorum(roster_of((A, B, C)), agreeing, trust="friends") is is_quorum


def test_half_of_an_even_number_is_a_quorum_only_with_the_eldest():
    roster = Roster(
        seats=(seat(A, since=3), seat(B, since=1), seat(C, since=3), seat(D, since=1)), window=(4,)
    )
    assert eldest_voter(roster) == B  # Equally old as D, with the lower id; not the lowest id.
    assert has_quorum(roster, {B, C}, trust="friends")
    assert not has_quorum(roster, {A, D}, trust="friends")
    assert not has_quorum(roster, {B}, trust="friends")
    assert not has_quorum(roster, {B, E}, trust="friends")


@pytest.mark.parametrize(("count", "needed"), [(4, 3), (5, 4), (6, 4), (7, 5), (9, 6), (10, 7)])
def test_quorum_of_an_open_run_is_two_thirds_rounded_up(count, needed):
    everybody = peers_named(count)
    roster = roster_of(everybody)
    assert has_quorum(roster, everybody[:needed], trust="open")
    assert not has_quorum(roster, everybody[: needed - 1], trust="open")


def test_any_two_quorums_of_friends_share_a_voter_and_the_whole_is_one(seed):
    rng = random.Random(seed)
    for count in range(1, 10):
        everybody = peers_named(count)
        ages = [seat(peer, since=rng.randrange(4)) for peer in everybody]
        roster = Roster(seats=tuple(ages), window=(4,))
        assert has_quorum(roster, everybody, trust="friends")
        quorums = [
            chosen
            for mask in range(2**count)
            if has_quorum(
                roster,
                chosen := {p for i, p in enumerate(everybody) if mask >> i & 1},
                trust="friends",
            )
        ]
        assert all(one & other for one in quorums for other in quorums)
        # No rule with this property can let through more than one half of all subsets.
        assert len(quorums) == 2 ** (count - 1)


def test_members_that_do_not_vote_make_no_quorum():
    assert not has_quorum(roster_of((A, B, C), (D, E)), {A, D, E}, trust="friends")


# Roles ------------------------------------------------------------------------------------------


def test_closer_rotates_over_all_voters_and_starts_where_the_seal_says():
    roster = roster_of((A, B, C), (D,))
    for basis in (b"1" * 32, b"2" * 32):
        turn = [closer(roster, basis, 0, attempt) for attempt in range(6)]
        assert set(turn[:3]) == {A, B, C}
        assert turn[:3] == turn[3:]
    starts = {closer(roster, bytes([b]) * 32, 0, 0) for b in range(30)}
    shards = {closer(roster, b"1" * 32, shard, 0) for shard in range(30)}
    assert starts == shards == {A, B, C}
