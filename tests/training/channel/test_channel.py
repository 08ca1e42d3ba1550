"""The mapped file, and the trainer's end of it and of the pipe."""

import os
import queue
import sys
from dataclasses import replace

import numpy as np
import pytest

from protocol.errors import ManifestMismatch, RefusedError, TrainerError
from tests.training.channel.test_frames import CLOCK, CONTRIBUTED, framed, read_all
from tests.training.replicas import OUTER, small_manifest
from training.channel.channel_file import MEMORY_SHARE, AnchorPlaces
from training.channel.exchange import Contribution
from training.channel.frames import (
    TO_USER,
    Deliver,
    Failed,
    Proceed,
    Progress,
    Start,
    pack_frame,
)
from training.channel.trainer_end import (
    ChannelExchange,
    ChannelFile,
    ChannelSpec,
    ControlPipe,
    channel_spec,
)

SPEC = ChannelSpec(run=bytes(range(32)), fragment_numels=(5, 3), slot_bytes=4096, slots=2)


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


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name")
def test_file_in_memory_is_one_for_both_ends_and_refused_where_memory_is_short():
    needed = MEMORY_SHARE * SPEC.used_bytes
    ours = ChannelFile.create_in_memory(SPEC, needed)
    assert ours is not None
    with ours, ChannelFile.open(ours.path, SPEC) as theirs:
        status = ours.path.stat()
        assert status.st_mode & 0o777 == 0o600
        ours.write_payloads(0, [b"abc", b"de"])
        assert theirs.read_payloads(0, [3, 2]) == (b"abc", b"de")
    with pytest.raises(OSError, match="No such file"):
        ours.reserve(0, 1)
    for free_bytes, is_made in ((needed, True), (needed - 1, False), (0, False)):
        made = ChannelFile.create_in_memory(SPEC, free_bytes)
        assert (made is not None) == is_made
        if made is not None:
            made.close()


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
    with ChannelFile.create(tmp_path / "a.channel", big) as channel:
        status = (tmp_path / "a.channel").stat()
        assert status.st_mode & 0o777 == 0o600
        assert status.st_blocks * 512 >= big.slot_bytes, "where the first contribution goes"

        held = [AnchorPlaces(channel).take()]
        blocks = (tmp_path / "a.channel").stat().st_blocks
        assert blocks * 512 >= big.slot_bytes + held[0].nbytes


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

    def __init__(self, folder, spec=SPEC):
        self.file = ChannelFile.create(folder / "a.channel", spec)
        read_fd, self.write_fd = os.pipe()
        self.read_fd, write_fd = os.pipe()
        self.closed: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.pipe = ControlPipe(
            read_fd, write_fd, kinds=TO_USER, on_closed=lambda: self.closed.put(True)
        )
        self.exchange = ChannelExchange(self.file, self.pipe)
        self.trainer_fds = (read_fd, write_fd)
        self.is_open = True

    def open(self, *, validate=False):
        self.send(Start(clock=CLOCK, lease=((0, 9),), validate=validate))
        return self.exchange.opening()

    def send(self, frame):
        os.write(self.write_fd, pack_frame(frame))

    def goes_on(self, *, others=()):
        """To the next round, whatever is in flight."""
        self.send(Proceed(clock=CLOCK, lease=((0, 9),), others=others))
        return self.exchange.proceed()

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


def test_anchors_of_rounds_that_were_missed_come_with_the_outcome(channel):
    channel.open()
    ticket = channel.exchange.begin(1, contribution(1, b"abc"))
    channel.file.write_anchor(0, np.full(5, 8, np.float32))
    channel.send(replace(deliver(0), others=(0,)))
    outcome = ticket.result()
    assert outcome.anchor_N.tolist() == [1.0] * 3
    assert {other: x_N.tolist() for other, x_N in outcome.others.items()} == {0: [8.0] * 5}
    assert [anchor_N.tolist() for anchor_N in channel.exchange.anchors] == [[8.0] * 5, [1.0] * 3]


@pytest.mark.parametrize("is_held", [False, True])
def test_next_anchor_takes_the_memory_of_the_last_unless_somebody_holds_that(channel, is_held):
    channel.open()
    before = channel.exchange.anchors[1].ctypes.data
    held_N = channel.exchange.anchors[1][1:] if is_held else None
    ticket = channel.exchange.begin(1, contribution(1, b"abc"))
    channel.file.write_anchor(1, np.full(3, 7, np.float32))
    channel.send(deliver(0))
    outcome = ticket.result()
    assert outcome.anchor_N.tolist() == [7.0] * 3
    assert (outcome.anchor_N.ctypes.data == before) is (not is_held)
    assert held_N is None or held_N.tolist() == [1.0] * 2


@pytest.mark.parametrize("others", [(1,), (2,), (0, 7)])
def test_anchors_of_fragments_that_are_not_there_are_an_error(channel, others):
    channel.open()
    ticket = channel.exchange.begin(1, contribution(1, b"abc"))
    channel.send(replace(deliver(0), others=others))
    with pytest.raises(TrainerError, match="fragments"):
        ticket.result()


def test_two_rounds_in_flight_keep_their_bytes_and_find_their_outcomes(channel):
    channel.open()
    first = channel.exchange.begin(0, contribution(0, b"first"))
    channel.goes_on()
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
    channel.goes_on()
    second = channel.exchange.begin(1, contribution(1, b"second"))
    channel.send(deliver(1))

    with pytest.raises(TrainerError, match="unexpected"):
        second.result()


def test_a_third_round_in_flight_is_a_bug(channel):
    channel.open()
    channel.exchange.begin(0, contribution(0, b"first"))
    with pytest.raises(AssertionError, match="turn"):
        channel.exchange.begin(1, contribution(1, b"too soon"))
    channel.goes_on()
    with pytest.raises(AssertionError, match="per fragment"):
        channel.exchange.begin(0, contribution(0, b"again"))
    channel.exchange.begin(1, contribution(1, b"second"))
    channel.goes_on()

    with pytest.raises(AssertionError, match="slot"):
        channel.exchange.begin(0, contribution(0, b"third"))


def test_a_slot_is_used_again_after_its_outcome(channel):
    channel.open()
    for sequence in range(4):
        ticket = channel.exchange.begin(0, contribution(0, bytes([sequence])))
        assert channel.receive().sequence == sequence
        channel.send(deliver(sequence))
        ticket.result()
        channel.goes_on()


def test_turn_comes_before_the_outcome_and_an_outcome_only_when_it_is_looked_for(channel):
    channel.open()
    ticket = channel.exchange.begin(0, contribution(0, b"first"))
    channel.file.write_anchor(1, np.full(3, 9, np.float32))
    turn = channel.goes_on(others=(1,))
    assert (turn.clock, turn.lease) == (CLOCK, ((0, 9),))
    assert {other: x_N.tolist() for other, x_N in turn.others.items()} == {1: [9.0] * 3}
    assert not ticket.is_here()
    channel.send(deliver(0))
    while not ticket.is_here():
        pass  # It comes by way of a thread.
    assert ticket.result().listed


@pytest.mark.parametrize("others", [(2,), (0, 7)])
def test_turn_with_anchors_of_fragments_that_are_not_there_is_an_error(channel, others):
    channel.open()
    channel.exchange.begin(1, contribution(1, b"abc"))
    with pytest.raises(TrainerError, match="fragments"):
        channel.goes_on(others=others)


def test_turn_says_how_many_have_a_seat(channel):
    channel.open()
    channel.exchange.begin(1, contribution(1, b"abc"))
    channel.send(Proceed(clock=CLOCK, lease=((0, 9),), members=7))
    assert channel.exchange.proceed().members == 7


def test_second_turn_behind_one_contribution_is_an_error(channel):
    channel.open()
    ticket = channel.exchange.begin(0, contribution(0, b"first"))
    channel.goes_on()
    channel.send(Proceed(clock=CLOCK, lease=()))
    with pytest.raises(TrainerError, match="unexpected Proceed"):
        ticket.result()


def test_end_of_the_pipe_is_seen_by_who_only_looks(channel):
    channel.open()
    ticket = channel.exchange.begin(0, contribution(0, b"first"))
    channel.hang_up()
    with pytest.raises(TrainerError, match="gone"):
        ticket.is_here()
    with pytest.raises(TrainerError, match="gone"):
        channel.exchange.proceed()


@pytest.mark.parametrize("frame", [deliver(5), Start(clock=CLOCK, lease=())])
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


def test_what_the_network_process_tells_ends_every_wait_as_the_error_it_is(channel):
    channel.open()
    ticket = channel.exchange.begin(0, contribution(0, b"x"))
    channel.send(Failed(kind="ManifestMismatch", message="differs", field="inner.batch"))

    # The pipe is still open: a process that hangs behind its last word holds nobody up.
    for _ in range(2):
        with pytest.raises(ManifestMismatch, match=r"^differs$") as raised:
            ticket.result()
        assert raised.value.field == "inner.batch"
    assert channel.pipe.told is raised.value
    assert channel.pipe.failure is raised.value


def test_frames_before_the_last_word_are_still_heard(channel):
    channel.open()
    ticket = channel.exchange.begin(0, contribution(0, b"x"))
    channel.send(deliver(0))
    channel.send(Failed(kind="RefusedError", message="banned", field=""))
    assert channel.pipe.wait_closed(60)

    assert ticket.result().listed
    with pytest.raises(RefusedError, match="banned"):
        channel.pipe.receive()


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


class Spare:
    """Notes what it is asked to do; there are as many pieces as it is told, and behind a piece that
    leaves `says_at` it says what there is to say."""

    def __init__(self, pieces, *, is_wanted=True, says_at=None, says=lambda: None):
        self.pieces, self.is_wanted = pieces, is_wanted
        self.says_at, self.says = says_at, says
        self.done = []

    def is_due(self):
        self.done.append("asked")
        return self.is_wanted

    def begin(self):
        self.done.append("begin")

    def go_on(self):
        self.pieces -= 1
        self.done.append("piece")
        if self.pieces == self.says_at:
            self.says()
        return self.pieces > 0

    def end(self, *, is_alone, is_ahead):
        assert is_ahead
        self.done.append(f"end, alone {is_alone}")

    def give_up(self):
        self.done.append("given up")


def test_spare_work_is_done_behind_the_hand_over_until_there_is_none(channel):
    channel.open()
    spare = Spare(3, says_at=0, says=lambda: channel.send(deliver(0)))
    channel.exchange.spare = spare
    ticket = channel.exchange.begin(1, contribution(1, b"abc"))
    assert channel.receive().reads_on is False  # These anchors are copies.
    assert spare.done == ["asked"]
    ticket.result()
    assert spare.done == ["asked", "begin", "piece", "piece", "piece", "end, alone True"]


def test_spare_work_gives_way_to_an_outcome_that_is_here(channel):
    channel.open()
    outcome = replace(deliver(0), members=3)
    spare = Spare(10**9, says_at=10**9 - 1, says=lambda: channel.send(outcome))
    channel.exchange.spare = spare
    ticket = channel.exchange.begin(1, contribution(1, b"abc"))
    ticket.result()
    assert spare.done[:3] == ["asked", "begin", "piece"]
    assert spare.done[-1] == "end, alone False"


def test_spare_work_is_given_up_and_tells_nothing_where_the_wait_fails(channel):
    channel.open()
    # What nothing calls for: this contribution has no outcome before its time.
    spare = Spare(10**9, says_at=10**9 - 2, says=lambda: channel.send(deliver(7)))
    channel.exchange.spare = spare
    ticket = channel.exchange.begin(1, contribution(1, b"abc"))
    with pytest.raises(TrainerError):
        ticket.result()
    # How many pieces it does before the bytes have come through the pipe is not told.
    assert spare.done[:4] == ["asked", "begin", "piece", "piece"]
    assert set(spare.done[4:-1]) <= {"piece"}
    assert spare.done[-1] == "given up"


def test_without_spare_work_a_wait_is_a_wait(channel):
    channel.open()
    spare = Spare(3, is_wanted=False)
    channel.exchange.spare = spare
    ticket = channel.exchange.begin(1, contribution(1, b"abc"))
    channel.send(deliver(0))
    ticket.result()
    assert spare.done == ["asked"]


def test_request_to_validate_is_for_the_anchor_that_it_came_with(channel):
    channel.open(validate=True)
    ticket = channel.exchange.begin(1, contribution(1, b"abc"))
    channel.send(replace(deliver(0), clock=replace(CLOCK, round=CLOCK.round + 1)))
    ticket.result()
    assert channel.exchange.take_validation() is None
