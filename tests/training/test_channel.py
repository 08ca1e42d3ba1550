"""The mapped file, the frames on the pipe, and the trainer's end of both."""

import dataclasses
import math
import os
import queue
import random
import struct
import sys

import numpy as np
import pytest

from protocol import limits
from protocol.errors import TrainerError
from tests.training.replicas import OUTER, small_manifest
from training.channel import ChannelExchange, ChannelFile, ChannelSpec, channel_spec
from training.exchange import Contribution, RunClock
from training.frames import (
    FROM_TRAINER,
    TO_TRAINER,
    Contributed,
    Deliver,
    Frame,
    FrameReader,
    Progress,
    Ready,
    Start,
    Validation,
    pack_frame,
)

SPEC = ChannelSpec(run=bytes(range(32)), fragment_numels=(5, 3), slot_bytes=4096, slots=2)
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
    Start(clock=CLOCK, lease=((0, 3), (9, 11)), listed=False, validate=True),
    Deliver(sequence=3, listed=False, clock=CLOCK, lease=(), validate=False),
    Ready(threads=1, parameters=7344),
    CONTRIBUTED,
    Progress(step=3, loss=5.5),
    Validation(round=2, loss=4.5),
]


def kinds(frame):
    return TO_TRAINER if isinstance(frame, TO_TRAINER) else FROM_TRAINER


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
    with pytest.raises(TrainerError, match="unknown kind 'Start'"):
        read_all(pack_frame(FRAMES[0]))


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


def test_both_ends_see_the_same_bytes(tmp_path):
    path = tmp_path / "a.channel"
    anchors = [np.arange(5, dtype=np.float32), -np.arange(3, dtype=np.float32)]
    with ChannelFile.create(path, SPEC) as ours, ChannelFile.open(path, SPEC) as theirs:
        for fragment, anchor in enumerate(anchors):
            ours.write_anchor(fragment, anchor)
        theirs.write_payloads(0, (b"abc", b"", b"de"))
        theirs.write_payloads(1, (b"fgh",))

        assert [theirs.read_anchor(f).tolist() for f in (0, 1)] == [a.tolist() for a in anchors]
        assert ours.read_payloads(0, (3, 0, 2)) == (b"abc", b"", b"de")
        assert ours.read_payloads(1, (3,)) == (b"fgh",)


def test_an_anchor_once_read_stays_as_it_was(tmp_path):
    with ChannelFile.create(tmp_path / "a.channel", SPEC) as channel:
        channel.write_anchor(0, np.ones(5, np.float32))
        read = channel.read_anchor(0)
        channel.write_anchor(0, np.zeros(5, np.float32))

        assert read.tolist() == [1.0] * 5
        with pytest.raises(ValueError, match="read-only"):
            read[0] = 2.0


def test_a_file_that_is_there_already_is_not_taken_over(tmp_path):
    path = tmp_path / "a.channel"
    path.write_bytes(b"")

    with pytest.raises(FileExistsError):
        ChannelFile.create(path, SPEC)


@pytest.mark.skipif(sys.platform != "linux", reason="allocation and modes of POSIX")
def test_the_file_is_private_and_has_all_of_its_blocks(tmp_path):
    big = ChannelSpec(run=bytes(32), fragment_numels=(1 << 18,), slot_bytes=1 << 20, slots=1)
    with ChannelFile.create(tmp_path / "a.channel", big):
        status = (tmp_path / "a.channel").stat()

        assert status.st_mode & 0o777 == 0o600
        assert status.st_blocks * 512 >= big.file_bytes


def test_a_file_of_another_run_size_or_version_is_refused(tmp_path):
    path = tmp_path / "a.channel"
    ChannelFile.create(path, SPEC).close()
    data = path.read_bytes()
    changes = [data[:-1], data + b"\0", b"", bytes(len(data))]
    changes += [
        data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        for index in range(len(SPEC.header))
    ]
    for changed in changes:
        path.write_bytes(changed)
        with pytest.raises(TrainerError, match="no channel of this run"):
            ChannelFile.open(path, SPEC)


def test_payloads_do_not_leave_their_slot(tmp_path):
    with ChannelFile.create(tmp_path / "a.channel", SPEC) as channel:
        with pytest.raises(TrainerError, match="at most"):
            channel.write_payloads(0, (bytes(4096), b"x"))
        with pytest.raises(TrainerError, match="claims"):
            channel.read_payloads(0, (4096, 1))


def test_a_channel_has_room_for_every_contribution_of_its_manifest():
    manifest = small_manifest()
    layout = manifest.layout(0)
    spec = channel_spec(manifest, 0)

    assert spec.fragment_numels == layout.fragment_numels
    assert spec.slot_bytes >= 4 * max(layout.fragment_numels)
    assert spec.slots == OUTER.overlap
    assert channel_spec(small_manifest(), 0) == spec


class Channel:
    """An exchange and the network process's ends of its pipes."""

    def __init__(self, folder):
        self.file = ChannelFile.create(folder / "a.channel", SPEC)
        read_fd, self.write_fd = os.pipe()
        self.read_fd, write_fd = os.pipe()
        self.closed: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.exchange = ChannelExchange(
            self.file,
            read_fd=read_fd,
            write_fd=write_fd,
            on_closed=lambda: self.closed.put(True),
        )
        self.trainer_fds = (read_fd, write_fd)
        self.is_open = True

    def open(self, *, validate=False):
        self.send(Start(clock=CLOCK, lease=((0, 9),), listed=False, validate=validate))
        return self.exchange.opening()

    def send(self, frame):
        os.write(self.write_fd, pack_frame(frame))

    def receive(self):
        (frame,) = read_all(os.read(self.read_fd, 65536))
        return frame

    def hang_up(self):
        if self.is_open:
            os.close(self.write_fd)
            self.is_open = False
            assert self.closed.get(timeout=60)

    def close(self):
        self.hang_up()
        for descriptor in (self.read_fd, *self.trainer_fds):
            os.close(descriptor)
        self.file.close()


@pytest.fixture
def channel(tmp_path):
    channel = Channel(tmp_path)
    for fragment, numel in enumerate(SPEC.fragment_numels):
        channel.file.write_anchor(fragment, np.full(numel, fragment, np.float32))
    yield channel
    channel.close()


def contribution(fragment, *payloads):
    return Contribution(
        fragment=fragment,
        payloads=payloads,
        tokens=640,
        samples=10,
        steps=20,
        residual_before=b"\x01" * 32,
        residual_after=b"\x02" * 32,
        loss=2.5,
    )


def deliver(sequence, *, listed=True, lease=((0, 9),), validate=False):
    return Deliver(sequence=sequence, listed=listed, clock=CLOCK, lease=lease, validate=validate)


def test_opening_brings_clock_lease_and_every_fragments_anchor(channel):
    opening = channel.open(validate=True)

    assert (opening.clock, opening.lease) == (CLOCK, ((0, 9),))
    assert [anchor.tolist() for anchor in channel.exchange.anchors] == [[0.0] * 5, [1.0] * 3]
    assert channel.exchange.take_validation() == 1
    assert channel.exchange.take_validation() is None


def test_a_contribution_goes_over_and_its_outcome_comes_back(channel):
    channel.open()
    ticket = channel.exchange.begin(1, contribution(1, b"abc", b"", b"de"))

    assert channel.receive() == CONTRIBUTED
    assert channel.file.read_payloads(0, (3, 0, 2)) == (b"abc", b"", b"de")
    channel.file.write_anchor(1, np.full(3, 7, np.float32))
    channel.send(deliver(0, listed=False, validate=True))
    outcome = ticket.result()
    assert not outcome.listed
    assert outcome.anchor_N.tolist() == [7.0] * 3
    assert (outcome.clock, outcome.lease) == (CLOCK, ((0, 9),))
    assert channel.exchange.anchors[1] is outcome.anchor_N
    assert channel.exchange.take_validation() == CLOCK.round


def test_two_rounds_in_flight_keep_their_bytes_and_find_their_outcomes(channel):
    channel.open()
    first = channel.exchange.begin(0, contribution(0, b"first"))
    second = channel.exchange.begin(1, contribution(1, b"second"))

    assert channel.file.read_payloads(0, (5,)) == (b"first",)
    assert channel.file.read_payloads(1, (6,)) == (b"second",)
    channel.send(deliver(0, listed=True))
    channel.send(deliver(1, listed=False))
    assert not second.result().listed
    assert first.result().listed


def test_an_outcome_before_the_one_before_it_is_an_error(channel):
    channel.open()
    channel.exchange.begin(0, contribution(0, b"first"))
    second = channel.exchange.begin(1, contribution(1, b"second"))
    channel.send(deliver(1))

    with pytest.raises(TrainerError, match="unexpected"):
        second.result()


def test_a_third_round_in_flight_is_a_bug(channel):
    channel.open()
    channel.exchange.begin(0, contribution(0, b"first"))
    with pytest.raises(AssertionError, match="per fragment"):
        channel.exchange.begin(0, contribution(0, b"again"))
    channel.exchange.begin(1, contribution(1, b"second"))

    with pytest.raises(AssertionError, match="slot"):
        channel.exchange.begin(0, contribution(0, b"third"))


def test_a_slot_is_used_again_after_its_outcome(channel):
    channel.open()
    for sequence in range(4):
        ticket = channel.exchange.begin(0, contribution(0, bytes([sequence])))
        assert channel.receive().sequence == sequence
        channel.send(deliver(sequence))
        ticket.result()


@pytest.mark.parametrize(
    "frame", [deliver(5), Start(clock=CLOCK, lease=(), listed=False, validate=False)]
)
def test_an_outcome_that_nobody_waits_for_is_an_error(channel, frame):
    channel.open()
    ticket = channel.exchange.begin(0, contribution(0, b"x"))
    channel.send(frame)

    with pytest.raises(TrainerError, match="unexpected"):
        ticket.result()


def test_the_end_of_the_pipe_is_seen_at_once_and_ends_every_wait(channel):
    channel.open()
    ticket = channel.exchange.begin(0, contribution(0, b"x"))
    channel.hang_up()

    for _ in range(2):
        with pytest.raises(TrainerError, match="gone"):
            ticket.result()


def test_bytes_that_are_no_frame_end_every_wait(channel):
    os.write(channel.write_fd, framed(b"\x90"))

    with pytest.raises(TrainerError, match="without a name"):
        channel.exchange.opening()


def test_sending_to_a_network_process_that_is_gone_raises(channel):
    os.close(channel.read_fd)

    try:
        with pytest.raises(TrainerError, match="gone"):
            channel.exchange.send(Progress(step=1, loss=1.0))
    finally:
        channel.read_fd = os.open(os.devnull, os.O_RDONLY)
