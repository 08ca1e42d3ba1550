"""What other processes of ours use, where the system says so (Linux), and what a run takes of this
machine, asked before anything is started.

The factors were measured (`docs/decisions/0031-memory-of-a-round.md`): bytes per element and peer,
on top of what a process takes by itself.
"""

import mmap
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError
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


MEMORY_BYTES_PER_ELEMENT = 40.0
"""Ten vectors. Measured: four and a half with 2 x 10^7 elements; the rest is for momentum, for
joiners that fetch a state, and for the check at the end."""

MEMORY_BYTES_PER_PEER = 140 * MIB
DISK_BYTES_PER_ELEMENT = 40.0
"""The mapped file 8, three checkpoints and one being written 16, results of four rounds 16."""

_MEMORY_FILE = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of memory and of disk."""

    memory: int
    disk: int


def needs(peers: int, elements: int) -> Needs:
    """What so many nodes take, with their trainers and the check at the end."""
    return Needs(
        memory=int(peers * (MEMORY_BYTES_PER_ELEMENT * elements + MEMORY_BYTES_PER_PEER)),
        disk=int(peers * DISK_BYTES_PER_ELEMENT * elements),
    )


def check_needs(wanted: Needs, folder: Path) -> None:
    """Raises ConfigError where this machine has less than that, saying how much is wanted."""
    free = shutil.disk_usage(folder).free
    if free < wanted.disk:
        raise ConfigError(
            f"this needs {_gib(wanted.disk)} of disk and {folder} has {_gib(free)} free: "
            "name a folder on another disk with --out, or take fewer --peers or --elements"
        )
    check_memory(wanted.memory)


def check_memory(num_bytes: int) -> None:
    """Raises ConfigError where this machine has less memory free, saying how much is wanted."""
    available = _available_bytes()
    if available is not None and available < num_bytes:
        raise ConfigError(
            f"this needs {_gib(num_bytes)} of memory and {_gib(available)} are free: "
            "close other programs, or take fewer --peers or --elements"
        )


def _available_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    try:
        text = _MEMORY_FILE.read_text()
    except OSError:
        return None
    return memory_available(text)


def memory_available(text: str) -> int | None:
    """The bytes that a text like /proc/meminfo calls available."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            return 1024 * int(words[0])
    return None


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
