"""Who had a seat and never said anything waits longer each time it asks again."""

from dataclasses import replace

from protocol.messages import Roster
from protocol.rounds.lapses import Idlers
from tests.node.builders import peers_named, roster_of

A, B, C, GHOST = peers_named(4)
WITH, WITHOUT = roster_of((A, B, C), (GHOST,)), roster_of((A, B, C))


def test_key_that_never_showed_a_seal_waits_twice_as_long_each_time():
    idlers = Idlers()
    assert idlers.unwelcome(5) == frozenset()
    lengths = []
    at = 5
    for _ in range(4):
        idlers.saw(WITH, WITHOUT, at)
        back = next(n for n in range(at + 1, at + 99) if GHOST not in idlers.unwelcome(n))
        lengths.append(back - at - 1)
        at = back
    assert lengths == [2, 4, 8, 16]


def test_member_that_was_there_and_goes_is_welcome_at_once():
    seats = tuple(replace(seat, proved=4) for seat in WITH.seats)
    idlers = Idlers()
    idlers.saw(Roster(seats=seats, window=WITH.window), WITHOUT, 5)
    assert idlers.unwelcome(6) == frozenset()


def test_key_that_shows_a_seal_in_its_second_seat_begins_anew():
    idlers = Idlers()
    idlers.saw(WITH, WITHOUT, 5)
    seats = tuple(replace(seat, proved=9) for seat in WITH.seats)
    there = Roster(seats=seats, window=WITH.window)
    idlers.saw(there, there, 9)
    idlers.saw(WITH, WITHOUT, 12)
    assert [GHOST in idlers.unwelcome(n) for n in (13, 14, 15)] == [True, True, False]
