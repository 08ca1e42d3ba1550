"""Builds that are broken on purpose, for the tests of the invariants only.

Each is a mistake that one could make, as a patch of what is shipped; the library holds no wrong
rule. `Bug.names` is what must find it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from node.holdings.journal import FileJournal, ReceiptLog, listed_commits
from node.holdings.record_log import RecordLog
from node.holdings.shard_store import ShardStore
from protocol import events as ev
from protocol import leases
from protocol.core import liveness
from protocol.core.node_core import NodeCore
from protocol.core.relay import Relay
from protocol.identity import Ed25519Signer, PeerId
from protocol.messages import Kind, List, Roster, Seat, Vote
from protocol.rounds import agreement, proposal, restart, roster, round_view
from protocol.rounds.agreement import DueStatement
from protocol.rounds.fates import Fates
from protocol.rounds.lapses import LearnedDeadline
from protocol.rounds.round_machine import RoundMachine
from tests.sim.broken_hearing import HEARING
from tests.sim.broken_open import (
    last_member_is_gone,
    one_voter_hurries_all,
    one_word_is_enough,
)
from tests.sim.broken_rosters import ROSTERS
from training.compression import ErrorFeedback


@dataclass(frozen=True)
class Bug:
    """A broken build: entering `patch` breaks it. `settings` are what the world needs to show it.

    `name` is the invariant that must find it first.
    """

    name: str
    title: str
    patch: Callable[[], Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}-{self.title.replace(' ', '-')}"


# I1 ---------------------------------------------------------------------------------------------


@contextmanager
def _chain_in_memory() -> Iterator[None]:
    """The chain is written when there is time: never, here."""

    def extend_chain(journal: FileJournal, certificates: Sequence[Any], *_: Any) -> None:
        if certificates:
            journal._chain_round = certificates[-1].value.round

    with patch.object(FileJournal, "extend_chain", extend_chain):
        yield


@contextmanager
def _votes_unrecorded() -> Iterator[None]:
    """Votes lock nobody, so somebody thought that they need not be durable."""
    record = FileJournal.record

    def without_votes(journal: FileJournal, messages: Sequence[Any]) -> None:
        record(journal, [m for m in messages if m.slot.kind is not Kind.VOTE])

    with patch.object(FileJournal, "record", without_votes):
        yield


# I2 ---------------------------------------------------------------------------------------------


@contextmanager
def _rows_as_they_came() -> Iterator[None]:
    """Rows are summed in the order in which the first part of each came."""
    reduce = ShardStore.reduce

    def reduce_as_they_came(
        store: ShardStore, digest: bytes, entries: Sequence[Any], **where: Any
    ) -> bytes:
        came = {root: number for number, root in enumerate(store._parts)}
        ordered = sorted(entries, key=lambda entry: came[entry[1]])
        return reduce(store, digest, ordered, **where)

    with patch.object(ShardStore, "reduce", reduce_as_they_came):
        yield


@contextmanager
def _momentum_of_late_nodes() -> Iterator[None]:
    """A node that fetched the state starts with no momentum, though its root says otherwise."""
    replace_state = ShardStore.replace_state

    def without_momentum(store: ShardStore, state: Any) -> None:
        replace_state(store, state)
        for vector_N in state.slots.values():
            vector_N[:] = 0.0

    with patch.object(ShardStore, "replace_state", without_momentum):
        yield


# I3 ---------------------------------------------------------------------------------------------


@contextmanager
def _attempt_forgotten() -> Iterator[None]:
    """A restarted node works in the first attempt again, with no lock."""
    refill = restart.refill

    def refill_half(view: round_view.RoundView, brought: Any, *, now_s: float) -> None:
        refill(view, brought, now_s=now_s)
        view.attempt, view.own.lock = 0, None

    with (
        patch("protocol.rounds.round_machine.refill", refill_half),
        patch("protocol.rounds.restart.refill", refill_half),
    ):
        yield


@contextmanager
def _lock_ignored() -> Iterator[None]:
    """Whoever is locked votes for anything, and closers are free."""
    with (
        patch.object(agreement, "_may_vote", lambda view, digest: True),
        patch.object(proposal, "_highest_lock", lambda view: None),
        patch.object(proposal, "_already_summed", lambda view: None),
    ):
        yield


@contextmanager
def _half_is_enough() -> Iterator[None]:
    """Half of the voters certify and seal, whoever they are: two halves may differ."""

    def has_quorum(seats: Roster, peers: Collection[PeerId], *, trust: str) -> bool:
        del trust
        voting = roster.voters(seats)
        return 2 * sum(peer in peers for peer in voting) >= len(voting)

    with (
        patch("protocol.rounds.ballots.has_quorum", has_quorum),
        patch.object(roster, "has_quorum", has_quorum),
    ):
        yield


@contextmanager
def _fence_removed() -> Iterator[None]:
    """A node votes for whatever LIST it hears, also of an attempt that it has left."""
    vote = agreement._vote

    def vote_everywhere(
        view: round_view.RoundView, deadline: LearnedDeadline, now_s: float
    ) -> Iterator[DueStatement]:
        yield from vote(view, deadline, now_s)
        for attempt in view.ballots.attempts(Kind.LIST):
            if attempt < view.attempt and view.me not in view.ballots.of(Kind.VOTE, attempt):
                for body in view.ballots.bodies(Kind.LIST, List, attempt).values():
                    digest = view.ballots.list_digest(body)
                    if agreement._is_valid(view, body) and agreement._may_vote(view, digest):
                        yield DueStatement(Kind.VOTE, Vote(list_digest=digest), attempt)

    with patch.object(agreement, "_vote", vote_everywhere):
        yield


# I4 ---------------------------------------------------------------------------------------------


@contextmanager
def _waits_for_the_dead() -> Iterator[None]:
    """Nobody is ever suspected, and no attempt is ever given up."""
    with (
        patch.object(liveness.Liveness, "suspects", lambda *_: frozenset()),
        patch.object(agreement, "is_given_up", lambda *_, **__: False),
        patch("protocol.rounds.round_machine.is_given_up", lambda *_, **__: False),
        patch.object(proposal, "LIST_AFTER", 1e9),
    ):
        yield


# I5 ---------------------------------------------------------------------------------------------


@contextmanager
def _samples_kept() -> Iterator[None]:
    """The samples of who was not listed are not given back."""
    with patch.object(roster, "give_back", lambda unused, lease: unused):
        yield


@contextmanager
def _samples_twice() -> Iterator[None]:
    """Samples that came back are leased, and stay among those to be leased."""
    take = leases.take

    def take_again(unused: Any, cursor: int, count: int) -> Any:
        return take(unused, cursor, count)._replace(unused=unused)

    with (
        patch.object(roster, "take", take_again),
        patch.object(roster, "give_back", lambda unused, lease: _union(unused, lease)),
    ):
        yield


def _union(*parts: Any) -> Any:
    from sim.checks.accounting import _merged

    return tuple(_merged([gap for part in parts for gap in part]))


@contextmanager
def _residual_taken_early() -> Iterator[None]:
    """The residual after a contribution is taken over whether or not it was listed."""
    with patch.object(ErrorFeedback, "abort", ErrorFeedback.commit):
        yield


@contextmanager
def _late_starts_afresh() -> Iterator[None]:
    """A trainer for which the rounds did not wait drops its residual, as after a resync."""
    hear, is_behind = Fates.hear, Fates.is_behind
    sealed: dict[int, int] = {}

    def hear_and_note(fates: Fates, action: ev.Train) -> None:
        sealed[id(fates)] = action.certificate.value.round
        hear(fates, action)

    def is_late(fates: Fates, round_index: int) -> bool:
        return is_behind(fates, round_index) or round_index < sealed[id(fates)]

    with (
        patch.object(Fates, "hear", hear_and_note),
        patch.object(Fates, "is_behind", is_late),
    ):
        yield


@contextmanager
def _tokens_unchecked() -> Iterator[None]:
    """A trainer counts its samples' tokens twice, and nobody compares."""
    body = agreement.commit_body

    def twice(*args: Any) -> Any:
        said = body(*args)
        return replace(said, tokens=2 * said.tokens)

    with (
        patch("protocol.rounds.round_machine.commit_body", twice),
        patch("protocol.rounds.admission.claim_breach", lambda *_, **__: ""),
    ):
        yield


@contextmanager
def _own_receipts_only() -> Iterator[None]:
    """A node thinks that its own contributions are all that it need prove."""

    def own_only(views: Any, links: Any) -> Any:
        return [m for m in listed_commits(views, links) if m.sender == views[0].me]

    with patch("node.holdings.journal.listed_commits", own_only):
        yield


@contextmanager
def _receipts_in_memory() -> Iterator[None]:
    """Receipts are written when the node ends, and one that is killed never does."""

    def keep(log: ReceiptLog, commits: Any) -> None:
        for message in commits:
            log._known.add(message.digest)

    with patch.object(ReceiptLog, "keep", keep):
        yield


# I6 ---------------------------------------------------------------------------------------------


@contextmanager
def _late_is_a_fault() -> Iterator[None]:
    """A message of a round that is over here is held against who sent it."""
    take_message = NodeCore._message

    def message(core: NodeCore, source: Any, heard: Any, now_s: float) -> Iterator[Any]:
        if heard.slot.round < core.machine.view.index:
            yield ev.Fault(source, "a message of a round that is over")
        else:
            yield from take_message(core, source, heard, now_s)

    with patch.object(NodeCore, "_message", message):
        yield


# I7 ---------------------------------------------------------------------------------------------


@contextmanager
def _early_never_dropped() -> Iterator[None]:
    """What came early for one round is carried along into all later ones."""
    new_view = RoundMachine._new_view

    def with_early(machine: RoundMachine, *args: Any, **rest: Any) -> Any:
        view = new_view(machine, *args, **rest)
        if hasattr(machine, "view"):
            for entry in machine.view.early.values():
                view.early.keep(entry, rounds=1 << 20)
        return view

    with patch.object(RoundMachine, "_new_view", with_early):
        yield


@contextmanager
def _relay_never_forgets() -> Iterator[None]:
    """When each message came is noted for ever."""
    with patch.object(Relay, "forget", lambda *_: None):
        yield


@contextmanager
def _slots_never_cut() -> Iterator[None]:
    """The log of signatures keeps every round, twice over."""
    append = RecordLog.append

    def append_much(log: RecordLog, records: Sequence[bytes]) -> None:
        append(log, [record + bytes(8192) for record in records])

    with (
        patch.object(FileJournal, "_rotate", lambda *_: None),
        patch.object(RecordLog, "append", append_much),
    ):
        yield


# I8 ---------------------------------------------------------------------------------------------


@contextmanager
def _seed_in_seat() -> Iterator[None]:
    """A node describes itself with all it knows of itself."""
    sign = RoundMachine._sign

    def sign_told(machine: RoundMachine, kind: Kind, body: Any, **place: Any) -> Any:
        if isinstance(body, Seat) and isinstance(machine._signer, Ed25519Signer):
            body = Seat(proof=body.proof, device=machine._signer.seed.hex())
        return sign(machine, kind, body, **place)

    with patch.object(RoundMachine, "_sign", sign_told):
        yield


BUGS = (
    Bug("I1", "chain in memory only", _chain_in_memory),
    Bug("I1", "votes not recorded", _votes_unrecorded),
    Bug("I2", "rows as they came", _rows_as_they_came),
    Bug("I2", "no momentum after a sync", _momentum_of_late_nodes),
    *(Bug("I2", title, broken, settings) for title, broken, settings in ROSTERS),
    Bug("I6", "one reducer's word is enough", one_word_is_enough, {"trust": "open"}),
    Bug("I3", "lock ignored", _lock_ignored, {"rare": 0.2}),
    Bug(
        "I3",
        "attempt forgotten on restart",
        _attempt_forgotten,
        {"rare": 0.1, "deadly": Kind.NEWATTEMPT},
    ),
    Bug("I3", "fence removed", _fence_removed, {"rare": 0.05}),
    Bug("I3", "half is enough", _half_is_enough),
    Bug("I4", "waits for the dead", _waits_for_the_dead),
    Bug(
        "I3",
        "one voter hurries all",
        one_voter_hurries_all,
        {"trust": "open", "hurrying": True},
    ),
    Bug("I5", "samples not given back", _samples_kept),
    Bug("I5", "samples given twice", _samples_twice),
    Bug("I5", "residual taken early", _residual_taken_early),
    Bug("I5", "late starts afresh", _late_starts_afresh),
    Bug("I5", "tokens unchecked", _tokens_unchecked),
    Bug("I5", "own receipts only", _own_receipts_only),
    Bug("I5", "receipts in memory", _receipts_in_memory),
    Bug("I6", "late is a fault", _late_is_a_fault),
    *(Bug("I6", title, broken) for title, broken in HEARING),
    Bug("I7", "early never dropped", _early_never_dropped),
    Bug("I7", "relay never forgets", _relay_never_forgets, {"rounds": 40}),
    Bug("I8", "seed in SEAT", _seed_in_seat, {"is_signing_for_real": True}),
    Bug("I9", "the last member is gone", last_member_is_gone, {"trust": "open"}),
)
