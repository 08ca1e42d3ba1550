"""Rules of absence, votes and LISTs, each a little too loose (R1, R2, R8): what a few may then do.

They are what the rules said before, or readings that one could make of them.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import protocol.rounds.lapses
import protocol.rounds.proposal
import protocol.rounds.roster
import protocol.rounds.supply
from protocol.identity import PeerId
from protocol.messages import Have, SeatRecord
from protocol.rounds.proposal import said_haves
from protocol.rounds.reducers import Belief, Gathering, Slice, unpack_senders
from protocol.rounds.roster import CommitReports
from protocol.rounds.round_view import RoundView

Loosened = AbstractContextManager[Any]

SHIPPED_ABSENCES = CommitReports.absences
SHIPPED_SET_BACK = CommitReports.with_set_back


def absent_by_list() -> Loosened:
    """Whoever a LIST leaves out was absent, whatever others have seen of it."""
    return mock.patch.object(CommitReports, "absences", lambda told, seat: seat.absent + 1)


def one_word_vouches() -> Loosened:
    """One word shows that somebody was there, and that it sealed."""

    def absences(told: CommitReports, seat: SeatRecord) -> int:
        return 0 if told._committed[seat.peer] else SHIPPED_ABSENCES(told, seat)

    return mock.patch.multiple(
        CommitReports, absences=absences, says_sealed=lambda told, peer: told._sealed[peer] > 0
    )


def any_number_of_words_judges() -> Loosened:
    """A LIST of whatever size says who was absent."""

    def absences(told: CommitReports, seat: SeatRecord) -> int:
        told._num_words = len(told._roster.seats)
        return SHIPPED_ABSENCES(told, seat)

    return mock.patch.object(CommitReports, "absences", absences)


def one_word_sets_back() -> Loosened:
    """Whoever one names to have kept it waiting comes last."""

    def with_set_back(told: CommitReports, seat: SeatRecord) -> SeatRecord:
        may_lie, told._may_lie = told._may_lie, 0
        found = SHIPPED_SET_BACK(told, seat)
        told._may_lie = may_lie
        return found

    return mock.patch.object(CommitReports, "with_set_back", with_set_back)


def all_lose_their_votes_at_once() -> Loosened:
    """Whoever is not seen for long enough loses its vote, however many they are."""
    return mock.patch.object(protocol.rounds.roster, "_held_votes", return_value=frozenset())


def closers_know_what_all_know() -> Loosened:
    """A closer is named for whoever is complete when its LIST comes, also by what came then."""
    return mock.patch.object(
        protocol.rounds.lapses, "_to_list", protocol.rounds.proposal.complete_senders
    )


def late_haves_are_not_named() -> Loosened:
    """Who says no HAVE is named only while the LIST is waited for, not once others have spoken."""
    return mock.patch.object(protocol.rounds.lapses, "SECOND_CALL_AFTER", 1e9)


def late_lists_are_not_named() -> Loosened:
    """A closer that takes its time is named only if its attempt nearly fails."""
    return mock.patch.object(protocol.rounds.lapses, "LIST_LATE_AFTER", 1e9)


def members_without_a_vote_hold() -> Loosened:
    """Whoever has a seat says what it holds, and is believed."""
    return mock.patch.object(Belief, "counts", return_value=True)


def senders_hold_their_own() -> Loosened:
    """Whoever says that it holds its own parts counts among those who hold them."""

    def complete(view: RoundView, said: Mapping[PeerId, Have] | None = None) -> set[PeerId]:
        holders: dict[PeerId, int] = {}
        for holder, body in (said_haves(view, view.attempt) if said is None else said).items():
            whole = unpack_senders(body.held[0].senders, view.members) if body.held else ()
            for sender in whole if view.roles.belief.counts(holder) else ():
                holders[sender] = holders.get(sender, 0) + 1
        needed = max(1, min(view.roles.belief.holders, len(view.peers.expected) - 1))
        committed = {
            sender for sender, _, _ in view.commits() if sender not in view.peers.convicted
        }
        return {sender for sender in committed if holders.get(sender, 0) >= needed}

    return mock.patch.multiple(protocol.rounds.proposal, complete_senders=complete)


def who_moves_up_owes_a_have_at_once() -> Loosened:
    """Who takes the place of a reducer that is suspected has to have spoken in time."""
    return mock.patch.object(Gathering, "owing_keepers", lambda gathering: gathering.first_keepers)


def who_moved_up_had_to_hold() -> Loosened:
    """Who takes the place of a reducer has denied what it was not sent when it spoke."""

    def owing_targets(gathering: Gathering, piece: Slice, sender: PeerId) -> tuple[PeerId, ...]:
        called, gathering._called_to_hold = gathering._called_to_hold, {}
        found = gathering.targets(piece, sender)
        gathering._called_to_hold = called
        return found

    return mock.patch.object(Gathering, "owing_targets", owing_targets)


def one_is_called_for_each_that_lacks_it() -> Loosened:
    """So many substitutes are called as reducers lack the parts of somebody."""
    return mock.patch.object(
        protocol.rounds.proposal, "_num_called", lambda lacking, words: min(lacking, max(1, words))
    )


def holders_wait_for_their_turn() -> Loosened:
    """Who says that it holds parts in the place of others is not asked before all others again."""
    return mock.patch.object(protocol.rounds.supply, "_new_holders", return_value=[])
