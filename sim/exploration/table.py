"""The setting of a search: toys in place of training, who sits at the table, and the post.

A digest stands for each training, sum and outer step. Voters A, B, C, ... and helpers that do not
vote sit at the table. The post is everything that was ever signed: messages by number, sets of them
as bit masks. A mask is the network: whatever was sent may arrive at any time, in any order, often
or never. That covers loss, delay, reordering, repetition and, for everybody who does not act, crash
and freeze.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from blake3 import blake3

from protocol import events as ev
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Body,
    Commit,
    Have,
    Held,
    Kind,
    List,
    NewAttempt,
    Roster,
    Seal,
    SealCertificate,
    SealClock,
    SealValue,
    SeatRecord,
    SignedMessage,
    Slot,
    Vote,
    decode_body,
    list_digest,
    sign_message,
)
from protocol.rounds.lapses import LearnedDeadline
from protocol.rounds.reducers import pack_senders, slices
from protocol.rounds.roster import ClockRules, has_quorum
from protocol.rounds.round_view import RoundConfig
from sim.world.nodes import peer_named

# Toys ---------------------------------------------------------------------------------------------

DEADLINE_S = 10.0
"""Floor and cap of the learned deadline are equal, so that nothing learned matters."""


def toy_config(*fragment_cells: int, lag: int = 1, trust: str = "friends") -> RoundConfig:
    """What all machines here know besides the chain; `lag` is L of R1."""
    return RoundConfig(
        trust=trust,
        fragment_cells=fragment_cells,
        clock=ClockRules(samples_each=10, rounds=1000, tokens=0, lag=lag, trust=trust),
        deadline_floor_s=DEADLINE_S,
        deadline_cap_s=DEADLINE_S,
    )


def deadline() -> LearnedDeadline:
    """The deadline that all machines here have."""
    return LearnedDeadline(floor_s=DEADLINE_S, cap_s=DEADLINE_S)


PLAIN_COMMIT = Commit(
    root=bytes(32),
    cell_norms=(1.0,),
    tokens=10,
    samples=10,
    steps=10,
    base=bytes(32),
    residual_before=bytes(32),
    residual_after=bytes(32),
    seal=b"",
    joins=(),
    suspects=(),
    gone=(),
    bans=(),
    is_past_end=False,
)
"""Says nothing of anybody."""


def contributed(peer: PeerId, round_index: int, num_cells: int, mark: str = "") -> ev.Contributed:
    """What the trainer of `peer` hands over for a round."""
    return ev.Contributed(
        round=round_index,
        root=blake3(peer + round_index.to_bytes(8, "big") + mark.encode()).digest(),
        cell_norms=(1.0,) * num_cells,
        tokens=10,
        samples=10,
        steps=10,
        residual_before=bytes(32),
        residual_after=bytes(32),
    )


def sum_root(digest: bytes, first: int, stop: int, is_right: bool = True) -> bytes:
    """The root of the toy sum of a slice, or of one that the parts do not give."""
    mark = b"sum" if is_right else b"spoiled sum"
    return blake3(mark + digest + bytes([first, stop])).digest()


def state_after(digest: bytes) -> bytes:
    """The toy outer step: the root of the state that a LIST leads to."""
    return blake3(b"applied" + digest).digest()


# The post -----------------------------------------------------------------------------------------

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


# The table ----------------------------------------------------------------------------------------

RUN = blake3(b"barnraise/exploration").digest()
LETTERS = "ABCDEFGH"
WINDOW = (1, 2, 3, 4)


class Table:
    """The peers of a case, the seal that their round begins with, and words for what they sign.

    Helpers come first in the rank of reducers, so that voters have no say about bytes in as many
    attempts as there are helpers. `members` have machines too, and seats, but no vote yet.
    """

    def __init__(
        self,
        *,
        voters: int,
        helpers: int,
        members: int = 0,
        num_cells: int = 1,
        fragment_cells: tuple[int, ...] = (),
        trust: str = "friends",
    ) -> None:
        self.config = toy_config(*(fragment_cells or (num_cells,)), trust=trust)
        self.members = tuple(sorted(peer_named(f"member {index}") for index in range(members)))
        self.voters, self.helpers, self.head = self._seat(voters, helpers)
        named = [*self.voters, *self.members]
        self.names = {peer: LETTERS[index] for index, peer in enumerate(named)}
        self.names |= {peer: f"R{index or ''}" for index, peer in enumerate(self.helpers)}
        self.senders: dict[bytes, PeerId] = {}
        self._digests: dict[bytes, str] = {}

    def _seat(
        self, voters: int, helpers: int
    ) -> tuple[tuple[PeerId, ...], tuple[PeerId, ...], SealCertificate]:
        """Names are tried until the helpers lead the ranks, and A closes attempt 0."""
        for salt in range(100_000):
            mine = sorted(peer_named(f"voter {salt}/{index}") for index in range(voters))
            others = {peer_named(f"helper {salt}/{index}") for index in range(helpers)}
            head = head_of(mine, [*others, *self.members])
            basis = head.value.digest
            num_cells, trust = self._num_cells(head), self.config.trust
            ranks = slices(head.value.roster, basis, num_cells, trust=trust)[0].reducers
            start = int.from_bytes(blake3(basis + bytes(4)).digest()[:8], "big") % voters
            # The first closer sums too, where nobody else does: traces are told so.
            is_first = bool(helpers) or ranks[0] == mine[0]
            if set(ranks[:helpers]) == others and start == 0 and is_first:
                return tuple(mine), ranks[:helpers], head
        raise AssertionError("no such names")

    def _num_cells(self, head: SealCertificate) -> int:
        """Of the fragment that the round behind a seal is about."""
        return self.config.num_cells(head.value.round + 1)

    def add_joiner(self, index: int) -> PeerId:
        """A peer without a seat, and its letter."""
        peer = peer_named(f"joiner {index}")
        self.names[peer] = LETTERS[len(self.voters) + len(self.members) + index]
        return peer

    # What peers without a machine say -----------------------------------------------------------

    def sign(
        self, peer: PeerId, kind: Kind, body: Body, attempt: int = 0, subject: bytes = b""
    ) -> SignedMessage:
        """A message of this round."""
        value = self.head.value
        slot = Slot(
            run=value.run,
            shard=0,
            round=value.round + 1,
            basis=value.digest,
            attempt=attempt,
            kind=kind,
            subject=subject,
        )
        return sign_message(KeyedHashSigner(peer), slot, body)

    def commit(self, peer: PeerId) -> SignedMessage:
        """The COMMIT of a helper."""
        mine = contributed(peer, self.head.value.round + 1, self._num_cells(self.head))
        body = replace(
            PLAIN_COMMIT,
            root=mine.root,
            cell_norms=mine.cell_norms,
            base=self.head.value.digest,
            residual_before=mine.residual_before,
            residual_after=mine.residual_after,
        )
        return self.sign(peer, Kind.COMMIT, body)

    def have(self, senders: Iterable[PeerId], attempt: int) -> SignedMessage:
        """The first helper says that it holds all parts of these senders."""
        bits = pack_senders(set(senders), self.head.value.roster.members)
        held = Held(first=0, stop=self._num_cells(self.head), senders=bits)
        return self.sign(self.helpers[0], Kind.HAVE, Have(held=(held,)), attempt)

    # Words --------------------------------------------------------------------------------------

    def name_of_set(self, senders: Iterable[PeerId]) -> str:
        """A LIST by the letters of its senders."""
        return "{" + ", ".join(sorted(self.names[peer] for peer in senders)) + "}"

    def learn(self, digest: bytes, senders: Iterable[PeerId]) -> None:
        """Remember who is on the LIST of that digest."""
        self._digests[digest] = self.name_of_set(senders)

    def list_of(self, commits: dict[PeerId, bytes]) -> List:
        """The LIST of these COMMIT digests by sender, remembered by name."""
        digests = tuple(digest for _, digest in sorted(commits.items()))
        value = self.head.value
        digest = list_digest(value.digest, 0, value.round + 1, digests, ())
        self.learn(digest, commits)
        return List(commits=digests, drifts=(), certificate=())

    def name_of_list(self, digest: bytes) -> str:
        """A LIST by its digest."""
        return self._digests.get(digest, digest.hex()[:6])

    def said(self, letters: Iterable[Letter]) -> str:
        """What was signed, in words."""
        return ", ".join(words for letter in letters if (words := self._words(letter)))

    def _words(self, letter: Letter) -> str:
        name, attempt = self.names[letter.sender], letter.attempt
        match letter.body:
            case List(commits=commits):
                self.learn(letter.proposes, (self.senders[commit] for commit in commits))
                what = self.name_of_list(letter.proposes)
                return f"{name} proposes LIST {what} in attempt {attempt}"
            case Vote(list_digest=digest):
                return f"{name} VOTEs {self.name_of_list(digest)} in attempt {attempt}"
            case Seal(list_digest=digest):
                return f"{name} SEALs {self.name_of_list(digest)} in attempt {attempt}"
            case Commit():
                self.senders[letter.message.digest] = letter.sender
                return f"{name} COMMITs"
            case NewAttempt(lock_attempt=lock) if lock >= 0:
                return f"{name} reports its lock of attempt {lock}"
            case NewAttempt():
                return ""
            case _:
                return f"{name} signs {letter.message.slot.kind.name}"


def seat(peer: PeerId, *, votes: bool) -> SeatRecord:
    """A seat in the fifth round; voters are of equal age."""
    since = 0 if votes else -1
    return SeatRecord(peer=peer, seated=0, voter_since=since, proved=4 if votes else -1, absent=0)


def head_of(voters: Iterable[PeerId], others: Iterable[PeerId] = ()) -> SealCertificate:
    """A seal of round 4 that names these voters and members; a start, whose proof nobody asks."""
    seats = [seat(peer, votes=True) for peer in voters] + [seat(p, votes=False) for p in others]
    roster = Roster(seats=tuple(sorted(seats, key=lambda record: record.peer)), window=WINDOW)
    value = SealValue(
        run=RUN,
        shard=0,
        round=WINDOW[-1],
        before=blake3(b"before").digest(),
        basis=blake3(b"before").digest(),
        commits=(),
        drifts=(),
        root=blake3(b"state").digest(),
        roster=roster,
        clock=SealClock(step=0, tokens=0, cursor=0, unused=(), ends_run=False),
    )
    return SealCertificate(value=value, seals=())
