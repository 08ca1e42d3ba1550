"""Looser wordings of R4 and R5 in running machines, one at a time: what the explorer must find.

The library holds no wrong rule. Each of these puts one in its place for the length of a `with`.
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
from protocol.messages import Commit, Kind, SealCertificate, SealValue, SignedMessage, Slot
from protocol.rounds import admission, agreement, branches
from protocol.rounds.ballots import BallotEntry, Ballots
from protocol.rounds.branches import Lock, Opening, Position, Tree
from protocol.rounds.reducers import Gathering, slices
from protocol.rounds.roster import has_quorum
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundView
from protocol.rounds.standing import Reach
from sim.exploration.running_branches import BranchSpan, RunningBranches

Loosened = AbstractContextManager[Any]

SHIPPED_ADVANCE = RoundMachine._advance
SHIPPED_FALL_BACK = RoundMachine._fall_back
SHIPPED_INDEX = Ballots._index
SHIPPED_SLOT = RoundView.slot
SHIPPED_SIGN_SEAL = RoundMachine._sign_seal
SHIPPED_STAND = RoundMachine._stand
SHIPPED_STANDS = RoundView.stand_on
SHIPPED_NEW_VIEW = RoundMachine._new_view
SHIPPED_HOLDS_COMMIT = RoundMachine.holds_commit
SHIPPED_COMMIT_BODY = agreement.commit_body
SHIPPED_COMMIT_BREACH = admission._commit_breach


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


@contextmanager
def locks_of_provisional_seals() -> Iterator[None]:
    """PSEAL locks like SEAL."""

    def sign_seal(
        machine: RoundMachine, kind: Kind, value: SealValue, attempt: int
    ) -> Iterator[ev.RoundAction]:
        yield from SHIPPED_SIGN_SEAL(machine, kind, value, attempt)
        machine.view.own.lock = (attempt, value.list_digest)

    with patch.object(RoundMachine, "_sign_seal", sign_seal):
        yield


@contextmanager
def barren_heads() -> Iterator[None]:
    """A side goes on from its head though that head's roster names nobody in reach."""

    def next_round(position: Position, *args: Any, **more: Any) -> Opening | None:
        opening = branches.next_round(position, *args, **more)
        if opening is None or not opening.is_provisional:
            return opening
        return Opening(position.head, is_provisional=True)

    with (
        patch.object(protocol.rounds.standing, "next_round", next_round),
        patch.object(Reach, "has_member", lambda *_: True),
    ):
        yield


@contextmanager
def attempts_that_start_anew() -> Iterator[None]:
    """Where a round turns provisional or back, it begins with attempt 0, whatever was tried."""

    def stand(machine: RoundMachine, now_s: float) -> Iterator[ev.RoundAction]:
        with patch.object(RoundMachine, "_next_attempt", lambda *_: 0):
            yield from SHIPPED_STAND(machine, now_s)

    with patch.object(RoundMachine, "_stand", stand):
        yield


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


# Two rounds in flight (R5) ------------------------------------------------------------------------


def commit_carries_the_seal_of_the_round_before() -> Loosened:
    """13: R1 as first written: the COMMIT of r + 1 carries the own SEAL of r."""

    def holds_commit(machine: RoundMachine, view: RoundView, now_s: float) -> bool:
        return view.seals.is_beside or SHIPPED_HOLDS_COMMIT(machine, view, now_s)

    return patch.object(RoundMachine, "holds_commit", holds_commit)


def rosters_by_the_newest_seal() -> Loosened:
    """13: each member takes roster, closer and slots from the newest seal that it knows."""

    def stand_on(view: RoundView, head: SealValue, now_s: float) -> None:
        SHIPPED_STANDS(view, head, now_s)
        if not view.own.commit:
            view.seals, view.basis = replace(view.seals, named_by=head), head.digest
            trust = view.config.trust
            view.ballots = Ballots(view.basis, head.shard, view.index, view.roster, trust)

    return patch.object(RoundView, "stand_on", stand_on)


@contextmanager
def fragment_advances_with_sums(fragment_cells: tuple[int, ...]) -> Iterator[None]:
    """13: the next fragment comes only after a round that was summed, as far as is known."""

    def put_on(view: RoundView, round_index: int) -> None:
        num_cells = fragment_cells[round_index % len(fragment_cells)]
        view.cells.num_cells = num_cells
        view.slices = slices(view.roster, view.basis, num_cells, trust=view.config.trust)
        view._gathering = Gathering(view.slices, view.me, view.roles.belief)

    def new_view(machine: RoundMachine, *args: Any, before: SealValue | None) -> RoundView:
        view = SHIPPED_NEW_VIEW(machine, *args, before=before)
        if view.seals.is_beside:
            put_on(view, view.index - 1)
        return view

    def stand_on(view: RoundView, head: SealValue, now_s: float) -> None:
        SHIPPED_STANDS(view, head, now_s)
        put_on(view, view.index)

    with (
        patch.object(RoundMachine, "_new_view", new_view),
        patch.object(RoundView, "stand_on", stand_on),
    ):
        yield


@contextmanager
def base_is_the_newest_version() -> Iterator[None]:
    """R5: a COMMIT is relative to the newest version of the fragment that is known."""

    def commit_body(view: RoundView, *args: Any) -> Commit:
        return replace(SHIPPED_COMMIT_BODY(view, *args), base=view.seals.head.digest)

    def commit_breach(view: RoundView, body: Commit, rules: Any) -> str:
        base = view.basis if body.base == view.seals.head.digest else bytes(32)
        return SHIPPED_COMMIT_BREACH(view, replace(body, base=base), rules)

    with (
        patch.object(protocol.rounds.round_machine, "commit_body", commit_body),
        patch.object(admission, "_commit_breach", commit_breach),
    ):
        yield


def model_of(span: BranchSpan, before: tuple[str, ...]) -> RunningBranches:
    """The model; rounds count as those of its first voters where slots do not name the seal."""
    model = RunningBranches(span, before)
    roster = model.table.head.value.roster
    model.post.rosters |= {blank(index): roster for index in range(16)}
    return model
