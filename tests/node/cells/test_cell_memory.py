"""Memory of cells: nobody's twice at a time, and used again once nobody has it any more."""

import errno
import gc
import mmap
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from node.holdings import states as cell_memory
from node.holdings.states import LARGE_BYTES, CellMemory

SIZE = LARGE_BYTES + 100
WHOLE = -(-SIZE // mmap.PAGESIZE) * mmap.PAGESIZE


def address(place) -> int:
    return int(np.frombuffer(place, dtype=np.uint8).ctypes.data)


def test_places_begin_at_pages_and_lie_apart():
    memory = CellMemory()
    places = [memory.take(SIZE) for _ in range(8)]
    assert all(len(place) == SIZE and address(place) % mmap.PAGESIZE == 0 for place in places)
    for number, place in enumerate(places):
        place[:] = bytes([number]) * SIZE
    assert [bytes(place) for place in places] == [bytes([number]) * SIZE for number in range(8)]


def test_place_is_used_again_only_when_the_last_view_of_it_is_gone():
    memory = CellMemory()
    place = memory.take(SIZE)
    at, views = address(place), [place[10:20].toreadonly(), np.frombuffer(place, np.uint8)[5:]]
    del place
    others = [memory.take(SIZE) for _ in range(3)]
    assert at not in map(address, others)
    views.pop()
    assert memory.free_bytes == 0
    views.pop()
    gc.collect()
    assert memory.free_bytes == WHOLE
    again = memory.take(SIZE - 50)
    assert address(again) == at
    assert memory.free_bytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts them, and tells how many")
def test_places_side_by_side_are_one_mapping():
    def num_mappings():
        return len(Path("/proc/self/maps").read_text().splitlines())

    memory, before = CellMemory(), num_mappings()
    places = [memory.take(SIZE) for _ in range(1000)]
    assert len(places) == 1000
    assert num_mappings() < before + 100


def test_where_the_system_maps_no_more_the_heap_gives_the_place(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    memory = CellMemory()
    monkeypatch.setattr(mmap, "mmap", refuse)
    place = memory.take(SIZE)
    place[:] = b"x" * SIZE
    assert bytes(place) == b"x" * SIZE
    del place
    gc.collect()
    assert memory.free_bytes == 0


def test_what_is_free_beyond_the_most_goes_back_to_the_system(monkeypatch):
    monkeypatch.setattr(cell_memory, "FREE_BYTES_MAX", 3 * WHOLE)
    memory = CellMemory()
    places = [memory.take(SIZE) for _ in range(10)]
    del places
    gc.collect()
    assert memory.free_bytes == 3 * WHOLE


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES, SIZE])
def test_copy_has_the_bytes_and_no_part_in_what_it_was_made_of(size, seed):
    made_of = np.frombuffer(random.Random(seed).randbytes(size), dtype=np.uint8).copy()
    before = made_of.tobytes()
    copy = CellMemory().copied(made_of.data)  # type: ignore[arg-type]  # read like bytes
    made_of[:] = 0
    assert bytes(copy) == before
    assert memoryview(copy).readonly


def test_threads_never_share_a_place(seed):
    """What a thread has written is what it reads, however often places change hands."""
    memory = CellMemory()
    wrong: list[bytes] = []

    def work(number: int) -> None:
        luck = random.Random(seed + number)
        for _ in range(200):
            held = [memory.take(LARGE_BYTES) for _ in range(luck.randrange(1, 5))]
            for place in held:
                place[:8] = number.to_bytes(8, "big")
            read = [bytes(place[:8]) for place in held]
            wrong.extend(one for one in read if one != number.to_bytes(8, "big"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
