"""What other processes of ours use, where the system says so (Linux), and what a run takes of this
machine, asked before anything is started.

The factors were measured (`docs/decisions/0031-memory-of-a-round.md`): bytes per element and peer,
on top of what a process takes by itself.
"""

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node.processes.machine import Wants, number_named
from protocol.limits import MIB

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


def written_bytes(pids: Iterable[int]) -> int:
    """Bytes that these processes had written to a disk, mapped files among them; those that are
    gone have none. What was removed before it came to the disk counts as well."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += bytes_to_disk((_PROC / str(pid) / "io").read_text())
    return total


def bytes_to_disk(text: str) -> int:
    """What a text like /proc/PID/io says was written; 0 if it says nothing."""
    return number_named(text, "write_bytes")


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes, what they share counted for each; no walk through their pages."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            total += int((_PROC / str(pid) / "statm").read_text().split()[1])
    return total * mmap.PAGESIZE


def proportional_bytes(rollup: str) -> int:
    """The proportional set size in a text like /proc/PID/smaps_rollup; 0 if it has none."""
    return 1024 * number_named(rollup, "Pss")


@dataclass(slots=True)
class PeakMemory:
    """The most memory that one process takes, its share of what others have as well.

    The system keeps the highest mark of all that a process had, shared or not, and tells its share
    only of the moment. So of that mark others' share is what it was at the look nearest to it, at
    which the process had most, shared or not: at the end of a round more is shared than in a step.
    """

    proportional: int = 0
    resident: int = 0
    shared: int = 0
    """Of the same look: what is others' share."""

    high: int = 0

    def look(self, pid: int) -> None:
        """Ask the system; a process that is gone changes nothing."""
        with suppress(OSError):
            rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
            status = (_PROC / str(pid) / "status").read_text()
            self.take(
                1024 * number_named(rollup, "Rss"),
                proportional_bytes(rollup),
                1024 * number_named(status, "VmHWM"),
            )

    def take(self, resident: int, proportional: int, high: int) -> None:
        """What a look found, in bytes."""
        self.proportional = max(self.proportional, proportional)
        if resident > self.resident:
            self.resident, self.shared = resident, resident - proportional
        self.high = max(self.high, high)

    @property
    def num_bytes(self) -> int:
        """The most so far."""
        return max(self.proportional, self.high - self.shared)


MEMORY_BYTES_PER_ELEMENT = 40.0
"""Ten vectors. Measured: four and a half with 2 x 10^7 elements; the rest is for momentum, for
joiners that fetch a state, and for the check at the end."""

MEMORY_BYTES_PER_PEER = 140 * MIB
DISK_BYTES_PER_ELEMENT = 40.0
"""The mapped file 8, three checkpoints and one being written 16, results of four rounds 16."""


def needs(peers: int, elements: int) -> Wants:
    """What so many nodes take, with their trainers and the check at the end."""
    return Wants(
        memory_bytes=int(peers * (MEMORY_BYTES_PER_ELEMENT * elements + MEMORY_BYTES_PER_PEER)),
        disk_bytes=int(peers * DISK_BYTES_PER_ELEMENT * elements),
    )


ADVICE = "close other programs, name a folder on another disk with --out, or take fewer {}"
"""What to do about it; where a bench says what to take fewer of."""
