"""The trainer's end where nothing is copied: it reads and writes in the places that it is told."""

from dataclasses import replace

import pytest

from protocol.errors import TrainerError
from tests.training.channel.test_channel import Channel, contribution, deliver
from tests.training.channel.test_frames import CLOCK
from training.channel.channel_file import AnchorPlaces, PayloadPlaces
from training.channel.frames import Start
from training.channel.trainer_end import ChannelExchange, ChannelFile, ChannelSpec

ONE = ChannelSpec(run=bytes(32), fragment_numels=(6,), slot_bytes=1 << 16, slots=1)


class InPlace(Channel):
    """A channel of one fragment and one round in flight, as the network process gives it out."""

    def __init__(self, folder, *, copies):
        super().__init__(folder, spec=ONE)
        self.theirs = ChannelFile.open(self.file.path, ONE)
        self.exchange = ChannelExchange(self.theirs, self.pipe, copies=copies)
        self.anchors, self.payloads = AnchorPlaces(self.file), PayloadPlaces(self.file)

    def anchor(self, value):
        anchor_N = self.anchors.take()
        anchor_N[:] = value
        return anchor_N, self.anchors.place_of(anchor_N)

    def close(self):
        super().close()
        self.theirs.close()


@pytest.fixture(params=[False, True], ids=["in place", "copies"])
def one(tmp_path, request):
    channel = InPlace(tmp_path, copies=request.param)
    yield channel, request.param
    channel.close()


def test_anchor_is_where_the_network_process_says_and_the_readers_own_if_it_copies(one):
    channel, copies = one
    first_N, place = channel.anchor(1.0)
    channel.send(Start(clock=CLOCK, lease=((0, 9),), anchor=place, place=channel.payloads.grant()))
    channel.exchange.opening()
    (read_N,) = channel.exchange.anchors
    assert read_N.tolist() == [1.0] * 6
    ticket = channel.exchange.begin(0, contribution(0, b"abc"))
    first_N[:] = 5.0  # As when the round is sealed.
    assert read_N.tolist() == [1.0 if copies else 5.0] * 6
    assert channel.payloads.lent((3,)) == (b"abc",)
    _, other = channel.anchor(2.0)
    channel.send(replace(deliver(0), anchor=other))
    assert ticket.result().anchor_N.tolist() == [2.0] * 6


def test_contributions_go_where_they_are_wanted_and_drafts_are_not_copied(one):
    channel, _ = one
    channel.send(Start(clock=CLOCK, lease=((0, 9),), place=channel.payloads.grant()))
    channel.exchange.opening()
    held = []
    for sequence in range(5):
        draft_B = channel.exchange.draft()
        draft_B[:4] = sequence
        draft_B.flags.writeable = False
        cells = (draft_B[:3].data, draft_B[3:4].data)
        ticket = channel.exchange.begin(0, contribution(0, *cells))
        held.append(channel.payloads.lent(channel.receive().lengths))
        channel.send(replace(deliver(sequence), place=channel.payloads.grant()))
        ticket.result()
    assert [b"".join(cells) for cells in held] == [bytes([index]) * 4 for index in range(5)]


@pytest.mark.parametrize("changes", [{"anchor": 9}, {"anchor": 1 << 40}])
def test_anchor_in_a_place_that_is_not_there_is_an_error(one, changes):
    channel, _ = one
    channel.send(Start(clock=CLOCK, lease=((0, 9),), **changes))
    with pytest.raises(TrainerError, match="place"):
        channel.exchange.opening()
