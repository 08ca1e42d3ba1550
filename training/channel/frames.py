"""The control frames between the network process and its trainer.

A frame is a 4-byte big-endian length and the msgpack array [name, field, field, ...]. Both ends are
ours and on one machine, yet each checks what it reads: a trainer runs the user's model and may be
broken in any way.
"""

import dataclasses
import struct
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import msgpack

from protocol import limits
from protocol.errors import BarnraiseError, ManifestMismatch, TrainerError
from protocol.leases import Lease
from training.channel.exchange import RunClock, TrainerTimes

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """To a user's process that is the trainer, first: the run, and where its files are.

    `run` is the digest of the manifest at `manifest`; the mapped file at `channel` is ready; the
    trainer's inner states are in the folder `inner`.
    """

    run: bytes
    manifest: str
    channel: str
    inner: str
    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """To a user's process: the network process ends, and why; see `training.channel.frames`."""

    kind: str
    message: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """To the trainer: the whole anchor lies in the mapping; begin with this lease.

    It lies in the place `anchor`, and with one round in flight the next contribution is wanted in
    `place` (`training.channel.channel_file`).

    `listed` names the rounds from `since` on whose seals have the own contribution in them: a
    trainer that goes on from disk needs it to settle its residual (R6). What was before `since` is
    not known any more, or was left behind by a resync. `members` have a seat in that round. `bases`
    is RunStart's.
    """

    clock: RunClock
    lease: Lease
    since: int = 0
    listed: tuple[int, ...] = ()
    members: int = 1
    validate: bool = False
    anchor: int = 0
    place: int = 0
    bases: tuple[bytes, ...] = (b"",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """To the trainer: the outcome of contribution `sequence`; its new anchor lies in the mapping.

    So do those of the fragments in `others`. `validate` asks for the validation loss of the new
    anchor. `anchor` and `place` are those of Start.
    """

    sequence: int
    listed: bool
    is_resync: bool = False
    clock: RunClock
    lease: Lease
    members: int = 1
    others: tuple[int, ...] = ()
    validate: bool
    anchor: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """To the trainer, where two rounds are in flight (R5): go on for the round of that clock.

    Comes once behind each contribution, which need not have its outcome yet. New anchors of the
    fragments in `others` lie in the mapping. `members` have a seat in that round. `listed` are
    rounds that are over, and have the own contribution in them.
    """

    clock: RunClock
    lease: Lease
    others: tuple[int, ...] = ()
    members: int = 1
    listed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """To the trainer, where the codec has grades: encode in so many bits per element from now on.
    Comes behind Start, and before the frame that names the round."""

    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """To the trainer: run a segment of somebody's round again (R10); answer with Audited.

    The file `path` has the state that it begins with and the residual, one behind the other; the
    fields are those of `training.audits.traces.AuditTask`, `step` is the sealed clock's.
    """

    number: int
    path: str
    round: int
    step: int
    segment: int
    lease: Lease
    before: bytes
    residual_before: bytes
    inherited: tuple[tuple[bytes, bytes], ...]
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopen:
    """To the trainer: make a state of an own round again that was not kept; answer with Audited,
    which has its root, or nothing where that does not lead to it."""

    number: int
    root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """From the trainer: what names the end that segment came to; empty where it cannot tell."""

    number: int
    found: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """From the trainer: the model is built; `threads` is what torch says it uses.

    `device` is its name for people, `precision` what matrices are multiplied in (`float32`,
    `bfloat16`), `micro_batch` how many sequences pass through the model at once. `device_class` is
    what it has in common with machines that compute equal bits; empty where nobody asks.
    """

    threads: int
    parameters: int
    device: str
    precision: str
    micro_batch: int
    device_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributed:
    """From the trainer: payloads of these lengths lie in the place that was named for them; with
    two rounds in flight in that of `sequence` modulo two.

    `trace`, `before` and `after` are those of TraceRoots, in runs with audits. `reads_on` says that
    the trainer still reads the anchor that lies in the mapping; AnchorRead says that it has done.
    """

    sequence: int
    fragment: int
    lengths: tuple[int, ...]
    tokens: int
    samples: int
    steps: int
    residual_before: bytes
    residual_after: bytes
    loss: float
    trace: tuple[bytes, ...] = ()
    before: bytes = b""
    after: bytes = b""
    times: TrainerTimes = field(default_factory=TrainerTimes)
    reads_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRead:
    """From the trainer, behind a Contributed that `reads_on`: it reads no anchor any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """From the trainer: the training loss at global inner step `step`, nats per byte."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """From the trainer: the held-out loss of the anchor that round `round` starts from, over the
    first `windows` of the `of_windows` windows that there are for it."""

    round: int
    loss: float
    windows: int
    of_windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """From a user's process: it leaves the run.

    The end of the pipe says so too, but not while a forked child, such as a data loader's worker,
    holds a copy of our end.
    """


FromTrainer = Ready | Contributed | AnchorRead | Progress | Validation | Audited
FromUser = FromTrainer | Leaving
ToTrainer = Start | Deliver | Proceed | Grade | Audit | Reopen
ToUser = Attach | Failed | ToTrainer
Frame = FromUser | ToUser

FROM_TRAINER: tuple[type[FromTrainer], ...] = typing.get_args(FromTrainer)
FROM_USER: tuple[type[FromUser], ...] = (*FROM_TRAINER, Leaving)
TO_TRAINER: tuple[type[ToTrainer], ...] = (Start, Deliver, Proceed, Grade, Audit, Reopen)
TO_USER: tuple[type[ToUser], ...] = (Attach, Failed, *TO_TRAINER)

F = typing.TypeVar("F", bound=Frame)


def pack_frame(frame: Frame) -> bytes:
    """The frame as it goes down the pipe, length included.

    Raises TrainerError if it is longer than CHANNEL_FRAME_BYTES_MAX.
    """
    body = typing.cast("bytes", msgpack.packb([type(frame).__name__, *_fields(frame)]))
    if len(body) > limits.CHANNEL_FRAME_BYTES_MAX:
        raise TrainerError(f"a {type(frame).__name__} frame of {len(body)} bytes")
    return _LENGTH.pack(len(body)) + body


class FrameReader(typing.Generic[F]):
    """Cuts a pipe's bytes into frames of the given kinds; holds at most one frame and one read."""

    def __init__(self, kinds: tuple[type[F], ...]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[F]:
        """The frames that `data` completes. Raises TrainerError for bytes that are no frame."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > limits.CHANNEL_FRAME_BYTES_MAX:
                raise TrainerError(f"a channel frame claims {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield self._unpack(body)

    def _unpack(self, body: bytes) -> F:
        try:
            raw = msgpack.unpackb(body, use_list=True, max_map_len=0, max_ext_len=0)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise TrainerError(f"a channel frame is not msgpack: {error}") from error
        if type(raw) is not list or not raw or type(raw[0]) is not str:
            raise TrainerError("a channel frame without a name")
        kind = self._kinds.get(raw[0])
        if kind is None:
            raise TrainerError(f"a channel frame of unknown kind {raw[0][:32]!r}")
        return typing.cast("F", _build(kind, raw[1:], raw[0]))


_Part = RunClock | TrainerTimes
"""What lies in a frame as a list of its own."""


def _fields(value: Frame | _Part) -> list[object]:
    entries = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [_fields(entry) if isinstance(entry, _Part) else entry for entry in entries]


@cache
def _hints(kind: type) -> dict[str, object]:
    return typing.get_type_hints(kind)


def _build(hint: object, raw: object, path: str) -> object:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = _hints(hint)
        if not isinstance(raw, list) or len(raw) != len(hints):
            raise TrainerError(f"{path}: expected {len(hints)} fields")
        values = {
            name: _build(inner, entry, f"{path}.{name}")
            for (name, inner), entry in zip(hints.items(), raw, strict=True)
        }
        return hint(**values)
    if typing.get_origin(hint) is tuple:
        return _build_tuple(typing.get_args(hint), raw, path)
    # Losses may be NaN or infinite: a diverged model is for people to see, not a broken channel.
    if type(raw) is not hint or (isinstance(raw, int) and raw < 0):
        raise TrainerError(f"{path}: expected {hint}")
    return raw


def _build_tuple(items: tuple[object, ...], raw: object, path: str) -> tuple[object, ...]:
    if not isinstance(raw, list) or len(raw) > limits.LIST_ITEMS_MAX:
        raise TrainerError(f"{path}: expected a list of at most {limits.LIST_ITEMS_MAX}")
    if items[-1] is not Ellipsis and len(raw) != len(items):
        raise TrainerError(f"{path}: expected {len(items)} items")
    hints = items if items[-1] is not Ellipsis else (items[0],) * len(raw)
    return tuple(
        _build(hint, entry, f"{path}[{index}]")
        for index, (hint, entry) in enumerate(zip(hints, raw, strict=True))
    )


# An error of the network process: told to a user's process, and raised there again ---------------

_MESSAGE_CHARACTERS_MAX = 8192
"""Far below a frame's bound; a trace in it stays readable."""


def failure_frame(error: BarnraiseError) -> Failed:
    """The frame that says why the network process ends."""
    return Failed(
        kind=type(error).__name__,
        message=str(error)[:_MESSAGE_CHARACTERS_MAX],
        field=error.field if isinstance(error, ManifestMismatch) else "",
    )


def error_of(failed: Failed) -> BarnraiseError:
    """The error that `failure_frame` was made of, of the same class.

    A class that this version does not know becomes a BarnraiseError with its name in the message.
    """
    kinds = {kind.__name__: kind for kind in _kinds(BarnraiseError)}
    kind = kinds.get(failed.kind)
    if kind is None:
        return BarnraiseError(f"{failed.kind}: {failed.message}")
    if kind is ManifestMismatch:
        # Its constructor words the message anew, and this one is worded already.
        mismatch = ManifestMismatch.__new__(ManifestMismatch, failed.message)
        mismatch.field = failed.field
        return mismatch
    return kind(failed.message)


def _kinds(kind: type[BarnraiseError]) -> Iterator[type[BarnraiseError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
