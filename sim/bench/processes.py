"""What other processes of ours use, where the system says so: Linux."""

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time of all threads of these processes so far; those that are gone have none."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            total += cpu_ticks((_PROC / str(pid) / "stat").read_text())
    return total / _TICKS_PER_S


def cpu_ticks(stat: str) -> int:
    """User and system time in a text like /proc/PID/stat, whose second field may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes, what they share divided among them."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            total += proportional_bytes((_PROC / str(pid) / "smaps_rollup").read_text())
    return total


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes, what they share counted for each; no walk through their pages."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            total += int((_PROC / str(pid) / "statm").read_text().split()[1])
    return total * mmap.PAGESIZE


def proportional_bytes(rollup: str) -> int:
    """The proportional set size in a text like /proc/PID/smaps_rollup; 0 if it has none."""
    for line in rollup.splitlines():
        name, _, rest = line.partition(":")
        if name == "Pss":
            return 1024 * int(rest.split()[0])
    return 0
