"""What one round knows: the messages, who holds which cells, and the questions asked of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from node import roster as rosters
from node.ballots import Ballots, Entry
from node.events import Contributed
from node.rare import Rare, never
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.messages import (
    Agg,
    Commit,
    Kind,
    List,
    Seal,
    SealValue,
    Slot,
    slice_subject,
)

Lock = tuple[int, bytes]
"""The attempt of the latest own SEAL, and the digest of its LIST."""

Request = tuple[str, bytes, int, PeerId]
"""What was asked for once: what to do with which cells of which subject, and by or to whom."""


RETRY_GROWTH = 1.5
RETRY_GROWTH_STEPS_MAX = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom some cells were asked of last, when, and how often they were asked for."""

    source: PeerId
    at_s: float
    count: int


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """Where a result cell belongs: the AGG's root over cells [first, stop)."""

    root: bytes
    first: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """What a RoundMachine needs to know besides the chain; `wait_seats` is local taste.

    A founder holds its first COMMIT until
    `wait_seats` joiners have proved their seats, for at most `wait_seats_s`. `rare` says when a
    simulated node takes a rare branch.
    """

    trust: str
    num_cells: int
    clock: rosters.ClockRules
    deadline_floor_s: float
    deadline_cap_s: float
    wait_seats: int = 0
    wait_seats_s: float = 12.0
    rare: Rare = field(default=never, compare=False, repr=False)

    @classmethod
    def from_manifest(cls, manifest: RunManifest, shard: int = 0) -> "RoundConfig":
        """The law of the run, with no local taste."""
        return cls(
            trust=manifest.trust,
            num_cells=manifest.layout(shard).num_cells(0),
            clock=rosters.ClockRules.from_manifest(manifest),
            deadline_floor_s=manifest.timing.deadline_floor_s,
            deadline_cap_s=manifest.timing.deadline_cap_s,
        )


@dataclass(slots=True, kw_only=True)
class RoundView:
    """The round that follows the final seal `head`, as this node sees it.

    `basis` is the digest of `head`; `members`, ascending, may contribute, `electorate` votes;
    `expected` are the members whom this node does not suspect, itself always; `pushed_among` those
    who were expected when the own parts were pushed last.

    `asked` says of whom the cells of a subject from some cell on were asked last, `moved_s` when
    bytes of a subject came from a peer. `awaited` are the COMMITs known when the first HAVE was
    signed without some of their parts; `is_timed` says that a deadline was learned from this round.

    `time_outs` counts the attempts of this round that ended because nothing moved for too long.
    `parts` and `results` name the cells in the own store, by COMMIT and by LIST digest. `applied`
    maps LIST digests to the root of the state that the outer step on them gives, `values` to what
    their seals would say. `own_seal` is the own SEAL of `head`, `early` messages of the next round
    by digest. `draw` is the config's `rare`.
    """

    me: PeerId
    head: SealValue
    num_cells: int
    trust: str
    started_s: float
    suspects: frozenset[PeerId]
    draw: Rare = never
    ballots: Ballots = field(init=False)
    slices: tuple[rosters.Slice, ...] = field(init=False)
    attempt: int = 0
    time_outs: int = 0
    opened_s: float | None = None
    entered_s: float = 0.0
    progress_s: float = 0.0
    lock: Lock | None = None
    own_commit: bytes = b""
    parts: dict[bytes, set[int]] = field(default_factory=dict)
    results: dict[bytes, set[int]] = field(default_factory=dict)
    certified_s: dict[bytes, float] = field(default_factory=dict)
    applied: dict[bytes, bytes] = field(default_factory=dict)
    values: dict[bytes, SealValue] = field(default_factory=dict)
    pushed_among: frozenset[PeerId] | None = None
    requested: set[Request] = field(default_factory=set)
    asked: dict[tuple[bytes, int], "Asked"] = field(default_factory=dict)
    moved_s: dict[tuple[bytes, PeerId], float] = field(default_factory=dict)
    awaited: frozenset[bytes] = frozenset()
    is_timed: bool = False
    contribution: Contributed | None = None
    own_seal: bytes = b""
    proven_seats: set[PeerId] = field(default_factory=set)
    early: dict[bytes, Entry] = field(default_factory=dict)
    is_diverged: bool = False
    members: tuple[PeerId, ...] = field(init=False)
    member_set: frozenset[PeerId] = field(init=False)
    electorate: tuple[PeerId, ...] = field(init=False)
    expected: frozenset[PeerId] = field(init=False)
    basis: bytes = field(init=False)
    index: int = field(init=False)
    is_member: bool = field(init=False)
    is_voter: bool = field(init=False)
    _closers: dict[int, PeerId] = field(default_factory=dict, init=False)
    _drawn: dict[tuple[str, int], bool] = field(default_factory=dict, init=False)
    _gathering: tuple[int, frozenset[PeerId], list[tuple[PeerId, ...]]] = field(
        default=(-1, frozenset(), []), init=False
    )
    _own_slices: list[rosters.Slice] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.basis, self.index = self.head.digest, self.head.round + 1
        self.members, self.member_set = self.head.roster.members, self.head.roster.member_set
        self.electorate = rosters.voters(self.head.roster)
        self.is_member, self.is_voter = self.me in self.member_set, self.me in self.electorate
        self.suspect(self.suspects)
        self.ballots = Ballots(
            self.basis, self.head.shard, self.index, self.head.roster, self.trust
        )
        self.slices = rosters.slices(self.members, self.basis, self.num_cells)

    def rare(self, name: str) -> bool:
        """Whether a rare branch is taken; drawn once per attempt, however often a rule asks."""
        if self.draw is never:
            return False
        key = (name, self.attempt)
        if key not in self._drawn:
            self._drawn[key] = self.draw(name)
        return self._drawn[key]

    def suspect(self, suspects: frozenset[PeerId]) -> None:
        """Take over whom this node suspects; it never suspects itself."""
        self.suspects = suspects
        self.expected = self.member_set - (suspects - {self.me})

    def contributed(self, event: Contributed) -> None:
        """The own trainer has given its contribution, if it is to this round."""
        if event.round != self.index:
            return
        self.contribution = event
        # Committed before a restart: the same bytes again, or the COMMIT stands without them.
        commit = self.ballots.commit_of(self.own_commit)
        if commit is not None and commit[1].root == event.root:
            self.parts[self.own_commit] = set(range(self.num_cells))

    def start_clock(self, now_s: float) -> None:
        """The clock of attempt 0 starts when a quorum has committed: until then all train."""
        if self.opened_s is None and self.has_quorum(set(self.ballots.of(Kind.COMMIT))):
            self.opened_s = self.progress_s = now_s

    def is_listed_in(self, value: SealValue) -> bool:
        """Whether the contribution in the trainer's hands is in that seal (R6).

        After a damaged log the own COMMIT may only be known from others, and be of other bytes.
        """
        own = self.ballots.commits.get(self.me)
        if own is None or own[0] not in value.commits:
            return False
        if self.contribution is None:
            return own[0] == self.own_commit
        return self.contribution.root == own[1].root

    def is_about(self, subject: bytes) -> bool:
        """Whether that is a COMMIT or a LIST of this round."""
        ballots = self.ballots
        return ballots.commit_of(subject) is not None or ballots.list_of(subject) is not None

    def arrived(self, bulk: Bulk, subject: bytes, cells: tuple[int, ...], *, now_s: float) -> bool:
        """Cells are in the own store; whether any of them is new, which is progress."""
        store = self.parts if bulk is Bulk.PART else self.results
        held = store.setdefault(subject, set())
        is_new = not held.issuperset(cells)
        held.update(cells)
        if is_new:
            self.progress_s = now_s
        return is_new

    @property
    def attempt_start_s(self) -> float:
        """From when the deadlines of the attempt count."""
        if self.attempt == 0 and self.opened_s is not None:
            return self.opened_s
        return self.entered_s

    def commits(self) -> Iterator[tuple[PeerId, bytes, Commit]]:
        """Sender, digest and body of every COMMIT, ascending by sender."""
        for sender, (digest, body) in self.ballots.commits.items():
            yield sender, digest, body

    def has_quorum(self, peers: set[PeerId]) -> bool:
        """Whether the voters among `peers` are a quorum."""
        return rosters.has_quorum(self.head.roster, peers, trust=self.trust)

    @property
    def other_voters(self) -> set[PeerId]:
        """All voters but this node."""
        return set(self.electorate) - {self.me}

    @property
    def num_to_ask(self) -> int:
        """R12: so many other voters that every quorum has one of them in it.

        There are not so many others where this node alone is a quorum, the only voter or of two
        the eldest: nobody knows what it made final and told nobody.
        """
        most = len(self.other_voters)
        if self.is_quorum_alone:
            return most + 1
        return min(rosters.blocking(len(self.electorate), self.trust), most)

    @property
    def is_quorum_alone(self) -> bool:
        """Whether this node needs no other voter to make a round final."""
        return self.has_quorum({self.me})

    @property
    def may_be_open(self) -> int:
        """R12: the last round in which, for all that this node knows, others may have signed.

        Once it has SEALed, somebody may have the quorum and have begun the next.
        """
        return self.index + (self.lock is not None)

    def closer(self, attempt: int) -> PeerId:
        """Who proposes in `attempt`."""
        found = self._closers.get(attempt)
        if found is None:
            found = rosters.closer(self.head.roster, self.basis, self.head.shard, attempt)
            self._closers[attempt] = found
        return found

    def gathering(self) -> list[tuple[PeerId, ...]]:
        """Who gathers and sums each of the slices now.

        The first reducer does; the next in rank once all before it are suspected here, or once as
        many attempts have failed (R3).
        """
        attempt, suspects, found = self._gathering
        if attempt != self.attempt or suspects != self.suspects:
            found = [self._gathering_of(piece) for piece in self.slices]
            self._gathering = (self.attempt, self.suspects, found)
            pairs = zip(self.slices, found, strict=True)
            self._own_slices = [piece for piece, peers in pairs if self.me in peers]
        return found

    def _gathering_of(self, piece: rosters.Slice) -> tuple[PeerId, ...]:
        ranks = enumerate(piece.reducers)
        alive = next((rank for rank, peer in ranks if peer not in self.suspects), len(self.members))
        return piece.reducers[: max(alive, self.attempt) + 1]

    def own_slices(self) -> list[rosters.Slice]:
        """Slices that this node gathers and sums now."""
        self.gathering()
        return self._own_slices

    def slot(self, kind: Kind, *, attempt: int = 0, subject: bytes = b"") -> Slot:
        """A signature's place in this round."""
        return Slot(
            run=self.head.run,
            shard=self.head.shard,
            round=self.index,
            basis=self.basis,
            attempt=attempt,
            kind=kind,
            subject=subject,
        )

    def own_seal_of(self, value: SealValue) -> bytes:
        """The own SEAL of `value`, of whatever attempt; empty if there is none."""
        for attempt in self.ballots.attempts(Kind.SEAL):
            entry = self.ballots.of(Kind.SEAL, attempt, self.basis).get(self.me)
            if entry and isinstance(entry.body, Seal) and entry.body.value == value.digest:
                return entry.message.encoded
        return b""

    def missing_parts(self, commit: bytes, piece: rosters.Slice) -> tuple[int, ...]:
        """Cells of a slice of which the part of that COMMIT is not here."""
        held = self.parts.get(commit, set())
        if held.issuperset(range(piece.first, piece.stop)):
            return ()
        return tuple(cell for cell in range(piece.first, piece.stop) if cell not in held)

    def missing_results(self, digest: bytes) -> tuple[int, ...]:
        """Cells whose result for that LIST is not here."""
        held = self.results.get(digest, set())
        if len(held) == self.num_cells:
            return ()
        return tuple(cell for cell in range(self.num_cells) if cell not in held)

    def listed(self, body: List) -> list[tuple[PeerId, bytes, Commit]] | None:
        """The listed contributions in the order of the LIST; None while a COMMIT is unknown."""
        found = []
        for digest in body.commits:
            commit = self.ballots.commit_of(digest)
            if commit is None:
                return None
            found.append((commit[0], digest, commit[1]))
        return found

    def agg_of(self, digest: bytes, piece: rosters.Slice) -> dict[PeerId, Agg]:
        """Who announced which result root for a slice of a LIST."""
        subject = slice_subject(digest, piece.first, piece.stop)
        return dict(self.ballots.bodies(Kind.AGG, Agg, 0, subject))

    def result_place(self, digest: bytes, cell: int) -> ResultPlace | None:
        """Where a result cell of a LIST belongs, once an AGG of its slice is known."""
        for piece in self.slices:
            if piece.first <= cell < piece.stop:
                for agg in self.agg_of(digest, piece).values():
                    return ResultPlace(agg.root, piece.first, piece.stop)
        return None

    def moved(self, subject: bytes, source: PeerId, now_s: float) -> None:
        """Bytes of a COMMIT's parts or a LIST's results are arriving from a peer, or announced."""
        if self.is_about(subject) and source in self.members:
            self.moved_s[subject, source] = now_s

    def is_moving(self, subject: bytes, source: PeerId, *, now_s: float, within_s: float) -> bool:
        """Whether bytes of a subject came from a peer so lately."""
        return now_s - self.moved_s.get((subject, source), -math.inf) < within_s

    def ask_due_s(self, subject: bytes, first: int, retry_s: float) -> float:
        """When cells may be asked for that were asked for before.

        At once if their source is suspected; else when nothing has come from it for a while, which
        is longer each time: on a slow line a second answer is what delays the first.
        """
        asked = self.asked[subject, first]
        if asked.source in self.suspects:
            return asked.at_s
        moved_s = self.moved_s.get((subject, asked.source), asked.at_s)
        growth = RETRY_GROWTH ** min(asked.count - 1, RETRY_GROWTH_STEPS_MAX)
        return max(asked.at_s, moved_s) + retry_s * growth

    def may_ask(self, subject: bytes, first: int, *, now_s: float, retry_s: float) -> bool:
        """Whether there is no reason to wait before these cells are asked for."""
        is_new = (subject, first) not in self.asked
        return is_new or now_s >= self.ask_due_s(subject, first, retry_s)

    def ask(
        self, subject: bytes, first: int, sources: list[PeerId], *, now_s: float, retry_s: float
    ) -> PeerId | None:
        """Whom to ask for these cells, each source in turn; None while there is reason to wait."""
        asked = self.asked.get((subject, first))
        if not self.may_ask(subject, first, now_s=now_s, retry_s=retry_s):
            return None
        count = 0 if asked is None else asked.count
        source = sources[(count + self.rare("other-source")) % len(sources)]
        self.asked[subject, first] = Asked(source, now_s, count + 1)
        return source
