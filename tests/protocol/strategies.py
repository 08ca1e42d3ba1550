"""Values of wire types: hypothesis strategies and places in the bytes, from the annotations."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, NewType, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from protocol import limits
from protocol.errors import DecodeError
from protocol.frames import (
    BlockHeader,
    Branch,
    BulkHeader,
    BulkItem,
    BulkItems,
    Chain,
    Heartbeat,
    Hello,
    Lacking,
    Messages,
    Refusal,
    StatusAnswer,
    StatusAsk,
    Want,
    WantBlocks,
    WantBranch,
    WantChain,
    Welcome,
)
from protocol.gossip import GOSSIP_FRAMES, BucketIds, Digests
from protocol.grid import ShardSpec, TensorSpec
from protocol.identity import PeerId
from protocol.manifest import (
    AccessSpec,
    AdmissionSpec,
    CorpusSpec,
    ModelSpec,
    OuterSpec,
    RunManifest,
    SignedManifest,
    TimingSpec,
)
from protocol.messages import (
    Agg,
    Commit,
    Gram,
    Have,
    Held,
    Interval,
    Kind,
    Leave,
    List,
    NewAttempt,
    Outcome,
    Retract,
    Roster,
    Seal,
    SealCertificate,
    SealClock,
    SealValue,
    Seat,
    SeatRecord,
    SignedMessage,
    Slot,
    Verdict,
    Vote,
)
from protocol.wire import INT_MAX, OneOf, Range, Size, Spelled, decode, encode

BODIES = (*(Seat, Commit, Have, List, Vote, Gram, Agg, Seal, NewAttempt, Leave, Verdict, Retract),)
FRAMES = (
    *(Hello, Refusal, Heartbeat, Messages, Want, WantChain, Chain, StatusAsk, StatusAnswer),
    *GOSSIP_FRAMES.values(),
    *(WantBranch, Branch, Welcome, Lacking),
)
BULK = (BulkHeader, BulkItems, WantBlocks, BlockHeader)
TYPES = (*BODIES, *FRAMES, *BULK, SignedMessage, SealValue, SealCertificate, SignedManifest)

# Long values test nothing that short ones do not, and cost time; `test_limits` has the long ones.
ITEMS_MAX = 3
BYTES_MAX = 80

WITHOUT_ATTEMPT = (
    *(Kind.SEAT, Kind.COMMIT, Kind.GRAM, Kind.AGG, Kind.LEAVE, Kind.VERDICT, Kind.RETRACT),
)
WITH_SUBJECT = (Kind.GRAM, Kind.AGG, Kind.SEAL, Kind.PSEAL, Kind.VERDICT)


def resolve(hint: Any) -> tuple[Any, object]:
    """A hint without its wrappings, and its limit."""
    limit: object = None
    while get_origin(hint) is Annotated or isinstance(hint, NewType):
        if isinstance(hint, NewType):
            hint = hint.__supertype__
        else:
            hint, limit = get_args(hint)
    return hint, limit


def fields_of(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def size_of(kind: Any, limit: object) -> Size:
    """Fewest and most bytes or items."""
    defaults = {str: limits.STRING_BYTES_MAX, bytes: limits.CONTROL_FRAME_BYTES_MAX}
    most = defaults.get(kind, limits.LIST_ITEMS_MAX)
    if isinstance(limit, Spelled):
        return Size(limit.low, limit.high)
    return limit if isinstance(limit, Size) else Size(0, most)


def range_of(kind: Any, limit: object) -> Range:
    if isinstance(limit, Range):
        return limit
    return Range(0, INT_MAX) if kind is int else Range(-math.inf, math.inf)


def values(hint: Any) -> SearchStrategy[Any]:
    """Valid values of a field or a whole type."""
    kind, limit = resolve(hint)
    if kind in SPECIAL:
        special: SearchStrategy[Any] = SPECIAL[kind]()
        return special
    if isinstance(limit, OneOf):
        return st.sampled_from(limit.values)
    if isinstance(limit, Spelled):
        return st.from_regex(limit.pattern, fullmatch=True)
    if kind is bool:
        return st.booleans()
    if kind is int:
        bound = range_of(kind, limit)
        return st.integers(math.ceil(bound.low), math.floor(bound.high))
    if kind is float:
        return finite(range_of(kind, limit))
    if kind in (str, bytes):
        size = size_of(kind, limit)
        most = max(size.low, min(size.high, BYTES_MAX))
        if kind is bytes:
            return st.binary(min_size=size.low, max_size=most)
        # A character takes up to four bytes.
        return st.text(st.characters(codec="utf-8"), min_size=size.low, max_size=max(1, most // 4))
    if get_origin(kind) is tuple:
        size = size_of(kind, limit)
        most = max(size.low, min(size.high, ITEMS_MAX))
        items = st.lists(values(get_args(kind)[0]), min_size=size.low, max_size=most)
        return items.map(tuple)
    if get_origin(kind) in (typing.Union, types.UnionType):
        return st.one_of(*(values(one) for one in get_args(kind)))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return st.builds(kind, **{name: values(field) for name, field in fields_of(kind).items()})
    return st.sampled_from(list(kind))


def finite(bound: Range) -> SearchStrategy[float]:
    low = bound.low if math.isfinite(bound.low) else None
    high = bound.high if math.isfinite(bound.high) else None
    drawn = st.floats(low, high, allow_nan=False, allow_infinity=False)
    return drawn.map(lambda number: number + 0.0 if number else 0.0)


# Types whose fields depend on each other.


@st.composite
def _slots(draw: st.DrawFn) -> Slot:
    hints = fields_of(Slot)
    free = {name: draw(values(hints[name])) for name in ("run", "shard", "round", "basis", "kind")}
    kind = free["kind"]
    attempt = 0 if kind in WITHOUT_ATTEMPT else draw(values(hints["attempt"]))
    size = 32 if kind in WITH_SUBJECT else 0
    return Slot(**free, attempt=attempt, subject=draw(st.binary(min_size=size, max_size=size)))


@st.composite
def _haves(draw: st.DrawFn) -> Have:
    bounds = sorted(draw(st.sets(st.integers(0, limits.CELLS_MAX), max_size=8)))
    pairs = zip(bounds[::2], bounds[1::2], strict=False)
    senders = values(fields_of(Held)["senders"])
    return Have(held=tuple(Held(first=a, stop=b, senders=draw(senders)) for a, b in pairs))


@st.composite
def _digests(draw: st.DrawFn) -> Digests:
    hints = fields_of(Digests)
    item, _ = get_args(resolve(hints["buckets"])[0])
    buckets = (draw(values(item)),) * draw(st.sampled_from((0, limits.GOSSIP_BUCKETS)))
    return Digests(nonce=draw(values(hints["nonce"])), buckets=buckets)


@st.composite
def _bucket_ids(draw: st.DrawFn) -> BucketIds:
    hints = fields_of(BucketIds)
    free = {name: draw(values(hints[name])) for name in ("nonce", "bucket")}
    digests = st.binary(min_size=32, max_size=32)
    ids = sorted(draw(st.sets(digests, min_size=2, max_size=5)))
    return BucketIds(**free, first=ids[0], last=ids[-1], ids=tuple(ids[draw(st.integers(0, 1)) :]))


@st.composite
def _bulk_items(draw: st.DrawFn) -> BulkItems:
    hints, piece = fields_of(BulkItem), draw(values(fields_of(BulkItems)["piece"]))
    count = draw(st.integers(1, limits.ITEMS_TOGETHER_MAX))
    most = limits.CHUNK_BYTES if count == 1 else min(piece // count, limits.CHUNK_BYTES)
    items = tuple(
        BulkItem(
            index=draw(values(hints["index"])),
            length=draw(st.integers(0, most)),
            proof=bytes(32) * draw(st.integers(0, limits.PROOF_NODES_MAX)),
        )
        for _ in range(count)
    )
    return BulkItems(items=items, piece=piece)


@st.composite
def _want_blocks(draw: st.DrawFn) -> WantBlocks:
    numbers = st.integers(0, limits.TEXT_BLOCKS_MAX - 1)
    blocks = draw(st.sets(numbers, min_size=1, max_size=ITEMS_MAX))
    return WantBlocks(
        root=draw(values(fields_of(WantBlocks)["root"])), blocks=tuple(sorted(blocks))
    )


@st.composite
def _block_headers(draw: st.DrawFn) -> BlockHeader:
    hints = fields_of(BlockHeader)
    proof = bytes(32) * draw(st.integers(0, limits.PROOF_NODES_MAX))
    named = {name: draw(values(hints[name])) for name in ("number", "length")}
    return BlockHeader(**named, proof=proof)


@st.composite
def _clocks(draw: st.DrawFn) -> SealClock:
    hints = fields_of(SealClock)
    bounds = sorted(draw(st.sets(st.integers(0, 2**62), max_size=8)))
    pairs = zip(bounds[::2], bounds[1::2], strict=False)
    return SealClock(
        **{name: draw(values(hints[name])) for name in ("step", "tokens", "cursor", "ends_run")},
        unused=tuple(Interval(first=a, stop=b) for a, b in pairs),
    )


@st.composite
def _rosters(draw: st.DrawFn) -> Roster:
    seats = draw(st.lists(values(SeatRecord), min_size=1, max_size=3, unique_by=lambda s: s.peer))
    window = draw(values(fields_of(Roster)["window"]))
    return Roster(seats=tuple(sorted(seats, key=lambda seat: seat.peer)), window=window)


@st.composite
def _models(draw: st.DrawFn) -> ModelSpec:
    return ModelSpec(**_with_sorted(draw, ModelSpec, "settings"))


@st.composite
def _corpora(draw: st.DrawFn) -> CorpusSpec:
    hints = fields_of(CorpusSpec)
    size = draw(st.sampled_from((1, 2, 4)))
    block_tokens = draw(st.integers(1024 // size, limits.CHUNK_BYTES // size))
    found = {name: draw(values(hint)) for name, hint in hints.items()}
    # Few enough that their tokens are a number of the wire, too.
    blocks = draw(st.integers(1, 2**32))
    return CorpusSpec(
        **found
        | {
            "token_bytes": size,
            "block_bytes": block_tokens * size,
            "vocab_size": draw(st.integers(2, min(256**size, 2**31))),
            "held_out_blocks": blocks,
            "held_out_tokens": draw(st.integers(1, blocks * block_tokens)),
        }
    )


@st.composite
def _outers(draw: st.DrawFn) -> OuterSpec:
    return OuterSpec(**_with_sorted(draw, OuterSpec, "codec_settings"))


def _with_sorted(draw: st.DrawFn, kind: Any, key: str) -> dict[str, Any]:
    """Fields of a kind whose settings, under `key`, are sorted by name and each there once."""
    found = {name: draw(values(hint)) for name, hint in fields_of(kind).items()}
    settings = {setting.name: setting for setting in found[key]}
    return found | {key: tuple(settings[name] for name in sorted(settings))}


@st.composite
def _accesses(draw: st.DrawFn) -> AccessSpec:
    peers = draw(st.sets(st.binary(min_size=32, max_size=32), max_size=ITEMS_MAX))
    mode = draw(values(fields_of(AccessSpec)["mode"]))
    return AccessSpec(mode=mode, allow=tuple(sorted(map(PeerId, peers))))


@st.composite
def _shards(draw: st.DrawFn) -> ShardSpec:
    names = sorted(draw(st.sets(values(fields_of(TensorSpec)["name"]), min_size=1, max_size=4)))
    shapes = st.lists(st.integers(1, 8), max_size=3).map(tuple)
    tensors = tuple(TensorSpec(name, draw(shapes)) for name in names)
    cut = draw(st.integers(1, len(tensors)))
    pieces = tuple(range(cut)), tuple(range(cut, len(tensors)))
    return ShardSpec("shard", tensors, tuple(piece for piece in pieces if piece))


@st.composite
def _timings(draw: st.DrawFn) -> TimingSpec:
    floor_s, beat_s = draw(st.floats(0.001, 3600.0)), draw(st.floats(0.025, 60.0))
    return TimingSpec(
        deadline_floor_s=floor_s,
        deadline_cap_s=draw(st.floats(floor_s, 86_400.0)),
        heartbeat_s=beat_s,
        suspect_s=draw(st.floats(2 * beat_s, 600.0)),
    )


@st.composite
def _manifests(draw: st.DrawFn) -> RunManifest:
    fields = {
        name: draw(values(hint))
        for name, hint in fields_of(RunManifest).items()
        if name != "cell_elements"
    }
    if fields["trust"] == "friends":
        fields["admission"] = dataclasses.replace(fields["admission"], probation=0, ramp=0)
    is_cut = any(len(shard.fragments) > 1 for shard in fields["shards"])
    may_audit = fields["audits"].segments <= fields["inner"].inner_steps
    if is_cut or not may_audit or fields["trust"] == "friends" or fields["outer"].overlap > 1:
        fields["audits"] = dataclasses.replace(fields["audits"], rate=0.0)
    return RunManifest(**fields, cell_elements=1 << draw(st.integers(10, 18)))


@st.composite
def _verdicts(draw: st.DrawFn) -> Verdict:
    hints = fields_of(Verdict)
    free = {name: draw(values(hints[name])) for name in ("commit", "segment", "outcome")}
    size = 0 if free["outcome"] is Outcome.UNOPENED else 32
    return Verdict(**free, found=draw(st.binary(min_size=size, max_size=size)))


@st.composite
def _admissions(draw: st.DrawFn) -> AdmissionSpec:
    bits = draw(st.just(0) | st.integers(limits.PUZZLE_BITS_MIN, limits.PUZZLE_BITS_MAX))
    ramp = draw(st.integers(0, limits.RAMP_ROUNDS_MAX))
    probation = draw(st.integers(0, limits.RAMP_ROUNDS_MAX)) if ramp else 0
    return AdmissionSpec(puzzle_bits=bits, probation=probation, ramp=ramp)


@st.composite
def _wants(draw: st.DrawFn) -> Want:
    hints = fields_of(Want)
    free = {name: draw(values(hints[name])) for name in ("bulk", "subject", "first")}
    bits = bytearray(draw(values(hints["bits"])))
    bits[0], bits[-1] = bits[0] | 1, bits[-1] | 1
    return Want(**free, bits=bytes(bits))


SPECIAL: dict[Any, Any] = {
    CorpusSpec: _corpora,
    Want: _wants,
    Slot: _slots,
    Have: _haves,
    Digests: _digests,
    BucketIds: _bucket_ids,
    BulkItems: _bulk_items,
    WantBlocks: _want_blocks,
    BlockHeader: _block_headers,
    SealClock: _clocks,
    Roster: _rosters,
    ModelSpec: _models,
    OuterSpec: _outers,
    AccessSpec: _accesses,
    AdmissionSpec: _admissions,
    ShardSpec: _shards,
    TimingSpec: _timings,
    Verdict: _verdicts,
    RunManifest: _manifests,
}


def refuses(kind: Any, data: bytes) -> bool:
    """Whether `data` is no `kind`; what is one must be the only encoding of what it says."""
    try:
        value = decode(kind, data, max_bytes=limits.MANIFEST_BYTES_MAX)
    except DecodeError:
        return True
    assert encode(value) == data
    return False


Path = tuple[int, ...]


def places(hint: Any, raw: Any, path: Path = ()) -> Iterator[tuple[Path, Any, object]]:
    """Every item of a decoded msgpack tree, with the type and limit that its place demands."""
    kind, limit = resolve(hint)
    yield path, kind, limit
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        # Fields at their default may be left out: they are the last.
        for index, (field, item) in enumerate(zip(fields_of(kind).values(), raw, strict=False)):
            yield from places(field, item, (*path, index))
    elif get_origin(kind) is tuple:
        for index, entry in enumerate(raw):
            yield from places(get_args(kind)[0], entry, (*path, index))
