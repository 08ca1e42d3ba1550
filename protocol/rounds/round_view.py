"""What one round knows: the messages, who holds which cells, and the questions asked of them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import filterfalse

from protocol.events import Contributed
from protocol.frames import Bulk
from protocol.identity import PeerId
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
from protocol.rounds.ballots import BallotEntry, Ballots, Early, Unlisted
from protocol.rounds.reducers import (
    Belief,
    Gathering,
    GatheringAll,
    Slice,
    belief_of,
    few_of,
    one_slice,
    set_back,
)
from protocol.rounds.reducers import slices as cut_slices
from protocol.rounds.round_config import RoundConfig as RoundConfig
from protocol.rounds.round_config import never
from protocol.rounds.seating import is_newcomer

RETRY_GROWTH = 1.5
RETRY_GROWTH_STEPS_MAX = 4


# Records ------------------------------------------------------------------------------------------
#
# What a view is made of: one record for each thing that one rule, or one part of the machine,
# writes.

Lock = tuple[int, bytes]
"""The attempt of the latest own SEAL, and the digest of its LIST."""

Request = tuple[str, bytes, int, PeerId]
"""What was asked for once: what to do with which cells of which subject, and by or to whom."""


@dataclass(frozen=True, slots=True)
class RoundSeals:
    """The seals that a round stands on. Nobody writes here: `RoundView` takes another record when
    the seal before the round is made, is final, or is given up."""

    head: SealValue
    """The seal before the round. While the round `is_beside` the round before it, that seal is not
    there yet: then this is the seal before that one, until the view is told to `stand_on` its own.
    """
    final: SealValue
    """The seal that names the round which is to be final next: `head` itself, or on a branch (R4)
    an earlier one, and with two rounds in flight the one before that. Its voters seal provisional
    rounds."""
    named_by: SealValue | None = None
    """With two rounds in flight (R5) the seal before `head`, which names roster, slots and closer.
    None stands for `head` itself."""
    is_beside: bool = False
    """Whether the seal before the round is not there yet (R5)."""

    @property
    def named(self) -> SealValue:
        """The seal that names the round."""
        return self.head if self.is_beside or self.named_by is None else self.named_by

    @property
    def before(self) -> bytes:
        """The digest of the seal before the round, which the seal of the round names; empty while
        that is not there."""
        return b"" if self.is_beside else self.head.digest

    @property
    def basis(self) -> bytes:
        """The digest of the seal that names the round (`named`). Where that is the seal before
        `head`, the digest is read from `head`: genesis has the digest of the run in that place, so
        that no two rounds have the same basis (R5)."""
        return self.head.digest if self.is_beside or self.named_by is None else self.head.before

    @property
    def index(self) -> int:
        """The number of the round."""
        return self.head.round + 1 + self.is_beside


@dataclass(frozen=True, slots=True)
class MemberRoles:
    """Who of the members votes, and whom the round does not wait for, by its roster alone. Nobody
    writes here."""

    electorate: tuple[PeerId, ...]
    """Who votes."""
    belief: Belief
    """How many equal words about a slice are believed, and whose (R7)."""
    set_back: frozenset[PeerId]
    """Who comes last among reducers and closers here, and is not waited for as such (R8)."""
    newcomers: frozenset[PeerId]
    """Of whom no SEAL was seen yet, in open runs; not those for whom the founder waited."""
    absentees: frozenset[PeerId]
    """In open runs: whose COMMIT too few had seen, however late, by the last reports (R1)."""
    few: int
    """So many members may be late without a say in how long the others wait."""


@dataclass(frozen=True, slots=True)
class ExpectedPeers:
    """Whom the round counts on. Nobody writes here: RoundMachine gives the view other suspects."""

    suspects: frozenset[PeerId]
    """Who is waited for no longer: whom this node suspects, and the convicted."""
    convicted: frozenset[PeerId]
    """Against whom there is evidence; a closer lists none of them."""
    expected: frozenset[PeerId]
    """The members whom this node does not suspect, itself always."""


@dataclass(slots=True)
class RoundTimes:
    """When the round and its attempt began, in monotonic seconds. RoundMachine writes it, and what
    refills a view after a restart; whoever sees progress moves `progress_s`."""

    started_s: float
    opened_s: float | None = None
    """When a quorum had committed, from which the deadlines of attempt 0 count."""
    entered_s: float = 0.0
    """When the attempt began, infinite while too few are seen in it (open runs)."""
    progress_s: float = 0.0
    """When the last cells came that were new, or the last Gram matrix that is believed."""
    committed_s: float | None = None
    """When the last COMMIT of another peer came before any LIST."""
    time_outs: int = 0
    """How many attempts of this round ended because nothing moved for too long."""


@dataclass(slots=True)
class PartArrivals:
    """When COMMITs and their parts came, from which the next rounds learn their deadline.
    `agreement` writes it; RoundMachine when a COMMIT came, and the view when parts did."""

    commit_s: dict[PeerId, float] = field(default_factory=dict)
    """When the COMMIT of each member came here."""
    parts_s: dict[bytes, float] = field(default_factory=dict)
    """When the last of the parts of each COMMIT came that were new here."""
    sent_s: dict[PeerId, float] = field(default_factory=dict)
    """How long the line took for the own parts, by who has them."""
    is_timed: bool = False
    """Whether a deadline was learned from this round."""
    awaited_commits: frozenset[bytes] = frozenset()
    """The COMMITs known when the first HAVE was signed without some of their parts."""
    late_s: dict[bytes, float] = field(default_factory=dict)
    """Of those that lacked parts, when these had come; infinite while they have not."""


@dataclass(slots=True)
class OwnWords:
    """What this node gave to the round and signed in it. RoundMachine writes it, and what refills a
    view after a restart; `Courtesy` writes `held_until_s`."""

    commit: bytes = b""
    """The digest of the own COMMIT."""
    seal: bytes = b""
    """The own SEAL of the seal that names the round: the own COMMIT carries it (R1)."""
    lock: Lock | None = None
    contribution: Contributed | None = None
    is_out_of_hand: bool = False
    """Whether the trainer began anew since, so that it holds nothing of what was committed."""
    held_until_s: float | None = None
    """Until when the own COMMIT is held for joiners; None before it was ready."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom some cells were asked of last, when, and how often they were asked for."""

    source: PeerId
    at_s: float
    count: int
    sources: tuple[PeerId, ...]
    """All of whom they were asked, the last at the end."""


@dataclass(slots=True)
class RoundCells:
    """Which cells are here, and what was done to have and to give the others. The view and `supply`
    write it; `agreed` what this node summed itself."""

    num_cells: int
    parts: dict[bytes, set[int]] = field(default_factory=dict)
    """Cells in the own store, by COMMIT digest."""
    results: dict[bytes, set[int]] = field(default_factory=dict)
    """Likewise by LIST digest."""
    asked: dict[tuple[bytes, int], Asked] = field(default_factory=dict)
    """Of whom the cells of a subject from some cell on were asked last."""
    moved_s: dict[tuple[bytes, PeerId], float] = field(default_factory=dict)
    """When bytes of a subject came from a peer."""
    moves: int = 0
    """How often bytes came since the last cell that was new."""
    requested: set[Request] = field(default_factory=set)
    pushed_among: frozenset[PeerId] | None = None
    """Who was expected when the own parts were pushed last."""

    def forget(self) -> None:
        """The store has been emptied: all bytes have to be asked for again."""
        self.parts.clear()
        self.results.clear()
        self.asked.clear()
        self.requested.clear()

    def is_moving(self, subject: bytes, source: PeerId, *, now_s: float, within_s: float) -> bool:
        """Whether bytes of a subject came from a peer so lately."""
        return now_s - self.moved_s.get((subject, source), -math.inf) < within_s

    def missing_parts(self, commit: bytes, piece: Slice) -> tuple[int, ...]:
        """Cells of a slice of which the part of that COMMIT is not here."""
        held = self.parts.get(commit)
        if held is None:
            return tuple(range(piece.first, piece.stop))
        return tuple(filterfalse(held.__contains__, range(piece.first, piece.stop)))

    def lacks_part(self, commit: bytes, pieces: Iterable[Slice]) -> bool:
        """Whether of any cell of these slices the part of that COMMIT is not here."""
        held = self.parts.get(commit)
        return held is None or any(
            not held.issuperset(range(piece.first, piece.stop)) for piece in pieces
        )

    def missing_results(self, digest: bytes) -> tuple[int, ...]:
        """Cells whose result for that LIST is not here."""
        held = self.results.get(digest)
        if held is None:
            return tuple(range(self.num_cells))
        if len(held) == self.num_cells:
            return ()
        return tuple(filterfalse(held.__contains__, range(self.num_cells)))


@dataclass(slots=True)
class BelievedSums:
    """What is known of the sums of each LIST. `agreed` writes it, and `supply` since when there is
    something to sum; RoundMachine the own Gram matrix, where everybody sums."""

    agreed: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    """The result roots that are believed in open runs, by LIST and first cell of the slice."""
    grams: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    """The same of partial Gram matrices, which there are if the run `uses_gram`."""
    measured: dict[bytes, tuple[int, float]] = field(default_factory=dict)
    """Of how many slices the Gram matrix is believed, and since when."""
    summable_s: dict[bytes, float] = field(default_factory=dict)
    """Since when all can sum a LIST, for enough agree on its Gram matrices."""
    certified_s: dict[bytes, float] = field(default_factory=dict)
    """Since when a LIST may be summed here."""


@dataclass(slots=True)
class RoundOutcome:
    """What the round comes to, here and on branches. RoundMachine writes it, and `Standing` where a
    branch is left or comes back."""

    applied: dict[bytes, bytes] = field(default_factory=dict)
    """By LIST digest the root of the state that the outer step on it gives."""
    values: dict[bytes, SealValue] = field(default_factory=dict)
    """What the seals of these LISTs would say."""
    followed: bytes = b""
    """A LIST from which others went on on a branch: its result is taken from them."""
    bound: bytes = b""
    """The LIST that a branch made of this round."""
    is_meeting: bool = False
    """While there may be such a LIST that is not known yet."""
    is_diverged: bool = False
    """Whether others sealed something else than this node makes of the same LIST."""


@dataclass(slots=True)
class SeatProofs:
    """Whose proof for a seat was looked at (R11). `Proofs` writes it."""

    proven: set[PeerId] = field(default_factory=set)
    checked: set[PeerId] = field(default_factory=set)
    """Those whose proof is looked at or was, right or wrong."""


@dataclass(slots=True)
class RoundLapses:
    """Who kept this node waiting for what it owed (R8). `lapses` writes it, `agreed` of sums,
    `proposal` the second calls, and RoundMachine late COMMITs and when HAVEs came."""

    lapsed: set[PeerId] = field(default_factory=set)
    """Who kept this node waiting in this round for a HAVE or LIST that it owed."""
    late_to_sum: set[PeerId] = field(default_factory=set)
    """Whose GRAM or AGG was not here when it was due: others push results in their place."""
    owed_sums: set[tuple[PeerId, int]] = field(default_factory=set)
    """Of them who still owed it `relayed_s` later, with the first cell of the slice."""
    overdue: set[PeerId] = field(default_factory=set)
    """Whose COMMIT came so late that others may have said HAVE without it."""
    said_s: dict[tuple[int, PeerId], float] = field(default_factory=dict)
    """When the last HAVE or HOLD of each attempt came here, by its sender."""
    looked_at: set[tuple[str, int]] = field(default_factory=set)
    """What was looked at in each attempt, and need not be again."""
    ready_s: dict[int, float] = field(default_factory=dict)
    """Since when the closer of each attempt need wait for nobody."""
    to_list: dict[int, frozenset[PeerId]] = field(default_factory=dict)
    """Who was complete in each attempt when HAVEs were late: whom a later LIST has to name."""
    second_call_s: dict[int, float] = field(default_factory=dict)
    """When substitutes were called in each attempt, to hold what too few said that they hold."""


@dataclass(slots=True)
class RoundWaits:
    """For whom the round waits beyond its deadline. `Patience` writes it."""

    is_held: bool = False
    """Whether the clock of the attempt stands still, for members that it needs move on."""
    held_for: frozenset[tuple[PeerId, bool]] = frozenset()
    """These members, and whether each had committed."""
    moved_s: float = -math.inf
    """When the last of them moved, or came to what the round needed: it goes on from there."""
    given_up: frozenset[PeerId] = frozenset()
    """Who is late, and has spent what others wait for it or is waited for by too few."""
    left_behind_s: dict[PeerId, float] = field(default_factory=dict)
    """Since when most have said what they hold without waiting for the COMMIT of a member."""
    done_s: dict[int, float] = field(default_factory=dict)
    """Since when only few are late, by what is waited for."""
    late: frozenset[PeerId] = frozenset()
    """Who was late at the last look."""
    charged_s: float = -math.inf
    """Until when waiting is charged to those for whom it is."""
    look_s: float = math.inf
    """When any of this may change though nothing is heard."""


# Round view ---------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RoundView:
    """One round as this node sees it: what names it, and a record for each thing known of it.

    What stands here itself is the same as long as the round lasts, but for the `attempt` and the
    records that are replaced whole: `seals` and `peers`, by the methods for it.
    """

    config: RoundConfig
    me: PeerId
    seals: RoundSeals
    times: RoundTimes
    index: int = field(init=False)
    basis: bytes = field(init=False)
    roster: Roster = field(init=False)
    members: tuple[PeerId, ...] = field(init=False)
    """Who may contribute, ascending."""
    member_set: frozenset[PeerId] = field(init=False)
    roles: MemberRoles = field(init=False)
    slices: tuple[Slice, ...] = field(init=False)
    ballots: Ballots = field(init=False)
    peers: ExpectedPeers = field(init=False)
    attempt: int = 0
    """The attempt that this node works in. RoundMachine writes it, and what refills a view."""
    arrivals: PartArrivals = field(default_factory=PartArrivals)
    own: OwnWords = field(default_factory=OwnWords)
    cells: RoundCells = field(init=False)
    sums: BelievedSums = field(default_factory=BelievedSums)
    outcome: RoundOutcome = field(default_factory=RoundOutcome)
    seats: SeatProofs = field(default_factory=SeatProofs)
    lapses: RoundLapses = field(default_factory=RoundLapses)
    waits: RoundWaits = field(default_factory=RoundWaits)
    early: Early = field(default_factory=Early)
    """Messages of the next round."""
    unlisted: Unlisted = field(default_factory=Unlisted)
    """Sums of LISTs that are not known yet."""
    ended: "RoundView | None" = None
    """The round that the seal which names this one has ended, where it is known: what still comes
    of it is filed there, and told in the own COMMIT here."""
    _closers: dict[int, PeerId] = field(default_factory=dict, init=False)
    _drawn: dict[tuple[str, int], bool] = field(default_factory=dict, init=False)
    _gathering: Gathering = field(init=False)
    _subjects: dict[tuple[bytes, int, int], bytes] = field(default_factory=dict, init=False)
    """What the slots of slices are called: asked for with every message of the round."""

    def __post_init__(self) -> None:
        config, seals = self.config, self.seals
        self.index, self.basis = seals.index, seals.basis
        self.roster = roster = seals.named.roster
        self.members, self.member_set = roster.members, roster.member_set
        is_open = config.trust == "open"
        belief = belief_of(roster, config.trust, without=config.without)
        electorate = rosters.voters(roster)
        self.roles = MemberRoles(
            electorate=electorate,
            belief=belief,
            set_back=set_back(roster),
            newcomers=frozenset(s.peer for s in roster.seats if is_open and is_newcomer(s)),
            absentees=frozenset(s.peer for s in roster.seats if is_open and s.absent),
            few=few_of(len(self.members), len(electorate), config.trust),
        )
        self.suspect(frozenset())
        self.ballots = Ballots(self.basis, seals.head.shard, self.index, roster, config.trust)
        num_cells = config.num_cells(self.index)
        self.cells = RoundCells(num_cells)
        if config.everybody_sums:
            self.slices = one_slice(roster, num_cells)
            self._gathering = GatheringAll(self.slices, self.me, belief)
        else:
            cut = cut_slices if config.derived is None else config.derived.slices
            self.slices = cut(roster, self.basis, num_cells, trust=config.trust)
            self._gathering = Gathering(self.slices, self.me, belief)

    @property
    def is_member(self) -> bool:
        """Whether this node may contribute."""
        return self.me in self.member_set

    @property
    def copies(self) -> int:
        """How many members hold and sum each slice at least."""
        return self.roles.belief.least

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
        return self.seals.is_beside or self.seals.named_by is not None

    def may_speak(self, peer: PeerId) -> bool:
        """Whether a provisional round may need that peer: as its member, or a member of the last
        final roster."""
        return peer in self.member_set or peer in self.seals.final.roster.member_set

    def elect_sealers(self, sealers: frozenset[PeerId]) -> None:
        """Go on as a provisional round of these sealers, or with nobody as an ordinary one."""
        if bool(sealers) != self.is_provisional:
            self._closers.clear()
        self.ballots.elect(sealers)

    def stand_on(self, head: SealValue, now_s: float) -> None:
        """The round before is final by that seal: this one is the next, and may be sealed (R5)."""
        assert self.seals.is_beside
        assert head.before == self.basis
        self.seals = RoundSeals(head, self.seals.final, named_by=self.seals.named)
        self.times.progress_s = now_s

    def give_up_head(self) -> None:
        """The seal that it stood on is given up (R4): this round is beside that one again (R5).

        What was signed here stays signed. Of another state another step is taken.
        """
        seals, outcome = self.seals, self.outcome
        assert seals.named_by is not None
        self.seals = RoundSeals(seals.named, seals.final, is_beside=True)
        outcome.followed, outcome.bound, outcome.is_diverged = b"", b"", False
        outcome.applied.clear()
        outcome.values.clear()
        requested = self.cells.requested
        self.cells.requested = {request for request in requested if request[0] != "apply"}

    def forget_cells(self) -> None:
        """The store has been emptied: all bytes have to be asked for again."""
        self.cells.forget()
        self.outcome.applied.clear()
        self.outcome.values.clear()

    def set_final(self, final: SealValue) -> None:
        """Another seal now names the round that is to be final next."""
        self.seals = replace(self.seals, final=final)

    def decide_final(self) -> None:
        """The seal before is final now: this round decides what is final next."""
        self.set_final(self.seals.named)
        self._closers.clear()

    def rare(self, name: str) -> bool:
        """Whether a rare branch is taken; drawn once per attempt, however often a rule asks."""
        if self.config.rare is never:
            return False
        key = (name, self.attempt)
        if key not in self._drawn:
            self._drawn[key] = self.config.rare(name)
        return self._drawn[key]

    def suspect(
        self, suspects: frozenset[PeerId], convicted: frozenset[PeerId] = frozenset()
    ) -> None:
        """Take over whom this node suspects, and who is convicted; it never suspects itself."""
        suspects |= convicted
        expected = self.member_set - (suspects - {self.me})
        self.peers = ExpectedPeers(suspects, convicted, expected)

    @property
    def awaited(self) -> frozenset[PeerId]:
        """Whose COMMIT and parts the round waits for still."""
        given_up = self.waits.given_up
        return self.awaited_at_first - given_up if given_up else self.awaited_at_first

    @property
    def awaited_at_first(self) -> frozenset[PeerId]:
        """Those for whom it waits at first, before patience with any of them is spent.

        An open run does not wait for newcomers, nor for absentees, before they commit: anybody can
        prove a seat for a key that then does nothing, and everything else can be said without a
        COMMIT.
        """
        absent = (self.roles.newcomers | self.roles.absentees).difference(self.ballots.commits)
        return self.peers.expected - absent if absent else self.peers.expected

    @property
    def has_voted(self) -> bool:
        """Whether this node has voted for a LIST in the attempt it works in."""
        kind = Kind.PVOTE if self.is_provisional else Kind.VOTE
        return self.me in self.ballots.of(kind, self.attempt)

    def take_contribution(self, event: Contributed) -> None:
        """The own trainer has given its contribution, if it is to this round."""
        if event.round != self.index or event.basis not in (b"", self.basis):
            return
        self.own.contribution, self.own.is_out_of_hand = event, False
        # Committed before a restart: the same bytes again, or the COMMIT stands without them.
        commit = self.ballots.commit_of(self.own.commit)
        if commit is not None and commit[1].root == event.root:
            self.cells.parts[self.own.commit] = set(range(self.cells.num_cells))

    def start_clock(self, now_s: float) -> None:
        """The clock of attempt 0 starts when a quorum has committed: until then all train."""
        if self.times.opened_s is None and self.can_open():
            self.times.opened_s = self.times.progress_s = now_s

    def is_named(self, digest: bytes) -> bool:
        """Whether a LIST of that digest was proposed, certified or sealed, as far as is known."""
        return digest == self.outcome.followed or self.ballots.is_named(digest)

    def can_open(self) -> bool:
        """Whether enough have committed: a quorum; provisionally, most of those in reach."""
        committed = self.ballots.of(Kind.COMMIT)
        if self.is_provisional:
            return 2 * sum(peer in committed for peer in self.peers.expected) > len(
                self.peers.expected
            )
        return self.has_quorum(set(committed))

    def is_listed_in(self, value: SealValue) -> bool:
        """Whether the contribution in the trainer's hands is in that seal (R6).

        After a damaged log the own COMMIT may only be known from others, and be of other bytes.
        """
        own = self.ballots.commits.get(self.me)
        if own is None or own[0] not in value.commits or self.own.is_out_of_hand:
            return False
        if self.own.contribution is None:
            return own[0] == self.own.commit
        return self.own.contribution.root == own[1].root

    def is_doubtful(self, value: SealValue) -> bool:
        """Whether that seal may list what the trainer is about to give again, as nobody can tell.

        After a damaged log, a COMMIT that only others remember is sealed before the trainer is up:
        it may be what the trainer holds, or of a disk that is lost (R6, R12).
        """
        own = self.ballots.commits.get(self.me)
        is_theirs = own is not None and own[0] in value.commits and own[0] != self.own.commit
        return is_theirs and self.own.contribution is None

    @property
    def attempt_start_s(self) -> float:
        """The moment from which the deadlines of the attempt are counted; infinite while its clock
        stands still."""
        if self.waits.is_held:
            return math.inf
        if self.attempt == 0 and self.times.opened_s is not None:
            return max(self.times.opened_s, self.waits.moved_s)
        return max(self.times.entered_s, self.waits.moved_s)

    def commits(self) -> Iterator[tuple[PeerId, bytes, Commit]]:
        """Sender, digest and body of every COMMIT, ascending by sender."""
        for sender, (digest, body) in self.ballots.commits.items():
            yield sender, digest, body

    def has_quorum(self, peers: set[PeerId]) -> bool:
        """Whether the voters among `peers` are a quorum; a provisional round needs them all."""
        if self.is_provisional:
            return self.ballots.sealers <= peers
        return rosters.has_quorum(self.roster, peers, trust=self.config.trust)

    @property
    def other_voters(self) -> set[PeerId]:
        """All voters but this node."""
        return set(self.roles.electorate) - {self.me}

    @property
    def num_to_ask(self) -> int:
        """R12: so many other voters that every quorum has one of them in it.

        There are not so many others where this node alone is a quorum, the only voter or of two
        the eldest: nobody knows what it made final and told nobody.
        """
        most = len(self.other_voters)
        if self.is_quorum_alone:
            return most + 1
        return min(rosters.blocking(len(self.roles.electorate), self.config.trust), most)

    @property
    def is_quorum_alone(self) -> bool:
        """Whether this node needs no other voter to make a round final."""
        return rosters.has_quorum(self.roster, {self.me}, trust=self.config.trust)

    @property
    def may_be_open(self) -> int:
        """R12: the last round in which, for all that this node knows, others may have signed.

        Once it has SEALed, somebody may have the quorum and have begun the next.
        """
        return self.index + (self.own.lock is not None)

    def closer(self, attempt: int) -> PeerId:
        """Who proposes in `attempt`."""
        found = self._closers.get(attempt)
        if found is None:
            found = self._ordinary_closer(attempt)
            if self.is_provisional:
                found = rosters.provisional_closer(self.seals.final.roster, self.basis, attempt)
            self._closers[attempt] = found
        return found

    def _ordinary_closer(self, attempt: int) -> PeerId:
        return rosters.closer(self.roster, self.basis, self.seals.head.shard, attempt)

    def can_close(self, attempt: int) -> bool:
        """Whether the closer of `attempt` is in reach; of a provisional round, one who seals it."""
        closer = self.closer(attempt)
        return (
            closer in self.ballots.sealers
            if self.is_provisional
            else closer not in self.peers.suspects
        )

    def may_close(self, peer: PeerId, attempt: int) -> bool:
        """Whether that peer proposes in `attempt`, be it ordinary or provisional for it."""
        named = (self.seals.final.roster, self.roster)
        provisional = (rosters.provisional_closer(one, self.basis, attempt) for one in named)
        return peer == self._ordinary_closer(attempt) or peer in provisional

    def proposal(self) -> BallotEntry | None:
        """The LIST of this attempt, from its closer."""
        return self.ballots.of(Kind.LIST, self.attempt).get(self.closer(self.attempt))

    def gathering(self) -> Gathering:
        """Who holds and sums which slices now."""
        # Provisional attempts pass by the closers that are out of reach: few of them have failed.
        failed = self.times.time_outs if self.is_provisional else self.attempt
        return self._gathering.at(failed, self.peers.suspects)

    def own_slices(self) -> list[Slice]:
        """Slices that this node gathers and sums now."""
        return self.gathering().own

    def kept_slices(self) -> list[Slice]:
        """Slices of which this node holds parts now: in open runs more than it sums."""
        return self.gathering().kept

    def slot(self, kind: Kind, *, attempt: int = 0, subject: bytes = b"") -> Slot:
        """A signature's place in this round."""
        return Slot(
            run=self.seals.head.run,
            shard=self.seals.head.shard,
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
                entry = self.ballots.of(kind, attempt, self.seals.before).get(self.me)
                if entry and isinstance(entry.body, Seal) and entry.body.value == value.digest:
                    return entry.message.encoded
        return b""

    def sealers_of(self, value: SealValue) -> set[PeerId]:
        """Whose SEAL of `value` is here, or PSEAL, of whatever attempt."""
        return {
            peer
            for kind in (Kind.SEAL, Kind.PSEAL)
            for attempt in self.ballots.attempts(kind)
            for peer, seal in self.ballots.bodies(kind, Seal, attempt, value.before).items()
            if seal.value == value.digest
        }

    def note_movement(self, subject: bytes, source: PeerId, now_s: float) -> None:
        """Bytes of a COMMIT's parts or a LIST's results are arriving from a peer, or announced."""
        if source in self.member_set and self.is_about(subject):
            self.cells.moved_s[subject, source] = now_s
            self.cells.moves += 1

    def ask_due_s(self, subject: bytes, first: int, retry_s: float) -> float:
        """When cells may be asked for that were asked for before.

        At once if their source is suspected; else when nothing has come from it for a while, which
        is longer each time: on a slow line a second answer is what delays the first.
        """
        asked = self.cells.asked[subject, first]
        if asked.source in self.peers.suspects:
            return asked.at_s
        moved_s = self.cells.moved_s.get((subject, asked.source), asked.at_s)
        growth = RETRY_GROWTH ** min(asked.count - 1, RETRY_GROWTH_STEPS_MAX)
        return max(asked.at_s, moved_s) + retry_s * growth

    def may_ask(self, subject: bytes, first: int, *, now_s: float, retry_s: float) -> bool:
        """Whether there is no reason to wait before these cells are asked for."""
        is_new = (subject, first) not in self.cells.asked
        return is_new or now_s >= self.ask_due_s(subject, first, retry_s)

    def ask(
        self, subject: bytes, first: int, sources: list[PeerId], *, now_s: float, at_once: int = 1
    ) -> list[PeerId]:
        """Whom to ask for cells that `may_ask` has let pass; who was not asked yet comes first."""
        if not sources:
            return []
        asked = self.cells.asked.get((subject, first))
        before = () if asked is None else asked.sources
        order = sorted(sources, key=lambda peer: before.index(peer) if peer in before else -1)
        chosen = (order[::-1] if self.rare("other-source") else order)[:at_once]
        count = 1 if asked is None else asked.count + 1
        before = (*(peer for peer in before if peer not in chosen), *chosen)
        self.cells.asked[subject, first] = Asked(chosen[0], now_s, count, before)
        return chosen

    def is_about(self, subject: bytes) -> bool:
        """Whether that is a COMMIT or a LIST of this round."""
        ballots = self.ballots
        return ballots.commit_of(subject) is not None or ballots.list_of(subject) is not None

    def add_cells(
        self, bulk: Bulk, subject: bytes, cells: tuple[int, ...], *, now_s: float
    ) -> bool:
        """Cells are in the own store; whether any of them is new, which is progress."""
        store = self.cells.parts if bulk is Bulk.PART else self.cells.results
        held = store.setdefault(subject, set())
        is_new = not held.issuperset(cells)
        held.update(cells)
        if is_new:
            self.times.progress_s = now_s
            self.cells.moves = 0
            if bulk is Bulk.PART:
                self.arrivals.parts_s[subject] = now_s
        return is_new

    def listed(self, body: List) -> list[tuple[PeerId, bytes, Commit]] | None:
        """The listed contributions in the order of the LIST; None while a COMMIT is unknown."""
        found = []
        for digest in body.commits:
            commit = self.ballots.commit_of(digest)
            if commit is None:
                return None
            found.append((commit[0], digest, commit[1]))
        return found

    def agg_of(self, digest: bytes, piece: Slice) -> Mapping[PeerId, Agg]:
        """Who announced which result root for a slice of a LIST."""
        return self.ballots.bodies(Kind.AGG, Agg, 0, self._subject(digest, piece))

    def gram_of(self, digest: bytes, piece: Slice) -> Mapping[PeerId, Gram]:
        """Who announced which partial Gram matrix for a slice of a LIST."""
        return self.ballots.bodies(Kind.GRAM, Gram, 0, self._subject(digest, piece))

    def _subject(self, digest: bytes, piece: Slice) -> bytes:
        place = (digest, piece.first, piece.stop)
        subject = self._subjects.get(place)
        if subject is None:
            subject = self._subjects[place] = slice_subject(digest, piece.first, piece.stop)
        return subject
