"""Rules of what a round waits for, each a little too loose: what one may then cost the others by
words about its work."""

import math
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import protocol.rounds.lapses
import protocol.rounds.patience
import protocol.rounds.round_machine
from protocol.identity import PeerId
from protocol.rounds.lapses import note_lapses
from protocol.rounds.patience import Movement, Patience
from protocol.rounds.round_view import RoundView
from sim.exploration.table import deadline

Loosened = AbstractContextManager[Any]

SHIPPED_WAIT = Patience.wait
SHIPPED_MOVEMENT = Patience.movement
SHIPPED_WITHHELD = protocol.rounds.lapses._withheld


def who_moves_is_waited_for_without_a_cap() -> Loosened:
    """Whoever says that it moves is waited for, however long that takes."""
    return mock.patch.object(protocol.rounds.patience, "CAP_ROUNDS", math.inf)


def steps_behind_a_commit_count() -> Loosened:
    """Whoever moved lately is waited for, whatever it owes."""

    def movement(
        patience: Patience, peer: PeerId, view: RoundView, now_s: float
    ) -> Movement | None:
        course = patience._courses.get((peer, view.index))
        if course is None or now_s >= course.stops_s:
            return None
        return Movement(course.grown_s, course.stops_s)

    return mock.patch.object(Patience, "movement", movement)


def what_is_fetched_ahead_counts() -> Loosened:
    """Whoever fetches is waited for, in whatever attempt it is."""
    return mock.patch.object(protocol.rounds.patience, "_is_ahead", return_value=False)


def clock_goes_on_from_where_it_stood() -> Loosened:
    """The clock goes on from where the last one moved, however long ago."""

    def wait(patience: Patience, view: RoundView, *, now_s: float, deadline_s: float) -> None:
        was_held, moved_s = view.waits.is_held, view.waits.moved_s
        SHIPPED_WAIT(patience, view, now_s=now_s, deadline_s=deadline_s)
        if was_held and not view.waits.is_held:
            view.waits.moved_s = moved_s

    return mock.patch.object(Patience, "wait", wait)


def each_waits_for_whom_it_hears() -> Loosened:
    """Whoever hears that a member moves waits for it, though enough others do not."""

    def wait(patience: Patience, view: RoundView, *, now_s: float, deadline_s: float) -> None:
        SHIPPED_WAIT(patience, view, now_s=now_s, deadline_s=deadline_s)
        view.waits.given_up -= view.waits.left_behind_s.keys()

    def movement(
        patience: Patience, peer: PeerId, view: RoundView, now_s: float
    ) -> Movement | None:
        left_behind_s, view.waits.left_behind_s = view.waits.left_behind_s, {}
        found = SHIPPED_MOVEMENT(patience, peer, view, now_s)
        view.waits.left_behind_s = left_behind_s
        return found

    return mock.patch.multiple(Patience, wait=wait, movement=movement)


def haves_are_owed_whoever_is_missing() -> Loosened:
    """Who says no HAVE is named, though it may wait for a COMMIT that is missing here too."""
    return mock.patch.object(protocol.rounds.lapses, "_may_be_awaited", return_value=set())


def lists_are_owed_whoever_is_missing() -> Loosened:
    """A closer is named for its LIST, though it may wait for a HAVE that is missing here too."""
    return mock.patch.object(protocol.rounds.lapses, "_may_wait", return_value=False)


def late_commits_withhold() -> Loosened:
    """Whose parts others lacked at first has kept them back, however late its COMMIT came."""

    def withheld(view: RoundView, attempt: int) -> set[PeerId]:
        overdue, view.lapses.overdue = view.lapses.overdue, set()
        found = SHIPPED_WITHHELD(view, attempt)
        view.lapses.overdue = overdue
        return found

    return mock.patch.object(protocol.rounds.lapses, "_withheld", withheld)


def each_judges_by_its_own_deadline() -> Loosened:
    """Who is late by the deadline of this node is named, though that of others may be longer."""

    def note(view: RoundView, *, now_s: float, deadline_s: float) -> None:
        del deadline_s
        note_lapses(view, now_s=now_s, deadline_s=deadline().seconds(view.times.time_outs))

    return mock.patch.object(protocol.rounds.round_machine, "note_lapses", note)


def one_word_without_is_enough() -> Loosened:
    """A member is waited for by nobody once one of its friends has spoken without it."""
    return mock.patch.object(
        protocol.rounds.patience,
        "_num_needed_without",
        lambda view, voices: max(1, view.roles.belief.words),
    )


def who_waits_tells_nobody() -> Loosened:
    """Who waits for somebody says nothing of it to those who do not hear that one."""
    return mock.patch.object(Patience, "_awaited_work", return_value=(0, False))
