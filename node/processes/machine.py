"""What this machine has to spare, asked before anything is founded, fetched or started."""

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from protocol.errors import ConfigError

_CGROUPS, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CARD_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Bytes that are free: of memory without swapping, and on the disk of one folder."""

    memory_bytes: int
    disk_bytes: int
    has_card: bool = False
    """Whether there is a device beside the processor, with memory of its own."""

    def is_on_card(self, device: str) -> bool:
        """Whether a trainer that is told that device has its model there."""
        return device.startswith("cuda") or (device == "auto" and self.has_card)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """Bytes that something takes at its busiest."""

    memory_bytes: int
    disk_bytes: int


def read_machine(folder: Path) -> Machine:
    """What is free now; `folder` need not be there yet. Containers have what they are allowed."""
    within = folder.absolute()
    while not within.exists() and within != within.parent:
        within = within.parent
    return Machine(
        memory_bytes=free_memory_bytes(),
        disk_bytes=shutil.disk_usage(within).free,
        has_card=_CARD_DRIVER.exists(),
    )


def free_memory_bytes() -> int:
    """Memory that can be had without swapping, within what a container is allowed."""
    available: int = psutil.virtual_memory().available
    return min((available, *allowed_bytes(_CGROUPS, _OWN_CGROUP)))


def allowed_bytes(root: Path, own: Path) -> Iterator[int]:
    """What each control group around this process still allows it: of version 2, whose limits are
    those of the group and of all above it, and of version 1."""
    lines = []
    with suppress(OSError):
        lines = own.read_text().splitlines()
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        group = PurePosixPath(path.lstrip("/"))
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
        for level in (group, *group.parents):
            with suppress(OSError, ValueError):
                # Files in the cache count as used, and are given up for whoever asks.
                cached = number_named((base / level / "memory.stat").read_text(), names[2])
                limit = int((base / level / names[0]).read_text())
                yield max(0, limit - int((base / level / names[1]).read_text()) + cached)


def number_named(text: str, name: str) -> int:
    """The number behind a name, in a text of the system's with a name and a number in each line,
    such as `Pss: 5 kB`; 0 of none."""
    found = re.search(rf"^{re.escape(name)}:?[ \t]+(\d+)", text, re.MULTILINE)
    return 0 if found is None else int(found[1])


def held_bytes(folder: Path) -> int:
    """What the files in a folder take of the disk; 0 of one that is not there."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found = path.lstat()
            # A mapped file is mostly a hole; Windows tells the whole of it.
            blocks = getattr(found, "st_blocks", None)
            total += found.st_size if blocks is None else 512 * blocks
    return total


def shortages(wants: Wants, machine: Machine) -> list[str]:
    """What this machine has too little of, in words; empty if it has all."""
    pairs = (
        ("memory", wants.memory_bytes, machine.memory_bytes),
        ("disk", wants.disk_bytes, machine.disk_bytes),
    )
    return [
        f"{what}: {gib(wanted)} are needed and {gib(free)} are free"
        for what, wanted, free in pairs
        if free < wanted
    ]


def check_machine(wants: Wants, machine: Machine, *, advice: str) -> None:
    """Raises ConfigError where this machine has too little, naming what is short; `advice` says
    what to do about it."""
    short = shortages(wants, machine)
    if short:
        raise ConfigError(f"this machine is too small for that ({'; '.join(short)}): {advice}")


def gib(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / 2**30:.1f} GiB"
