"""The four requests of the DHT and their replies: one type byte, then canonical msgpack.

Both sides state the addresses at which they listen in every message, so that a table holds what the
peer itself said over a proven connection, never what somebody else said of it. No addresses means
"do not add me": a node that nobody can dial.
"""

from dataclasses import dataclass
from typing import Annotated

from dht.kademlia.keyspace import WireKey
from dht.kademlia.records import SignedRecord, StoreVerdict
from dht.kademlia.routing import Contact, check_addresses
from protocol import limits
from protocol.errors import DecodeError
from protocol.transport import Addresses
from protocol.wire import Range, Size, decode, encode

PROTOCOL = "/barnraise/dht/1"

Count = Annotated[int, Range(1, limits.DHT_CONTACTS_PER_REPLY_MAX)]
Contacts = Annotated[tuple[Contact, ...], Size(0, limits.DHT_CONTACTS_PER_REPLY_MAX)]
# A record of no value takes 160 bytes: more of them cannot be in one reply.
Records = Annotated[tuple[SignedRecord, ...], Size(0, limits.DHT_WRITERS_PER_KEY_MAX)]


@dataclass(frozen=True, slots=True)
class _Message:
    """What every message says first: where its sender listens."""

    addresses: Addresses

    def __post_init__(self) -> None:
        check_addresses(self.addresses)


@dataclass(frozen=True, slots=True)
class Ping(_Message):
    """Are you there, and do you speak this?"""


@dataclass(frozen=True, slots=True)
class Pong(_Message):
    """I am here."""


@dataclass(frozen=True, slots=True)
class FindNode(_Message):
    """Which contacts of yours lie nearest to `key`?"""

    key: WireKey
    count: Count


@dataclass(frozen=True, slots=True)
class Nodes(_Message):
    """Nearest first."""

    contacts: Contacts


@dataclass(frozen=True, slots=True)
class FindValue(_Message):
    """What is said under `key`, by writers above `after`, and which contacts lie nearest to it?"""

    key: WireKey
    count: Count
    after: Annotated[bytes, Size(0, 32)]
    """Empty for the first page, else the last writer of the page before."""


@dataclass(frozen=True, slots=True)
class Values(_Message):
    """Records in ascending order of writer; contacts on the first page only."""

    contacts: Contacts
    records: Records
    has_more: bool


@dataclass(frozen=True, slots=True)
class Store(_Message):
    """Keep this record for others. Anyone may pass on anyone's record: the signature decides."""

    record: SignedRecord


@dataclass(frozen=True, slots=True)
class Stored(_Message):
    """What became of it."""

    verdict: StoreVerdict


Request = Ping | FindNode | FindValue | Store
Reply = Pong | Nodes | Values | Stored

_REQUESTS: dict[int, type[Request]] = {1: Ping, 3: FindNode, 5: FindValue, 7: Store}
_REPLIES: dict[int, type[Reply]] = {2: Pong, 4: Nodes, 6: Values, 8: Stored}
_TYPE_IDS: dict[type[Request] | type[Reply], int] = {
    kind: type_id for type_id, kind in (_REQUESTS | _REPLIES).items()
}


def encode_message(message: Request | Reply) -> bytes:
    """The frame of `message`."""
    return bytes((_TYPE_IDS[type(message)],)) + encode(message)


def _body(frame: bytes) -> tuple[int, bytes]:
    if not frame:
        raise DecodeError("an empty frame")
    return frame[0], frame[1:]


def decode_request(frame: bytes) -> Request:
    """The request in `frame`. Raises DecodeError for all other bytes."""
    type_id, body = _body(frame)
    kind = _REQUESTS.get(type_id)
    if kind is None:
        raise DecodeError(f"{type_id} is no type of request")
    return decode(kind, body, max_bytes=limits.DHT_FRAME_BYTES_MAX)


def decode_reply(frame: bytes, request: Request) -> Reply:
    """The reply to `request` in `frame`. Raises DecodeError for all else."""
    type_id, body = _body(frame)
    if type_id != _TYPE_IDS[type(request)] + 1:
        raise DecodeError(f"{type_id} is no type of reply to {type(request).__name__}")
    return decode(_REPLIES[type_id], body, max_bytes=limits.DHT_FRAME_BYTES_MAX)
