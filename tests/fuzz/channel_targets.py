"""Decoders between the two processes of a node: tensors, frames, mapping, a model's file."""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from protocol import limits
from protocol.errors import (
    ConfigError,
    DecodeError,
    TrainerError,
)
from tests.fuzz.target import FILE_BYTES, PACKER_BYTES, Target, from_bytes, from_file
from tests.training.payloads import assert_reads_alike, passes
from tests.training.replicas import small_manifest
from training.channel.exchange import RunClock
from training.channel.frames import (
    FROM_USER,
    TO_USER,
    AnchorRead,
    Attach,
    Audit,
    Audited,
    Contributed,
    Deliver,
    Failed,
    Frame,
    FrameReader,
    Leaving,
    Proceed,
    Progress,
    Ready,
    Start,
    Validation,
    error_of,
    pack_frame,
)
from training.channel.trainer_end import ChannelFile, channel_spec
from training.compression import CODECS
from training.models.genesis import read_model_file

MANIFEST = small_manifest()
NUMEL = 1000


CLOCK = RunClock(round=7, step=70, tokens=700)
"""Frames of both directions."""


TO_TRAINER_FRAMES = (
    Attach(run=bytes(32), manifest="/a/manifest", channel="/a/channel", inner="/a/inner", shard=0),
    Start(clock=CLOCK, lease=((0, 4), (8, 9)), since=3, listed=(4, 6), validate=False),
    Deliver(sequence=3, listed=True, clock=CLOCK, lease=(), validate=True),
    Proceed(clock=CLOCK, lease=((8, 12),), others=(0,)),
    Audit(
        number=3,
        path="/a/audits/segment-3.work",
        round=7,
        step=70,
        segment=2,
        lease=((0, 4), (8, 9)),
        before=bytes(32),
        residual_before=bytes(32),
        inherited=((bytes(32), b"\x01" * 32),),
        since=6,
    ),
    Failed(kind="ConfigError", message="no such thing", field=""),
)


FROM_TRAINER_FRAMES = (
    Ready(threads=2, parameters=7344, device="cpu", precision="float32", micro_batch=4),
    Contributed(
        sequence=3,
        fragment=0,
        lengths=(4096, 17),
        tokens=320,
        samples=40,
        steps=10,
        residual_before=bytes(32),
        residual_after=bytes(32),
        loss=1.5,
        trace=(bytes(32), b"\x01" * 32),
        before=bytes(32),
        after=bytes(32),
    ),
    Audited(number=3, found=b"\x02" * 32),
    Progress(step=7, loss=1.25),
    AnchorRead(),
    Validation(windows=16, of_windows=128, round=4, loss=1.75),
    Leaving(),
)


def _codec_read(name: str) -> Callable[[bytes], None]:
    codec = CODECS[name]()

    def read(data: bytes) -> None:
        for numel in (0, 1, NUMEL):
            try:
                x_N = codec.decode(data, numel)
            except DecodeError:
                assert not passes(codec, data, numel)
                continue
            assert x_N.shape == (numel,)
            assert np.isfinite(x_N).all()
            assert passes(codec, data, numel)
            assert_reads_alike(codec, data, x_N)
            return
        raise DecodeError("of no size")

    return read


def _codec_examples(name: str) -> tuple[bytes, ...]:
    codec = CODECS[name]()
    x_N = np.linspace(-3, 3, NUMEL, dtype=np.float32)
    return codec.encode(x_N), codec.encode(x_N[:1]), codec.encode(x_N[:0])


def _codec_covers(name: str) -> tuple[str, ...]:
    """The seam, what codecs share, and the class that decodes for this one."""
    owner = next(kind for kind in type(CODECS[name]()).__mro__ if "decode" in vars(kind))
    own = () if owner.__name__.startswith("_") else (f"{owner.__module__}.{owner.__name__}.decode",)
    return (
        *own,
        "training.compression.seam.Codec.decode",
        "training.compression.seam.decode_into",
        "training.compression.seam.decode_to_read",
        "training.compression.seam.Checking.decode_to_read",
        "training.compression.dense.DenseCodec.decode_to_read",
        "training.compression.blocks.GradedCodec.decode_to_read",
        "training.compression.blocks.Int8Codec.decode_to_read",
        "training.compression.seeded.RandomShiftCodec.decode_to_read",
        "training.compression.blocks.unpack_codes",
        "training.compression.sparse.GapIndices.unpack",
        "training.compression.sparse.IndexCode.unpack",
        "training.compression.sparse.PlainIndices.unpack",
        "training.compression.sparse.unpack_bits",
    )


def _feed(kinds: tuple[type[Frame], ...], data: bytes) -> None:
    reader = FrameReader[Frame](kinds)
    for start in range(0, len(data), 700):
        for frame in reader.feed(data[start : start + 700]):
            assert isinstance(frame, kinds)
            if isinstance(frame, Failed):
                # Whatever it says becomes an error that can be raised.
                assert str(error_of(frame))


def _frames(frames: tuple[Frame, ...]) -> tuple[bytes, ...]:
    packed = tuple(map(pack_frame, frames))
    return *packed, b"".join(packed)


def _payloads(data: bytes, folder: Path) -> None:
    """Lengths that a trainer claims, read from a channel that it wrote."""
    spec = channel_spec(MANIFEST, 0)
    path = folder / "y.channel"
    path.unlink(missing_ok=True)
    count = len(data) // 8
    place, *lengths = struct.unpack(f">{count}q", data[: 8 * count]) or (0,)
    with ChannelFile.create(path, spec) as channel:
        payloads = channel.read_payloads(place, tuple(lengths))
        assert [len(payload) for payload in payloads] == lengths


def _channel(path: Path) -> None:
    ChannelFile.open(path, channel_spec(MANIFEST, 0)).close()


def _channel_file() -> tuple[bytes, ...]:
    spec = channel_spec(MANIFEST, 0)
    return (spec.header + bytes(spec.file_bytes - len(spec.header)),)


TARGETS = [
    *(
        Target(
            name=f"codec {name}",
            covers=_codec_covers(name),
            read=from_bytes(_codec_read(name)),
            errors=(DecodeError,),
            examples=partial(_codec_examples, name),
            memory_factor=16,
        )
        for name in CODECS
    ),
    Target(
        name="frames to the trainer",
        covers=("training.channel.frames.FrameReader.feed",),
        read=from_bytes(partial(_feed, TO_USER)),
        errors=(TrainerError,),
        examples=lambda: _frames(TO_TRAINER_FRAMES),
        memory_factor=60,
    ),
    Target(
        name="frames from the trainer",
        covers=("training.channel.frames.FrameReader.feed",),
        read=from_bytes(partial(_feed, FROM_USER)),
        errors=(TrainerError,),
        examples=lambda: _frames(FROM_TRAINER_FRAMES),
        memory_factor=60,
    ),
    Target(
        name="lengths in a channel",
        covers=("training.channel.channel_file.ChannelFile.read_payloads",),
        read=_payloads,
        errors=(TrainerError,),
        examples=lambda: (struct.pack(">4q", 2, 1024, 0, 17),),
        memory_base=FILE_BYTES + PACKER_BYTES,
    ),
    Target(
        name="channel file",
        covers=("training.channel.channel_file.ChannelFile.open",),
        read=from_file(_channel, "x.channel"),
        errors=(TrainerError,),
        examples=_channel_file,
        memory_base=FILE_BYTES + PACKER_BYTES,
    ),
    Target(
        name="model file",
        covers=("training.models.genesis.read_model_file",),
        read=from_file(read_model_file, "model.py"),
        errors=(ConfigError,),
        examples=lambda: (b"def build(context):\n    pass\n",),
        memory_base=FILE_BYTES + limits.MODEL_FILE_BYTES_MAX,
    ),
]
