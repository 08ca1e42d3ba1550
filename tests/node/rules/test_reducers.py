"""R8: slices follow from the seal alone, shares from the rates that it carries."""

from dataclasses import replace

import pytest

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Roster
from protocol.rounds.reducers import ALIKE_LEVELS, HELD_LEVELS, level_of, measured, slices
from tests.node.builders import peers_named, roster_of

A, B, C, D = peers_named(4)
BASIS = b"x" * 32


def rated(rates: dict[PeerId, int], unreached: tuple[PeerId, ...] = ()) -> Roster:
    roster = roster_of(sorted(rates))
    seats = tuple(
        replace(seat, rate=rates[seat.peer], reached=seat.peer not in unreached)
        for seat in roster.seats
    )
    return replace(roster, seats=seats)


def sums(roster: Roster, num_cells: int, *, trust: str = "friends", basis: bytes = BASIS):
    """How many cells each member sums: as first, and in open runs as second."""
    found = dict.fromkeys(roster.members, 0)
    for piece in slices(roster, basis, num_cells, trust=trust):
        for peer in piece.reducers[: 2 if trust == "open" else 1]:
            found[peer] += piece.stop - piece.first
    return found


@pytest.mark.parametrize("trust", ["friends", "open"])
@pytest.mark.parametrize(
    ("members", "cells"), [(1, 1), (1, 7), (2, 1), (3, 3), (3, 8), (5, 2), (16, 16), (16, 100)]
)
def test_slices_cover_every_cell_once_and_all_members_are_ranked(members, cells, trust):
    roster = roster_of(peers_named(members))
    pieces = slices(roster, BASIS, cells, trust=trust)
    assert [cell for p in pieces for cell in range(p.first, p.stop)] == list(range(cells))
    assert all(sorted(p.reducers) == list(roster.members) for p in pieces)
    assert len({p.reducers[0] for p in pieces}) == min(members, cells)


@pytest.mark.parametrize(("members", "cells"), [(3, 8), (5, 2), (16, 100), (7, 7)])
def test_equal_members_sum_equally_to_within_a_cell_for_each_copy(members, cells):
    roster = roster_of(peers_named(members))
    shares = sums(roster, cells).values()
    assert max(shares) - min(shares) <= 1
    twice = sums(roster, cells, trust="open").values()
    assert sum(twice) == 2 * cells
    assert max(twice) - min(twice) <= 2


def test_slices_change_hands_with_every_seal():
    roster = roster_of((A, B, C))
    firsts = {slices(roster, bytes([b]) * 32, 3, trust="friends")[0].reducers[0] for b in range(30)}
    assert firsts == {A, B, C}
    few = {slices(roster, bytes([b]) * 32, 1, trust="friends")[0].reducers[0] for b in range(30)}
    assert few == {A, B, C}


@pytest.mark.parametrize("trust", ["friends", "open"])
def test_line_ten_times_slower_sums_a_tenth(trust):
    fast, slow = level_of(1e6), level_of(1e5)
    roster = rated({A: fast, B: fast, C: fast, D: slow})
    for basis in (bytes([b]) * 32 for b in range(8)):
        shares = sums(roster, 310, trust=trust, basis=basis)
        each = 2 if trust == "open" else 1
        assert 8 * each <= shares[D] <= 12 * each
        assert all(98 * each <= shares[peer] <= 101 * each for peer in (A, B, C))


def test_rates_less_than_an_octave_from_the_median_count_as_equal():
    level = level_of(1e6)
    roster = rated({A: level, B: level + ALIKE_LEVELS - 1, C: level, D: level - ALIKE_LEVELS + 1})
    assert set(sums(roster, 40).values()) == {10}
    faster = rated({A: level, B: level + ALIKE_LEVELS, C: level, D: level})
    assert sums(faster, 50)[B] == 20


def test_nobody_knows_how_fast_a_newcomer_is_so_it_sums_as_much_as_the_median():
    level = level_of(1e6)
    roster = rated({A: level, B: level, C: level - 12, D: 0})
    shares = sums(roster, 250)
    assert shares[D] == shares[A] == shares[B] == 80
    assert shares[C] == 10


def test_who_is_not_reached_sums_nothing_but_is_the_last_substitute():
    roster = rated({A: 0, B: 0, C: 0, D: 0}, unreached=(B,))
    assert sums(roster, 9) == {A: 3, B: 0, C: 3, D: 3}
    assert all(piece.reducers[-1] == B for piece in slices(roster, BASIS, 9, trust="friends"))


def test_where_nobody_is_reached_all_sum():
    roster = rated({A: 0, B: 0, C: 0}, unreached=(A, B, C))
    assert set(sums(roster, 9).values()) == {3}


def test_where_nobody_is_reached_who_was_set_back_comes_last_all_the_same():
    peers = peers_named(5)
    roster = rated(dict.fromkeys(peers, 40), tuple(peers))
    back = roster.seats[0].peer
    seats = (replace(roster.seats[0], set_backs=1, set_back_until=limits.ROUNDS_MAX),)
    roster = replace(roster, seats=(*seats, *roster.seats[1:]))
    for piece in slices(roster, BASIS, 40, trust="open"):
        assert piece.reducers[-1] == back


@pytest.mark.parametrize("cells", [1, 2, 5, 16, 97])
@pytest.mark.parametrize("rates", [(80, 80), (80, 81, 120), (40, 80, 80, 80), (254, 1, 0, 90)])
def test_two_reducers_of_a_cell_are_two(cells, rates):
    roster = rated(dict(zip(peers_named(len(rates)), rates, strict=True)))
    for piece in slices(roster, BASIS, cells, trust="open"):
        assert len(set(piece.reducers[:2])) == 2


# What the COMMITs say -----------------------------------------------------------------------------


def seats_after(roster: Roster, reports: dict[PeerId, bytes]) -> dict[PeerId, tuple[bool, int]]:
    seats = {seat.peer: seat for seat in roster.seats}
    found = measured(seats, roster.members, list(reports.items()))
    return {peer: (seat.reached, seat.rate) for peer, seat in found.items()}


def test_rate_is_the_median_of_the_receivers_and_nobody_counts_for_itself():
    members = (A, B, C, D)
    reports = {A: bytes([255, 81, 31, 61]), B: bytes([81, 255, 41, 61]), C: bytes([91, 81, 255, 1])}
    found = seats_after(rated(dict.fromkeys(members, 0)), reports)
    assert found == {A: (True, 90), B: (True, 80), C: (True, 40), D: (True, 60)}


def test_seat_is_reached_if_more_than_half_of_the_others_say_so():
    members = (A, B, C, D)
    everybody = dict.fromkeys(members, bytes([1, 1, 1, 1]))
    one_less = {**everybody, A: bytes([1, 0, 1, 1])}
    assert seats_after(rated(dict.fromkeys(members, 0)), one_less)[B][0]
    two_less = {**one_less, C: bytes([1, 0, 1, 1])}
    assert not seats_after(rated(dict.fromkeys(members, 0)), two_less)[B][0]
    back = seats_after(rated(dict.fromkeys(members, 0), unreached=(B,)), everybody)
    assert back[B] == (True, 0)


def test_rate_holds_until_the_median_is_far_enough_from_it():
    roster = rated({A: 80, B: 80, C: 80})
    for level in range(80 - HELD_LEVELS + 1, 80 + HELD_LEVELS):
        said = bytes([1 + level] * 3)
        assert {rate for _, rate in seats_after(roster, {A: said, B: said}).values()} == {80}
    far = bytes([1 + 80 + HELD_LEVELS] * 3)
    assert seats_after(roster, {A: far, B: far})[C] == (True, 80 + HELD_LEVELS)


def test_who_says_nothing_of_a_seat_changes_nothing():
    roster = rated({A: 80, B: 70, C: 60}, unreached=(C,))
    for reports in ({}, {A: b""}, {A: b"\x01"}, {C: bytes([0, 0, 255])}):
        found = seats_after(roster, reports)
        assert found[C] == (False, 60)


def test_level_of_a_rate_is_bounded_and_a_quarter_of_an_octave():
    assert level_of(2**20) == 80
    assert level_of(2**20.25) == 81
    assert level_of(0.0) == 1
    assert level_of(1e300) == limits.RATE_LEVEL_MAX
