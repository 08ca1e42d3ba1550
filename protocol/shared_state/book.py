"""The replicated state of one node: entries and evidence, merged, bounded, expiring. Pure.

What is held is a function of what was offered, of the time, the era and the members; not of the
order of offers. Under each key of a writer its last entry counts, of a writer and kind the last
few, of a kind the last many, members' first; of a convicted writer what it stamped before.

A later entry is taken without its predecessor: that one may have expired or been overtaken, so that
nobody could bring it any more. Forks are found wherever both halves, or neighbours in the chain,
come together.
"""

import heapq
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from protocol import limits
from protocol.entries import Entry, decode_entry
from protocol.entry_kinds import (
    RULES,
    Accusation,
    EntryBody,
    EntryKind,
    HasCheckpoint,
    HasData,
    Invitation,
)
from protocol.errors import LimitError, PeerError, StateError
from protocol.evidence import BY_WORDS, Evidence, decode_evidence, fork_evidence, is_evidence
from protocol.gossiping.gossiped import (
    BUCKET_DOMAIN,
    EMPTY_BUCKET,
    NUM_BUCKETS,
    Offered,
    OfferRefusal,
    OfferVerdict,
)
from protocol.hybrid_clock import is_ahead, stamp_s
from protocol.identity import PeerId, Signer, short_id
from protocol.shared_state.own import OwnChains, WrittenEntry
from protocol.wire import decode

# Held ---------------------------------------------------------------------------------------------
#
# What is kept of an entry: its bytes, and the few numbers that decisions need.


@dataclass(slots=True, frozen=True, eq=False)
class HeldEntry:
    """One entry of the book. There may be a hundred thousand: no decoded form is kept."""

    entry_id: bytes
    encoded: bytes
    kind: EntryKind
    key: bytes
    writer: PeerId
    era: int
    sequence: int
    stamp: int
    ends_s: float
    is_final: bool

    @property
    def rank(self) -> tuple[bool, int]:
        """Under one key of a writer the highest counts: the last, but for good what is final."""
        return self.is_final, self.sequence

    def entry(self) -> Entry:
        """Decoded anew: it was sound when it came."""
        return decode(Entry, self.encoded)


def held(entry: Entry, encoded: bytes, writer: PeerId) -> HeldEntry:
    """What is kept of `entry`; `writer` is its writer, as the object that is kept already."""
    content = entry.content
    return HeldEntry(
        entry_id=entry.entry_id,
        encoded=encoded,
        kind=entry.kind,
        key=entry.key,
        writer=writer,
        era=entry.era,
        sequence=entry.sequence,
        stamp=entry.stamp,
        ends_s=entry.ends_s,
        is_final=isinstance(content, Invitation) and content.is_revoked,
    )


# Buckets ------------------------------------------------------------------------------------------
#
# Ids in 256 buckets, and a digest of each: how two replicas find where they differ.


class Buckets:
    """A set of 32-byte ids.

    A bucket's digest is over its sorted ids, made anew when it is asked for after a change. It is
    no sum of fingerprints, which whoever chooses ids could make collide.
    """

    def __init__(self) -> None:
        self._ids: list[list[bytes]] = [[] for _ in range(NUM_BUCKETS)]
        self._digests = [EMPTY_BUCKET] * NUM_BUCKETS
        self._dirty: set[int] = set()

    def add(self, entry_id: bytes) -> None:
        """Put in an id that is not in."""
        insort(self._ids[entry_id[0]], entry_id)
        self._dirty.add(entry_id[0])

    def remove(self, entry_id: bytes) -> None:
        """Take out an id that is in."""
        bucket = self._ids[entry_id[0]]
        del bucket[bisect_left(bucket, entry_id)]
        self._dirty.add(entry_id[0])

    def digests(self) -> tuple[bytes, ...]:
        """One per bucket."""
        for bucket in self._dirty:
            self._digests[bucket] = blake3(BUCKET_DOMAIN + b"".join(self._ids[bucket])).digest()
        self._dirty.clear()
        return tuple(self._digests)

    def ids_in(self, bucket: int) -> tuple[bytes, ...]:
        """Ascending."""
        return tuple(self._ids[bucket])


# Chains -------------------------------------------------------------------------------------------
#
# The entries that are held, by writer and kind: what overtakes, contradicts or crowds out what.


class Chains:
    """Per writer and kind what is held, by ascending sequence; under each key the last one only.

    A chain is as short as its kind's `per_writer`, so it is a list that is walked.
    """

    def __init__(self) -> None:
        self._chains: dict[EntryKind, dict[PeerId, list[HeldEntry]]] = {
            kind: {} for kind in EntryKind
        }

    def of(self, writer: PeerId, kind: EntryKind) -> tuple[HeldEntry, ...]:
        """Ascending."""
        return tuple(self._chains[kind].get(writer, ()))

    def of_kind(self, kind: EntryKind) -> Iterator[HeldEntry]:
        """All of a kind, by writer as they came, each ascending."""
        for chain in self._chains[kind].values():
            yield from chain

    def all(self) -> Iterator[HeldEntry]:
        """Everything."""
        for kind in EntryKind:
            yield from self.of_kind(kind)

    def writer(self, writer: PeerId) -> PeerId:
        """The same key, as the object that is kept already: twenty thousand entries share it."""
        for chains in self._chains.values():
            chain = chains.get(writer)
            if chain:
                return chain[0].writer
        return writer

    def suspects(self, new: HeldEntry) -> tuple[HeldEntry, ...]:
        """What is held and may contradict `new`: its namesakes and neighbours in the chain."""
        chain = self._chains[new.kind].get(new.writer, ())
        return tuple(one for one in chain if abs(one.sequence - new.sequence) <= 1)

    def overtakes(self, new: HeldEntry) -> bool:
        """Whether something of a higher rank is held under the key of `new`."""
        chain = self._chains[new.kind].get(new.writer, ())
        return any(one.key == new.key and one.rank >= new.rank for one in chain)

    def is_crowded(self, new: HeldEntry) -> bool:
        """Whether the writer has as many later entries as it may have."""
        chain = self._chains[new.kind].get(new.writer, ())
        later = sum(one.sequence > new.sequence and one.key != new.key for one in chain)
        return later >= RULES[new.kind].per_writer

    def insert(self, new: HeldEntry) -> list[HeldEntry]:
        """Put in what nothing overtakes or crowds out; what goes for it."""
        chain = self._chains[new.kind].setdefault(new.writer, [])
        gone = [one for one in chain if one.key == new.key]
        kept = [one for one in chain if one.key != new.key]
        kept.append(new)
        kept.sort(key=lambda one: one.sequence)
        surplus = len(kept) - RULES[new.kind].per_writer
        if surplus > 0:
            gone += kept[:surplus]
            del kept[:surplus]
        chain[:] = kept
        return gone

    def remove(self, gone: Iterable[HeldEntry]) -> None:
        """Take out entries that are in."""
        for one in gone:
            chains = self._chains[one.kind]
            chain = chains[one.writer]
            chain[:] = [other for other in chain if other is not one]
            if not chain:
                del chains[one.writer]


# Convictions --------------------------------------------------------------------------------------
#
# Evidence that is held, and from which stamp on whose entries count no more.


class Convictions:
    """At most one piece of evidence per peer and accusation, and EVIDENCE_MAX in all.

    Evidence against members is never dropped; a member has a seat, and there are 64. That against
    others goes when it is full, lowest id first: keys cost nothing, so anybody can convict as many
    of the own as he likes. Evidence of wrong sums is large, and has a limit of its own.
    """

    def __init__(
        self, is_member: Callable[[PeerId], bool], most: int = limits.EVIDENCE_MAX
    ) -> None:
        self._is_member = is_member
        self._most = most
        self._held: dict[tuple[PeerId, Accusation], Evidence] = {}

    def against(self, peer: PeerId) -> tuple[Evidence, ...]:
        """What convicts a peer."""
        found = (self._held.get((peer, accusation)) for accusation in Accusation)
        return tuple(one for one in found if one is not None)

    def cut(self, peer: PeerId) -> int | None:
        """The stamp from which on a convicted peer's entries count no more."""
        return min((one.cut for one in self.against(peer)), default=None)

    @property
    def all(self) -> tuple[Evidence, ...]:
        """By ascending peer and accusation."""
        return tuple(self._held[place] for place in sorted(self._held))

    def add(self, evidence: Evidence) -> tuple[Evidence, ...] | None:
        """Take it in: what goes for it, nothing or one piece; None if it is not needed."""
        place = (evidence.subject, evidence.accusation)
        known = self._held.get(place)
        if known is not None:
            if known.rank <= evidence.rank:
                return None
            self._held[place] = evidence
            return (known,)
        self._held[place] = evidence
        sums = [place for place in self._held if place[1] in BY_WORDS]
        # Also where it is full: else each sum would take the place of something small.
        are_many = len(sums) > limits.WRONG_SUMS_MAX
        if not are_many and len(self._held) <= self._most:
            return ()
        lowest = min(sums if are_many else self._held, key=self._room_rank)
        gone = self._held.pop(lowest)
        return None if gone is evidence else (gone,)

    def _room_rank(self, place: tuple[PeerId, Accusation]) -> tuple[bool, bytes]:
        return self._is_member(place[0]), self._held[place].entry_id


# Room ---------------------------------------------------------------------------------------------
#
# How many entries of a kind are held, and which one goes when there is no more room.

Rank = tuple[bool, int, bytes]
"""Of a member, stamp, id: the lowest goes first."""


_STALE_MAX = 64


class EntryQuota:
    """The total of one kind.

    What is kept when it is full are the highest ranks ever offered: so replicas that heard the same
    in different orders keep the same. The heap is there only while it is full; it may hold ids that
    are gone, which are passed over.
    """

    def __init__(self, most: int, is_member: Callable[[PeerId], bool]) -> None:
        self._most = most
        self._is_member = is_member
        self._heap: list[Rank] | None = None
        self.count = 0

    def rank(self, held: HeldEntry) -> Rank:
        """The place of an entry."""
        return self._is_member(held.writer), held.stamp, held.entry_id

    def forget_ranks(self) -> None:
        """Others are members now."""
        self._heap = None

    def lowest(
        self, candidates: Callable[[], Iterable[HeldEntry]], is_held: Callable[[bytes], bool]
    ) -> Rank | None:
        """The rank that goes if one more comes; None while there is room."""
        if self.count < self._most:
            self._heap = None
            return None
        if self._heap is None or len(self._heap) > 2 * self.count + _STALE_MAX:
            self._heap = [self.rank(one) for one in candidates()]
            heapq.heapify(self._heap)
        while not is_held(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0]

    def added(self, held: HeldEntry) -> None:
        """One more is held."""
        self.count += 1
        if self._heap is not None:
            heapq.heappush(self._heap, self.rank(held))

    def removed(self) -> None:
        """One less is held."""
        self.count -= 1


logger = logging.getLogger(__name__)

# Book ---------------------------------------------------------------------------------------------

ERAS_KEPT = 2
"""Entries of the present era and of the two before it count."""

_RENEW_AFTER = 0.4
"""Of a lifetime: 4 of 10 minutes. One renewal may be lost."""

_RENEWED = (
    EntryKind.IDENTITY,
    EntryKind.EVIDENCE,
    EntryKind.CHECKPOINT,
    EntryKind.DATA,
    EntryKind.INVITATION,
    EntryKind.ADMISSION,
    EntryKind.TEXT,
)
"""What stays true until its writer says otherwise. The others are news, and are written as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the disk has to learn: ids with their bytes, and ids that are gone."""

    stored: tuple[tuple[bytes, bytes], ...]
    dropped: tuple[bytes, ...]


class SharedState:
    """Implements `Gossiped`. One owner, no threads.

    `floor` and `must_ask` come from the store (`OwnChains`). What changes is kept until
    `take_changes`; an own entry is in the hands of others only after `release`.
    """

    def __init__(
        self, run: bytes, signer: Signer, *, floor: int = 0, must_ask: bool = False
    ) -> None:
        self.run = run
        self.me = signer.peer_id
        self.era = 0
        self._signer = signer
        self._own = OwnChains(run, signer, floor=floor, must_ask=must_ask)
        self._members: frozenset[PeerId] = frozenset()
        self._by_id: dict[bytes, HeldEntry | Evidence] = {}
        self._chains = Chains()
        self._banning: list[Evidence] = []
        self._convictions = Convictions(self._is_member)
        self._rooms = {kind: EntryQuota(RULES[kind].total, self._is_member) for kind in EntryKind}
        self._buckets = Buckets()
        self._changes: dict[bytes, bytes | None] = {}
        self.num_bytes = 0
        self.versions = dict.fromkeys(EntryKind, 0)

    # What gossip asks (`Gossiped`).

    def bucket_digests(self) -> tuple[bytes, ...]:
        """256 digests; equal ones mean equal ids."""
        return self._buckets.digests()

    def ids_in(self, bucket: int) -> tuple[bytes, ...]:
        """The ids of one bucket, ascending."""
        return self._buckets.ids_in(bucket)

    def get(self, entry_id: bytes) -> bytes | None:
        """The bytes of an entry or of evidence, if it is held."""
        one = self._by_id.get(entry_id)
        return one.encoded if one is not None else None

    def offer(self, encoded: bytes, *, wall_s: float, now_s: float) -> Offered:
        """Merge what somebody passed on. Never raises because of what it is."""
        try:
            if is_evidence(encoded):
                return self._take_evidence(decode_evidence(encoded, self.run, self._signer))
            entry = decode_entry(encoded, self.run)
        except PeerError as error:
            return Offered(verdict=OfferVerdict.REFUSED, fault=error.strike, reason=str(error))
        return self._offer_entry(entry, encoded, wall_s, is_checked=False)

    # What the own node does.

    def write(self, kind: EntryKind, key: bytes, body: EntryBody, *, wall_s: float) -> WrittenEntry:
        """The next own entry. It takes effect with `release`, once it is on the disk.

        Raises StateError while it must ask others or when it is convicted; LimitError if the body
        is too long or the own entries of this kind are too many.
        """
        if self._convictions.cut(self.me) is not None:
            raise StateError("this node signed what contradicts itself: its entries count no more")
        chain = self._chains.of(self.me, kind)
        live = {one.key for one in chain if one.ends_s > wall_s}
        if key not in live and len(live) >= RULES[kind].per_writer:
            raise LimitError(f"{len(live)} entries of kind {kind.name}: no room for another key")
        return self._own.write(kind, key, body, era=self.era, wall_s=wall_s)

    def release(self, written: WrittenEntry, *, wall_s: float) -> Offered:
        """Merge what `write` made: from now on others may have it."""
        entry = decode_entry(written.encoded, self.run)
        return self._offer_entry(entry, written.encoded, wall_s, is_checked=True)

    def renewals(self, wall_s: float) -> tuple[WrittenEntry, ...]:
        """The own entries that are to stand, written anew, if their time or era runs out.

        None while nothing may be written. Each goes to disk and to `release`, as after `write`.
        """
        if self.must_ask or self._convictions.cut(self.me) is not None:
            return ()
        written = []
        for kind in _RENEWED:
            for one in self._chains.of(self.me, kind):
                age_s = wall_s - stamp_s(one.stamp)
                if age_s < _RENEW_AFTER * RULES[kind].ttl_s and one.era >= self.era:
                    continue
                body = one.entry().content
                if _stands(body, wall_s):
                    written.append(
                        self._own.write(kind, one.key, body, era=self.era, wall_s=wall_s)
                    )
        return tuple(written)

    @property
    def must_ask(self) -> bool:
        """Whether nothing may be written before others have told what they hold of this node."""
        return self._own.must_ask

    def asked(self) -> None:
        """Enough others have been asked, and what they hold of this node was offered here."""
        self._own.must_ask = False

    # Time, rounds, members, disk.

    def restore(self, rows: Iterable[tuple[bytes, bytes]], *, wall_s: float) -> None:
        """Ids and bytes that the disk held, known to be what was stored; before all else."""
        for entry_id, encoded in rows:
            try:
                if is_evidence(encoded):
                    self._take_evidence(decode_evidence(encoded, self.run, self._signer))
                else:
                    entry = decode_entry(encoded, self.run)
                    self._offer_entry(entry, encoded, wall_s, is_checked=True)
            except PeerError as error:
                logger.warning("state kept by another version is dropped: %s", error)
            if entry_id in self._by_id:
                del self._changes[entry_id]
            else:
                self._changes[entry_id] = None

    def take_changes(self) -> Changes:
        """What changed since the last call. Own entries are on the disk before it, with `write`."""
        changes, self._changes = self._changes, {}
        return Changes(
            stored=tuple((name, data) for name, data in changes.items() if data is not None),
            dropped=tuple(name for name, data in changes.items() if data is None),
        )

    def expire(self, wall_s: float) -> None:
        """Drop what has ended. It walks over everything: some milliseconds for ten thousand."""
        for one in [one for one in self._chains.all() if one.ends_s <= wall_s]:
            self._remove(one)

    def enter_era(self, era: int) -> None:
        """A seal said so: what is from before the last two eras is dropped, and refused from now
        on. Whoever was away for longer comes back with nothing that others still know."""
        self.era = max(self.era, era)
        for one in [one for one in self._chains.all() if one.era < self.era - ERAS_KEPT]:
            self._remove(one)

    def set_members(self, members: frozenset[PeerId]) -> None:
        """Whose entries stay when there is no room for all: those of the seated."""
        if members != self._members:
            self._members = members
            for room in self._rooms.values():
                room.forget_ranks()

    # What the entries say.

    def held_of(self, kind: EntryKind) -> Iterator[HeldEntry]:
        """All of a kind, undecoded, each writer's by ascending sequence."""
        return self._chains.of_kind(kind)

    def entries(self, kind: EntryKind) -> Iterator[Entry]:
        """All of a kind, decoded as they are asked for."""
        return (one.entry() for one in self._chains.of_kind(kind))

    def entry(self, writer: PeerId, kind: EntryKind, key: bytes = b"") -> Entry | None:
        """What a writer said last under a key."""
        for one in self._chains.of(writer, kind):
            if one.key == key:
                return one.entry()
        return None

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """All that is proven, by ascending peer."""
        return self._convictions.all

    def take_banning(self) -> tuple[Evidence, ...]:
        """What came since the last call and bans its subject from the rounds (R1).

        A fork of entries does not: its writer's entries count no more, which is all that they do.
        """
        taken, self._banning = self._banning, []
        return tuple(taken)

    def __len__(self) -> int:
        """Number of entries and pieces of evidence."""
        return len(self._by_id)

    def _is_member(self, writer: PeerId) -> bool:
        return writer in self._members

    def _offer_entry(
        self, entry: Entry, encoded: bytes, wall_s: float, *, is_checked: bool
    ) -> Offered:
        new = held(entry, encoded, self._chains.writer(entry.writer))
        if new.entry_id in self._by_id:
            return Offered(verdict=OfferVerdict.KNOWN, entry_id=new.entry_id)
        if entry.writer == self.me:
            # Heard also if it is held no more: no number is used twice.
            if not is_checked and not entry.is_signed(self._signer):
                return _forged(entry)
            is_checked = True
            self._own.hear_own(entry.kind, entry.sequence, entry.stamp)
        opponent = self._opponent(new, entry)
        # All that needs no signature comes first: checking one costs more than all the rest.
        refusal = self._untimely(new, wall_s, is_checked=is_checked)
        if refusal is None and opponent is None:
            if self._chains.overtakes(new):
                return Offered(verdict=OfferVerdict.KNOWN, entry_id=new.entry_id)
            refusal = self._no_room(new)
        if refusal is not None:
            return Offered(verdict=OfferVerdict.REFUSED, entry_id=new.entry_id, refusal=refusal)
        if not is_checked and not entry.is_signed(self._signer):
            return _forged(entry)
        if opponent is not None:
            proof = fork_evidence(opponent.entry().signed_header, entry.signed_header)
            is_first = self._take_evidence(proof).is_new
            return Offered(
                verdict=OfferVerdict.CONTRADICTION,
                entry_id=new.entry_id,
                reason=f"{short_id(entry.writer)} contradicts itself",
                evidence=proof.entry_id if is_first else b"",
            )
        self._insert(new)
        self._own.hear(new.stamp, wall_s)
        return Offered(verdict=OfferVerdict.NEW, entry_id=new.entry_id)

    def _opponent(self, new: HeldEntry, entry: Entry) -> HeldEntry | None:
        """What is held and convicts the writer together with `new`."""
        for one in self._chains.suspects(new):
            if one.sequence == new.sequence:
                return one
            later, before = (entry, one) if one.sequence < new.sequence else (one.entry(), new)
            if later.previous and later.previous != before.entry_id:
                return one
        return None

    def _untimely(self, new: HeldEntry, wall_s: float, *, is_checked: bool) -> OfferRefusal | None:
        if new.era < self.era - ERAS_KEPT:
            return OfferRefusal.ERA
        # Own ones and those from the disk are not in doubt: the clock here may have gone back.
        if not is_checked and is_ahead(new.stamp, wall_s):
            return OfferRefusal.AHEAD
        if new.ends_s <= wall_s:
            return OfferRefusal.ENDED
        cut = self._convictions.cut(new.writer)
        return OfferRefusal.CONVICTED if cut is not None and new.stamp >= cut else None

    def _no_room(self, new: HeldEntry) -> OfferRefusal | None:
        if self._chains.is_crowded(new):
            return OfferRefusal.CROWDED
        lowest = self._lowest(new.kind)
        is_low = lowest is not None and self._rooms[new.kind].rank(new) <= lowest
        return OfferRefusal.FULL if is_low else None

    def _lowest(self, kind: EntryKind) -> Rank | None:
        return self._rooms[kind].lowest(
            lambda: self._chains.of_kind(kind), lambda name: name in self._by_id
        )

    def _insert(self, new: HeldEntry) -> None:
        for gone in self._chains.insert(new):
            self._forget(gone)
        self._file(new)
        room = self._rooms[new.kind]
        room.added(new)
        self.versions[new.kind] += 1
        while room.count > RULES[new.kind].total:
            lowest = self._lowest(new.kind)
            assert lowest is not None, "it is full"
            one = self._by_id[lowest[2]]
            assert isinstance(one, HeldEntry)
            self._remove(one)

    def _take_evidence(self, evidence: Evidence) -> Offered:
        gone = self._convictions.add(evidence)
        if gone is None:
            return Offered(verdict=OfferVerdict.KNOWN, entry_id=evidence.entry_id)
        for one in gone:
            self._unfile(one)
        self._file(evidence)
        if evidence.accusation is not Accusation.FORK:
            self._banning.append(evidence)
        logger.warning(
            "evidence peer=%s accusation=%s", short_id(evidence.subject), evidence.accusation.name
        )
        for kind in EntryKind:
            for held_ in self._chains.of(evidence.subject, kind):
                if held_.stamp >= evidence.cut:
                    self._remove(held_)
        return Offered(verdict=OfferVerdict.NEW, entry_id=evidence.entry_id)

    def _remove(self, gone: HeldEntry) -> None:
        self._chains.remove([gone])
        self._forget(gone)

    def _forget(self, gone: HeldEntry) -> None:
        self._unfile(gone)
        self._rooms[gone.kind].removed()
        self.versions[gone.kind] += 1

    def _file(self, one: HeldEntry | Evidence) -> None:
        self._by_id[one.entry_id] = one
        self._buckets.add(one.entry_id)
        self._changes[one.entry_id] = one.encoded
        self.num_bytes += len(one.encoded)

    def _unfile(self, one: HeldEntry | Evidence) -> None:
        del self._by_id[one.entry_id]
        self._buckets.remove(one.entry_id)
        self._changes[one.entry_id] = None
        self.num_bytes -= len(one.encoded)


def _forged(entry: Entry) -> Offered:
    reason = f"{short_id(entry.writer)} did not sign this"
    return Offered(verdict=OfferVerdict.REFUSED, fault="signature", reason=reason)


def _stands(body: EntryBody, wall_s: float) -> bool:
    """Whether an own entry is to be written anew: not what has become void."""
    match body:
        case HasCheckpoint() | HasData():
            return not body.is_withdrawn
        case Invitation():
            # A revocation stands for good: who was let in before is not let in again.
            return body.is_revoked or wall_s < body.not_after_unix_s
        case _:
            return True
