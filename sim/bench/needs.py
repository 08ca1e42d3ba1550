"""What a bench takes of this machine, asked before anything is started.

The factors were measured (`docs/decisions/0031-memory-of-a-round.md`): bytes per element and peer,
on top of what a process takes by itself.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError
from protocol.limits import MIB

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
