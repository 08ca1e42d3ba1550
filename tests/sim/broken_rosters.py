"""Builds that work out wrong rosters, all nodes the same, for `tests.sim.broken`."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from protocol.identity import PeerId
from protocol.messages import SeatRecord
from protocol.rounds import roster
from protocol.rounds.roster import CommitReports


def _named(what: str, found: Any) -> AbstractContextManager[Any]:
    return patch.object(roster._Named, what, found)


def one_suspicion_is_enough() -> AbstractContextManager[Any]:
    """Whoever is suspected by anybody loses its seat."""

    def suspected(named: roster._Named) -> set[PeerId]:
        return set(roster._counts([commit.suspects for commit in named.told]))

    return _named("suspected", suspected)


def nobody_is_suspected() -> AbstractContextManager[Any]:
    """The silent keep their seats until they were absent twice."""
    return _named("suspected", lambda _: set())


def one_word_is_a_seat() -> AbstractContextManager[Any]:
    """In an open run too, one voter lets in whom it likes."""

    def joiners(named: roster._Named) -> set[PeerId]:
        names = set(roster._counts([commit.joins for commit in named.told]))
        return names - named._roster.member_set - named.gone()

    return _named("joiners", joiners)


def absent_once_is_absent() -> AbstractContextManager[Any]:
    """Whoever is late in one round has lost its seat."""
    return patch.object(roster, "ABSENCES_MAX", 1)


def absence_by_the_list() -> AbstractContextManager[Any]:
    """Whom a LIST leaves out is absent, whoever saw its COMMIT: one closer's word."""
    return patch.object(CommitReports, "absences", lambda _, seat: seat.absent + 1)


def one_word_sets_back() -> AbstractContextManager[Any]:
    """Whom one voter says that it waited for comes last, so that a liar can say it of all."""
    shipped = CommitReports.with_set_back

    def with_set_back(told: CommitReports, seat: SeatRecord) -> SeatRecord:
        with patch.object(told, "_may_lie", 0):
            return shipped(told, seat)

    return patch.object(CommitReports, "with_set_back", with_set_back)


def voters_without_end() -> AbstractContextManager[Any]:
    """In an open run too, whoever has shown its SEAL votes."""
    return patch.object(roster, "_open_growth", lambda *_: 64)


def founding_members_wait() -> AbstractContextManager[Any]:
    """Whoever sits since the first round waits for its vote as if it had come later."""
    return patch.object(roster, "_founding", return_value=set())


OPEN = {"trust": "open"}

ROSTERS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("one suspicion is enough", one_suspicion_is_enough, {}),
    ("nobody is suspected", nobody_is_suspected, OPEN),
    ("one word is a seat", one_word_is_a_seat, OPEN),
    ("absent once is absent", absent_once_is_absent, {}),
    ("absence by the LIST", absence_by_the_list, OPEN),
    ("one word sets back", one_word_sets_back, OPEN),
    ("voters without end", voters_without_end, OPEN),
    ("founding members wait", founding_members_wait, OPEN),
)
