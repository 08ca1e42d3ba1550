"""Messages of the next round, until the seal that opens it is here. Pure."""

from collections.abc import Iterator, ValuesView
from dataclasses import dataclass, field

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Kind
from protocol.rounds.ballots import BallotEntry


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
