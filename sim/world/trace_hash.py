"""A digest over all that happened in a world: two worlds with the same one did the same."""

from struct import pack

from blake3 import blake3

from node.reporting.tracing import (
    Accused,
    Adopted,
    Advanced,
    Began,
    Confirmed,
    Convicted,
    FellBack,
    Record,
    Signed,
    Synced,
)
from protocol.identity import PeerId


class TraceHash:
    """Takes records and verbs as they happen, each with its virtual time."""

    def __init__(self) -> None:
        self._hasher = blake3()

    def record(self, record: Record) -> None:
        """A node did something."""
        update = self._hasher.update
        update(type(record).__name__.encode() + pack("<d", record.at_s) + record.peer)
        update(_told(record))

    def verb(self, at_s: float, name: str, peers: tuple[PeerId, ...]) -> None:
        """Somebody did something to nodes or links."""
        self._hasher.update(pack("<d", at_s) + name.encode() + b" " + b"".join(peers))

    @property
    def hex(self) -> str:
        """The digest so far, in letters."""
        return self._hasher.hexdigest()


def _told(record: Record) -> bytes:
    """What the digest takes of a record besides its kind, time and node."""
    match record:
        case Signed(message=message):
            return message.digest
        case Began(head=head, is_lost=is_lost):
            return head.value.digest + bytes([is_lost])
        case (
            Adopted(certificate=certificate, root=root, was_listed=was_listed)
            | Advanced(certificate=certificate, root=root, was_listed=was_listed)
        ):
            return certificate.value.digest + root + bytes([was_listed])
        case (
            Synced(certificate=certificate, root=root)
            | Confirmed(certificate=certificate, root=root)
        ):
            return certificate.value.digest + root
        case FellBack(final=final, lost=lost):
            return final.value.digest + lost.value.digest
        case Accused(of=of, reason=reason):
            return of + reason.encode()
        case Convicted(evidence=evidence):
            return evidence.entry_id
        case _:
            return str(getattr(record, "reason", "")).encode()
