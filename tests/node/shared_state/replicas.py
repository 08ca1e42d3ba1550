"""Replicas of the state under everything that happens to them, until they agree."""

import collections
import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol import limits
from protocol.entries import Entry, contradict, decode_entry
from protocol.entry_kinds import RULES, EntryKind
from protocol.errors import LimitError
from protocol.gossiping.gossiped import Offered, OfferVerdict
from protocol.hybrid_clock import is_ahead, stamp_s
from protocol.shared_state.book import SharedState
from protocol.shared_state.store import Store
from protocol.wire import encode
from tests.node.shared_state.scene import RUN, WALL_S, all_ids, exchange, key_of, make_entry, signer
from tests.protocol.entry_vectors import BODIES

KINDS = [EntryKind.NOTE, EntryKind.DATA, EntryKind.INVITATION, EntryKind.METRICS]
LIARS = [signer(100 + number) for number in range(12)]
STEP_S = 0.0137
"""Time passes with each step, by no part of an hour."""

indexes = st.integers(0, 7)
kinds = st.sampled_from(KINDS)


class Replica:
    """A book with its disk and its own idea of the time."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.folder = number, folder
        self.signer = signer(number + 1)
        self.ahead_s = 0.0
        self.side = 0
        self.wall_s = WALL_S
        self.own: dict[EntryKind, tuple[int, int]] = {}
        self.convicted: set[bytes] = set()
        self.open()

    def open(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.store = Store(self.folder, RUN)
        self.book = SharedState(
            RUN, self.signer, floor=self.store.floor, must_ask=self.store.must_ask
        )
        self.book.restore(self.store.take_rows(), wall_s=self.wall_s)

    def offer(self, encoded: bytes, /) -> Offered:
        return self.book.offer(encoded, wall_s=self.wall_s, now_s=0.0)

    def write(self, kind: EntryKind, key: int) -> bytes | None:
        try:
            written = self.book.write(kind, key_of(kind, key), BODIES[kind], wall_s=self.wall_s)
        except LimitError:
            return None
        number = written.sequence, written.stamp
        assert number > self.own.get(kind, (0, 0)), "a number was used again"
        self.own[kind] = number
        self.store.write_own([written])
        assert self.book.release(written, wall_s=self.wall_s).is_new
        return written.encoded


class Replicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="replicas-"))
        self.now_s = WALL_S
        self.era = 0
        self.chains: dict[tuple[bytes, EntryKind], list[Entry]] = {}
        self.under_way: list[tuple[int, bytes]] = []
        self.proven: set[bytes] = set()
        self.replicas: list[Replica] = []
        self.seen: collections.Counter[str] = collections.Counter()

    @initialize(count=st.integers(2, 8))
    def begin(self, count):
        self.replicas = [Replica(n, self.folder / str(n)) for n in range(count)]

    def teardown(self):
        if self.replicas:
            self.settle()
            for replica in self.replicas:
                replica.store.close()
        shutil.rmtree(self.folder)

    def at(self, index: int) -> Replica:
        self.pass_time(STEP_S)
        return self.replicas[index % len(self.replicas)]

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for replica in self.replicas:
            replica.wall_s = self.now_s + replica.ahead_s

    def push(self, source: Replica, encoded: bytes) -> None:
        for one in self.replicas:
            if one is not source and one.side == source.side and len(self.under_way) < 200:
                self.under_way.append((one.number, encoded))

    def give(self, taker: Replica, encoded: bytes):
        """An offer, and by brute force whether it must convict."""
        book, expected = taker.book, False
        if encoded[:1] == b"\x9c":
            entry = decode_entry(encoded, RUN)
            cut = book._convictions.cut(entry.writer)
            is_timely = (
                entry.ends_s > taker.wall_s
                and entry.era >= book.era - 2
                and (entry.writer == book.me or not is_ahead(entry.stamp, taker.wall_s))
                and (cut is None or entry.stamp < cut)
                and entry.is_signed(taker.signer)
            )
            expected = is_timely and any(
                contradict(entry.header, one.header)
                for one in book.entries(entry.kind)
                if one.writer == entry.writer
            )
        offered = taker.offer(encoded)
        self.seen[offered.verdict.name] += 1
        assert (offered.verdict is OfferVerdict.CONTRADICTION) == expected
        if offered.is_new:
            assert book.get(offered.entry_id) is not None
        if expected:
            self.proven.add(entry.writer)
        return offered

    @rule(index=indexes, kind=kinds, key=st.integers(0, 4))
    def write(self, index, kind, key):
        writer = self.at(index)
        encoded = writer.write(kind, key)
        if encoded is not None:
            self.push(writer, encoded)

    @rule(index=indexes, liar=st.sampled_from(LIARS), kind=kinds, key=st.integers(0, 2))
    def stranger_writes(self, index, liar, kind, key):
        taker = self.at(index)
        chain = self.chains.setdefault((liar.peer_id, kind), [])
        entry = make_entry(
            liar,
            kind,
            after=chain[-1] if chain else None,
            wall_s=self.now_s,
            key=key_of(kind, key),
            era=self.era,
        )
        chain.append(entry)
        if self.give(taker, encode(entry)).is_new:
            self.push(taker, encode(entry))

    @rule(index=indexes, which=st.integers(0, 99), back=st.integers(0, 3))
    def fork(self, index, which, back):
        if not self.chains:
            return
        writer, kind = list(self.chains)[which % len(self.chains)]
        chain, liar = self.chains[writer, kind], signer(writer[0])
        if len(chain) <= back:
            return
        taker, real = self.at(index), chain[-1 - back]
        after = chain[-2 - back] if len(chain) > back + 1 else None
        changes = {"sequence": real.sequence, "stamp": real.stamp} if after is None else {}
        false = make_entry(
            liar,
            kind,
            after=after,
            wall_s=stamp_s(real.stamp),
            key=key_of(kind, 9),
            era=real.era,
            expires_unix_s=real.expires_unix_s - 1,
            **changes,
        )
        assert contradict(false.header, real.header)
        if self.give(taker, encode(false)).is_new:
            self.push(taker, encode(false))

    @rule(index=indexes, victim=indexes, kind=kinds)
    def bad_write(self, index, victim, kind):
        taker, named = self.at(index), self.at(victim)
        forged = make_entry(LIARS[0], kind, wall_s=self.now_s, key=key_of(kind, 8), era=self.era)
        object.__setattr__(forged, "writer", named.signer.peer_id)
        forged.__dict__.pop("header", None)
        before = all_ids(taker.book)
        offered = taker.offer(encode(forged))
        is_timely = forged.ends_s > taker.wall_s and forged.era >= taker.book.era - 2
        # Nobody looks at the signature of what is overtaken anyway, as its METRICS may be.
        if is_timely and not is_ahead(forged.stamp, taker.wall_s) and kind is not EntryKind.METRICS:
            assert offered.fault == "signature"
        assert not offered.is_new
        assert all_ids(taker.book) == before

    @rule(which=st.integers(0, 199), is_dropped=st.booleans(), is_doubled=st.booleans())
    def deliver(self, which, is_dropped, is_doubled):
        if not self.under_way:
            return
        number, encoded = self.under_way.pop(which % len(self.under_way))
        taker = self.at(number)
        if not is_dropped and self.give(taker, encoded).is_new:
            self.push(taker, encoded)
        if is_doubled:
            assert not self.give(taker, encoded).fault

    @rule(here=indexes, there=indexes, seed=st.randoms(use_true_random=False))
    def gossip_some(self, here, there, seed):
        giver, taker = self.at(here), self.at(there)
        if giver.side != taker.side:
            return
        missing = sorted(set(all_ids(giver.book)) - set(all_ids(taker.book)))
        for entry_id in seed.sample(missing, len(missing) // 2):
            encoded = giver.book.get(entry_id)
            assert encoded is not None
            assert not self.give(taker, encoded).fault

    @rule(sides=st.lists(st.integers(0, 1), min_size=8, max_size=8))
    def partition(self, sides):
        for replica, side in zip(self.replicas, sides, strict=False):
            replica.side = side

    @rule()
    def heal(self):
        for replica in self.replicas:
            replica.side = 0

    @rule(index=indexes, is_saved=st.booleans())
    def restart(self, index, is_saved):
        replica = self.at(index)
        if is_saved:
            replica.store.apply(replica.book.take_changes())
        else:
            # What was not written is lost: convictions as well, until they are heard again.
            replica.convicted = set()
        kept = {
            one.entry_id
            for kind in KINDS
            for one in replica.book.held_of(kind)
            if is_saved and one.ends_s > replica.wall_s
        }
        replica.store.close()
        replica.open()
        assert not replica.store.must_ask
        assert kept <= set(all_ids(replica.book))
        replica.book.enter_era(self.era)

    @rule(index=indexes, jump_s=st.sampled_from([-3600.0, 3600.0, 0.0]))
    def clock_jump(self, index, jump_s):
        self.at(index).ahead_s = jump_s
        self.pass_time(0.0)

    @rule(seconds=st.sampled_from([1.0, 60.0, 900.0]))
    def time_passes(self, seconds):
        self.pass_time(seconds)

    @rule(index=indexes)
    def collect(self, index):
        replica = self.at(index)
        replica.book.expire(replica.wall_s)
        replica.store.apply(replica.book.take_changes())

    @rule(index=indexes)
    def enter_era(self, index):
        self.era += 1
        self.at(index).book.enter_era(self.era)

    @invariant()
    def honest_are_never_convicted_and_convictions_stay(self):
        honest: set[bytes] = {replica.signer.peer_id for replica in self.replicas}
        for replica in self.replicas:
            convicted: set[bytes] = {one.subject for one in replica.book.evidence}
            assert not convicted & honest
            assert convicted >= replica.convicted, "what is proven does not go away"
            replica.convicted = convicted

    @invariant()
    def memory_is_bounded_and_counted(self):
        for replica in self.replicas:
            book = replica.book
            ids = all_ids(book)
            assert len(ids) == len(book) == len(set(ids))
            assert book.num_bytes == sum(len(book.get(one) or b"") for one in ids)
            for kind in KINDS:
                writers = [one.writer for one in book.held_of(kind)]
                most = max(map(writers.count, writers), default=0)
                assert most <= RULES[kind].per_writer
            assert len(self.under_way) <= 200
            assert book.num_bytes <= 96 * limits.MIB

    @rule()
    def settle(self):
        """Partitions heal, clocks and eras become one; three full exchanges make all equal."""
        self.heal()
        held = [one for r in self.replicas for kind in KINDS for one in r.book.held_of(kind)]
        latest_s = max([self.now_s, *(stamp_s(one.stamp) for one in held)])
        self.pass_time(latest_s - self.now_s + STEP_S)
        for replica in self.replicas:
            replica.ahead_s = 0.0
            replica.wall_s = self.now_s
            replica.book.enter_era(self.era)
            replica.book.expire(self.now_s)
        convicted = set[bytes]().union(*(r.convicted for r in self.replicas))
        for _ in range(3):
            for here, there in itertools.combinations(self.replicas, 2):
                exchange(here, there)
        first = self.replicas[0]
        for replica in self.replicas:
            book = replica.book
            assert book.bucket_digests() == first.book.bucket_digests()
            assert {one.subject for one in book.evidence} >= convicted
            entries = [one for kind in KINDS for one in book.entries(kind)]
            assert all(one.is_signed(replica.signer) for one in entries)
            assert not any(
                contradict(a.header, b.header) for a, b in itertools.combinations(entries, 2)
            )
        self.honest_are_never_convicted_and_convictions_stay()
