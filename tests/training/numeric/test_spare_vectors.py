"""Vectors whose memory is used again, but never while anybody can still read it."""

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from training.numeric.memory import SpareVectors, Vector, untouched_zeros

NUMEL = 1000


def place(x_N):
    return x_N.__array_interface__["data"][0]


def test_the_memory_of_a_vector_that_nobody_holds_is_taken_again():
    spare = SpareVectors(NUMEL, most=1)
    first_N = spare.take()
    assert (len(first_N), first_N.dtype.name, first_N.flags.writeable) == (NUMEL, "float32", True)
    at = place(first_N)
    del first_N
    gc.collect()
    assert place(spare.take()) == at


@pytest.mark.parametrize(
    "part_of",
    [
        lambda x_N: x_N[10:20],
        lambda x_N: x_N[10:][5:20],
        lambda x_N: x_N.astype("<f4", copy=False).data.cast("B"),
        lambda x_N: np.frombuffer(memoryview(x_N), np.uint8)[4:],
        lambda x_N: x_N.reshape(10, -1).T[3],
    ],
    ids=["slice", "slice of a slice", "bytes", "array of bytes", "transposed row"],
)
def test_what_views_a_vector_keeps_its_memory(part_of):
    spare = SpareVectors(NUMEL, most=2)
    first_N = spare.take()
    first_N[:] = 1.0
    view, before = part_of(first_N), bytes(part_of(first_N))
    del first_N
    gc.collect()
    others = [spare.take() for _ in range(3)]
    for other_N in others:
        other_N[:] = 2.0
    assert bytes(view) == before


def test_no_two_of_those_that_are_held_share_memory_and_few_spare_ones_stay(seed):
    rng = np.random.default_rng(seed)
    spare = SpareVectors(NUMEL, most=2)
    held: list[tuple[int, Vector]] = []
    for number in range(200):
        if held and rng.random() < 0.5:
            del held[int(rng.integers(len(held)))]
        else:
            held.append((number, spare.take()))
            held[-1][1][:] = number
        assert all((x_N == of).all() for of, x_N in held)
    held.clear()
    gc.collect()
    assert len(spare._spare) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_zeros_take_no_memory_before_they_are_written_whatever_the_heap_has_free():
    def anonymous_bytes():
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return 1024 * int(line.split()[1])
        raise AssertionError("no such line")

    numel = 1 << 24
    before = anonymous_bytes()
    zeros_N = untouched_zeros(numel)
    assert not zeros_N.any()
    assert anonymous_bytes() - before < numel
    zeros_N[:] = 1.0
    assert anonymous_bytes() - before > 3 * numel
    assert len(untouched_zeros(0)) == 0
