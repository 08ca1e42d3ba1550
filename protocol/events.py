"""What the pure machines of a node are told with a monotonic time, and what they ask for.

Actions come out in the order in which they must be carried out: a RecordSlot is durable before the
Broadcast behind it leaves.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.evidence import Evidence
from protocol.frames import Bulk, Frame, Phase
from protocol.histories import HistoryKnown as HistoryKnown
from protocol.histories import TwoHistories as TwoHistories
from protocol.identity import PeerId
from protocol.leases import Lease
from protocol.messages import Body, Commit, SealCertificate, SignedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """What a trainer keeps of a round, as `protocol.messages.Work` says it."""

    trace: tuple[bytes, ...]
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Run a segment of somebody's round again; all that it begins with is here. Answer with Reran.

    `lease` is what the round was to be trained on. `inherited` are the roots that inner state and
    residual may have had at its begin; empty where nobody here knows. `since` is the round that
    left them, 0 of none. `step` is the sealed clock's before the round.
    """

    commit_digest: bytes
    sender: PeerId
    commit: Commit
    round: int
    segment: int
    lease: Lease
    inherited: tuple[tuple[bytes, bytes], ...] = ()
    since: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reran:
    """The end that a segment came to, named as `protocol.auditing.audits_machine.end_of` names the
    one that its COMMIT says; empty if it could not be run: then nothing is said."""

    commit_digest: bytes
    segment: int
    found: bytes


@dataclass(frozen=True, slots=True)
class Advance:
    """A round is sealed provisionally (R4): the applied state becomes the anchor, and what is final
    is kept. The certificate holds PSEALs.

    `kept` are the roots of the contributions to the round that is final next, as far as they are
    known: it comes back once there is a quorum, and may then list others than the branch did.
    """

    certificate: SealCertificate
    was_listed: bool
    kept: frozenset[bytes]
    is_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Confirm:
    """The first round of the own branch is final: what was kept goes on by its result.

    `commits` are those that it lists, as far as they are known.
    """

    certificate: SealCertificate
    commits: tuple[SignedMessage, ...]


@dataclass(frozen=True, slots=True)
class FallBack:
    """The branch is given up: the last final state is the anchor again."""

    final: SealCertificate
    lost: SealCertificate
    """The head of the branch."""


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One listed contribution, as an aggregator needs it; `weight` is by tokens, and by what its
    sender has earned."""

    sender: PeerId
    commit_digest: bytes
    weight: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Find the partial Gram matrix of cells [first, stop); answer with Measured."""

    list_digest: bytes
    entries: tuple[ListEntry, ...]
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The partial Gram matrix of one slice; `stats` is its wire form (`training.numeric.gram`)."""

    list_digest: bytes
    first: int
    stop: int
    stats: bytes


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum cells [first, stop) of a certified LIST; answer with Reduced. Entries by sender.

    `grams` are the partial Gram matrices of all slices, where the rule judges whole vectors.
    """

    list_digest: bytes
    entries: tuple[ListEntry, ...]
    first: int
    stop: int
    grams: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduced:
    """The result of one slice is encoded and stored; `root` is over its cell roots."""

    list_digest: bytes
    first: int
    stop: int
    root: bytes


# Actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchState:
    """Gather the state cells of that seal: what arrives, and what is here already.

    Answer with FetchBegun, then Fetched, and at the end StateReady or StateFailed. The cells are
    asked for by the core.
    """

    certificate: SealCertificate


@dataclass(frozen=True, slots=True)
class FetchSteps:
    """Gather the results of these rounds, which follow upon the own head, and take the steps.

    Answer as to FetchState, for the last of them; with StepFailed where a result is wrong.
    """

    certificates: tuple[SealCertificate, ...]


FetchOrder = FetchState | FetchSteps

# Events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchBegun:
    """By subject the cells of the wanted state, or results, that are here; `basis` is its seal's
    digest. Answers FetchState and FetchSteps."""

    basis: bytes
    held: Mapping[bytes, Collection[int]]


@dataclass(frozen=True, slots=True)
class CellsFetched:
    """Cells that were fetched are checked and kept; `subject` is the digest of their seal."""

    peer: PeerId
    subject: bytes
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchedWrong:
    """A peer sent a cell that is not of the sealed state; the fault is told apart from this."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class NotServed:
    """A peer asked for a state or step of which nothing is here: the core tells it so."""

    peer: PeerId
    bulk: Bulk
    subject: bytes


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The result that was fetched for that seal does not lead to its state."""

    subject: bytes


@dataclass(frozen=True, slots=True)
class StateReady:
    """The state of the certified seal is assembled and in place; answers FetchState, FetchSteps.

    `results` names the LISTs whose results were put into the store with it.
    """

    certificate: SealCertificate
    results: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class StateFailed:
    """The source did not deliver the state of that seal."""

    basis: bytes


FetchEvent = (
    FetchBegun | CellsFetched | FetchedWrong | NotServed | StepFailed | StateReady | StateFailed
)


# Events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Working:
    """How far the own trainer is with a round, as the edge is asked before each heartbeat.

    It has `done` so many of `total` steps; the phase ends in `end_s`, None if that is not known.
    """

    round: int
    phase: Phase
    done: int
    total: int
    end_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributed:
    """The own trainer's contribution to round `round` is encoded and stored.

    `basis` names that round: on another branch one has the same number. `work` is there in runs
    with audits.
    """

    round: int
    root: bytes
    cell_norms: tuple[float, ...]
    tokens: int
    samples: int
    steps: int
    residual_before: bytes
    residual_after: bytes
    basis: bytes = b""
    work: WorkDone | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """A signed message arrived; its signature has been checked."""

    message: SignedMessage
    body: Body


@dataclass(frozen=True, slots=True)
class CellsArrived:
    """Verified cells are in the store: parts of a COMMIT, results of a LIST, or state of a seal."""

    bulk: Bulk
    subject: bytes
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The outer step on the results of a LIST is computed, not yet adopted; `root` is its state,
    `base` the root of the one that it was taken on, empty where there can be but one (R4, R5)."""

    list_digest: bytes
    root: bytes
    base: bytes = b""


@dataclass(frozen=True, slots=True)
class SeatChecked:
    """Whether a joiner's proof fits the state of the seal it claims; None: that is not here."""

    peer: PeerId
    basis: bytes
    is_proved: bool | None


@dataclass(frozen=True, slots=True)
class SuspicionsChanged:
    """Everybody whom this node suspects now."""

    suspects: frozenset[PeerId]


@dataclass(frozen=True, slots=True)
class EvidenceHeld:
    """This evidence is held, and was checked here: its subjects are to be banned (R1)."""

    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Woke:
    """This node did not run for so long that the others may have gone on without it (R3)."""


@dataclass(frozen=True, slots=True)
class StatusHeard:
    """A peer told which round it works on, after the last question."""

    peer: PeerId
    round: int


@dataclass(frozen=True, slots=True)
class EndTimePassed:
    """By the own wall clock the run's last hour is over: say so in the next COMMITs."""


@dataclass(frozen=True, slots=True)
class StartNow:
    """The founder's user does not wait for more peers: the first round is to begin (R11)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


LocalRoundEvent = (
    Contributed
    | CellsArrived
    | Reduced
    | Measured
    | Applied
    | SeatChecked
    | SuspicionsChanged
    | EvidenceHeld
    | Woke
    | StatusHeard
    | EndTimePassed
    | StartNow
    | Tick
)
RoundEvent = Heard | LocalRoundEvent

# Actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordSlot:
    """Make this signature durable before anything behind it in the list leaves (R12)."""

    message: SignedMessage


@dataclass(frozen=True, slots=True)
class RecordProof:
    """Make the messages of a round durable: the SEAL behind it in the list rests on them (R12).

    After a restart of all who hold them, nobody else could say what the lock is on.
    """

    messages: tuple[SignedMessage, ...]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send the own signed message to every linked peer."""

    message: SignedMessage


@dataclass(frozen=True, slots=True)
class Push:
    """Send stored cells to a peer on a bulk stream."""

    to: PeerId
    bulk: Bulk
    subject: bytes
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask a peer to push cells. It may lack them; the machine asks again, elsewhere."""

    source: PeerId
    bulk: Bulk
    subject: bytes
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Take the outer step on the complete results of a LIST; answer with Applied.

    `is_empty` marks the empty LIST: the state stays what it is.
    """

    list_digest: bytes
    is_empty: bool


@dataclass(frozen=True, slots=True)
class CheckSeat:
    """Check a joiner's proof against the own state; answer with SeatChecked."""

    peer: PeerId
    basis: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Adopt:
    """A round is final: the applied state becomes the anchor.

    `was_listed` says whether the own contribution is in it (R6); `is_doubtful` that it may be, and
    nobody here can tell.
    """

    certificate: SealCertificate
    was_listed: bool
    is_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Resync:
    """Our state is not what the swarm sealed, and only a copy of the swarm's state mends it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A peer broke the protocol; `reason` is for the log, the strike for `protocol.core.budgets`.
    Of what costs it its turn already there is none."""

    peer: PeerId
    reason: str
    is_strike: bool = True


@dataclass(frozen=True, slots=True)
class Accuse:
    """A peer convicted itself: keep the evidence and tell it to all."""

    evidence: Evidence


RoundAction = (
    RecordSlot
    | RecordProof
    | Broadcast
    | Push
    | Pull
    | Reduce
    | Measure
    | Apply
    | CheckSeat
    | Adopt
    | Advance
    | Confirm
    | FallBack
    | Resync
    | Fault
    | Accuse
    | Rerun
)

# Between a node's core and its edge --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Linked:
    """A control stream to a peer is open, and both hellos are checked."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Unlinked:
    """The control stream to a peer ended; `is_gone`: and its own system says, so did its process.

    That may be known only later: then it is told once more.
    """

    peer: PeerId
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A decoded control frame of a linked peer."""

    peer: PeerId
    frame: Frame


@dataclass(frozen=True, slots=True)
class Overdrawn:
    """A linked peer keeps sending more than its share (`protocol.core.budgets`): what it says comes
    late."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class BytesArrived:
    """Bulk bytes of a peer are arriving: it lives. `is_state` if they are of the wanted state;
    `subject` is what they belong to.

    `num_bytes` came in `seconds` that the line took for them. The first piece of a transfer is in
    neither: nobody knows when it set out.
    """

    peer: PeerId
    is_state: bool = False
    subject: bytes = b""
    num_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BytesGiven:
    """A peer has read bulk bytes that this node sent it; told now and then during a transfer of a
    state, or of a result, and behind a transfer of parts with the seconds that it took. `subject`
    is what they belong to."""

    peer: PeerId
    bulk: Bulk
    subject: bytes
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SeatProven:
    """The own proof for a SEAT on `basis`, and the join puzzle's work; answers ProveSeat."""

    basis: bytes
    proof: bytes
    work: bytes = b""


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """The own trainer is up: only now would a seat be of use. `device` is its class, for audits."""

    device: str = ""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The operator stops this node: say so."""


LocalEvent = (
    RoundEvent
    | Linked
    | Unlinked
    | Overdrawn
    | BytesArrived
    | BytesGiven
    | SeatProven
    | FetchEvent
    | TrainerReady
    | Leaving
    | Reran
)
CoreEvent = FrameArrived | LocalEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Send a control frame to a linked peer."""

    peer: PeerId
    frame: Frame


@dataclass(frozen=True, slots=True)
class SendAll:
    """Send the same control frame to several linked peers: it is made and encoded once."""

    peers: tuple[PeerId, ...]
    frame: Frame


@dataclass(frozen=True, slots=True)
class ProveSeat:
    """Hash the own state for a SEAT on the seal `basis`; answer with SeatProven."""

    basis: bytes


@dataclass(frozen=True, slots=True)
class Train:
    """The trainer may train on the head's anchor with this lease; empty when it is to rest.

    `round` is what for, and `basis` what names that round: the one behind the head, or where two
    are in flight (R5) perhaps the one behind that; `bases` names all that may be contributed to.
    `was_listed` tells what became of its last contribution (R6); `is_resync` that the anchor came
    from others, or that nobody can tell, so that the residual starts from zero.
    """

    certificate: SealCertificate
    lease: Lease
    was_listed: bool
    is_resync: bool
    round: int = 0
    basis: bytes = b""
    bases: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SendChain:
    """Send a peer a page of seals from round `first` on: they are only in the journal."""

    peer: PeerId
    first: int


CoreAction = (
    RoundAction
    | Send
    | SendAll
    | SendChain
    | ProveSeat
    | FetchOrder
    | Train
    | HistoryKnown
    | TwoHistories
)
