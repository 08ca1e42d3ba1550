"""Everything that was ever signed: messages by number, sets of them as bit masks.

A mask is the network: whatever was sent may arrive at any time, in any order, often or never. That
covers loss, delay, reordering, repetition and, for everybody who does not act, crash and freeze.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.messages import (
    Body,
    Kind,
    List,
    Roster,
    Seal,
    SignedMessage,
    Slot,
    Vote,
    decode_body,
    list_digest,
)
from protocol.rounds.roster import has_quorum

COUNTED = (Kind.LIST, Kind.VOTE, Kind.SEAL)

Subject = tuple[bytes, int, bytes]
"""Basis, attempt, and the digest of what is voted for or sealed."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message with its number and body; `proposes` is the digest of the LIST that it is."""

    number: int
    message: SignedMessage
    body: Body
    sender: PeerId
    basis: bytes
    attempt: int
    proposes: bytes

    @classmethod
    def of(cls, number: int, message: SignedMessage) -> "Letter":
        """A message with the answers that are asked of it again and again."""
        slot, body, proposes = message.slot, decode_body(message), b""
        if isinstance(body, List):
            proposes = list_digest(slot.basis, slot.shard, slot.round, body.commits, body.drifts)
        return cls(number, message, body, message.sender, slot.basis, slot.attempt, proposes)


@dataclass(slots=True)
class Facts:
    """What LISTs, VOTEs and SEALs say; senders ascending within each place."""

    lists: dict[tuple[bytes, int], list[Letter]] = field(default_factory=dict)
    votes: dict[Subject, list[Letter]] = field(default_factory=dict)
    seals: dict[Subject, list[Letter]] = field(default_factory=dict)
    certified: set[Subject] = field(default_factory=set)
    final: dict[bytes, set[bytes]] = field(default_factory=dict)


class Post:
    """The messages of one exploration, each with a number; the same message has one number."""

    def __init__(self, trust: str = "friends") -> None:
        self.trust = trust
        self.letters: list[Letter] = []
        self.rosters: dict[bytes, Roster] = {}
        self.starts: set[bytes] = set()
        """The seals that a search begins with, where all that comes behind is to be final."""
        self._numbers: dict[bytes, int] = {}
        self._masks: dict[int, int] = {}
        self._counted = 0
        self._reports = 0
        self._same_slot: dict[tuple[PeerId, Slot], int] = {}
        self._facts: dict[int, Facts] = {}
        self._quorums: dict[tuple[bytes, frozenset[PeerId]], bool] = {}

    def number(self, message: SignedMessage) -> int:
        """The number of a message."""
        known = self._numbers.get(message.digest)
        if known is None:
            known = self._numbers[message.digest] = len(self.letters)
            self.letters.append(Letter.of(known, message))
            place = (message.sender, message.slot)
            self._same_slot[place] = self._same_slot.get(place, 0) | 1 << known
            if message.slot.kind in COUNTED:
                self._counted |= 1 << known
            if message.slot.kind is Kind.NEWATTEMPT:
                self._reports |= 1 << known
        return known

    def add(self, mask: int, numbers: tuple[int, ...]) -> int:
        """The mask with more messages in it; equal masks are one object."""
        for number in numbers:
            mask |= 1 << number
        return self._masks.setdefault(mask, mask)

    def of(self, mask: int) -> Iterator[Letter]:
        """The messages of a mask, in the order of their numbers."""
        number = 0
        while mask:
            skip = (mask & -mask).bit_length() - 1
            number += skip
            yield self.letters[number]
            mask >>= skip + 1
            number += 1

    def counted(self, mask: int) -> int:
        """Those of a mask that Facts are made of."""
        return mask & self._counted

    def reports(self, mask: int) -> list[Letter]:
        """The NEWATTEMPTs of a mask, ascending by sender."""
        return sorted(self.of(mask & self._reports), key=lambda letter: letter.sender)

    def facts(self, mask: int) -> Facts:
        """What the messages of a mask say; remembered."""
        mask = self.counted(mask)
        known = self._facts.get(mask)
        if known is None:
            known = self._facts[mask] = self._collect(mask)
        return known

    def _collect(self, mask: int) -> Facts:
        facts = Facts()
        for letter in sorted(self.of(mask), key=lambda letter: (letter.sender, letter.number)):
            self._file(facts, letter)
        for subject, votes in facts.votes.items():
            if self.is_quorum(subject[0], {letter.sender for letter in votes}):
                facts.certified.add(subject)
        for (basis, _, value), seals in facts.seals.items():
            if self.is_quorum(basis, {letter.sender for letter in seals}):
                facts.final.setdefault(basis, set()).add(value)
        return facts

    def _file(self, facts: Facts, letter: Letter) -> None:
        basis, body = letter.basis, letter.body
        match body:
            case List():
                facts.lists.setdefault((basis, letter.attempt), []).append(letter)
            case Vote():
                facts.votes.setdefault((basis, letter.attempt, body.list_digest), []).append(letter)
            case Seal():
                facts.seals.setdefault((basis, letter.attempt, body.value), []).append(letter)
            case _:
                pass

    def is_quorum(self, basis: bytes, peers: set[PeerId]) -> bool:
        """Whether these are a quorum of the voters named by the seal `basis`."""
        place = (basis, frozenset(peers))
        known = self._quorums.get(place)
        if known is None:
            known = has_quorum(self.rosters[basis], peers, trust=self.trust)
            self._quorums[place] = known
        return known

    def smallest_quorum(self, basis: bytes, letters: list[Letter]) -> list[Letter]:
        """The first senders that are a quorum; which of them prove it makes no difference."""
        for count in range(1, len(letters) + 1):
            if self.is_quorum(basis, {letter.sender for letter in letters[:count]}):
                return letters[:count]
        return []

    def wrong(self, before: int, numbers: tuple[int, ...]) -> str:
        """What should not have been signed after the messages of `before`; empty if all is well.

        S1, S3, and what they rest on: the fence, the lock, SEAL of certified only.
        """
        for number in numbers:
            found = self._wrong_letter(before, self.letters[number])
            if found:
                return found
            before = self.add(before, (number,))
        if not numbers:
            return ""
        for values in self.facts(before).final.values():
            if len(values) > 1:
                return "S1: two values are final in one round"
        return ""

    def _wrong_letter(self, before: int, letter: Letter) -> str:
        slot = letter.message.slot
        if before & self._same_slot[letter.sender, slot] & ~(1 << letter.number):
            return f"S3: two different {slot.kind.name} in one slot"
        if slot.kind is Kind.VOTE and isinstance(letter.body, Vote):
            return self._wrong_vote(before, letter, letter.body)
        if slot.kind is Kind.SEAL and isinstance(letter.body, Seal):
            return self._wrong_seal(before, letter, letter.body)
        return ""

    def _wrong_vote(self, before: int, letter: Letter, body: Vote) -> str:
        facts, basis = self.facts(before), letter.basis
        if self._is_left(before, letter):
            return "fence: a VOTE for an attempt that was left"
        lock = _lock_of(facts, letter.sender, basis)
        if lock is None or lock[1] == body.list_digest:
            return ""
        if any(s[1] > lock[0] and s[::2] == (basis, body.list_digest) for s in facts.certified):
            return ""
        return "lock: a VOTE against it without a later certificate for that very LIST"

    def _is_left(self, before: int, letter: Letter) -> bool:
        """Whether its sender had reported to the closer of a later attempt."""
        return any(
            report.attempt > letter.attempt
            for report in self.of(before & self._reports)
            if report.sender == letter.sender and report.basis == letter.basis
        )

    def _wrong_seal(self, before: int, letter: Letter, body: Seal) -> str:
        facts, basis = self.facts(before), letter.basis
        before_it = letter.message.slot.subject
        is_behind = any(before_it in values for values in facts.final.values())
        if self.starts and before_it not in self.starts and not is_behind:
            return "R5: a SEAL of a round before the one before it is final"
        if (basis, letter.attempt, body.list_digest) not in facts.certified:
            return "a SEAL of a LIST that is not certified in that attempt"
        if body.value not in facts.final.get(basis, ()) and self._is_left(before, letter):
            return "fence: a SEAL for an attempt that was left"
        return ""


def _lock_of(facts: Facts, peer: PeerId, basis: bytes) -> tuple[int, bytes] | None:
    """The attempt and LIST of a peer's latest SEAL of the round."""
    found: tuple[int, bytes] | None = None
    for (of_basis, attempt, _), seals in facts.seals.items():
        for letter in seals:
            if of_basis == basis and letter.sender == peer and isinstance(letter.body, Seal):
                found = max(found or (-1, b""), (attempt, letter.body.list_digest))
    return found
