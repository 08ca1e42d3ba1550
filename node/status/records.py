"""What a node says of itself: frozen records, and their form as JSON.

The network process fills them (`node.status.snapshot`), the status server sends them, commands
read them back. Only the standard library is needed here: `barnraise status` starts in no time.
"""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Literal, TypeVar

from protocol.errors import StateError

SCHEMA = 1
"""Raised with each change that a reader of the JSON would trip over; new fields are none."""

TOKEN_FILE = "api.token"  # noqa: S105 - the name of the file
"""In the folder of the run: an Api as JSON, for its owner's eyes alone."""

ROUNDS_KEPT = 256
FAULTS_KEPT = 20

State = Literal[
    "starting",
    "syncing",
    "waiting for peers",
    "training",
    "committed",
    "pushing",
    "certified",
    "waiting for quorum",
    "finished",
]
"""What the node is at: `syncing` follows the run without a seat, or takes over a later state;
`waiting for peers` holds its contribution for them: the first one, or while they fetch the state;
`committed` has handed its contribution in; `pushing` sends its parts to the reducers; `certified`
sums a LIST that a quorum voted for."""

STATES: tuple[State, ...] = typing.get_args(State)


SUSPICION_USE = "chooses audits, bans nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """Where the status server of the process `pid` answers; `token` is a secret."""

    url: str
    token: str = dataclasses.field(repr=False)
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A sealed round, as this node saw it. Bytes are those of the round, over all streams.

    Losses are nats per byte: of the own training, and of the anchor that the round made where this
    node has measured it, over `validation_windows` of the `validation_of` windows of all held-out
    losses.
    """

    round: int
    digest: str
    listed: tuple[str, ...]
    was_listed: bool
    members: int
    voters: int
    attempt: int
    wall_s: float
    bytes_up: int
    bytes_down: int
    train_loss: float | None
    validation_loss: float | None
    validation_windows: int | None = None
    validation_of: int | None = None
    left_out: str | None = None
    """Why the seal does not list this node, a key of LEFT_OUT; None where it does."""


LEFT_OUT = {
    "seat": "it had no seat in that round; it trains again once a seal has given it one",
    "training": (
        "its steps took longer than the others wait; from the next round on it takes as many as "
        "fit its speed"
    ),
    "equal_steps": (
        "its steps took longer than the others wait, and in this run all take equally many: the "
        "next round asks as many of it, so it is listed again once this machine has less other work"
    ),
    "given_up": (
        "it was late so often that the others wait for it only a third longer than for themselves, "
        "for up to 256 rounds; it is listed again in each round in which it is there by then"
    ),
    "held": (
        "it held its contribution for peers that fetch the state from here; each is waited for "
        "within a bound, and once that is used up no longer"
    ),
    "silent": (
        "it signs nothing until enough voters have told where the run is; what it trains counts "
        "again from then on"
    ),
    "line": (
        "its contribution did not reach the others in time; the next round waits for it again"
    ),
}
"""Why a seal does not list a node that trained, and what changes next, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspicionRecord:
    """What the lengths and bytes of a peer's contributions say against it in an open run, here.

    `score` is from 0 to 1. `use` is there for whoever reads the numbers alone.
    """

    score: float
    reasons: tuple[str, ...]
    use: str = SUSPICION_USE


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """Another node. `round` is the one that it says it works on; addresses are as announced.

    `is_convicted`: there is evidence against it, or the last seal bans it. `device` and `software`
    are its own words, spread through all nodes and last heard `told_s_ago`; None where it has told
    nothing. A peer without a link and a seat is known by these alone, and its `round` is the one in
    which it told them.
    """

    peer: str
    is_linked: bool
    is_member: bool
    is_voter: bool
    is_suspected: bool
    is_convicted: bool
    round: int | None
    heard_s_ago: float | None
    addresses: tuple[str, ...]
    device: str | None = None
    software: str | None = None
    told_s_ago: float | None = None
    path: str | None = None
    """How it is connected: "LAN", "direct", "mapped", "punched" or "relayed"."""

    rtt_ms: float | None = None
    """How long its answers take, of late."""

    bytes_up: int | None = None
    bytes_down: int | None = None
    """Payload that was sent to it and came from it, since the start."""

    rate_bytes_s: float | None = None
    """How fast its bulk transfers came in the last rounds."""

    suspicion: SuspicionRecord | None = None
    """None among friends, and of whom no round is known here."""

    device_class: str | None = None
    """In runs with audits what its last listed COMMIT said; None where there is none."""

    set_back_until: int | None = None
    """Until which round others sum and propose before it, because it kept them waiting; None where
    it was not so late."""

    is_audited: bool | None = None
    """Whether so many voters of that class were listed that their words on its training would
    convict it. Of the others nothing but the encoding is looked at, and together they weigh at
    most `unaudited_share`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """What a peer said of itself in its entries, last at `at_unix_s`; `round` is None for those
    that have no seat."""

    device: str
    software: str
    addresses: tuple[str, ...]
    round: int | None
    at_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """What a peer did wrong, `at_s` seconds after the node's start."""

    peer: str
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRecord:
    """The trainer process; what it has not told yet is None.

    `precision` is what matrices are multiplied in, `micro_batch` how many sequences pass through
    the model at once, `loss` nats per byte at the global inner step `step`.
    """

    pid: int | None = None
    device: str | None = None
    precision: str | None = None
    threads: int | None = None
    micro_batch: int | None = None
    step: int | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Where the time of this node's trainer went, in seconds, from one contribution to the next.

    Each moment counts for one phase, by what the trainer did, and while it did nothing by what it
    waited for. `round_s` is measured apart from them, by the clock of the network process; the
    phases add up to it but for what passes between the two processes.
    """

    steps: int = 0
    """Inner steps within `train_s`."""
    round_s: float = 0.0
    train_s: float = 0.0
    """Inner steps."""
    validate_s: float = 0.0
    """Measuring an anchor on held-out text."""
    encode_s: float = 0.0
    """From the drift to the COMMIT."""
    save_s: float = 0.0
    """Keeping what a restart must know."""
    audit_s: float = 0.0
    """Running segments of others again, in runs with audits."""
    wait_s: float = 0.0
    """Waiting for the COMMITs of others."""
    exchange_s: float = 0.0
    """Waiting for parts, votes, sums and results: until the whole result was here."""
    seal_s: float = 0.0
    """Outer step, SEALs of a quorum, and the new weights on their way into the model."""

    @property
    def step_s(self) -> float | None:
        """What an inner step takes."""
        return self.train_s / self.steps if self.steps else None

    def share(self, phase: str) -> float:
        """The part of the round that a phase took, 0..1."""
        seconds: float = getattr(self, f"{phase}_s")
        return seconds / self.round_s if self.round_s > 0.0 else 0.0

    def __add__(self, other: "PhaseTimes") -> "PhaseTimes":
        """Of both together."""
        names = [one.name for one in dataclasses.fields(self)]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return PhaseTimes(**{name: round(total, 4) for name, total in sums.items()})


PHASES = ("train", "validate", "encode", "save", "audit", "wait", "exchange", "seal")
"""The phases of PhaseTimes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRecord:
    """What the run does and what this node chose within it, for the round in hand, and why.

    `steps` of at most `steps_max`; `step_s` is what one takes here, `exchange_s` the time from the
    last COMMIT that came to the outcome, `computing` the share of the last rounds that was inner
    steps. What is not measured yet is None. Where the codec has grades, `grade` is the bits per
    element that this node sends.

    How long all steps of a round take up to the contribution is `whole_s` here, `fastest_s` and
    `slowest_s` of all members; with `equal_steps` everybody takes all of them, and waits for the
    slowest.
    """

    preset: str
    codec: str
    grade: int | None = None
    grade_why: str | None = None
    fragments: int
    steps: int
    steps_max: int
    why: str
    step_s: float | None = None
    exchange_s: float | None = None
    computing: float | None = None
    equal_steps: bool = False
    whole_s: float | None = None
    fastest_s: float | None = None
    slowest_s: float | None = None


EQUAL_STEPS = "all take equally many steps, and a round lasts as long as the slowest needs"
"""What `equal_steps` means, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node at one moment: the answer to `/v1/status`.

    `age_s` is how old the snapshot is when it is sent: a network process that hangs shows by it.
    `rounds_total` is when the run ends at the latest. `was_listed` is about the last sealed round.
    Bytes count from the node's start. `provisional` counts the rounds behind the last final one
    that are sealed without a quorum (R4): they become final or give way. In runs with audits this
    node's class, whether its training is audited, and what those weigh together whose is not.
    """

    schema: int = SCHEMA
    age_s: float = 0.0
    pid: int
    peer: str
    addresses: tuple[str, ...]
    run: str
    title: str
    state: State
    round: int
    rounds_total: int
    attempt: int
    device_class: str | None = None
    is_audited: bool | None = None
    unaudited_share: float | None = None
    members: int
    voters: int
    banned: tuple[str, ...]
    is_member: bool
    is_voter: bool
    set_back_until: int | None = None
    """Until which round others sum and propose before this node, because it kept them waiting;
    None where it was not so late."""

    was_listed: bool | None
    num_sealed: int
    final_round: int = 0
    final_seal: str = ""
    """The last final seal: its round, 0 at genesis, and its digest."""

    provisional: int = 0
    linked: int
    bytes_up: int
    bytes_down: int
    last_round: RoundRecord | None
    validation_round: int | None
    validation_loss: float | None
    validation_windows: int | None = None
    validation_of: int | None = None
    trainer: TrainerRecord
    checkpoint: str | None
    checkpoint_round: int | None
    uptime_s: float
    rss_bytes: int | None
    tasks: int
    descriptors: int | None
    num_faults: int
    faults: tuple[FaultRecord, ...]
    warnings: tuple[str, ...]
    catching_up: str | None = None
    """How far the fetch of a state is, for people; None if there is none."""

    seen_as: tuple[str, ...] | None = None
    """Addresses that relays and bootstrap nodes see this node come from."""

    needs_relay: bool | None = None
    """Whether it has no address that strangers could dial."""

    answers_at: tuple[str, ...] | None = None
    """Public addresses at which others have dialled this node and found it."""

    silent_at: tuple[str, ...] | None = None
    """Public addresses at which others have dialled this node and found nobody."""

    method: MethodRecord | None = None
    """None before the trainer is handed its first lease."""

    last_times: PhaseTimes | None = None
    """Of the last round; None before the trainer has handed its first contribution over."""

    total_times: PhaseTimes | None = None
    """Of all rounds since the node's start."""

    clock_offset_s: float | None = None
    """By how much its clock is ahead of most peers', to a second or two; None if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTable:
    """The answer to `/v1/peers`: all members, everybody else who is linked, and whom entries of the
    replicated state tell of."""

    schema: int = SCHEMA
    run: str
    round: int
    peers: tuple[PeerRecord, ...]
    unaudited_share: float | None = None
    """Of a round's weight, what those may have together who are not audited; None without
    audits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTable:
    """The answer to `/v1/rounds`: the last ROUNDS_KEPT that this node sealed, oldest first."""

    schema: int = SCHEMA
    run: str
    rounds: tuple[RoundRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that the status server knows; never changed, only replaced.

    `taken_s` is a reading of `time.monotonic` in the network process.
    """

    taken_s: float
    status: NodeStatus
    peers: PeerTable
    rounds: RoundTable


R = TypeVar("R", NodeStatus, PeerTable, RoundTable)


def from_plain(kind: type[R], body: object) -> R:
    """The record in what `json` read; fields that this version does not know are left out.

    Raises StateError for another schema, and naming a field that is missing or of a wrong type.
    """
    schema = body.get("schema") if isinstance(body, dict) else None
    if schema != SCHEMA:
        raise StateError(
            f"the node answers with schema {schema!r:.20}, this command reads {SCHEMA}: "
            "use the barnraise that the node runs with"
        )
    return typing.cast("R", _build(kind, body, ""))


def _build(hint: object, value: object, path: str) -> object:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        built = {
            name: _build(inner, value.get(name), f"{path}.{name}" if path else name)
            for name, inner in hints.items()
        }
        return hint(**built)
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        return _build(next(o for o in typing.get_args(hint) if o is not type(None)), value, path)
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_build(typing.get_args(hint)[0], item, path) for item in value)
    if typing.get_origin(hint) is Literal and value in typing.get_args(hint):
        return value
    if hint is float and type(value) is int:
        return float(value)
    # A float that is not finite was sent as null; where one must be, that is what it was.
    if hint is float and value is None:
        return math.nan
    if type(value) is not hint:
        raise StateError(f"the node's answer has no sound field {path or 'at all'}")
    return value
