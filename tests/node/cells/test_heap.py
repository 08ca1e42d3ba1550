"""Freed cells stay with the process that will want them again."""

import subprocess
import sys

import pytest

from node.cells.heap import keep_freed_memory

CELLS = """
import resource, sys
from node.cells.heap import keep_freed_memory
is_kept = keep_freed_memory() if sys.argv[1] == "kept" else True
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def cells():
    return [bytearray(1 << 20) for _ in range(32)]
cells()
before = faults()
for _ in range(10):
    cells()
print(int(is_kept), faults() - before)
"""


def faults(how: str) -> tuple[bool, int]:
    command = [sys.executable, "-P", "-c", CELLS, how]
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


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_c_library_changes_nothing(monkeypatch, error):
    def missing(_: object) -> None:
        raise error

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert not keep_freed_memory()
