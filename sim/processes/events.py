"""What a node tells its parent: one JSON object per line of standard output."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, dataclass_transform

from pydantic import TypeAdapter, ValidationError

LINE_BYTES_MAX = 64 * 1024
"""The longest event names every linked peer: some sixty bytes each."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event:
    """One kind of event; `said_as` is the name by which nodes tell it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    kinds: ClassVar[dict[str, type["Event"]]] = {}

    def __init_subclass__(cls, *, said_as: str) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        Event.kinds[said_as] = cls


class Listening(Event, said_as="listening"):
    """The node has a peer id, and these addresses with it at their end; `pid` is ours to kill."""

    peer: str
    addresses: tuple[str, ...]
    pid: int | None = None


class TrainerStarted(Event, said_as="trainer"):
    """The node's trainer process runs."""

    pid: int


class MethodChosen(Event, said_as="method"):
    """The trainer has its next lease, of which it takes so many steps; how the round before went,
    None where it is not measured. What came back since the last one was `flight_s` in flight; of
    these the trainer stepped `hidden_s`."""

    steps: int
    steps_max: int
    last_steps: int | None = None
    training_s: float | None = None
    beside_s: float | None = None
    waiting_s: float | None = None
    flight_s: float | None = None
    hidden_s: float | None = None


class RoundTimed(Event, said_as="times"):
    """Where the time of the trainer went up to its contribution to that round, from the one before;
    the fields are those of `node.status.records.PhaseTimes`."""

    round: int
    steps: int
    round_s: float
    train_s: float
    validate_s: float
    encode_s: float
    save_s: float
    audit_s: float
    wait_s: float
    exchange_s: float
    seal_s: float


class LinkOpened(Event, said_as="linked"):
    """A control stream to a peer opened; `linked` is everybody now."""

    peer: str
    linked: tuple[str, ...]


class LinkClosed(Event, said_as="unlinked"):
    """A control stream to a peer ended; `linked` is everybody left."""

    peer: str
    linked: tuple[str, ...]


class PhaseEntered(Event, said_as="phase"):
    """The node is now in this phase of a round; "pushing" while its parts are on their way."""

    round: int
    phase: str
    attempt: int


class PartsMoved(Event, said_as="parts"):
    """A bulk transfer of parts with `peer` is complete."""

    round: int
    peer: str
    cells: int
    direction: str


class RoundSealed(Event, said_as="sealed"):
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
    train_loss: float | None = None


class Validated(Event, said_as="validation"):
    """Validation loss, nats per byte, of the anchor that `round` made; 0 is genesis. It is over
    `windows` of the `of_windows` windows that there are for it."""

    round: int
    loss: float
    windows: int | None = None
    of_windows: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is over all of them."""
        return self.windows == self.of_windows


class StateFetched(Event, said_as="synced"):
    """A joiner has downloaded and checked the state that `round` made."""

    round: int


class Seated(Event, said_as="seated"):
    """The node is on the roster of `round`."""

    round: int


class Resynced(Event, said_as="resync"):
    """The node's state was not what the swarm sealed: it takes a copy of the swarm's."""

    reason: str


class Finished(Event, said_as="finished"):
    """The run is over for this node; `checkpoint` is the folder of its last anchor."""

    round: int
    checkpoint: str


class FaultSeen(Event, said_as="fault"):
    """A peer broke the protocol."""

    peer: str
    reason: str


class PeerConvicted(Event, said_as="convicted"):
    """The node holds evidence against a peer, and has checked it."""

    peer: str
    accusation: str


class PeerBanned(Event, said_as="banned"):
    """The seal of `round` is the first at this node that bans a peer."""

    peer: str
    round: int


class Failed(Event, said_as="error"):
    """The node gives up: `kind` is the class of its error."""

    kind: str
    message: str


@cache
def _reader(name: str) -> TypeAdapter[Event]:
    return TypeAdapter(Event.kinds[name])


def parse_event(line: bytes) -> Event | None:
    """The event in a line; None for a line that is none, or of a kind that we do not know.

    Raises ValueError for a known event whose fields are missing or of the wrong type.
    """
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):  # Something that a library printed.
        return None
    name = body.get("event") if isinstance(body, dict) else None
    if not isinstance(name, str) or name not in Event.kinds:
        return None
    try:
        return _reader(name).validate_json(line, strict=True)
    except ValidationError as error:
        wrong = sorted({str(one["loc"][0]) for one in error.errors() if one["loc"]})
        told = f"event {name}: {', '.join(wrong)} missing or of a wrong type"
        raise ValueError(told) from error
