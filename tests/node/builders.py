"""What the tests of the pure machines are built from: a toy run, seals, and peers that speak.

Machines get real messages, signed by KeyedHashSigner; bytes are left to the tests of worlds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from blake3 import blake3

from node.holdings.states import cell_sizes
from protocol import events as ev
from protocol.frames import Bulk
from protocol.identity import KeyedHashSigner, PeerId
from protocol.manifest import RunManifest, TimingSpec
from protocol.messages import (
    Body,
    Commit,
    Have,
    Held,
    Kind,
    List,
    NewAttempt,
    Roster,
    Seal,
    SealCertificate,
    SealValue,
    SeatRecord,
    SignedMessage,
    Slot,
    Vote,
    list_digest,
    sign_message,
)
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.chain import genesis
from protocol.rounds.roster import ClockRules
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundConfig, RoundSeals, RoundTimes, RoundView
from sim.world.toy_run import toy_run
from sim.world.world import peer_named

ROOT = blake3(b"state").digest()
CLOCK_RULES = ClockRules(samples_each=10, rounds=1000, tokens=0)


def peers_named(count: int) -> tuple[PeerId, ...]:
    """Peer ids in ascending order."""
    return tuple(sorted(peer_named(f"n{index}") for index in range(count)))


def toy_manifest(founder: PeerId, *, rounds: int = 5, cells: int = 4) -> RunManifest:
    """A run over a vector of `cells` cells, the last of them not full."""
    timing = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=10.0, heartbeat_s=0.5, suspect_s=2.0)
    return toy_run(founder, rounds=rounds, cells=cells, timing=timing)


CONFIG = RoundConfig(
    trust="friends",
    fragment_cells=(3,),
    clock=CLOCK_RULES,
    deadline_floor_s=1.0,
    deadline_cap_s=10.0,
    cell_sizes=cell_sizes(toy_manifest(peer_named("n0"))),
)


CONFIG_FIELDS = {field.name for field in fields(RoundConfig)}
SEALS_FIELDS = {field.name for field in fields(RoundSeals)}


def seat(peer: PeerId, *, since: int = 0, proved: int = 4, absent: int = 0) -> SeatRecord:
    return SeatRecord(peer=peer, seated=0, voter_since=since, proved=proved, absent=absent)


def roster_of(voters: Sequence[PeerId], others: Sequence[PeerId] = ()) -> Roster:
    """A roster in its fifth round, of voters of equal age and members that do not vote yet."""
    seats = [seat(peer) for peer in voters] + [seat(peer, since=-1, proved=-1) for peer in others]
    ordered = tuple(sorted(seats, key=lambda record: record.peer))
    return Roster(seats=ordered, window=(1, 2, 3, 4))


def head_of(voters: Sequence[PeerId], others: Sequence[PeerId] = ()) -> SealCertificate:
    """A seal of round 4 that names these voters and members; not checkable, only a start."""
    start = genesis(toy_manifest(voters[0]), 0, ROOT).value
    value = replace(start, round=4, before=blake3(b"3").digest(), roster=roster_of(voters, others))
    return SealCertificate(value=value, seals=())


def commit_body(head: SealValue, mark: str = "", **changes: Any) -> Commit:
    """A COMMIT on `head`; `mark` makes its root."""
    body = Commit(
        root=blake3(mark.encode()).digest(),
        cell_norms=(1.0,) * CONFIG.num_cells(1),
        tokens=10,
        samples=10,
        steps=10,
        base=head.digest,
        residual_before=bytes(32),
        residual_after=bytes(32),
        seal=b"",
        joins=(),
        suspects=(),
        gone=(),
        bans=(),
        is_past_end=False,
    )
    return replace(body, **changes)


@dataclass(frozen=True)
class Voice:
    """A peer made of words only: it says what a test wants it to say."""

    peer: PeerId
    head: SealValue

    def sign(self, kind: Kind, body: Body, attempt: int = 0, subject: bytes = b"") -> SignedMessage:
        slot = Slot(
            run=self.head.run,
            shard=0,
            round=self.head.round + 1,
            basis=self.head.digest,
            attempt=attempt,
            kind=kind,
            subject=subject,
        )
        return sign_message(KeyedHashSigner(self.peer), slot, body)

    def say(self, kind: Kind, body: Body, attempt: int = 0, subject: bytes = b"") -> ev.Heard:
        return ev.Heard(self.sign(kind, body, attempt, subject), body)

    def commit(self, mark: str = "", **changes: Any) -> ev.Heard:
        return self.say(Kind.COMMIT, commit_body(self.head, mark or self.peer.hex(), **changes))

    def have(self, senders: bytes, attempt: int = 0, cells: int = CONFIG.num_cells(1)) -> ev.Heard:
        """HAVE for so many cells; `senders` is the bit map."""
        held = Held(first=0, stop=cells, senders=senders)
        return self.say(Kind.HAVE, Have(held=(held,)), attempt)

    def hold(self, senders: bytes, attempt: int = 0) -> ev.Heard:
        """HOLD for all cells; `senders` is the bit map."""
        held = Held(first=0, stop=CONFIG.num_cells(1), senders=senders)
        return self.say(Kind.HOLD, Have(held=(held,)), attempt)

    def propose(self, commits: Sequence[ev.Heard], attempt: int = 0) -> ev.Heard:
        return self.say(Kind.LIST, list_body(commits), attempt)

    def vote(self, commits: Sequence[ev.Heard], attempt: int = 0) -> ev.Heard:
        return self.say(Kind.VOTE, Vote(list_digest=digest_of(self.head, commits)), attempt)

    def report(self, attempt: int, lock: tuple[int, Sequence[ev.Heard]] | None = None) -> ev.Heard:
        """NEWATTEMPT, with a lock if there is one."""
        body = NewAttempt(
            lock_attempt=lock[0] if lock else -1,
            commits=list_body(lock[1]).commits if lock else (),
            drifts=(),
            certificate=(),
            missing=(),
        )
        return self.say(Kind.NEWATTEMPT, body, attempt)

    def seal(self, value: SealValue, attempt: int = 0) -> ev.Heard:
        body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
        return self.say(Kind.SEAL, body, attempt, subject=self.head.digest)


def list_body(commits: Sequence[ev.Heard]) -> List:
    ordered = sorted(commits, key=lambda heard: heard.message.sender)
    return List(commits=tuple(heard.message.digest for heard in ordered), drifts=(), certificate=())


def digest_of(head: SealValue, commits: Sequence[ev.Heard]) -> bytes:
    return list_digest(head.digest, 0, head.round + 1, list_body(commits).commits, ())


def machine_of(
    peer: PeerId, head: SealCertificate, *, now_s: float = 0.0, **changes: Any
) -> RoundMachine:
    """`changes` are of its config."""
    config = replace(CONFIG, **changes)
    return RoundMachine(config, KeyedHashSigner(peer), head, now_s=now_s)


def contributed(round_index: int, mark: str = "mine") -> ev.Contributed:
    """What a trainer hands over."""
    return ev.Contributed(
        round=round_index,
        root=blake3(mark.encode()).digest(),
        cell_norms=(1.0,) * CONFIG.num_cells(1),
        tokens=10,
        samples=10,
        steps=10,
        residual_before=bytes(32),
        residual_after=bytes(32),
    )


def signed(actions: Sequence[object], kind: Kind) -> list[SignedMessage]:
    """The messages of one kind that a machine signs in these actions."""
    return [
        action.message
        for action in actions
        if isinstance(action, ev.RecordSlot) and action.message.slot.kind is kind
    ]


def state_after(digest: bytes) -> bytes:
    """The toy outer step: the root of the state that a LIST leads to."""
    return blake3(b"applied" + digest).digest()


def results(digest: bytes) -> tuple[ev.CellsArrived, ev.Applied]:
    """The whole result of a LIST arrives, and the outer step on it is taken."""
    cells = tuple(range(CONFIG.num_cells(1)))
    return ev.CellsArrived(Bulk.RESULT, digest, cells), ev.Applied(digest, state_after(digest))


def view_of(
    me: PeerId, head: SealCertificate, heard: Sequence[ev.Heard] = (), **known: Any
) -> RoundView:
    """A round as `me` sees it, with these messages filed.

    `known` are fields of its config, of its seals, and of whichever of its records has them.
    """
    law = {name: known.pop(name) for name in CONFIG_FIELDS & known.keys()}
    stood_on = {name: known.pop(name) for name in SEALS_FIELDS & known.keys()}
    view = RoundView(
        config=replace(CONFIG, **law),
        me=me,
        seals=RoundSeals(head.value, **{"final": head.value, **stood_on}),
        times=RoundTimes(0.0),
    )
    view.suspect(known.pop("suspects", frozenset()), known.pop("convicted", frozenset()))
    records = (
        *(view, view.times, view.arrivals, view.own),
        *(view.cells, view.sums, view.outcome, view.lapses),
    )
    for name, value in known.items():
        setattr(next(record for record in records if hasattr(record, name)), name, value)
    for event in heard:
        assert view.ballots.add(BallotEntry(event.message, event.body)) == "new"
    return view
