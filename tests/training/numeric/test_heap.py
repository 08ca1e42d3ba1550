"""Freed cells stay with the process that will want them again."""

import subprocess
import sys

import pytest

from training.numeric.memory import give_back_free_memory, keep_freed_memory

CELLS = """
import resource, sys
from training.numeric.memory import keep_freed_memory
is_kept = keep_freed_memory() if sys.argv[1] == "kept" else True
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def cells():
    return [bytearray(1 << 20) for _ in range(int(sys.argv[2]))]
cells()
before = faults()
for _ in range(int(sys.argv[3])):
    cells()
print(int(is_kept), faults() - before)
"""


def faults(how: str, *, cells: int = 32, times: int = 10) -> tuple[bool, int]:
    command = [sys.executable, "-P", "-c", CELLS, how, str(cells), str(times)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    is_kept, count = done.stdout.split()
    return is_kept == "1", int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc only")
def test_cells_that_are_made_again_and_again_cost_no_new_pages():
    is_kept, count = faults("kept")
    if not is_kept:
        pytest.skip("another C library")
    _, usual = faults("usual")
    pages = 32 * 256
    assert count < pages
    assert usual > 5 * pages


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc only")
def test_cells_of_a_large_model_cost_no_new_pages_in_the_next_round():
    cells = 320  # Above 256 MiB glibc gave what was free back.
    is_kept, count = faults("kept", cells=cells, times=2)
    if not is_kept:
        pytest.skip("another C library")
    assert count < 20 * 256


FREE = """
from pathlib import Path
from training.numeric.memory import FREE_BYTES_KEPT, give_back_free_memory, keep_freed_memory
def resident():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])
keep_freed_memory()
cells, small = [], []
for _ in range(300):
    cells.append(bytearray(b"x") * (1 << 20))
    small.append(bytearray(1 << 12))  # Lies behind it: what is free then is no end of the heap.
full = resident()
del cells
free = give_back_free_memory()
print(free, full - resident(), FREE_BYTES_KEPT)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc only")
def test_much_that_is_free_within_the_heap_goes_back():
    command = [sys.executable, "-P", "-c", FREE]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    free, gone, kept = done.stdout.split()
    if not int(free):
        pytest.skip("another C library")
    assert int(free) >= 300 << 20 > int(kept)
    assert int(gone) >= 290 << 20


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_c_library_changes_nothing(monkeypatch, error):
    def missing(_: object) -> None:
        raise error

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert not keep_freed_memory()
    assert not give_back_free_memory()
