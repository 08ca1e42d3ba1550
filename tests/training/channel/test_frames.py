"""The frames on the control pipe."""

import dataclasses
import math
import random
import struct

import pytest

from protocol import limits
from protocol.errors import TrainerError
from training.channel.exchange import RunClock, TrainerTimes
from training.channel.frames import (
    FROM_TRAINER,
    FROM_USER,
    TO_TRAINER,
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
    pack_frame,
)

CLOCK = RunClock(round=1, step=20, tokens=300)
CONTRIBUTED = Contributed(
    sequence=0,
    fragment=1,
    lengths=(3, 0, 2),
    tokens=640,
    samples=10,
    steps=20,
    residual_before=b"\x01" * 32,
    residual_after=b"\x02" * 32,
    loss=2.5,
)
FRAMES: list[Frame] = [
    Attach(run=bytes(32), manifest="runs/ab/m", channel="runs/ab/c.channel", inner="i", shard=0),
    Failed(kind="ConfigError", message="no such key \N{GREEK SMALL LETTER ALPHA}", field=""),
    Leaving(),
    Start(clock=CLOCK, lease=((0, 3), (9, 11)), since=7, listed=(7, 9), validate=True),
    Deliver(sequence=3, listed=False, is_resync=True, clock=CLOCK, lease=(), validate=False),
    Proceed(clock=CLOCK, lease=((3, 9),), others=(0, 2)),
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
    Audited(number=3, found=b"\x02" * 32),
    Ready(threads=1, parameters=7344, device="cpu", precision="float32", micro_batch=4),
    dataclasses.replace(CONTRIBUTED, times=TrainerTimes(train_s=90.5), reads_on=True),
    AnchorRead(),
    Progress(step=3, loss=5.5),
    Validation(windows=16, of_windows=128, round=2, loss=4.5),
]


def kinds(frame):
    return TO_USER if isinstance(frame, TO_USER) else FROM_USER


def read_all(data, *, frame_kinds=FROM_TRAINER):
    return list(FrameReader(frame_kinds).feed(data))


def framed(body):
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_comes_back_equal_however_the_pipe_cuts_it(frame):
    data = pack_frame(frame) * 2
    for cut in range(len(data) + 1):
        reader = FrameReader(kinds(frame))
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == [frame, frame]


def test_a_diverged_loss_travels_as_it_is():
    (frame,) = read_all(pack_frame(Progress(step=1, loss=math.nan)))

    assert isinstance(frame, Progress)
    assert math.isnan(frame.loss)


def test_a_frame_of_the_other_direction_is_refused():
    start = next(frame for frame in FRAMES if isinstance(frame, Start))

    with pytest.raises(TrainerError, match="unknown kind 'Start'"):
        read_all(pack_frame(start))


@pytest.mark.parametrize("frame", FRAMES[:3], ids=lambda frame: type(frame).__name__)
def test_frames_of_a_users_process_are_none_of_our_own_trainers(frame):
    with pytest.raises(TrainerError, match="unknown kind"):
        read_all(pack_frame(frame), frame_kinds=(*FROM_TRAINER, *TO_TRAINER))


def test_a_length_over_the_limit_is_refused_before_the_frame_is_there():
    with pytest.raises(TrainerError, match="claims"):
        read_all(struct.pack(">I", limits.CHANNEL_FRAME_BYTES_MAX + 1))


def test_a_frame_over_the_limit_is_not_sent():
    lengths = (2**62,) * (limits.CHANNEL_FRAME_BYTES_MAX // 8)

    with pytest.raises(TrainerError, match="Contributed frame"):
        pack_frame(dataclasses.replace(CONTRIBUTED, lengths=lengths))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91\x01",
        b"\x91\xa8Progress",
        b"\x93\xa8Progress\x01\x02",
        b"\x93\xa8Progress\xff\xcb" + struct.pack(">d", 1.0),
        b"\x93\xa8Progress\xc3\xcb" + struct.pack(">d", 1.0),
        b"\x94\xa8Progress\x01\xcb" + struct.pack(">d", 1.0) + b"\x01",
        b"\x81\x01\x02",
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_a_body_that_is_no_frame_is_refused(body):
    with pytest.raises(TrainerError):
        read_all(framed(body))


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_any_changed_byte_is_a_frame_of_that_kind_or_an_error(frame, seed):
    choose = random.Random(f"{seed}/frames")
    data = pack_frame(frame)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] = choose.randrange(256)
        try:
            read = read_all(bytes(changed), frame_kinds=kinds(frame))
        except TrainerError:
            continue
        assert all(isinstance(one, type(frame)) for one in read)
