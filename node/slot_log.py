"""The write-ahead log of signatures: on disk before a signature leaves (R12).

Each record is a 4-byte length and the signed message. A torn tail is what the crash left of a
signature that never left. Two rounds are enough: older slots are closed by final seals.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from protocol.errors import ConfigError, DecodeError
from protocol.messages import SignedMessage, decode_message

_LENGTH = struct.Struct(">I")
_ROTATE_BYTES = 4 << 20


def refuse_signed(path: Path) -> None:
    """Raise ConfigError if the log holds signatures of an earlier start of the node.

    A node that came back at genesis would fill the same slots with other values and convict itself
    (R12). Until it can resume from disk, it must not start on such a folder.
    """
    if path.exists() and read_slots(path):
        raise ConfigError(
            f"{path} holds signatures of an earlier start of this node, and resuming a run is not "
            "built yet: start with an empty --state folder"
        )


class SlotLog:
    """Append-only; one writer. Beyond `rotate_bytes` all but the last two rounds are dropped."""

    def __init__(self, path: Path, *, rotate_bytes: int = _ROTATE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._file = path.open("ab")
        # What is appended behind a torn record could never be read again.
        self._file.truncate(sum(len(record) for record, _ in _records(path.read_bytes())))

    def append(self, messages: Sequence[SignedMessage]) -> None:
        """Write the messages; on the disk when this returns. Blocks: call it in a thread."""
        if self._file.tell() > self._rotate_bytes:
            self._rotate(messages[0].slot.round)
        for message in messages:
            self._file.write(_LENGTH.pack(len(message.encoded)) + message.encoded)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _rotate(self, round_index: int) -> None:
        """Keep the last two rounds only."""
        kept = [m for m in read_slots(self._path) if m.slot.round >= round_index - 1]
        self._file.close()
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            for message in kept:
                file.write(_LENGTH.pack(len(message.encoded)) + message.encoded)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self._file = self._path.open("ab")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_slots(path: Path) -> list[SignedMessage]:
    """Every whole record, up to the first torn one."""
    return [message for _, message in _records(path.read_bytes())]


def _records(data: bytes) -> Iterator[tuple[bytes, SignedMessage]]:
    """Whole records with their length prefix, and the messages in them."""
    position = 0
    while position + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        record = data[position : position + _LENGTH.size + length]
        if len(record) < _LENGTH.size + length:
            break
        try:
            message = decode_message(record[_LENGTH.size :])[0]
        except DecodeError:
            break
        yield record, message
        position += len(record)
