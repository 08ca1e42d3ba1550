"""Counts the files that one pseudo-gradient enters on its way to a neighbour's new anchor.

Two real nodes train a tiny model on this machine, by `barnraise run` and `barnraise join`, while
every call of a Python function in their processes is recorded. The time of each round is cut by
torch's backward passes, so that no name of this project marks a place and the measurement survives
every move and rename:

- The exchange of a round lasts from the last backward pass of one trainer (its gradient is
  complete) to the first backward pass of the other trainer in the next round (that trainer has its
  new anchor).
- The nodes are quiet while both trainers compute backward passes, apart from the first half of that
  time, in which the node may still write what belongs to the round before.

A file counts if one of its functions is entered in *every* exchange and never in a quiet time.
Gossip, heartbeats, the status server and the inner steps go on in quiet times as well, so that they
drop out by themselves; what runs once in a while is not in every exchange.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.structure import entered_functions
from tests.structure.entered_functions import BACKWARD, RECORDS, TREE

ROOT = Path(__file__).parent.parent.parent

INNER_STEPS = 80
SETTINGS = {
    "rounds": "12",
    "inner_steps": str(INNER_STEPS),
    "batch": "4",
    "warmup_steps": "4",
    "layers": "1",
    "width": "32",
    # Heartbeats are no part of the trip. At this distance none falls into a round.
    "heartbeat_s": "30.0",
    "suspect_s": "60.0",
}
NODE_FILE = "start_with = 2\nstart_within_s = 120.0\n"
"""The founder holds its first round until the other node is there."""
ROUNDS_SKIPPED = 2
"""The first rounds, in which the nodes meet and fill their caches."""
WAIT_S = 240.0
LINK = re.compile(r"barnraise://join/[A-Za-z0-9_-]+")

EXCLUDED = {
    "dht/": "the transport: carries bytes, whatever they mean, and finds the way to a peer",
    "training/kernels/": "compiled arithmetic, and its twin in numpy",
    "node/reporting/": "leaf helper: tells people and logs what happened, decides nothing",
    "node/status/": "leaf helper: shows what happened, decides nothing",
    "node/text/": "leaf helper: text fit to be shown; of node/reporting at the commit before",
    "protocol/wire.py": "leaf helper: encodes and decodes any message",
    "protocol/errors.py": "leaf helper: the exceptions",
    "protocol/limits.py": "leaf helper: the bounds",
    "protocol/identity.py": "leaf helper: signs and checks any message",
    "training/numeric/arithmetic.py": "leaf helper: sums and norms of vectors",
    "training/numeric/__init__.py": "leaf helper: finds a component by its name",
}
"""Paths, or folders that end with a slash, that do not count, each with the reason."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What one process entered: (bucket, name) in order of time, and its backward passes."""

    entered: Sequence[tuple[int, str]]
    backward: Sequence[int]


def read_calls(folder: Path) -> list[Calls]:
    """The records of all processes."""
    processes = []
    for file in sorted(folder.glob("*.txt")):
        lines = [line.split(" ", 1) for line in file.read_text("utf-8").splitlines()]
        entered = [(int(bucket), name) for bucket, name in lines]
        backward = [bucket for bucket, name in entered if name == BACKWARD]
        processes.append(Calls(entered=entered, backward=backward))
    return processes


def steps_of_rounds(backward: Sequence[int]) -> list[Sequence[int]]:
    """The backward passes of each whole round."""
    return [
        backward[first : first + INNER_STEPS]
        for first in range(0, len(backward) - INNER_STEPS + 1, INNER_STEPS)
    ]


def exchanges_and_quiet(one: Sequence[int], other: Sequence[int]) -> tuple[list[Span], list[Span]]:
    """The spans of the exchanges from trainer `one` to trainer `other`, and those of quiet."""
    exchanges, quiet = [], []
    ours, theirs = steps_of_rounds(one), steps_of_rounds(other)
    for number, steps in enumerate(ours):
        if number < ROUNDS_SKIPPED:
            continue
        together = [round_ for round_ in theirs if round_[0] < steps[-1] and steps[0] < round_[-1]]
        after = [round_[0] for round_ in theirs if round_[0] > steps[-1]]
        if together and after:
            exchanges.append((steps[-1], min(after)))
        for round_ in together:
            first, last = max(steps[0], round_[0]), min(steps[-1], round_[-1])
            quiet.append(((first + last) // 2, last - 1))
    return exchanges, quiet


def entered_within(calls: Sequence[Calls], span: Span) -> set[str]:
    """The names of all functions that any process entered in the span."""
    first, last = span
    return {
        name for process in calls for bucket, name in process.entered if first <= bucket <= last
    }


def files_of_trip(calls: Sequence[Calls]) -> list[str]:
    """The files that count, exclusions not yet applied."""
    trainers = [process.backward for process in calls if process.backward]
    assert len(trainers) == 2, f"{len(trainers)} processes computed gradients, not two"
    exchanges, quiet = [], []
    for one, other in (trainers, trainers[::-1]):
        more_exchanges, more_quiet = exchanges_and_quiet(one, other)
        exchanges += more_exchanges
        quiet += more_quiet
    assert exchanges, "the two trainers shared no round"
    names = set.intersection(*(entered_within(calls, span) for span in exchanges))
    for span in quiet:
        names -= entered_within(calls, span)
    return sorted({name.partition(" ")[0] for name in names - {BACKWARD}})


def is_excluded(path: str) -> bool:
    """Whether the file is transport, kernel or leaf helper."""
    return any(path == out or (out.endswith("/") and path.startswith(out)) for out in EXCLUDED)


def train_two_nodes(tree: Path, folder: Path) -> None:
    """Run two nodes of the tree for some rounds; their records lie in `folder/records`."""
    site, records = folder / "site", folder / "records"
    site.mkdir()
    records.mkdir()
    shutil.copy(entered_functions.__file__, site / "sitecustomize.py")
    unwatched = os.environ | {"PYTHONPATH": str(tree)}
    watched = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(site), str(tree)]),
        TREE: str(tree),
        RECORDS: str(records),
    }
    # All that has to be known of the tree: where its command is.
    command = [sys.executable, "-P", "-m", "node.cli"]
    subprocess.run(
        [*command, "init", "run.toml"],
        cwd=folder,
        env=unwatched,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    text = (folder / "run.toml").read_text("utf-8")
    for key, value in SETTINGS.items():
        text, count = re.subn(rf"(?m)^(?:# )?{key} = \S+", f"{key} = {value}", text)
        assert count == 1, f"run.toml has no key {key}"
    (folder / "run.toml").write_text(text, "utf-8")
    (folder / "a").mkdir()
    (folder / "a" / "node.toml").write_text(NODE_FILE, "utf-8")

    def start(state: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (folder / f"{state}.out").open("wb") as out:
            return subprocess.Popen(
                [*command, *arguments, "--listen", "/ip4/127.0.0.1/tcp/0", "--state", state],
                cwd=folder,
                env=watched,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    nodes = [start("a", "run", "run.toml")]
    try:
        nodes.append(start("b", "join", wait_for_link(folder / "a.out", nodes[0])))
        for node in nodes:
            assert node.wait(WAIT_S) == 0, (folder / "a.out").read_text("utf-8")[-2000:]
    finally:
        for node in nodes:
            node.terminate()
            node.wait(WAIT_S)


def wait_for_link(out: Path, founder: subprocess.Popen[bytes]) -> str:
    """The invite link that the founder prints."""
    began_s = time.monotonic()
    while not (found := LINK.search(out.read_text("utf-8"))):
        assert founder.poll() is None, out.read_text("utf-8")[-2000:]
        assert time.monotonic() - began_s < WAIT_S, "the founder prints no link"
        # Nothing tells this process when the line is printed: nobody ever sets this event.
        threading.Event().wait(0.1)
    return found[0]


def trace_trip(tree: Path) -> list[str]:
    """The files of the trip through the tree, all of them, the excluded ones as well."""
    with tempfile.TemporaryDirectory(prefix="trip-") as folder:
        train_two_nodes(tree.resolve(), Path(folder))
        return files_of_trip(read_calls(Path(folder) / "records"))


def main() -> int:
    """Print the files of the trip."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="Another tree to trace.")
    for path in trace_trip(parser.parse_args().tree):
        sys.stdout.write(f"{'-' if is_excluded(path) else '+'} {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
