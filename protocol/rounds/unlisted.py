"""GRAMs and AGGs of LISTs that nobody has proposed here, until somebody has. Pure.

A sum may overtake the LIST that it is of, on another link. It is kept apart, for nobody is told
that it is here: what a member says of LISTs that it made up goes to nobody else, and is gone with
the round.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Agg, Gram
from protocol.rounds.ballots import BallotEntry


@dataclass(slots=True)
class Unlisted:
    """Of one round. Each member has some room of its own."""

    _entries: dict[bytes, dict[bytes, BallotEntry]] = field(default_factory=dict)
    """By LIST and by message."""
    _bytes: dict[PeerId, int] = field(default_factory=dict)

    def keep(self, entry: BallotEntry) -> None:
        """Keep one, if there is room for more of its sender."""
        message, body = entry.message, entry.body
        assert isinstance(body, Agg | Gram)
        if message.digest in self._entries.get(body.list_digest, ()):
            return
        size = self._bytes.get(message.sender, 0) + len(message.encoded)
        if size <= limits.EARLY_BYTES_MAX:
            self._bytes[message.sender] = size
            self._entries.setdefault(body.list_digest, {})[message.digest] = entry

    def take(self, is_named: Callable[[bytes], bool]) -> list[BallotEntry]:
        """Those of LISTs that are named by now, in the order in which they came."""
        if not self._entries:
            return []  # As nearly always.
        found: list[BallotEntry] = []
        for digest in [digest for digest in self._entries if is_named(digest)]:
            found += self._entries.pop(digest).values()
        for entry in found:
            self._bytes[entry.message.sender] -= len(entry.message.encoded)
        return found

    def __len__(self) -> int:
        """How many messages there are."""
        return sum(len(there) for there in self._entries.values())
