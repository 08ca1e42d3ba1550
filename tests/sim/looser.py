"""Rules that are a little too loose: each loosens one shipped decider, for the explorer.

They are readings that the first wording of the rules allowed, and each breaks a promise: the
explorer shows how. The numbers are those of the first list of violations, in the order in which
they were found.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import protocol.rounds.agreement
import protocol.rounds.proposal
import protocol.rounds.roster
import protocol.rounds.seating
from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.frames import StatusAsk
from protocol.identity import PeerId
from protocol.messages import Kind, List, Roster, Seal
from protocol.rounds.ballots import Ballots, Sealed
from protocol.rounds.roster import has_quorum
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundView

Loosened = AbstractContextManager[Any]

SHIPPED_SEAL = RoundMachine._seal
SHIPPED_FRAME = NodeCore._frame
SHIPPED_ROSTER = protocol.rounds.roster.next_roster


def late_seal() -> Loosened:
    """1: SEAL whatever is certified and here, also of an attempt that was left."""

    def seal(self: RoundMachine, now_s: float) -> Iterator[ev.RoundAction]:
        view, attempt = self.view, self.view.attempt
        view.attempt = 0
        yield from SHIPPED_SEAL(self, now_s)
        view.attempt = max(attempt, view.attempt)

    return mock.patch.object(RoundMachine, "_seal", seal)


def seals_add_up() -> Loosened:
    """2: a quorum of SEALs of one value is final, whatever attempts they are of."""

    def sealed(self: Ballots, before: bytes) -> Sealed | None:
        by_value: dict[Seal, dict[PeerId, Any]] = {}
        for attempt in self.attempts(Kind.SEAL):
            for sender, entry in self.of(Kind.SEAL, attempt, before).items():
                assert isinstance(entry.body, Seal)
                by_value.setdefault(entry.body, {})[sender] = entry.message
        for body, agreeing in by_value.items():
            if has_quorum(self.roster, agreeing, trust=self.trust):
                return body, tuple(message for _, message in sorted(agreeing.items()))
        return None

    return mock.patch.object(Ballots, "sealed", sealed)


def any_certificate_unlocks() -> Loosened:
    """3: a certificate of a later attempt frees from the lock, for whatever LIST it is."""

    def may_vote(view: RoundView, digest: bytes) -> bool:
        lock = view.own.lock
        if lock is None or lock[1] == digest:
            return True
        return any(attempt > lock[0] for attempt, _ in view.ballots.certified())

    return mock.patch.object(protocol.rounds.agreement, "_may_vote", may_vote)


def latest_certificate_binds() -> Loosened:
    """4: the closer must take up the latest certificate that it knows, locked on or not."""

    def latest(view: RoundView) -> List | None:
        for attempt, digest in view.ballots.certified():
            body = view.ballots.list_of(digest)
            if attempt < view.attempt and body is not None:
                votes = view.ballots.certificate(attempt, digest)
                return replace(body, certificate=tuple(vote.encoded for vote in votes))
        return None

    return mock.patch.object(protocol.rounds.proposal, "_highest_lock", latest)


def woken_stay_silent() -> Loosened:
    """5: who woke answers no STATUS until it has heard a quorum itself."""

    def frame(self: NodeCore, peer: PeerId, frame: Any, now_s: float) -> Iterator[ev.CoreAction]:
        if not (isinstance(frame, StatusAsk) and self.machine.is_asking):
            yield from SHIPPED_FRAME(self, peer, frame, now_s)

    return mock.patch.object(NodeCore, "_frame", frame)


def founder_votes_for_ever() -> Loosened:
    """11: the founder, the eldest voter, keeps its vote whether it is seen or not."""

    def next_roster(roster: Roster, index: int, listed: Any, **rules: Any) -> Roster:
        founder = protocol.rounds.roster.eldest_voter(roster)
        kept = next(seat for seat in roster.seats if seat.peer == founder)
        following = SHIPPED_ROSTER(roster, index, listed, **rules)
        others = [seat for seat in following.seats if seat.peer != founder]
        seats = sorted([kept, *others], key=lambda seat: seat.peer)
        return replace(following, seats=tuple(seats))

    return mock.patch.object(protocol.rounds.roster, "next_roster", next_roster)


def empty_rounds_age_the_window() -> Loosened:
    """11: a round that carries counts as one of the last four, and nobody proves itself in it."""

    def next_roster(roster: Roster, index: int, listed: Any, **rules: Any) -> Roster:
        following = SHIPPED_ROSTER(roster, index, listed, **rules)
        if listed:
            return following
        window = (*roster.window, index)[-limits.SEAL_WINDOW :]
        seats = tuple(
            seat if seat.proved >= window[0] else replace(seat, voter_since=-1)
            for seat in following.seats
        )
        return replace(following, seats=seats, window=window)

    return mock.patch.object(protocol.rounds.roster, "next_roster", next_roster)


def turns_take_any_voter() -> Loosened:
    """Of our own: whoever sat long enough gives its seat up, however few vote besides."""
    return mock.patch.object(protocol.rounds.seating, "VOTING_SHARE", (0, 1))


def voters_leave_at_once() -> Loosened:
    """Of our own: whoever says that it leaves is gone, as a member without a vote may be."""
    return mock.patch.object(protocol.rounds.roster, "may_go", return_value=True)


def leavers_are_dropped_whoever_follows() -> Loosened:
    """Of our own: a leaver that is needed goes with the seal that names it, be the rest dead."""
    return mock.patch.object(protocol.rounds.roster, "_is_carried", return_value=True)


def nobody_succeeds_a_leaver() -> Loosened:
    """Of our own: a voter that leaves makes no successors, and the others wait for their era."""
    return mock.patch.object(protocol.rounds.roster, "_successors", return_value=set())


def lost_disk_asks_a_quorum() -> Loosened:
    """12: after a lost disk the STATUS of a quorum is enough, itself included."""
    count = property(lambda view: len(view.roles.electorate) // 2)
    return mock.patch.object(RoundView, "num_to_ask", count)
