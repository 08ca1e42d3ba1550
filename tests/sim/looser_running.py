"""Looser wordings of R4 in running machines, one rule at a time: what the explorer must find.

As `looser_branches`, which loosens the pure deciders; here it is what machines do with them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import protocol.rounds.restart
import protocol.rounds.round_machine
import protocol.rounds.standing
from protocol import events as ev
from protocol.messages import Kind, SealCertificate, SignedMessage, Slot
from protocol.rounds import branches
from protocol.rounds.ballots import BallotEntry, Ballots
from protocol.rounds.branches import Lock, Position, Tree
from protocol.rounds.roster import has_quorum
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundView
from sim.exploration.running_branches import BranchSpan, RunningBranches

Loosened = AbstractContextManager[Any]

SHIPPED_ADVANCE = RoundMachine._advance
SHIPPED_FALL_BACK = RoundMachine._fall_back
SHIPPED_INDEX = Ballots._index
SHIPPED_SLOT = RoundView.slot


def blank(round_index: int) -> bytes:
    """What stands in the place of the seal that a round stands on."""
    return round_index.to_bytes(32, "big")


@contextmanager
def slots_without_the_branch() -> Iterator[None]:
    """6: a slot is (shard, round, attempt, kind), whatever seal the round stands on."""

    def slot(view: RoundView, kind: Kind, **place: Any) -> Slot:
        found = SHIPPED_SLOT(view, kind, **place)
        return replace(found, basis=blank(view.index))

    def concerns(view: RoundView, entry: BallotEntry) -> bool:
        found = entry.message.slot
        return found.round == view.index and entry.message.sender in view.member_set

    with (
        patch.object(RoundView, "slot", slot),
        patch.object(protocol.rounds.round_machine, "concerns", concerns),
        patch.object(protocol.rounds.standing, "_check_link", lambda *_: None),
    ):
        yield


@contextmanager
def finality_by_the_roster_of_the_branch() -> Iterator[None]:
    """7: what a quorum of the voters that the branch names has sealed is final."""

    def advance(
        machine: RoundMachine, link: SealCertificate, now_s: float
    ) -> Iterator[ev.RoundAction]:
        roster, sealers = machine.view.seals.head.roster, machine.view.ballots.sealers
        yield from SHIPPED_ADVANCE(machine, link, now_s)
        if has_quorum(roster, sealers, trust="friends"):
            yield from machine.confirm(list(machine.standing.branch), now_s)

    with patch.object(RoundMachine, "_advance", advance):
        yield


@contextmanager
def finality_by_counting() -> Iterator[None]:
    """8: whoever PSEALed a value has sealed it."""

    def index_both(ballots: Ballots, message: SignedMessage, body: Any) -> None:
        SHIPPED_INDEX(ballots, message, body)
        if message.slot.kind is Kind.PSEAL:
            place = (message.slot.subject, message.slot.attempt, body)
            ballots._seals.setdefault(place, {})[message.sender] = message
            ballots._sealed.pop(message.slot.subject, None)
            ballots.news += 1

    with patch.object(Ballots, "_index", index_both):
        yield


def merge_by_tokens() -> Loosened:
    """10: when branches meet, locks have no say."""

    def better_head(tree: Tree, positions: Any, locks: frozenset[Lock]) -> Position:
        return branches.better_head(tree, positions, ())

    return patch.object(protocol.rounds.standing, "better_head", better_head)


def kinds_share_an_attempt() -> Loosened:
    """Where a round turns provisional or back, its attempt goes on."""
    return patch.object(protocol.rounds.round_machine, "_has_acted", lambda view: False)


def restarted_in_the_same_attempt() -> Loosened:
    """Who restarts goes on in the latest attempt in which it signed, provisional or not."""
    return patch.object(protocol.rounds.restart, "_PROVISIONAL", ())


@contextmanager
def left_in_the_same_attempt() -> Iterator[None]:
    """R5: the round that a branch leaves beside the next one goes on in the attempt in which it was
    provisional."""

    def fall_back(machine: RoundMachine, now_s: float) -> Iterator[ev.RoundAction]:
        with patch.object(RoundMachine, "_enter", lambda *_: None):
            yield from SHIPPED_FALL_BACK(machine, now_s)

    with patch.object(RoundMachine, "_fall_back", fall_back):
        yield


def model_of(span: BranchSpan, before: tuple[str, ...]) -> RunningBranches:
    """The model; rounds count as those of its first voters where slots do not name the seal."""
    model = RunningBranches(span, before)
    roster = model.table.head.value.roster
    model.post.rosters |= {blank(index): roster for index in range(16)}
    return model
