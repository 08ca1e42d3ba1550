"""The long run: three nodes for half an hour; what they hold must not grow.

    python -m tests.e2e.soak --minutes 30 --out FOLDER

Samples the network processes every five seconds: resident memory, descriptors, mapped files from
the system, tasks from their status servers. Prints a line a minute and a verdict per node, and ends
with status 1 where one fails: memory after the first five minutes (a sixth of a shorter run) grown
by five percent or more; more descriptors, tasks or mapped files than the swarm had settled at;
anything left over once the nodes are gone.
"""

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from node.status.client import ask, find_api
from node.status.records import NodeStatus
from tests.e2e.swarm import NodeUnderTest, Swarm, swarm_of

SAMPLE_S = 5.0
MINUTE = 12
"""Samples."""

GROWTH_MAX = 0.05
SLACK = 3
"""Descriptors, tasks and maps come and go with streams: medians may differ by so many."""


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a network process; memory in bytes."""

    at_s: float
    rss: int
    descriptors: int
    maps: int
    tasks: int
    round: int


def look(swarm: Swarm, node: NodeUnderTest, at_s: float) -> Sample:
    """Sample a running node."""
    assert node.process is not None
    proc = Path("/proc") / str(node.process.pid)
    pages = int((proc / "statm").read_text().split()[1])
    maps = (proc / "maps").read_text().splitlines()
    files = [line for line in maps if str(node.state) in line]
    api = find_api(node.state, swarm.manifest.digest.hex()[:12])
    status = ask(api, "/v1/status", NodeStatus)
    return Sample(
        at_s,
        pages * 4096,
        len(list((proc / "fd").iterdir())),
        len(files),
        status.tasks,
        status.round,
    )


def verdict(name: str, samples: list[Sample], settled_s: float) -> list[str]:
    """What is wrong with a node's samples, in words; nothing if nothing is."""
    later = [sample for sample in samples if sample.at_s >= settled_s]
    third = max(1, len(later) // 3)
    first, last = later[:third], later[-third:]
    wrong = []

    def medians(of: str) -> tuple[float, float]:
        return (
            statistics.median(getattr(s, of) for s in first),
            statistics.median(getattr(s, of) for s in last),
        )

    start = statistics.median(s.rss for s in later[:MINUTE])
    end = statistics.median(s.rss for s in later[-MINUTE:])
    growth = end / start - 1
    say(
        f"{name}: {later[-1].round} rounds, memory {start / 2**20:.1f} -> {end / 2**20:.1f} MiB "
        f"({growth:+.1%}), "
        + ", ".join(
            f"{of} {medians(of)[0]:g} -> {medians(of)[1]:g}"
            for of in ("descriptors", "tasks", "maps")
        )
    )
    if growth >= GROWTH_MAX:
        wrong.append(f"{name}: memory grew by {growth:.1%}")
    for of in ("descriptors", "tasks", "maps"):
        before, after = medians(of)
        if after > before + SLACK:
            wrong.append(f"{name}: {of} went from {before:g} to {after:g}")
    return wrong


def left_over(swarm: Swarm, folder: Path) -> list[str]:
    """Channels, tokens and processes that should be gone once all nodes have left."""
    found = [str(path) for path in folder.rglob("*.channel")]
    found += [str(path) for path in folder.rglob("api.token")]
    found += [str(path) for path in folder.rglob(".writing-*")]
    own = {str(os.getpid()), str(os.getppid())}
    for proc in Path("/proc").glob("[0-9]*"):
        if proc.name in own:
            continue
        try:
            if str(folder).encode() in (proc / "cmdline").read_bytes():
                found.append(f"process {proc.name}")
        except OSError:
            continue
    return [f"left over: {what}" for what in found]


def soak(folder: Path, minutes: float) -> int:
    """Run it; the exit status."""
    end_s, settled_s = minutes * 60.0, min(300.0, minutes * 10.0)
    samples: dict[str, list[Sample]] = {}
    with swarm_of(folder, 3, status=True) as swarm:
        swarm.until_round(3, timeout_s=120.0)
        began = time.monotonic()
        told = 0
        while (at_s := time.monotonic() - began) < end_s:
            for node in swarm.nodes:
                samples.setdefault(node.name, []).append(look(swarm, node, at_s))
            if at_s >= 60.0 * told:
                told += 1
                shown = [
                    f"{name} round {seen[-1].round} {seen[-1].rss / 2**20:.1f} MiB "
                    f"fd {seen[-1].descriptors} tasks {seen[-1].tasks} maps {seen[-1].maps}"
                    for name, seen in samples.items()
                ]
                say(f"{at_s / 60:5.1f} min  " + "; ".join(shown))
            swarm.pause(SAMPLE_S)
        statuses = {node.name: node.leave() for node in swarm.nodes}
        wrong = [f"{name} ended with {status}" for name, status in statuses.items() if status]
        wrong += left_over(swarm, folder)
        faults = [e for n in swarm.nodes for e in n.events if e["event"] in ("fault", "resync")]
        wrong += [f"fault: {fault}" for fault in faults[:3]]
    for name, seen in samples.items():
        wrong += verdict(name, seen, settled_s)
    (folder / "samples.json").write_text(
        json.dumps(
            {
                n: [[s.at_s, s.rss, s.descriptors, s.maps, s.tasks, s.round] for s in seen]
                for n, seen in samples.items()
            }
        )
    )
    say("\n".join(wrong) or "nothing grew, nothing is left over")
    return 1 if wrong else 0


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, help="an empty folder that is kept")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True)
        return soak(options.out, options.minutes)
    with TemporaryDirectory() as folder:
        return soak(Path(folder), options.minutes)


if __name__ == "__main__":
    sys.exit(main())
