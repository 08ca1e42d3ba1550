"""The signed messages of one round, by slot; what they certify and what they seal.

One message per slot and sender counts. A second, different one convicts its sender: it is kept, so
that everybody comes to have both. A COMMIT can then be read in a LIST which names it, and in open
runs a LIST, a VOTE or a SEAL counts as well. A third is kept only where honest voters rest on it.

At the end what cannot be filed yet: messages of the next round, and sums of LISTs that are unknown.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import PeerId, Signer
from protocol.messages import (
    Agg,
    Body,
    Commit,
    Gram,
    Kind,
    List,
    NewAttempt,
    Roster,
    Seal,
    SignedMessage,
    Slot,
    Vote,
    decode_message,
    is_signed,
    list_digest,
    message_id_of,
)
from protocol.rounds.reducers import liars
from protocol.rounds.roster import has_quorum
from protocol.rounds.seating import MessageQuota

BodyT = TypeVar("BodyT")
Filed = Literal["new", "known", "conflict", "full"]
Sealed = tuple[Seal, tuple[SignedMessage, ...]]
Place = tuple[Kind, int, bytes]
"""A slot within a round: kind, attempt, subject."""

_NOTHING: AbstractSet[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class BallotEntry:
    """A message and its decoded body."""

    message: SignedMessage
    body: Body


@dataclass(slots=True)
class Ballots:
    """Messages of the round that `basis` opened; `roster` and `trust` say what a quorum is.

    `sealers` makes the round provisional (R4): a certificate is then the PVOTEs of all of them, and
    so many PSEALs end it. VOTE and SEAL are counted all the same: what they make final is final.

    `news` grows with what may give anybody more to do than before: a LIST, a quorum of VOTEs or of
    SEALs. A VOTE or a SEAL that makes no quorum is counted, and no more; what a COMMIT, a HAVE or a
    NEWATTEMPT is to this node its RoundView knows (`is_for_us`).
    """

    basis: bytes
    shard: int
    round: int
    roster: Roster
    trust: str
    sealers: frozenset[PeerId] = frozenset()
    news: int = 0
    _slots: dict[Place, dict[PeerId, BallotEntry]] = field(default_factory=dict)
    _by_digest: dict[bytes, BallotEntry] = field(default_factory=dict)
    _by_id: dict[bytes, tuple[SignedMessage, ...]] = field(default_factory=dict)
    """Who has some minutes finds two messages of its own with the same id."""
    _id_set: set[bytes] = field(default_factory=set)
    """The ids alone: a set is compared with a set in a third of the time."""
    _twice: set[tuple[Place, PeerId]] = field(default_factory=set)
    _commits: dict[PeerId, tuple[bytes, Commit]] = field(default_factory=dict)
    _commit_of: dict[bytes, tuple[PeerId, Commit]] = field(default_factory=dict)
    _lists: dict[bytes, List] = field(default_factory=dict)
    _votes: dict[tuple[int, bytes], dict[PeerId, SignedMessage]] = field(default_factory=dict)
    _certified: set[tuple[int, bytes]] = field(default_factory=set)
    _agreed: set[tuple[bytes, int, Seal]] = field(default_factory=set)
    _seals: dict[tuple[bytes, int, Seal], dict[PeerId, SignedMessage]] = field(default_factory=dict)
    _pvotes: dict[tuple[int, bytes], dict[PeerId, SignedMessage]] = field(default_factory=dict)
    _pseals: dict[tuple[bytes, int, Seal], dict[PeerId, SignedMessage]] = field(
        default_factory=dict
    )
    # Answers to what is asked after every event; None until they are asked for again.
    _commits_sorted: dict[PeerId, tuple[bytes, Commit]] | None = None
    _ids: tuple[bytes, ...] | None = None
    _told_ids: tuple[bytes, ...] | None = None
    _certified_sorted: tuple[tuple[int, bytes], ...] | None = None
    _certified_lists: tuple[tuple[bytes, List], ...] | None = None
    _sealed: dict[bytes, Sealed | None] = field(default_factory=dict)
    _bodies: dict[Place, dict[PeerId, Body]] = field(default_factory=dict)
    """By place, ascending by sender, until another message is filed there."""
    _room: MessageQuota = field(init=False)

    def __post_init__(self) -> None:
        self._room = MessageQuota(self.roster.member_set)

    def add(self, entry: BallotEntry, *, is_own: bool = False) -> Filed:
        """File a message whose signature and place are checked. There is always room for one's own:
        they are few, one per slot that this node fills."""
        message = entry.message
        if message.digest in self._by_digest:
            return "known"
        slot = message.slot
        place = (slot.kind, slot.attempt, slot.subject)
        there = self._slots.get(place)
        is_seat = slot.kind is Kind.SEAT
        if there is not None and message.sender in there:
            # A second SEAT of each key that anybody makes up is nothing to keep.
            is_second = (place, message.sender) not in self._twice and not is_seat
            if is_second or self._is_relied_on(entry):
                self._twice.add((place, message.sender))
                self._keep(entry)
                self._count_too(message, entry.body)
            return "conflict"
        last = self._room.seat(message.sender, self.round) if is_seat and not is_own else None
        if last == message.sender or not (is_own or is_seat or self._room.takes(message)):
            return "full"
        there = self._slots.setdefault(place, {})
        if last is not None:
            self._forget(there.pop(last).message)
        there[message.sender] = entry
        self._bodies.pop(place, None)
        self._keep(entry)
        self._index(message, entry.body)
        return "new"

    def _is_relied_on(self, entry: BallotEntry) -> bool:
        """Whether an honest voter rests on what its sender said besides two other things."""
        message, body = entry.message, entry.body
        attempt, sender = message.slot.attempt, message.sender
        match body:
            case Commit():
                return any(
                    digest in self._lists and message.digest in self._lists[digest].commits
                    for (_, digest), by in self._votes.items()
                    if self._has_honest(by, sender)
                )
            case List():
                digest = self.list_digest(body)
                return self._has_honest(self._votes.get((attempt, digest), ()), sender)
            case Vote() if message.slot.kind is Kind.VOTE:
                return self._has_honest(self._votes.get((attempt, body.list_digest), ()), sender)
            case Seal() if message.slot.kind is Kind.SEAL:
                agreeing = self._seals.get((message.slot.subject, attempt, body), ())
                return self._has_honest(agreeing, sender)
            case _:
                return False

    def _has_honest(self, peers: Collection[PeerId], sender: PeerId) -> bool:
        """Whether there are more voters among them, the sender left out, than may lie."""
        return 0 < self._num_liars < len(self.roster.voter_set.intersection(peers) - {sender})

    def _count_too(self, message: SignedMessage, body: Body) -> None:
        """What its sender contradicts counts as well.

        What a quorum certified with a liar's VOTE, and made final with its SEAL, is so for all: who
        heard it say something else first could never be shown that, and a lock on it binds others.
        Quorums are large enough for liars who say everything.
        """
        if isinstance(body, Commit):
            self._commit_of[message.digest] = (message.sender, body)
        elif self._num_liars:
            self._index(message, body)

    @property
    def _num_liars(self) -> int:
        return liars(len(self.roster.voters), self.trust)

    def _keep(self, entry: BallotEntry) -> None:
        self._by_digest[entry.message.digest] = entry
        message_id = entry.message.message_id
        self._by_id[message_id] = (*self._by_id.get(message_id, ()), entry.message)
        self._id_set.add(message_id)
        self._ids = self._told_ids = None

    def _forget(self, message: SignedMessage) -> None:
        """A SEAT, for which there is no room any more: nothing is counted of it."""
        del self._by_digest[message.digest]
        of_id = self._by_id.pop(message.message_id)
        if others := tuple(one for one in of_id if one != message):
            self._by_id[message.message_id] = others
        self._id_set = set(self._by_id)
        self._ids = self._told_ids = None

    def counted(self, message: SignedMessage) -> SignedMessage:
        """What its sender said first, as far as this node knows, in the slot of that message."""
        slot = message.slot
        return self._slots[slot.kind, slot.attempt, slot.subject][message.sender].message

    def _index(self, message: SignedMessage, body: Body) -> None:
        """Count what is filed, so that no question has to look at all messages again."""
        slot, sender = message.slot, message.sender
        if isinstance(body, Commit):
            self._commits[sender] = (message.digest, body)
            self._commit_of[message.digest] = (sender, body)
            self._commits_sorted = None
        elif isinstance(body, List):
            self._lists.setdefault(self.list_digest(body), body)
            self._certified_lists = None
            self.news += 1
        elif isinstance(body, Vote) and slot.kind is Kind.VOTE:
            voted = (slot.attempt, body.list_digest)
            voting = self._votes.setdefault(voted, {})
            voting[sender] = message
            if voted not in self._certified and self._is_quorum(voting):
                self._certified.add(voted)
                self._certified_sorted = self._certified_lists = None
                self.news += 1
        elif isinstance(body, Seal) and slot.kind is Kind.SEAL:
            place = (slot.subject, slot.attempt, body)
            agreeing = self._seals.setdefault(place, {})
            agreeing[sender] = message
            if self._is_quorum(agreeing):
                self._sealed.pop(slot.subject, None)  # One SEAL more is in its certificate.
                self.news += place not in self._agreed
                self._agreed.add(place)
        elif isinstance(body, Vote):
            voting = self._pvotes.setdefault((slot.attempt, body.list_digest), {})
            voting[sender] = message
            self._elected(voting)
        elif isinstance(body, Seal):
            agreeing = self._pseals.setdefault((slot.subject, slot.attempt, body), {})
            agreeing[sender] = message
            self._elected(agreeing)

    def elect(self, sealers: frozenset[PeerId]) -> None:
        """Whose PVOTEs and PSEALs it takes from now on; of nobody in an ordinary round."""
        if sealers != self.sealers:
            self.sealers = sealers
            self._certified_sorted = self._certified_lists = None
            self.news += 1

    def _elected(self, agreeing: Collection[PeerId]) -> None:
        """A PVOTE or PSEAL more: whether it made a certificate."""
        if self._is_of_all(agreeing):
            self._certified_sorted = self._certified_lists = None
            self.news += 1

    def _is_of_all(self, peers: Collection[PeerId]) -> bool:
        return bool(self.sealers) and self.sealers.issubset(peers)

    def _is_quorum(self, peers: Collection[PeerId]) -> bool:
        return has_quorum(self.roster, peers, trust=self.trust)

    @property
    def commits(self) -> Mapping[PeerId, tuple[bytes, Commit]]:
        """Digest and body of every COMMIT, ascending by sender."""
        if self._commits_sorted is None:
            self._commits_sorted = dict(sorted(self._commits.items()))
        return self._commits_sorted

    def messages(self) -> Iterator[SignedMessage]:
        """All messages, in the order in which they were filed."""
        return (entry.message for entry in self._by_digest.values())

    @property
    def ids(self) -> tuple[bytes, ...]:
        """The first bytes of every message's digest, in the order in which they were filed."""
        if self._ids is None:
            self._ids = tuple(self._by_id)
        return self._ids

    @property
    def told_ids(self) -> tuple[bytes, ...]:
        """Those of `ids` that others need not send: not that of a COMMIT which is missing here, and
        which honest voters rest on, though another message of that id is here."""
        if self._told_ids is None:
            missing = {message_id_of(digest) for digest in self._missing_commits()}
            self._told_ids = tuple(one for one in self.ids if one not in missing)
        return self._told_ids

    def _missing_commits(self) -> Iterator[bytes]:
        for (_, voted), voting in self._votes.items():
            body = self._lists.get(voted)
            if body is not None and 0 < self._num_liars < len(voting):
                yield from (digest for digest in body.commits if digest not in self._commit_of)

    def unknown_to(self, held: frozenset[bytes]) -> AbstractSet[bytes]:
        """Those of `ids` that are not among the held ones."""
        if self._id_set <= held:
            return _NOTHING  # As nearly always: no set is made for it.
        return self._id_set - held

    def __len__(self) -> int:
        """How many messages there are."""
        return len(self._by_digest)

    def named(self, message_id: bytes) -> tuple[SignedMessage, ...]:
        """The messages of one of `ids`: nearly always one."""
        return self._by_id[message_id]

    def find(self, digest: bytes) -> BallotEntry | None:
        """The message of that digest."""
        return self._by_digest.get(digest)

    def of(self, kind: Kind, attempt: int = 0, subject: bytes = b"") -> dict[PeerId, BallotEntry]:
        """The messages in one place, by sender. The caller must not change the dict."""
        return self._slots.get((kind, attempt, subject), {})

    def has_said(self, kind: Kind, sender: PeerId) -> bool:
        """Whether there is a message of `kind` from that sender, for any attempt and subject."""
        return any(place[0] is kind and sender in there for place, there in self._slots.items())

    def bodies(
        self, kind: Kind, body: type[BodyT], attempt: int = 0, subject: bytes = b""
    ) -> Mapping[PeerId, BodyT]:
        """The bodies in one place, ascending by sender."""
        place = (kind, attempt, subject)
        found = self._bodies.get(place)
        if found is None:
            there = self._slots.get(place, {})
            found = {sender: there[sender].body for sender in sorted(there)}
            assert all(isinstance(one, body) for one in found.values())
            if found:
                self._bodies[place] = found  # Asked for again after every event.
        return cast("Mapping[PeerId, BodyT]", found)

    def commit_of(self, digest: bytes) -> tuple[PeerId, Commit] | None:
        """Sender and body of a COMMIT by its digest."""
        return self._commit_of.get(digest)

    def attempts(self, kind: Kind) -> list[int]:
        """Attempts in which there is a message of `kind`, latest first."""
        return sorted({place[1] for place in self._slots if place[0] is kind}, reverse=True)

    def list_digest(self, body: List) -> bytes:
        """The digest of a LIST of this round."""
        return list_digest(self.basis, self.shard, self.round, body.commits, body.drifts)

    def certificate(self, attempt: int, digest: bytes) -> tuple[SignedMessage, ...]:
        """The VOTEs of a quorum for a LIST in one attempt; empty where there is no quorum.

        PVOTEs are none: what they certify binds nobody.
        """
        if (attempt, digest) not in self._certified:
            return ()
        return tuple(message for _, message in sorted(self._votes[attempt, digest].items()))

    def certified(self) -> tuple[tuple[int, bytes], ...]:
        """All (attempt, LIST digest) with a certificate, latest attempt first.

        In a provisional round those for which all its sealers gave a PVOTE.
        """
        if self._certified_sorted is None:
            found: Collection[tuple[int, bytes]] = self._certified
            if self.sealers:
                found = [voted for voted, by in self._pvotes.items() if self._is_of_all(by)]
            self._certified_sorted = tuple(sorted(found, key=lambda c: (-c[0], c[1])))
        return self._certified_sorted

    def certified_lists(self) -> tuple[tuple[bytes, List], ...]:
        """Digest and body of every certified LIST that is known in full, latest attempt first."""
        if self._certified_lists is None:
            digests = dict.fromkeys(digest for _, digest in self.certified())
            self._certified_lists = tuple(
                (digest, self._lists[digest]) for digest in digests if digest in self._lists
            )
        return self._certified_lists

    def sealed(self, before: bytes) -> Sealed | None:
        """The SEAL on which a quorum agrees in one attempt, with those messages (R2)."""
        if before not in self._sealed:
            self._sealed[before] = self._find_sealed(before)
        return self._sealed[before]

    def _find_sealed(self, before: bytes) -> Sealed | None:
        quorums = [
            (attempt, body, agreeing)
            for (subject, attempt, body), agreeing in self._seals.items()
            if subject == before and self._is_quorum(agreeing)
        ]
        if not quorums:
            return None
        _, body, agreeing = max(quorums, key=lambda quorum: quorum[0])
        return body, tuple(message for _, message in sorted(agreeing.items()))

    def psealed(self, before: bytes) -> Sealed | None:
        """The PSEAL that all sealers gave in one attempt, with those messages (R4)."""
        agreed = [
            (attempt, body, agreeing)
            for (subject, attempt, body), agreeing in self._pseals.items()
            if subject == before and self._is_of_all(agreeing)
        ]
        if not agreed:
            return None
        _, body, agreeing = max(agreed, key=lambda found: found[0])
        # On a branch more may speak than a certificate has room for; the sealers are what counts.
        order = sorted(agreeing, key=lambda peer: (peer not in self.sealers, peer))
        shown = sorted(order[: limits.SEATS_MAX])
        return body, tuple(agreeing[peer] for peer in shown)

    def locks(self, before: bytes) -> list[SignedMessage]:
        """A SEAL of the latest attempt in which there is one: the highest lock that is known."""
        for attempt in self.attempts(Kind.SEAL):
            # With two rounds in flight there may be SEALs behind other seals here (R4, R5).
            if there := self.of(Kind.SEAL, attempt, before):
                return [entry.message for _, entry in sorted(there.items())]
        return []

    def is_proposed(self, commit: bytes) -> bool:
        """Whether a known LIST names that COMMIT."""
        return any(commit in body.commits for body in self._lists.values())

    def is_named(self, digest: bytes) -> bool:
        """Whether its closer has proposed a LIST of that digest, or a quorum voted for it or sealed
        it: everything else said of it is about nothing."""
        return (
            digest in self._lists
            or any(voted == digest for _, voted in self.certified())
            or any(voted == digest for _, voted in self._certified)
            or any(body.list_digest == digest for _, _, body in self._agreed)
        )

    def list_of(self, digest: bytes) -> List | None:
        """The LIST of that digest, from whichever attempt it was proposed in."""
        return self._lists.get(digest)


# Quoting ------------------------------------------------------------------------------------------
#
# The VOTEs that a LIST or a NEWATTEMPT quotes as a certificate (R2).


def quoted_votes(
    slot: Slot, body: List | NewAttempt, ballots: Ballots, signer: Signer
) -> list[SignedMessage]:
    """What the message in that slot quotes.

    Whether it is sound does not depend on what is known here: nobody passes on what is not, and so
    nobody is blamed for what another one signed. Raises DecodeError unless each is a VOTE of that
    round, signed by its sender.
    """
    votes: list[SignedMessage] = []
    for data in body.certificate:
        vote, _ = decode_message(data)
        of = vote.slot
        place, own = (of.run, of.shard, of.round, of.basis), (slot.run, slot.shard, slot.round)
        if of.kind is not Kind.VOTE or place != (*own, slot.basis):
            raise DecodeError(f"{of.kind.name} of round {of.round} in a certificate")
        if ballots.find(vote.digest) is None and not is_signed(vote, signer):
            raise DecodeError("a VOTE in a certificate is not signed by its sender")
        votes.append(vote)
    return votes


# Early --------------------------------------------------------------------------------------------
#
# Messages of the next round, until the seal that opens it is here.


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


# Unlisted -----------------------------------------------------------------------------------------
#
# GRAMs and AGGs of LISTs that nobody has proposed here, until somebody has.
#
# A sum may overtake the LIST that it is of, on another link. It is kept apart, for nobody is told
# that it is here: what a member says of LISTs that it made up goes to nobody else, and is gone with
# the round.


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
