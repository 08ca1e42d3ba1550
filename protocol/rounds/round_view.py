"""What one round knows: the messages, who holds which cells, and the questions asked of them."""

import math
from collections.abc import Callable, Iterator, ValuesView
from dataclasses import dataclass, field
from itertools import filterfalse

from protocol import limits
from protocol.events import Contributed
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.manifest import NO_ADMISSION, NO_AUDITS, AdmissionSpec, AuditSpec
from protocol.messages import (
    Agg,
    Commit,
    Gram,
    Kind,
    List,
    Roster,
    Seal,
    SealValue,
    Slot,
    slice_subject,
)
from protocol.rounds import roster as rosters
from protocol.rounds.ballots import BallotEntry, Ballots
from protocol.rounds.belief import Belief, belief_of
from protocol.rounds.rare import Rare, never
from protocol.rounds.reducers import Gathering, GatheringAll, Slice, one_slice, set_back
from protocol.rounds.reducers import slices as cut_slices
from protocol.rounds.round_config import RoundConfig as RoundConfig

RETRY_GROWTH = 1.5
RETRY_GROWTH_STEPS_MAX = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom some cells were asked of last, when, and how often they were asked for."""

    source: PeerId
    at_s: float
    count: int


# Early --------------------------------------------------------------------------------------------
#
# Messages of the next round, until the seal that opens it is here.


@dataclass(slots=True)
class Early:
    """Messages of the next round, which cannot be filed before the seal that opens it is here."""

    _entries: dict[bytes, BallotEntry] = field(default_factory=dict)
    _bytes: dict[PeerId, int] = field(default_factory=dict)
    _seats: int = 0

    def keep(self, entry: BallotEntry, *, rounds: int) -> None:
        """Keep one, if there is room for what its sender says of so many rounds."""
        message = entry.message
        if message.digest in self._entries:
            return
        if message.slot.kind is Kind.SEAT:
            if self._seats >= limits.SEATS_ASKED_MAX:
                return
            self._seats += 1
        else:
            size = self._bytes.get(message.sender, 0) + len(message.encoded)
            if size > rounds * limits.EARLY_BYTES_MAX:
                return
            self._bytes[message.sender] = size
        self._entries[message.digest] = entry

    def take(self) -> Iterator[BallotEntry]:
        """All of them, in the order in which they came; they are forgotten."""
        entries, self._entries = self._entries, {}
        self._bytes.clear()
        self._seats = 0
        return iter(entries.values())

    def __contains__(self, digest: bytes) -> bool:
        """Whether the message of that digest is there."""
        return digest in self._entries

    def __len__(self) -> int:
        """How many messages there are."""
        return len(self._entries)

    def values(self) -> ValuesView[BallotEntry]:
        """All of them."""
        return self._entries.values()


# Unlisted -----------------------------------------------------------------------------------------
#
# GRAMs and AGGs of LISTs that nobody has proposed here, until somebody has.
#
# A sum may overtake the LIST that it is of, on another link. It is kept apart, for nobody is told
# that it is here: what a member says of LISTs that it made up goes to nobody else, and is gone with
# the round.


@dataclass(slots=True)
class Unlisted:
    """Of one round. Each member has some room of its own."""

    _entries: dict[bytes, dict[bytes, BallotEntry]] = field(default_factory=dict)
    """By LIST and by message."""
    _bytes: dict[PeerId, int] = field(default_factory=dict)

    def keep(self, entry: BallotEntry) -> None:
        """Keep one, if there is room for more of its sender."""
        message, body = entry.message, entry.body
        assert isinstance(body, Agg | Gram)
        if message.digest in self._entries.get(body.list_digest, ()):
            return
        size = self._bytes.get(message.sender, 0) + len(message.encoded)
        if size <= limits.EARLY_BYTES_MAX:
            self._bytes[message.sender] = size
            self._entries.setdefault(body.list_digest, {})[message.digest] = entry

    def take(self, is_named: Callable[[bytes], bool]) -> list[BallotEntry]:
        """Those of LISTs that are named by now, in the order in which they came."""
        if not self._entries:
            return []  # As nearly always.
        found: list[BallotEntry] = []
        for digest in [digest for digest in self._entries if is_named(digest)]:
            found += self._entries.pop(digest).values()
        for entry in found:
            self._bytes[entry.message.sender] -= len(entry.message.encoded)
        return found

    def __len__(self) -> int:
        """How many messages there are."""
        return sum(len(there) for there in self._entries.values())


# Round view ---------------------------------------------------------------------------------------

Lock = tuple[int, bytes]
"""The attempt of the latest own SEAL, and the digest of its LIST."""

Request = tuple[str, bytes, int, PeerId]
"""What was asked for once: what to do with which cells of which subject, and by or to whom."""


@dataclass(slots=True, kw_only=True)
class RoundView:
    """The round that follows the seal `head`, as this node sees it.

    With two rounds in flight (R5) `named_by` is the seal before `head`, which names roster, slots
    and closer; `basis` is then what `head` says of it, for genesis too, so that no two rounds have
    the same. None stands for `head` itself. Of a round that `is_beside` the one before it the seal
    before is not there yet: `head` is the one that names it, until it is told where it `stands`.

    `final` is the seal that names the round which is final next: `head` itself, or on a branch one
    before it (R4), with two rounds in flight the one before that. Its voters seal where the round
    is provisional; `may_branch` says whether it may be that. `basis` is the
    digest of the seal that names the round, `before` of `head`, which this round's own seal names;
    `members`, ascending, may contribute, `electorate` votes; `expected` are the members whom this
    node does not suspect, itself always; `pushed_among` those who were expected when the own parts
    were pushed last.

    `awaited_commits` are those known when the first HAVE was signed without some of their parts;
    `late_s` says of those that lacked parts when these had come, infinite while they have not;
    `is_timed` says that a deadline was learned from this round.

    `committed_s` is when the last COMMIT of another peer came before any LIST; `overdue` are those
    whose COMMIT came so late that others may have said HAVE without it. `entered_s` is when the
    attempt began, infinite while too few are seen in it (open runs); `least_s` is for how long each
    waits at least, by whatever clock of the round, for what it lacks;
    `time_outs` counts the attempts of this round that ended because nothing moved for too long.
    `parts` and `results` name the cells in the own store, by COMMIT and by LIST digest. `applied`
    maps LIST digests to the root of the state that the outer step on them gives, `values` to what
    their seals would say. `own_seal` is the own SEAL of `named`, `early` messages of the next
    round, `unlisted` sums of LISTs that are not known yet. `draw` is the config's `rare`.
    `followed` is a LIST from which others went on on a branch: its result is taken from them.
    `bound` is the LIST that a branch made of this round; while `is_meeting` there may be one that
    is not known yet.

    `belief` says whose equal words of a slice are enough; `without` are defences that a test
    switches off; `cut` finds the slices, unless `everybody_sums` everything. `agreed` has the
    result roots that are believed in open runs, by LIST and first cell of the slice; `grams` the
    same of partial Gram matrices, which there are if the run `uses_gram`; `measured` says of how
    many slices, and since when.
    `convicted` are peers against whom there is evidence: they count as suspected, and a closer
    lists none of them.

    `asked` says of whom the cells of a subject from some cell on were asked last, `moved_s` when
    bytes of a subject came from a peer; whoever is among `suspects` is waited for no longer.
    `progress_s` is when the last of the cells came that was new.
    """

    suspects: frozenset[PeerId]
    asked: dict[tuple[bytes, int], Asked] = field(default_factory=dict)
    moved_s: dict[tuple[bytes, PeerId], float] = field(default_factory=dict)
    num_cells: int
    ballots: Ballots = field(init=False)
    parts: dict[bytes, set[int]] = field(default_factory=dict)
    results: dict[bytes, set[int]] = field(default_factory=dict)
    progress_s: float = 0.0
    _subjects: dict[tuple[bytes, int, int], bytes] = field(default_factory=dict, init=False)
    """What the slots of slices are called: asked for with every message of the round."""
    me: PeerId
    head: SealValue
    trust: str
    started_s: float
    final: SealValue
    named_by: SealValue | None = None
    is_beside: bool = False
    may_branch: bool = False
    draw: Rare = never
    uses_gram: bool = False
    everybody_sums: bool = False
    without: frozenset[str] = frozenset()
    relayed_s: float = 0.0
    least_s: float = 0.0
    admission: AdmissionSpec = NO_ADMISSION
    audits: AuditSpec = NO_AUDITS
    cut: Callable[..., tuple[Slice, ...]] = cut_slices
    slices: tuple[Slice, ...] = field(init=False)
    attempt: int = 0
    time_outs: int = 0
    opened_s: float | None = None
    entered_s: float = 0.0
    committed_s: float | None = None
    commit_s: dict[PeerId, float] = field(default_factory=dict)
    """When the COMMIT of each member came here."""
    came_s: dict[bytes, float] = field(default_factory=dict)
    """When the last of the parts of each COMMIT came that were new here."""
    said_s: dict[tuple[int, PeerId], float] = field(default_factory=dict)
    """When the last HAVE or HOLD of each attempt came here, by its sender."""
    overdue: set[PeerId] = field(default_factory=set)
    lock: Lock | None = None
    own_commit: bytes = b""
    certified_s: dict[bytes, float] = field(default_factory=dict)
    applied: dict[bytes, bytes] = field(default_factory=dict)
    values: dict[bytes, SealValue] = field(default_factory=dict)
    pushed_among: frozenset[PeerId] | None = None
    requested: set[Request] = field(default_factory=set)
    awaited_commits: frozenset[bytes] = frozenset()
    late_s: dict[bytes, float] = field(default_factory=dict)
    is_timed: bool = False
    contribution: Contributed | None = None
    is_out_of_hand: bool = False
    """Whether the trainer began anew since, so that it holds nothing of what was committed."""

    own_seal: bytes = b""
    proven_seats: set[PeerId] = field(default_factory=set)
    seats_checked: set[PeerId] = field(default_factory=set)
    held_until_s: float | None = None
    """Until when the own COMMIT is held for joiners; None before it was ready."""
    early: Early = field(default_factory=Early)
    unlisted: Unlisted = field(default_factory=Unlisted)
    followed: bytes = b""
    bound: bytes = b""
    is_meeting: bool = False
    is_diverged: bool = False
    agreed: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    grams: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    measured: dict[bytes, tuple[int, float]] = field(default_factory=dict)
    summable_s: dict[bytes, float] = field(default_factory=dict)
    """Since when all can sum a LIST, for enough agree on its Gram matrices."""
    convicted: frozenset[PeerId] = frozenset()
    ended: "RoundView | None" = None
    """The round that the seal which names this one has ended, where it is known: what still comes
    of it is filed there, and told in the own COMMIT here."""
    lapsed: set[PeerId] = field(default_factory=set)
    """Who kept this node waiting in this round for a HAVE or LIST that it owed (R8)."""
    late_to_sum: set[PeerId] = field(default_factory=set)
    """Whose GRAM or AGG was not here when it was due: others push results in their place."""
    owed_sums: set[tuple[PeerId, int]] = field(default_factory=set)
    """Of them who still owed it `relayed_s` later, with the first cell of the slice."""
    looked_at: set[tuple[str, int]] = field(default_factory=set)
    ready_s: dict[int, float] = field(default_factory=dict)
    """Since when the closer of each attempt need wait for nobody."""
    to_list: dict[int, frozenset[PeerId]] = field(default_factory=dict)
    """Who was complete in each attempt when HAVEs were late: whom a later LIST has to name."""
    second_call_s: dict[int, float] = field(default_factory=dict)
    """When substitutes were called in each attempt, to hold what too few said that they hold."""
    belief: Belief = field(init=False)
    named: SealValue = field(init=False)
    roster: Roster = field(init=False)
    members: tuple[PeerId, ...] = field(init=False)
    member_set: frozenset[PeerId] = field(init=False)
    electorate: tuple[PeerId, ...] = field(init=False)
    expected: frozenset[PeerId] = field(init=False)
    basis: bytes = field(init=False)
    before: bytes = field(init=False)
    index: int = field(init=False)
    is_member: bool = field(init=False)
    set_back: frozenset[PeerId] = field(init=False)
    """Who comes last among reducers and closers here, and is not waited for as such (R8)."""
    newcomers: frozenset[PeerId] = field(init=False)
    """Of whom no SEAL was seen yet, in open runs."""
    absentees: frozenset[PeerId] = field(init=False)
    """Whose COMMIT too few have seen in the last round that was told of, however late, likewise."""
    _closers: dict[int, PeerId] = field(default_factory=dict, init=False)
    _drawn: dict[tuple[str, int], bool] = field(default_factory=dict, init=False)
    _gathering: Gathering = field(init=False)

    def __post_init__(self) -> None:
        self.before, self.index = self.head.digest, self.head.round + 1
        self.named, self.basis = self.head, self.before
        if self.is_beside:
            self.before, self.index = b"", self.index + 1
        elif self.named_by is not None:
            self.named, self.basis = self.named_by, self.head.before
        self.roster = self.named.roster
        self.belief = belief_of(self.roster, self.trust, without=self.without)
        self.members, self.member_set = self.roster.members, self.roster.member_set
        self.electorate = rosters.voters(self.roster)
        self.is_member = self.me in self.member_set
        self.set_back = set_back(self.roster)
        is_open = self.trust == "open"
        self.newcomers = frozenset(s.peer for s in self.roster.seats if is_open and s.proved < 0)
        self.absentees = frozenset(s.peer for s in self.roster.seats if is_open and s.absent)
        self.suspect(self.suspects, self.convicted)
        self.ballots = Ballots(self.basis, self.head.shard, self.index, self.roster, self.trust)
        if self.everybody_sums:
            self.slices = one_slice(self.roster, self.num_cells)
            self._gathering = GatheringAll(self.slices, self.me, self.belief)
        else:
            self.slices = self.cut(self.roster, self.basis, self.num_cells, trust=self.trust)
            self._gathering = Gathering(self.slices, self.me, self.belief)

    @property
    def copies(self) -> int:
        """How many members hold and sum each slice at least."""
        return self.belief.least

    @property
    def is_provisional(self) -> bool:
        """Whether no quorum is in reach, and the round is sealed provisionally (R4)."""
        return bool(self.ballots.sealers)

    @property
    def is_voter(self) -> bool:
        """Whether this node votes here: with VOTEs, or in a provisional round with PVOTEs."""
        return self.me in (self.ballots.sealers or self.roster.voter_set)

    @property
    def is_speaker(self) -> bool:
        """Whether this node has a say here: on a branch a voter need not be a member."""
        return self.is_member or self.is_voter

    @property
    def is_overlapped(self) -> bool:
        """Whether two rounds are in flight (R5): then seals of several branches may stand before
        this one, and it is one round all the same."""
        return self.is_beside or self.named_by is not None

    def may_speak(self, peer: PeerId) -> bool:
        """Whether that peer may be one whom a provisional round needs."""
        return peer in self.member_set or peer in self.final.roster.member_set

    def elect(self, sealers: frozenset[PeerId]) -> None:
        """Go on as a provisional round of these sealers, or with nobody as an ordinary one."""
        if bool(sealers) != self.is_provisional:
            self._closers.clear()
        self.ballots.elect(sealers)

    def stands(self, head: SealValue, now_s: float) -> None:
        """The round before is final by that seal: this one is the next, and may be sealed (R5)."""
        assert self.is_beside
        assert head.before == self.basis
        self.head, self.named_by, self.is_beside = head, self.named, False
        self.before = head.digest
        self.progress_s = now_s

    def leaves(self) -> None:
        """The seal that it stood on is given up (R4): this round is beside that one again (R5).

        What was signed here stays signed. Of another state another step is taken.
        """
        assert self.named_by is not None
        self.head, self.named_by, self.is_beside, self.before = self.named, None, True, b""
        self.followed, self.bound, self.is_diverged = b"", b"", False
        self.applied.clear()
        self.values.clear()
        self.requested = {request for request in self.requested if request[0] != "apply"}

    def empties(self) -> None:
        """The store has been emptied: all bytes have to be asked for again."""
        self.parts.clear()
        self.results.clear()
        self.asked.clear()
        self.applied.clear()
        self.values.clear()
        self.requested.clear()

    def promote(self) -> None:
        """The seal before is final now: this round decides what is final next."""
        self.final = self.named
        self._closers.clear()

    def rare(self, name: str) -> bool:
        """Whether a rare branch is taken; drawn once per attempt, however often a rule asks."""
        if self.draw is never:
            return False
        key = (name, self.attempt)
        if key not in self._drawn:
            self._drawn[key] = self.draw(name)
        return self._drawn[key]

    def suspect(
        self, suspects: frozenset[PeerId], convicted: frozenset[PeerId] = frozenset()
    ) -> None:
        """Take over whom this node suspects, and who is convicted; it never suspects itself."""
        self.convicted, self.suspects = convicted, suspects | convicted
        self.expected = self.member_set - (self.suspects - {self.me})

    @property
    def awaited(self) -> frozenset[PeerId]:
        """Whose COMMIT and parts the round waits for. In open runs not for those of whom no SEAL
        was seen yet, nor for those whose last COMMIT nobody saw, until they commit: anybody can
        hold a proof for a key that does nothing, and all else can be said without a COMMIT."""
        absent = (self.newcomers | self.absentees).difference(self.ballots.commits)
        return self.expected - absent if absent else self.expected

    @property
    def has_voted(self) -> bool:
        """Whether this node has voted for a LIST in the attempt it works in."""
        kind = Kind.PVOTE if self.is_provisional else Kind.VOTE
        return self.me in self.ballots.of(kind, self.attempt)

    def contributed(self, event: Contributed) -> None:
        """The own trainer has given its contribution, if it is to this round."""
        if event.round != self.index or event.basis not in (b"", self.basis):
            return
        self.contribution, self.is_out_of_hand = event, False
        # Committed before a restart: the same bytes again, or the COMMIT stands without them.
        commit = self.ballots.commit_of(self.own_commit)
        if commit is not None and commit[1].root == event.root:
            self.parts[self.own_commit] = set(range(self.num_cells))

    def start_clock(self, now_s: float) -> None:
        """The clock of attempt 0 starts when a quorum has committed: until then all train."""
        if self.opened_s is None and self.can_open():
            self.opened_s = self.progress_s = now_s

    def is_named(self, digest: bytes) -> bool:
        """Whether a LIST of that digest was proposed, certified or sealed, as far as is known."""
        return digest == self.followed or self.ballots.is_named(digest)

    def can_open(self) -> bool:
        """Whether enough have committed: a quorum; provisionally, most of those in reach."""
        committed = self.ballots.of(Kind.COMMIT)
        if self.is_provisional:
            return 2 * sum(peer in committed for peer in self.expected) > len(self.expected)
        return self.has_quorum(set(committed))

    def is_listed_in(self, value: SealValue) -> bool:
        """Whether the contribution in the trainer's hands is in that seal (R6).

        After a damaged log the own COMMIT may only be known from others, and be of other bytes.
        """
        own = self.ballots.commits.get(self.me)
        if own is None or own[0] not in value.commits or self.is_out_of_hand:
            return False
        if self.contribution is None:
            return own[0] == self.own_commit
        return self.contribution.root == own[1].root

    def is_doubtful(self, value: SealValue) -> bool:
        """Whether that seal may list what the trainer is about to give again, as nobody can tell.

        After a damaged log, a COMMIT that only others remember is sealed before the trainer is up:
        it may be what the trainer holds, or of a disk that is lost (R6, R12).
        """
        own = self.ballots.commits.get(self.me)
        is_theirs = own is not None and own[0] in value.commits and own[0] != self.own_commit
        return is_theirs and self.contribution is None

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
        """Whether the voters among `peers` are a quorum; a provisional round needs them all."""
        if self.is_provisional:
            return self.ballots.sealers <= peers
        return rosters.has_quorum(self.roster, peers, trust=self.trust)

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
        return rosters.has_quorum(self.roster, {self.me}, trust=self.trust)

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
            found = self._ordinary_closer(attempt)
            if self.is_provisional:
                found = rosters.provisional_closer(self.final.roster, self.basis, attempt)
            self._closers[attempt] = found
        return found

    def _ordinary_closer(self, attempt: int) -> PeerId:
        return rosters.closer(self.roster, self.basis, self.head.shard, attempt)

    def can_close(self, attempt: int) -> bool:
        """Whether the closer of `attempt` is in reach; of a provisional round, one who seals it."""
        closer = self.closer(attempt)
        return (
            closer in self.ballots.sealers if self.is_provisional else closer not in self.suspects
        )

    def may_close(self, peer: PeerId, attempt: int) -> bool:
        """Whether that peer proposes in `attempt`, be it ordinary or provisional for it."""
        rosters_named = (self.final.roster, self.roster)
        provisional = (
            rosters.provisional_closer(roster, self.basis, attempt) for roster in rosters_named
        )
        return peer == self._ordinary_closer(attempt) or peer in provisional

    def proposal(self) -> BallotEntry | None:
        """The LIST of this attempt, from its closer."""
        return self.ballots.of(Kind.LIST, self.attempt).get(self.closer(self.attempt))

    def gathering(self) -> Gathering:
        """Who holds and sums which slices now."""
        # Provisional attempts pass by the closers that are out of reach: few of them have failed.
        failed = self.time_outs if self.is_provisional else self.attempt
        return self._gathering.at(failed, self.suspects)

    def own_slices(self) -> list[Slice]:
        """Slices that this node gathers and sums now."""
        return self.gathering().own

    def kept_slices(self) -> list[Slice]:
        """Slices of which this node holds parts now: in open runs more than it sums."""
        return self.gathering().kept

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

    def own_seal_of(
        self, value: SealValue, kinds: tuple[Kind, ...] = (Kind.SEAL, Kind.PSEAL)
    ) -> bytes:
        """The own SEAL of `value`, or else PSEAL, of whatever attempt; empty if there is none."""
        for kind in kinds:
            for attempt in self.ballots.attempts(kind):
                entry = self.ballots.of(kind, attempt, self.before).get(self.me)
                if entry and isinstance(entry.body, Seal) and entry.body.value == value.digest:
                    return entry.message.encoded
        return b""

    def sealers_of(self, value: SealValue) -> set[PeerId]:
        """Whose SEAL of `value` is here, or PSEAL, of whatever attempt."""
        return {
            peer
            for kind in (Kind.SEAL, Kind.PSEAL)
            for attempt in self.ballots.attempts(kind)
            for peer, seal in self.ballots.bodies(kind, Seal, attempt, value.before)
            if seal.value == value.digest
        }

    def moved(self, subject: bytes, source: PeerId, now_s: float) -> None:
        """Bytes of a COMMIT's parts or a LIST's results are arriving from a peer, or announced."""
        if source in self.member_set and self.is_about(subject):
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
            if bulk is Bulk.PART:
                self.came_s[subject] = now_s
        return is_new

    def missing_parts(self, commit: bytes, piece: Slice) -> tuple[int, ...]:
        """Cells of a slice of which the part of that COMMIT is not here."""
        held = self.parts.get(commit)
        if held is None:
            return tuple(range(piece.first, piece.stop))
        return tuple(filterfalse(held.__contains__, range(piece.first, piece.stop)))

    def missing_results(self, digest: bytes) -> tuple[int, ...]:
        """Cells whose result for that LIST is not here."""
        held = self.results.get(digest)
        if held is None:
            return tuple(range(self.num_cells))
        if len(held) == self.num_cells:
            return ()
        return tuple(filterfalse(held.__contains__, range(self.num_cells)))

    def listed(self, body: List) -> list[tuple[PeerId, bytes, Commit]] | None:
        """The listed contributions in the order of the LIST; None while a COMMIT is unknown."""
        found = []
        for digest in body.commits:
            commit = self.ballots.commit_of(digest)
            if commit is None:
                return None
            found.append((commit[0], digest, commit[1]))
        return found

    def agg_of(self, digest: bytes, piece: Slice) -> dict[PeerId, Agg]:
        """Who announced which result root for a slice of a LIST."""
        return dict(self.ballots.bodies(Kind.AGG, Agg, 0, self._subject(digest, piece)))

    def gram_of(self, digest: bytes, piece: Slice) -> dict[PeerId, Gram]:
        """Who announced which partial Gram matrix for a slice of a LIST."""
        return dict(self.ballots.bodies(Kind.GRAM, Gram, 0, self._subject(digest, piece)))

    def _subject(self, digest: bytes, piece: Slice) -> bytes:
        place = (digest, piece.first, piece.stop)
        subject = self._subjects.get(place)
        if subject is None:
            subject = self._subjects[place] = slice_subject(digest, piece.first, piece.stop)
        return subject
