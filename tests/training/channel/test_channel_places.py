"""Who has which place of the mapped file, and what a slow reader sees there."""

import gc
import sys
import threading

import numpy as np
import pytest

from protocol.errors import TrainerError
from training.channel.channel_file import AnchorPlaces, ChannelFile, ChannelSpec, PayloadPlaces

NUMEL, SLOT_BYTES = 1 << 18, 1 << 16
SPEC = ChannelSpec(run=bytes(32), fragment_numels=(NUMEL,), slot_bytes=SLOT_BYTES, slots=1)


@pytest.fixture
def ours(tmp_path):
    with ChannelFile.create(tmp_path / "a.channel", SPEC) as channel:
        yield channel


@pytest.fixture
def theirs(ours):
    with ChannelFile.open(ours.path, SPEC) as channel:
        yield channel


def blocks_bytes(channel):
    return channel.path.stat().st_blocks * 512


def test_contribution_is_read_where_the_trainer_wrote_it(ours, theirs):
    places = PayloadPlaces(ours)
    theirs.write_payloads(places.grant(), (b"abc", b"", b"de"))
    cells = places.lent((3, 0, 2))
    assert cells == (b"abc", b"", b"de")
    assert all(np.frombuffer(cell, np.uint8).base is not None for cell in cells if cell)
    with pytest.raises(TypeError):
        cells[0][0] = 1  # type: ignore[index]


def test_slow_reader_never_sees_the_next_contributions(ours, theirs, seed):
    rng = np.random.default_rng(seed)
    places, kept = PayloadPlaces(ours), []
    for number in range(40):
        place = places.grant()
        said = rng.bytes(int(rng.integers(1, SLOT_BYTES)))
        theirs.write_payloads(place, (said[: number % 7], said[number % 7 :]))
        cells = places.lent((len(said[: number % 7]), len(said[number % 7 :])))
        kept.append((said, cells[-1][1:], number % 7 + 1))
        while len(kept) > rng.integers(0, 5):
            kept.pop(int(rng.integers(0, len(kept))))
        for before, rest, start in kept:
            assert bytes(rest) == before[start:]


def test_place_is_used_again_once_its_last_reader_is_gone(ours):
    places = PayloadPlaces(ours)
    first = places.grant()
    assert places.grant() == first, "until it was lent"
    piece = places.lent((8, 8))[1][2:4]
    second = places.grant()
    assert second != first
    del piece
    assert places.lent((4,))
    assert places.grant() == first


def test_contribution_in_the_last_place_is_copied_and_the_place_free_at_once(ours, theirs):
    places = PayloadPlaces(ours)
    held = []
    for number in range(SPEC.payload_places + 3):
        theirs.write_payloads(places.grant(), (bytes([number]) * 5,))
        held.append(places.lent((5,)))
    assert [cells[0] for cells in held] == [bytes([number]) * 5 for number in range(len(held))]
    in_place = [isinstance(cells[0], memoryview) for cells in held]
    assert in_place == [True] * (SPEC.payload_places - 1) + [False] * 4


def test_lengths_that_leave_the_place_are_an_error_and_leave_it_free(ours):
    places = PayloadPlaces(ours)
    place = places.grant()
    for lengths in [(SLOT_BYTES, 1), (-1, 2), (1 << 60,)]:
        with pytest.raises(TrainerError, match="of its place"):
            places.lent(lengths)
        gc.collect()
        assert places.grant() == place


def test_bytes_that_lie_there_already_are_not_copied(ours, theirs):
    place = PayloadPlaces(ours).grant()
    draft_B = theirs.payload_memory(place)
    draft_B[:6] = range(6)
    cells = (draft_B[:2].data, draft_B[2:6].data)
    draft_B.flags.writeable = False
    theirs.write_payloads(place, cells)
    assert ours.read_payloads(place, (2, 4)) == (bytes(range(2)), bytes(range(2, 6)))
    theirs.write_payloads(place, (cells[1], b"xy"))
    assert ours.read_payloads(place, (4, 2)) == (bytes(range(2, 6)), b"xy")


def test_trainer_reads_a_states_anchor_where_it_is_and_cannot_write_there(ours, theirs):
    anchors = AnchorPlaces(ours)
    anchor_N = anchors.take()
    anchor_N[:] = 3.0
    read_N = theirs.anchor(0, place=anchors.place_of(anchor_N))
    assert read_N.tolist() == [3.0] * NUMEL
    anchor_N[7] = 4.0
    assert read_N[7] == 4.0, "no copy"
    with pytest.raises(ValueError, match="read-only"):
        read_N[0] = 1.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        read_N.flags.writeable = True


def test_anchor_that_somebody_holds_keeps_its_place_and_others_lie_elsewhere(ours):
    anchors = AnchorPlaces(ours)
    held = [anchors.take() for _ in range(SPEC.anchor_places + 2)]
    for number, anchor_N in enumerate(held):
        anchor_N[:] = number
    places = [anchors.place_of(anchor_N) for anchor_N in held]
    assert places == [*range(1, SPEC.anchor_places), None, None, None]
    assert all(anchors.made(anchor_N) for anchor_N in held)
    assert not anchors.made(np.empty(NUMEL, np.float32))
    assert [anchor_N[9] for anchor_N in held] == list(range(len(held)))
    view_N = held[1][5:]
    del held[1], anchor_N
    assert anchors.place_of(anchors.take()) is None, "a view holds it"
    del view_N
    assert anchors.place_of(anchors.take()) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="holes of Linux")
def test_memory_that_is_not_needed_goes_back_and_is_allocated_again(ours):
    anchors = AnchorPlaces(ours)
    first_N, second_N = anchors.take(), anchors.take()
    first_N[:], second_N[:] = 1.0, 2.0
    both = blocks_bytes(ours)
    del first_N
    anchors.trim()
    assert blocks_bytes(ours) <= both - 4 * NUMEL
    again_N = anchors.take()
    assert blocks_bytes(ours) >= both
    again_N[:] = 5.0
    assert (again_N[-1], second_N[-1]) == (5.0, 2.0)


def test_places_that_are_not_there_are_an_error(theirs):
    for place in (-1, SPEC.anchor_places):
        with pytest.raises(TrainerError, match="place"):
            theirs.anchor(0, place=place)
    for place in (-1, SPEC.payload_places):
        with pytest.raises(TrainerError, match="place"):
            theirs.write_payloads(place, (b"x",))


def test_memory_outlives_the_file_and_the_trainer(tmp_path):
    channel = ChannelFile.create(tmp_path / "a.channel", SPEC)
    anchors, payloads = AnchorPlaces(channel), PayloadPlaces(channel)
    channel.write_payloads(payloads.grant(), (b"abc",))
    anchor_N, cells = anchors.take(), payloads.lent((3,))
    anchor_N[:] = 2.0
    channel.close()
    (tmp_path / "a.channel").unlink()
    assert (anchor_N[-1], cells) == (2.0, (b"abc",))


def test_places_are_given_to_one_at_a_time_from_many_threads(ours):
    anchors, wrong = AnchorPlaces(ours), []

    def takes(name):
        for _ in range(200):
            anchor_N = anchors.take()
            anchor_N[:4] = name
            if anchor_N[:4].tolist() != [name] * 4:
                wrong.append(name)

    threads = [threading.Thread(target=takes, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
