"""What a node did: the records that the invariants are checked against.

A real node writes them as JSON lines (`--trace FILE`), the simulator makes the same objects; both
from the same actions of the core, in the order in which they are carried out. A record tells what
is durable already and has not left yet, so that a killed node has told no less than it said.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import get_args

from protocol import limits
from protocol.errors import DecodeError
from protocol.evidence import Evidence
from protocol.identity import PeerId
from protocol.messages import SealCertificate, SignedMessage, decode_message
from protocol.wire import decode, encode

TRACE_LINE_BYTES_MAX = 4 * limits.CONTROL_FRAME_BYTES_MAX
"""Two seals of the largest roster in base64, and their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A node began, or began again, at the round that follows the final seal `head`.

    Where it stands on a branch (R4), an Advanced in the same moment follows for each seal of that.

    `is_lost` says that it knows signatures of its own to be missing (R12).
    """

    at_s: float
    peer: PeerId
    round: int
    head: SealCertificate
    is_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A signature of the node is durable, and is about to leave."""

    at_s: float
    peer: PeerId
    message: SignedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A round is final here. `root` is of the state that the node goes on from.

    `was_listed` says whether its own contribution is in it.
    """

    at_s: float
    peer: PeerId
    certificate: SealCertificate
    root: bytes
    was_listed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """A round is sealed provisionally here (R4), and the node goes on from it.

    The certificate holds PSEALs. `root` is of the state that it goes on from.
    """

    at_s: float
    peer: PeerId
    certificate: SealCertificate
    root: bytes
    was_listed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The first round of the branch that the node is on is final; `root` is of its state."""

    at_s: float
    peer: PeerId
    certificate: SealCertificate
    root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack:
    """The node gave its branch up, and goes on from the last final seal; `lost` was the head."""

    at_s: float
    peer: PeerId
    final: SealCertificate
    lost: SealCertificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The node goes on from a sealed state that came from others; `root` is of what it has now."""

    at_s: float
    peer: PeerId
    certificate: SealCertificate
    root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """The node holds that `of` broke the protocol."""

    at_s: float
    peer: PeerId
    of: PeerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Convicted:
    """The node holds this evidence, which it has checked: its subject is to be banned."""

    at_s: float
    peer: PeerId
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """The node found that its state is not what the swarm sealed."""

    at_s: float
    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What the node holds now: resident memory, open files and sockets, tasks, messages kept."""

    at_s: float
    peer: PeerId
    memory_bytes: int
    files: int
    tasks: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The node ended by itself: its run is over, it left, or an error stopped it."""

    at_s: float
    peer: PeerId
    reason: str


Record = (
    Began
    | Signed
    | Adopted
    | Advanced
    | Confirmed
    | FellBack
    | Synced
    | Accused
    | Convicted
    | Diverged
    | Used
    | Ended
)
_KINDS: dict[str, type[Record]] = {kind.__name__.lower(): kind for kind in get_args(Record)}

Tracer = Callable[[Record], None]
"""SEAM: takes each record as it happens; never waits."""


def trace_line(record: Record) -> str:
    """One line of JSON, without its end."""
    plain: dict[str, object] = {"kind": type(record).__name__.lower()}
    plain |= {field.name: _plain(getattr(record, field.name)) for field in fields(record)}
    return json.dumps(plain, separators=(",", ":"))


def parse_trace_line(line: str) -> Record:
    """Inverse of `trace_line`; signatures are not checked. Raises DecodeError for other text."""
    if len(line) > TRACE_LINE_BYTES_MAX:
        raise DecodeError(f"a trace line of {len(line)} characters")
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"no trace line: {error}") from error
    kind = _KINDS.get(str(plain.get("kind"))) if isinstance(plain, dict) else None
    if kind is None:
        raise DecodeError("no trace line: no such kind of record")
    names = [field.name for field in fields(kind)]
    if plain.keys() != {"kind", *names}:
        raise DecodeError(f"{kind.__name__}: expected the fields {', '.join(names)}")
    types = {field.name: field.type for field in fields(kind)}
    read = {name: _read(types[name], plain[name], f"{kind.__name__}.{name}") for name in names}
    return kind(**read)  # type: ignore[arg-type]


def _plain(value: object) -> object:
    match value:
        case SignedMessage() | Evidence():
            return base64.b64encode(value.encoded).decode()
        case SealCertificate():
            return base64.b64encode(encode(value)).decode()
        case bytes() if len(value) == 32:
            return value.hex()
        case _:
            assert isinstance(value, str | int | float), value
            return value


def _read(kind: object, plain: object, name: str) -> object:
    if kind is PeerId and isinstance(plain, str):
        return PeerId(_hex(plain, name))
    if kind is bytes and isinstance(plain, str):
        return _hex(plain, name)
    if kind is SignedMessage and isinstance(plain, str):
        return decode_message(_base64(plain, name))[0]
    if kind is Evidence and isinstance(plain, str):
        return decode(Evidence, _base64(plain, name), max_bytes=limits.EVIDENCE_BYTES_MAX)
    if kind is SealCertificate and isinstance(plain, str):
        data = _base64(plain, name)
        return decode(SealCertificate, data, max_bytes=limits.CONTROL_FRAME_BYTES_MAX)
    # bool is an int, and here it is not.
    if type(plain) is kind and not (isinstance(plain, float) and not math.isfinite(plain)):
        return plain
    raise DecodeError(f"{name}: not what belongs there")


def _hex(text: str, name: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise DecodeError(f"{name}: {error}") from error
    if len(data) != 32 or data.hex() != text:
        raise DecodeError(f"{name}: not 64 digits")
    return data


def _base64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DecodeError(f"{name}: {error}") from error
