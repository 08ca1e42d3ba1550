"""The signed messages of one round, by slot; what they certify and what they seal.

One message per slot and sender: a second, different one convicts its sender and is not counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from node.roster import has_quorum
from protocol import limits
from protocol.identity import PeerId
from protocol.messages import (
    Body,
    Commit,
    Kind,
    List,
    Roster,
    Seal,
    SignedMessage,
    Vote,
    list_digest,
)

BodyT = TypeVar("BodyT")
Filed = Literal["new", "known", "conflict", "full"]
Sealed = tuple[Seal, tuple[SignedMessage, ...]]
Place = tuple[Kind, int, bytes]
"""A slot within a round: kind, attempt, subject."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message and its decoded body."""

    message: SignedMessage
    body: Body


@dataclass(slots=True)
class Ballots:
    """Messages of the round that `basis` opened; `roster` and `trust` say what a quorum is."""

    basis: bytes
    shard: int
    round: int
    roster: Roster
    trust: str
    _slots: dict[Place, dict[PeerId, Entry]] = field(default_factory=dict)
    _by_digest: dict[bytes, Entry] = field(default_factory=dict)
    _commits: dict[PeerId, tuple[bytes, Commit]] = field(default_factory=dict)
    _lists: dict[bytes, List] = field(default_factory=dict)
    _certified: tuple[tuple[int, bytes], ...] | None = None
    _sealed: dict[bytes, Sealed | None] = field(default_factory=dict)

    def add(self, entry: Entry, *, is_own: bool = False) -> Filed:
        """File a message whose signature and place are checked; there is always room for one's own.

        Own messages are few: one per slot that this node fills.
        """
        message = entry.message
        if message.digest in self._by_digest:
            return "known"
        place = (message.slot.kind, message.slot.attempt, message.slot.subject)
        if message.sender in self._slots.get(place, ()):
            return "conflict"
        if len(self._by_digest) >= limits.MESSAGES_PER_ROUND_MAX and not is_own:
            return "full"
        self._slots.setdefault(place, {})[message.sender] = entry
        self._by_digest[message.digest] = entry
        self._index(entry)
        return "new"

    def _index(self, entry: Entry) -> None:
        """Keep the answers to the questions that are asked after every event."""
        match entry.body:
            case Commit():
                self._commits[entry.message.sender] = (entry.message.digest, entry.body)
                self._commits = dict(sorted(self._commits.items()))
            case List():
                self._lists.setdefault(self.list_digest(entry.body), entry.body)
            case Vote():
                self._certified = None
            case Seal():
                self._sealed.clear()
            case _:
                pass

    @property
    def commits(self) -> Mapping[PeerId, tuple[bytes, Commit]]:
        """Digest and body of every COMMIT, ascending by sender."""
        return self._commits

    def messages(self) -> Iterator[SignedMessage]:
        """All messages, in the order in which they were filed."""
        return (entry.message for entry in self._by_digest.values())

    def find(self, digest: bytes) -> Entry | None:
        """The message of that digest."""
        return self._by_digest.get(digest)

    def of(self, kind: Kind, attempt: int = 0, subject: bytes = b"") -> dict[PeerId, Entry]:
        """The messages in one place, by sender. The caller must not change the dict."""
        return self._slots.get((kind, attempt, subject), {})

    def bodies(
        self, kind: Kind, body: type[BodyT], attempt: int = 0, subject: bytes = b""
    ) -> Iterator[tuple[PeerId, BodyT]]:
        """Senders and bodies in one place, ascending by sender."""
        for sender, entry in sorted(self.of(kind, attempt, subject).items()):
            assert isinstance(entry.body, body)
            yield sender, entry.body

    def commit_of(self, digest: bytes) -> tuple[PeerId, Commit] | None:
        """Sender and body of a COMMIT by its digest."""
        entry = self._by_digest.get(digest)
        if entry is None or not isinstance(entry.body, Commit):
            return None
        return entry.message.sender, entry.body

    def attempts(self, kind: Kind) -> list[int]:
        """Attempts in which there is a message of `kind`, latest first."""
        return sorted({place[1] for place in self._slots if place[0] is kind}, reverse=True)

    def list_digest(self, body: List) -> bytes:
        """The digest of a LIST of this round."""
        return list_digest(self.basis, self.shard, self.round, body.commits, body.drifts)

    def certificate(self, attempt: int, digest: bytes) -> tuple[SignedMessage, ...]:
        """The VOTEs of a quorum for a LIST in one attempt; empty where there is no quorum."""
        voting = {
            sender: entry.message
            for sender, entry in self.of(Kind.VOTE, attempt).items()
            if isinstance(entry.body, Vote) and entry.body.list_digest == digest
        }
        if not has_quorum(self.roster, voting, trust=self.trust):
            return ()
        return tuple(message for _, message in sorted(voting.items()))

    def certified(self) -> tuple[tuple[int, bytes], ...]:
        """All (attempt, LIST digest) with a certificate, latest attempt first."""
        if self._certified is None:
            self._certified = tuple(
                (attempt, digest)
                for attempt in self.attempts(Kind.VOTE)
                for digest in sorted(self._voted(attempt))
                if self.certificate(attempt, digest)
            )
        return self._certified

    def _voted(self, attempt: int) -> set[bytes]:
        return {vote.list_digest for _, vote in self.bodies(Kind.VOTE, Vote, attempt)}

    def sealed(self, before: bytes) -> Sealed | None:
        """The SEAL on which a quorum agrees in one attempt, with those messages (R2)."""
        if before not in self._sealed:
            self._sealed[before] = self._find_sealed(before)
        return self._sealed[before]

    def _find_sealed(self, before: bytes) -> Sealed | None:
        for attempt in self.attempts(Kind.SEAL):
            entries = self.of(Kind.SEAL, attempt, before)
            for body in {entry.body for entry in entries.values()}:
                agreeing = {s: e.message for s, e in entries.items() if e.body == body}
                if has_quorum(self.roster, agreeing, trust=self.trust):
                    assert isinstance(body, Seal)
                    return body, tuple(message for _, message in sorted(agreeing.items()))
        return None

    def list_of(self, digest: bytes) -> List | None:
        """The LIST of that digest, from whichever attempt it was proposed in."""
        return self._lists.get(digest)
