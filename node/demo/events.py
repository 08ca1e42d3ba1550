"""What a node tells its parent: one JSON object per line of standard output."""

import json
import types
import typing
from dataclasses import dataclass, fields

LINE_BYTES_MAX = 64 * 1024
"""The longest event names every linked peer: some sixty bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The node has a peer id, and these addresses with it at their end; `pid` is ours to kill."""

    peer: str
    addresses: tuple[str, ...]
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStarted:
    """The node's trainer process runs."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodChosen:
    """The trainer has its next lease, of which it takes so many steps; how the round before went,
    None where it is not measured. What came back since the last one was `flight_s` in flight; of
    these the trainer stepped `hidden_s`."""

    steps: int
    steps_max: int
    last_steps: int | None
    training_s: float | None
    waiting_s: float | None
    flight_s: float | None
    hidden_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoLinked:
    """A control stream to a peer opened; `linked` is everybody now."""

    peer: str
    linked: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoUnlinked:
    """A control stream to a peer ended; `linked` is everybody left."""

    peer: str
    linked: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntered:
    """The node is now in this phase of a round; "pushing" while its parts are on their way."""

    round: int
    phase: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsMoved:
    """A bulk transfer of parts with `peer` is complete."""

    round: int
    peer: str
    cells: int
    direction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSealed:
    """A round is final at this node; the first of a run is 1. Bytes count from the node's start."""

    round: int
    digest: str
    listed: tuple[str, ...]
    members: int
    voters: int
    attempt: int
    was_listed: bool
    wall_s: float
    bytes_up: int
    bytes_down: int
    train_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Validation loss, nats per byte, of the anchor that `round` made; 0 is genesis."""

    round: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSynced:
    """A joiner has downloaded and checked the state that `round` made."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """The node is on the roster of `round`."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resynced:
    """The node's state was not what the swarm sealed: it takes a copy of the swarm's."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over for this node; `checkpoint` is the folder of its last anchor."""

    round: int
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSeen:
    """A peer broke the protocol."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConvicted:
    """The node holds evidence against a peer, and has checked it."""

    peer: str
    accusation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBanned:
    """The seal of `round` is the first at this node that bans a peer."""

    peer: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The node gives up: `kind` is the class of its error."""

    kind: str
    message: str


Event = (
    Listening
    | TrainerStarted
    | MethodChosen
    | DemoLinked
    | DemoUnlinked
    | PhaseEntered
    | PartsMoved
    | RoundSealed
    | Validated
    | DemoSynced
    | Seated
    | Resynced
    | Finished
    | FaultSeen
    | PeerConvicted
    | PeerBanned
    | Failed
)

_KINDS: dict[str, type[Event]] = {
    "listening": Listening,
    "trainer": TrainerStarted,
    "method": MethodChosen,
    "linked": DemoLinked,
    "unlinked": DemoUnlinked,
    "phase": PhaseEntered,
    "parts": PartsMoved,
    "sealed": RoundSealed,
    "validation": Validated,
    "synced": DemoSynced,
    "seated": Seated,
    "resync": Resynced,
    "finished": Finished,
    "fault": FaultSeen,
    "convicted": PeerConvicted,
    "banned": PeerBanned,
    "error": Failed,
}
_FIELDS = {
    kind: {field.name: typing.get_type_hints(kind)[field.name] for field in fields(kind)}
    for kind in _KINDS.values()
}


def parse_event(line: bytes) -> Event | None:
    """The event in a line; None for a line that is none, or of a kind that we do not know.

    Raises ValueError for a known event whose fields are missing or of the wrong type.
    """
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):  # Something that a library printed.
        return None
    name = body.get("event") if isinstance(body, dict) else None
    if not isinstance(name, str) or name not in _KINDS:
        return None
    kind = _KINDS[name]
    values = {name: _value(body.get(name), hint) for name, hint in _FIELDS[kind].items()}
    wrong = sorted(name for name, value in values.items() if value is _WRONG)
    if wrong:
        raise ValueError(f"event {body['event']}: {', '.join(wrong)} missing or of a wrong type")
    make = typing.cast("typing.Callable[..., Event]", kind)
    return make(**values)


_WRONG = object()


def _value(value: object, hint: object) -> object:
    if isinstance(hint, types.UnionType):
        tried = (_value(value, option) for option in typing.get_args(hint))
        return next((found for found in tried if found is not _WRONG), _WRONG)
    if typing.get_origin(hint) is tuple:
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return tuple(typing.cast("list[str]", value)) if is_list else _WRONG
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is hint else _WRONG
