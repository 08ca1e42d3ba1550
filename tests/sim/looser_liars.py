"""Defences against liars, each switched off: the explorer shows what one liar among four can do."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import protocol.rounds.agreement
import protocol.rounds.ballots
import protocol.rounds.proposal
import protocol.rounds.roster
import protocol.rounds.round_machine
import sim.exploration.table
from protocol.messages import Body, Commit, SignedMessage
from protocol.rounds import supply
from protocol.rounds.ballots import BallotEntry, Ballots, Filed
from protocol.rounds.patience import Patience
from protocol.rounds.roster import has_quorum
from protocol.rounds.round_view import RoundView
from tests.sim.looser import any_certificate_unlocks as any_certificate_unlocks
from tests.sim.looser import late_seal as late_seal

Loosened = AbstractContextManager[Any]

SHIPPED_ADD = Ballots.add
shipped = nullcontext


@contextmanager
def friends_quorum() -> Iterator[None]:
    """A majority is a quorum, as among friends: two quorums may share nobody but the liar."""

    def majority(roster: Any, peers: Any, *, trust: str) -> bool:
        del trust
        return has_quorum(roster, peers, trust="friends")

    with (
        mock.patch.object(protocol.rounds.ballots, "has_quorum", majority),
        mock.patch.object(sim.exploration.table, "has_quorum", majority),
    ):
        yield


def one_word_is_enough() -> Loosened:
    """R1: whoever one listed voter names is banned, gone or seated, as among friends."""
    shipped_init = protocol.rounds.roster._Named.__init__

    def init(self: Any, *arguments: Any) -> None:
        shipped_init(self, *arguments)
        self.may_lie = 0

    return mock.patch.object(protocol.rounds.roster._Named, "__init__", init)


def second_is_dropped() -> Loosened:
    """Equivocation goes unnoticed: the first message in a slot is kept, any other is nothing."""

    def add(self: Ballots, entry: BallotEntry, *, is_own: bool = False) -> Filed:
        slot = entry.message.slot
        there = self.of(slot.kind, slot.attempt, slot.subject)
        if entry.message.sender in there:
            return "known"
        return SHIPPED_ADD(self, entry, is_own=is_own)

    return mock.patch.object(Ballots, "add", add)


def second_counts_for_nothing() -> Loosened:
    """A second VOTE or SEAL convicts, and is no part of a quorum to whoever heard another first."""

    def count(self: Ballots, message: SignedMessage, body: Body) -> None:
        if isinstance(body, Commit):
            self._commit_of[message.digest] = (message.sender, body)

    return mock.patch.object(Ballots, "_count_too", count)


def third_is_dropped() -> Loosened:
    """Two messages in a slot are kept, and no other, whoever relies on it."""
    return mock.patch.object(Ballots, "_is_relied_on", return_value=False)


def attempts_are_timed_alone() -> Loosened:
    """A later attempt is timed from when one entered it, whoever else is there."""
    return mock.patch.object(protocol.rounds.round_machine, "is_attended", return_value=True)


def late_members_are_not_given_up() -> Loosened:
    """Nobody is waited for because it moves, nor given up because it is late."""
    return mock.patch.object(Patience, "wait", return_value=None)


def lists_are_late_at_once() -> Loosened:
    """Whoever has all for a LIST waits for it no longer."""

    def late_s(view: RoundView, deadline_s: float) -> float:
        del deadline_s
        return view.lapses.ready_s.get(view.attempt, math.inf)

    return mock.patch.object(protocol.rounds.agreement, "list_late_s", late_s)


def first_commits_alone_are_pulled() -> Loosened:
    """Parts of a certified LIST are asked for of the COMMIT that was heard first alone."""
    shipped_pull = supply.pull_parts

    def pull(view: RoundView, *, now_s: float, deadline_s: float) -> Iterator[Any]:
        first = {digest for _, digest, _ in view.commits()}
        for action in shipped_pull(view, now_s=now_s, deadline_s=deadline_s):
            if getattr(action, "subject", b"") in first:
                yield action

    return mock.patch.object(supply, "pull_parts", pull)


def attempts_have_no_end() -> Loosened:
    """Whoever is silent is waited for."""
    return mock.patch.object(protocol.rounds.round_machine, "is_given_up", return_value=False)


def whoever_committed_is_listed() -> Loosened:
    """A closer asks nobody whether the parts of a contribution are with anybody but its sender."""

    def complete(view: RoundView) -> set[Any]:
        return {sender for sender, _, _ in view.commits() if sender not in view.peers.convicted}

    return mock.patch.object(protocol.rounds.proposal, "complete_senders", complete)
