"""RunManifest: everything that must be equal on all peers, in one canonical signed form.

The digest of a manifest names the run. A manifest is data: models are built-in names with
settings, never code.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import msgpack
from blake3 import blake3

from protocol import limits
from protocol.errors import (
    DecodeError,
    ManifestError,
    ManifestMismatch,
    SignatureError,
    VersionError,
    WireVersionError,
)
from protocol.grid import TENSOR_NAME_BYTES_MAX, Layout, ShardSpec
from protocol.identity import SIGNATURE_BYTES, PeerId, Signer
from protocol.wire import (
    LEFT_OUT,
    Digest,
    OneOf,
    Range,
    Scalar,
    Signature,
    Size,
    Spelled,
    decode,
    encode,
    leading_scalars,
)

# Wire versions ------------------------------------------------------------------------------------
#
# Two nodes of different wire versions: found out before anything else is read, and said to both.
# The first field of a hello and of a manifest is the wire version, in every version that there was
# or will be. So it is read even where nothing behind it can be.

PEEKED_BYTES_MAX = 64
"""Heads of nested lists and one number: more than any version needs."""

HELLO_LISTS, MANIFEST_LISTS = 1, 2
"""So many lists are opened before the version: a signed manifest holds a manifest."""


def peek_version(data: bytes, lists: int) -> int | None:
    """The wire version at the head of an encoded hello or manifest; None where there is none.

    They count from 1.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=PEEKED_BYTES_MAX)
    unpacker.feed(data[:PEEKED_BYTES_MAX])
    try:
        for _ in range(lists):
            unpacker.read_array_header()
        version = unpacker.unpack()
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    return version if type(version) is int and version >= 1 else None


def other_version(theirs: int, ours: int) -> WireVersionError:
    """What is said here of a peer, or of a run, of another wire version than ours."""
    who = "upgrade barnraise on this machine" if theirs > ours else "they must upgrade barnraise"
    said = f"the other side speaks wire version {theirs}, this node {ours}: {who}"
    return WireVersionError(said, theirs)


def refusal_of_version(theirs: int, ours: int) -> str:
    """The same, as the other side is to read it. Old nodes print it as it comes."""
    who = "they must upgrade barnraise" if theirs > ours else "upgrade barnraise on your machine"
    return f"that peer speaks wire version {ours}, yours {theirs}: {who}"


# The manifest -------------------------------------------------------------------------------------

WIRE_VERSION = 4
ARITHMETIC_VERSION = 1
_DOMAIN = b"barnraise/manifest/1"

Name = Annotated[str, Spelled("a-z0-9_", 1, 64)]
"""Of what a founder names: it is shown to whoever joins, before anything else is."""

Positive = Annotated[int, Range(1, 2**53)]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a model or a codec, by name."""

    name: Name
    value: Scalar


def _check_sorted(settings: tuple[Setting, ...], owner: str) -> None:
    names = [setting.name for setting in settings]
    if names != sorted(set(names)):
        raise ValueError(f"{owner} settings must be sorted by name, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A built-in model. `settings` are sorted by name; `seed` makes the genesis weights."""

    name: Name
    settings: Annotated[tuple[Setting, ...], Size(0, 64)]
    seed: int

    def __post_init__(self) -> None:
        _check_sorted(self.settings, "model")

    def setting(self, name: str) -> Scalar:
        """The value of one setting. Raises ManifestError naming a missing one."""
        for setting in self.settings:
            if setting.name == name:
                return setting.value
        raise ManifestError(f"model {self.name} needs the setting {name!r}")


BYTES_TOKENIZER = bytes(32)
"""In the place of a tokenizer's digest: tokens are the text's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSpec:
    """A token store pinned by content: equal blocks, those for training first, then those that are
    held out, then those that tell where documents begin.

    `digest` is the Merkle root over the digests of all blocks. A token is a little-endian number of
    `token_bytes` below `vocab_size`. `tokenizer_digest` is that of the tokenizer.json that made
    them, and `probe_digest` that of the tokens of a fixed text: versions of a library may differ.
    `held_out_tokens` stand for `held_out_text_bytes` bytes of text. `permutation_seed` keys the
    order in which samples are leased, which stays within `shuffle_blocks` blocks for their time.
    """

    name: Annotated[str, Spelled("a-z0-9_.+-", 1, 64)]
    digest: Digest
    training_blocks: Positive
    held_out_blocks: Positive
    document_blocks: Annotated[int, Range(0, 2**53)]
    block_bytes: Annotated[int, Range(1024, limits.CHUNK_BYTES)]
    token_bytes: Annotated[int, OneOf((1, 2, 4))]
    vocab_size: Annotated[int, Range(2, 2**31)]
    held_out_tokens: Positive
    held_out_text_bytes: Positive
    shuffle_blocks: Positive
    permutation_seed: int
    tokenizer_digest: Digest = BYTES_TOKENIZER
    probe_digest: Digest = bytes(32)

    def __post_init__(self) -> None:
        if self.vocab_size > 256**self.token_bytes:
            raise ValueError(f"{self.vocab_size} tokens do not fit {self.token_bytes} bytes each")
        if self.block_bytes % self.token_bytes:
            raise ValueError("a block of the corpus is no whole number of tokens")
        if self.held_out_tokens > self.held_out_blocks * self.block_tokens:
            raise ValueError("more held-out tokens than the held-out blocks have")

    @property
    def num_blocks(self) -> int:
        """Blocks that `digest` is the root over."""
        return self.training_blocks + self.held_out_blocks + self.document_blocks

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self.block_bytes // self.token_bytes

    @property
    def token_dtype(self) -> str:
        """The dtype of tokens as they lie in blocks, in numpy's words."""
        return f"<u{self.token_bytes}"

    def bits_per_byte(self, nats_per_token: float) -> float:
        """A loss as it compares between tokenizers: bits per byte of held-out text."""
        tokens_per_byte = self.held_out_tokens / self.held_out_text_bytes
        return nats_per_token * tokens_per_byte / math.log(2)


BETA_MAX = 0.999_999
"""AdamW divides by 1 - beta^t."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerSpec:
    """The inner loop: AdamW, or plain SGD, with warm-up and cosine over the run's global inner
    steps. `beta1`, `beta2` and `weight_decay` are AdamW's. With a `sam_radius` gradients are taken
    so far uphill (sharpness-aware minimization), each at the price of two.

    `batch` is sequences per inner step and peer; `inner_steps` is H, of which each peer takes as
    many as fit its speed unless they are to take `equal_steps`. `drift_max` bounds the local
    steps taken against one anchor, in units of H (R6).
    """

    inner_steps: Annotated[int, Range(1, 100_000)]
    batch: Annotated[int, Range(1, 65_536)]
    learning_rate: Annotated[float, Range(0.0, 10.0)]
    learning_rate_floor: Annotated[float, Range(0.0, 1.0)]
    warmup_steps: Annotated[int, Range(0, 10**9)]
    beta1: Annotated[float, Range(0.0, BETA_MAX)]
    beta2: Annotated[float, Range(0.0, BETA_MAX)]
    weight_decay: Annotated[float, Range(0.0, 10.0)]
    clip_norm: Annotated[float, Range(0.0, 1e6)]
    drift_max: Annotated[int, Range(1, 16)]
    optimizer: Annotated[str, OneOf(("adamw", "sgd"))] = field(default="adamw", metadata=LEFT_OUT)
    sam_radius: Annotated[float, Range(0.0, 10.0)] = field(default=0.0, metadata=LEFT_OUT)
    equal_steps: bool = field(default=False, metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThenSpec:
    """Another method from the round `from_round` on: the schedule and merge of a preset, and the
    numbers of its outer step. Codec, feedback, aggregator, fragments and rounds in flight are the
    run's throughout. By the number of a round alone, which counts from 1 as seals do, so all change
    at one seal (R9).
    """

    preset: Name
    from_round: Annotated[int, Range(1, limits.ROUNDS_MAX)]
    optimizer: Name
    learning_rate: Annotated[float, Range(0.0, 10.0)]
    momentum: Annotated[float, Range(0.0, 1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSpec:
    """The method: which preset, codec, aggregator and outer optimizer, and their numbers.

    `codec_settings` are sorted by name; the founder writes all that the codec has. `feedback` is
    the error-feedback factor beta (0 switches it off). `overlap` is L of R1; `then` the method that
    follows, if one does. `topology` says who sums: "butterfly" each cell few, who send the result
    to all; "gather" every member all cells, from every contribution whole (R8).
    """

    preset: Name
    codec: Name
    codec_settings: Annotated[tuple[Setting, ...], Size(0, 16)] = ()
    feedback: Annotated[float, Range(0.0, 1.0)]
    aggregator: Name
    optimizer: Name
    learning_rate: Annotated[float, Range(0.0, 10.0)]
    momentum: Annotated[float, Range(0.0, 1.0)]
    overlap: Annotated[int, Range(1, 2)]
    then: Annotated[tuple[ThenSpec, ...], Size(0, 1)] = ()
    topology: Annotated[str, OneOf(("butterfly", "gather"))] = field(
        default="butterfly", metadata=LEFT_OUT
    )

    def __post_init__(self) -> None:
        _check_sorted(self.codec_settings, "codec")

    def preset_of(self, round_index: int) -> str:
        """The method of that round."""
        later = [one.preset for one in self.then if round_index >= one.from_round]
        return later[-1] if later else self.preset

    @property
    def everybody_sums(self) -> bool:
        """Whether every member sums all cells itself."""
        return self.topology == "gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSpec:
    """Floor and cap of the learned deadlines, and the beat of liveness; all in seconds.

    A higher floor waits longer for the slow before a round goes on without them; a lower heartbeat
    finds the dead sooner and costs a control frame per peer and beat.
    """

    deadline_floor_s: Annotated[float, Range(0.001, 3600.0)]
    deadline_cap_s: Annotated[float, Range(0.001, 86_400.0)]
    heartbeat_s: Annotated[float, Range(0.01, 60.0)]
    suspect_s: Annotated[float, Range(0.05, 600.0)]

    def __post_init__(self) -> None:
        if self.deadline_cap_s < self.deadline_floor_s:
            raise ValueError("deadline_cap_s is below deadline_floor_s")
        if self.suspect_s < 2 * self.heartbeat_s:
            raise ValueError("suspect_s must be at least two heartbeats")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSpec:
    """What else than the number of rounds ends the run; 0 stands for never.

    The first seal with that many `tokens` is the last, and the first one most of whose listed
    COMMITs were signed after `unix_s` by their senders' clocks.
    """

    tokens: Annotated[int, Range(0, 2**62)] = 0
    unix_s: Annotated[int, Range(0, 2**53)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSpec:
    """Who gets in: whoever has the `link`, or those `invited` alone.

    The founder and the peers of `allow`, ascending, need no invitation and may invite.
    """

    mode: Annotated[str, OneOf(("link", "invited"))] = "link"
    allow: Annotated[tuple[Annotated[PeerId, Size(32, 32)], ...], Size(0, 64)] = ()

    def __post_init__(self) -> None:
        if list(self.allow) != sorted(set(self.allow)):
            raise ValueError("allow must ascend, none twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSpec:
    """What a newcomer pays before its work counts; nothing where all is 0.

    A seat takes some 2^`puzzle_bits` hashes (22: seconds on a laptop, once per identity). Whoever
    is seated after the first round weighs nothing in its first `probation` listed rounds and until
    its turn comes, then one `ramp`-th more with each listed round (`protocol.rounds.seating`). More
    rounds make a wave of fresh identities dearer, and waste more of an honest newcomer's work.

    At most `seats` contribute to a round; where more ask, they take turns
    (`protocol.rounds.seating`).
    """

    puzzle_bits: Annotated[int, Range(0, limits.PUZZLE_BITS_MAX)] = 0
    probation: Annotated[int, Range(0, limits.RAMP_ROUNDS_MAX)] = 0
    ramp: Annotated[int, Range(0, limits.RAMP_ROUNDS_MAX)] = 0
    seats: Annotated[int, Range(2, limits.SEATS_MAX)] = field(
        default=limits.SEATS_MAX, metadata=LEFT_OUT
    )

    def __post_init__(self) -> None:
        if 0 < self.puzzle_bits < limits.PUZZLE_BITS_MIN:
            raise ValueError(f"puzzle_bits is 0 or at least {limits.PUZZLE_BITS_MIN}")
        if self.probation and not self.ramp:
            raise ValueError("probation without a ramp would have no end")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """Work that others run again (R10); none where `rate` is 0.

    Each contribution meets `rate` audits, on average; one runs one of `segments` again, so the run
    trains rate / segments more than it would. More segments make audits cheaper, COMMITs and disks
    fuller, and who bends one segment alone is found later.

    Those whose training nobody can run again, for too few voters are of their device class, weigh
    at most the share `unaudited` of a round together (`protocol.rounds.seating`); 1 caps
    nobody.
    """

    rate: Annotated[float, Range(0.0, 1.0)] = 0.0
    segments: Annotated[int, Range(1, limits.SEGMENTS_MAX)] = 8
    unaudited: Annotated[float, Range(0.0, 1.0)] = 0.25


NO_AUDITS = AuditSpec()
"""Nobody looks."""

NO_ADMISSION = AdmissionSpec()
"""Whoever has a seat counts at once."""


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """One run. Everything in here is law for every peer; local taste is `NodeConfig`."""

    wire: Annotated[int, Range(WIRE_VERSION, WIRE_VERSION)]
    arithmetic: Annotated[int, Range(ARITHMETIC_VERSION, ARITHMETIC_VERSION)]
    title: Annotated[str, Size(1, 128)]
    founder: Annotated[PeerId, Size(32, 32)]
    created_unix_s: int
    trust: Annotated[str, OneOf(("friends", "open"))]
    survive: Annotated[str, OneOf(("any", "quorum"))]
    rounds: Annotated[int, Range(1, limits.ROUNDS_MAX)]
    model: ModelSpec
    shards: Annotated[tuple[ShardSpec, ...], Size(1, limits.SHARDS_MAX)]
    cell_elements: Annotated[int, Range(limits.CELL_ELEMENTS_MIN, limits.CELL_ELEMENTS_MAX)]
    corpus: CorpusSpec
    inner: InnerSpec
    outer: OuterSpec
    timing: TimingSpec
    stop: StopSpec = StopSpec()
    access: AccessSpec = AccessSpec()
    admission: AdmissionSpec = NO_ADMISSION
    audits: AuditSpec = NO_AUDITS

    def __post_init__(self) -> None:
        self._check_audits()
        if self.trust == "friends" and self.admission.ramp:
            raise ValueError("a ramp is for open runs: friends weigh what they did at once")
        if self.cell_elements.bit_count() != 1 or self.cell_elements < 0:
            raise ValueError("cell_elements must be a power of two, so that codec blocks fit")
        for shard in self.shards:
            layout = Layout(shard, self.cell_elements)
            if any(layout.num_cells(f) > limits.CELLS_MAX for f in range(len(shard.fragments))):
                raise ValueError(f"shard {shard.name}: over {limits.CELLS_MAX} cells a fragment")

    def _check_audits(self) -> None:
        if not self.audits.rate:
            return
        if self.trust == "friends":
            raise ValueError("audits are for open runs: friends trust each other")
        if self.audits.segments > self.inner.inner_steps:
            raise ValueError(f"more segments than the {self.inner.inner_steps} inner steps")
        if self.outer.overlap > 1:
            raise ValueError("audits are for runs with one round in flight")

    def layout(self, shard: int) -> Layout:
        """The grid of shard number `shard`."""
        return Layout(self.shards[shard], self.cell_elements)

    @property
    def total_inner_steps(self) -> int:
        """Global inner steps of the whole run: the length of the learning-rate schedule."""
        return self.rounds * self.inner.inner_steps

    @cached_property
    def digest(self) -> bytes:
        """The 32 bytes that name the run. Made once: a schema may have thousands of tensors."""
        return blake3(_DOMAIN + encode(self)).digest()


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest as it travels: canonical bytes and the founder's signature over them."""

    manifest: RunManifest
    signature: Signature


_SIGNED_BYTES = 3 + SIGNATURE_BYTES
"""What a signature adds: itself, its length, and the list of two that it is in."""


def check_size(manifest: RunManifest) -> None:
    """Raise ManifestError for a manifest that no peer would take, with what to do about it."""
    for shard in manifest.shards:
        if len(shard.tensors) > limits.TENSORS_MAX:
            raise ManifestError(
                f"the model has {len(shard.tensors)} tensors, the most is {limits.TENSORS_MAX}: "
                "stack those of equal shape in one, as fused layers do"
            )
        long = [one.name for one in shard.tensors if len(one.name.encode()) > TENSOR_NAME_BYTES_MAX]
        if long:
            raise ManifestError(
                f"a tensor's name has {len(long[0].encode())} bytes, and the most is "
                f"{TENSOR_NAME_BYTES_MAX}: give its modules shorter names ({long[0][:80]}...)"
            )
    try:
        size = len(encode(manifest)) + _SIGNED_BYTES
    except DecodeError as error:
        raise ManifestError(str(error)) from error
    if size > limits.MANIFEST_BYTES_MAX:
        num_tensors = sum(len(shard.tensors) for shard in manifest.shards)
        raise ManifestError(
            f"the manifest takes {size} bytes of {limits.MANIFEST_BYTES_MAX}, most of them names "
            f"of {num_tensors} tensors, or the allow list: give modules shorter names, or stack "
            "tensors of equal shape in one; let peers in by invitations instead of by a list"
        )


def sign_manifest(manifest: RunManifest, signer: Signer) -> SignedManifest:
    """The founder's signed manifest.

    Raises ManifestError if `signer` is not the founder, and for a manifest that no peer would take.
    """
    if signer.peer_id != manifest.founder:
        raise ManifestError("only the founder's key signs a manifest")
    check_size(manifest)
    return SignedManifest(manifest, signer.sign(_DOMAIN + encode(manifest)))


def open_manifest(data: bytes, signer: Signer) -> RunManifest:
    """The manifest in `data`, its signature checked.

    Raises VersionError for one of another version, DecodeError for malformed bytes and
    SignatureError where the founder did not sign them.
    """
    version = peek_version(data, MANIFEST_LISTS)
    if version is not None and version != WIRE_VERSION:
        raise other_version(version, WIRE_VERSION)
    *_, arithmetic = leading_scalars(data, depth=2, count=2) or (None,)
    if type(arithmetic) is int and arithmetic != ARITHMETIC_VERSION:
        cure = (
            "upgrade this one"
            if arithmetic > ARITHMETIC_VERSION
            else "a run keeps the version that it was founded with: go on with a barnraise that "
            "has it, or have the run founded anew"
        )
        raise VersionError(
            f"the run is of arithmetic version {arithmetic}, and this barnraise of "
            f"{ARITHMETIC_VERSION}: {cure}"
        )
    signed = decode(SignedManifest, data, max_bytes=limits.MANIFEST_BYTES_MAX)
    manifest = signed.manifest
    if not signer.verify(manifest.founder, _DOMAIN + encode(manifest), signed.signature):
        raise SignatureError("the manifest is not signed by the founder that it names")
    return manifest


def first_difference(ours: RunManifest, theirs: RunManifest) -> ManifestMismatch | None:
    """The first field, in the order of declaration, in which two manifests differ.

    There is one exactly where the digests differ.
    """
    return _first_difference("", ours, theirs)


def _first_difference(path: str, ours: object, theirs: object) -> ManifestMismatch | None:
    if type(ours) is type(theirs) and dataclasses.is_dataclass(ours):
        for field in dataclasses.fields(ours):
            found = _first_difference(
                f"{path}.{field.name}" if path else field.name,
                getattr(ours, field.name),
                getattr(theirs, field.name),
            )
            if found is not None:
                return found
        return None
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        differences = (_first_difference(f"{path}[{i}]", *pair) for i, pair in pairs)
        return next(filter(None, differences), None)
    # To Python 1, 1.0 and True are equal; their bytes are not.
    is_equal = type(ours) is type(theirs) and ours == theirs
    return None if is_equal else ManifestMismatch(path, ours, theirs)
