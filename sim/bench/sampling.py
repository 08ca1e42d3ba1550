"""What the threads of a process work for, sampled: `begin` in the process that is measured.

    python -P -m sim.bench.sampling --trace FILE [options of node.network_main]

is a network process that is sampled into a file beside its trace. The system's timer of processor
time rings every few milliseconds that the process works. Each time every thread's own clock says
how much of that was its, and what it is doing is what it did: a line of wall time, stage and
seconds. The file is read while or after the process runs, however it ends.
"""

import os
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType

SAMPLE_S = 0.005
"""Of processor time. A sample costs some 20 microseconds: half a hundredth."""


class Sampler:
    """Of one process; its main thread makes it and takes the samples."""

    def __init__(self, path: Path) -> None:
        # Unbuffered, each line in one piece: what a killed process held back would be missing.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._clocks_s: dict[int, float] = {}
        self._main = threading.get_ident()

    def sample(self, number: int, frame: FrameType | None) -> None:
        """Handler of the timer's signal."""
        del number
        found: dict[str, float] = {}
        clocks_s: dict[int, float] = {}
        for thread, running in sys._current_frames().items():
            # Nobody ends meanwhile: a thread that does must first hold what this one holds.
            now_s = time.clock_gettime(time.pthread_getcpuclockid(thread))
            clocks_s[thread] = now_s
            used_s = now_s - self._clocks_s.get(thread, 0.0)
            if used_s > 0.0:
                stage = stage_of(frame if thread == self._main else running)
                found[stage] = found.get(stage, 0.0) + used_s
        # The last of them may be this very frame: a ring, which would hold what all frames below it
        # hold, whole contributions, until Python looks for rings.
        del running, frame
        self._clocks_s = clocks_s
        at_s = time.time()
        lines = [f"{at_s:.6f}\t{stage}\t{used_s:.9f}\n" for stage, used_s in found.items()]
        os.write(self._file, "".join(lines).encode())


def begin(path: Path) -> None:
    """Sample this process from now on, in its main thread. For systems with signals."""
    sampler = Sampler(path)
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)


# Stages ------------------------------------------------------------------------------------------

Stages = dict[str, float]
"""CPU seconds by stage."""

Profile = dict[str, Stages]
"""By kind of process."""

OTHER, SCHEDULING = "other", "scheduling"
NETWORK_SUFFIX, TRAINER_SUFFIX = ".network", ".trainer"
"""Of the files with samples of a node's two processes, which lie beside its trace."""

_FRAMES_MAX = 40

_CODEC = re.compile(r"training/compression/\w+\.py (encode|decode)")
"""Whatever encodes or decodes in that folder counts as codec work: a new codec needs no line."""

_MADE_UP = (
    *("bench/trainer.py contribution", "bench/trainer.py base", "bench/trainer.py _wait_for"),
    "made_up_trainer.py _distance",
)
_STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("hash", ("protocol/grid.py",)),
    ("norms", ("arithmetic.py squared_norm", "compression/blocks.py squared_norm")),
    (
        "sum",
        ("shard_store.py reduce", "training/aggregation", "compression/blocks.py weighted_sum"),
    ),
    ("outer step", ("node/holdings/states.py", "training/outer/optimizers.py")),
    ("encode", ("compression/feedback.py",)),
    ("made-up numbers", _MADE_UP),
    ("trainer channel", ("training/channel/trainer_end.py", "node/trainers/trainer.py")),
    ("checkpoint", ("training/files/state.py", "tensor_file.py", "node/holdings/checkpoints.py")),
    (
        "journal",
        (
            "training/files/durable.py",
            "node/holdings/journal.py",
            "node/holdings/results.py",
            "record_log.py",
        ),
    ),
    ("receive, decrypt", ("libp2p_session.py receive", "libp2p_session.py _decrypted")),
    ("receive, decrypt", ("libp2p_session.py _plain_into", "libp2p_stream.py receive")),
    ("receive, decrypt", ("libp2p_security.py receive", "libp2p_security.py _decrypted")),
    ("receive, decrypt", ("libp2p_link.py _receive_into", "libp2p_link.py arrived")),
    ("receive, decrypt", ("libp2p_yamux.py take",)),
    ("receive, decrypt", ("libp2p_yamux.py _read", "libp2p_yamux.py feed", "libp2p_link.py read")),
    (
        "receive, decrypt",
        ("bulk_streams.py items", "bulk_streams.py _receive", "_receive_cells"),
    ),
    (
        "send, encrypt",
        ("libp2p_session.py send", "libp2p_session.py write", "_send_items", "send_items"),
    ),
    ("send, encrypt", ("libp2p_security.py send", "libp2p_stream.py send", "libp2p_link.py write")),
    ("send, encrypt", ("libp2p_link.py _send_some",)),
    ("send, encrypt", ("libp2p_yamux.py",)),
    ("connections", ("dht/transport",)),
    (
        "rounds",
        (
            "protocol/core/",
            "protocol/rounds/",
            "protocol/auditing/",
            "node/peers/links.py",
            "node/daemon/driver.py",
        ),
    ),
    ("status", ("node/status", "node/reporting/narrator.py", "node/reporting/trace_file.py")),
    ("gossip", ("protocol/gossiping", "protocol/shared_state", "protocol/entries", "dht/")),
)
"""Innermost function first; of what fits it, the first here. What fits none is the event loop's, or
nobody's."""

_found: dict[str, str] = {}


def stage_of(frame: FrameType | None) -> str:
    """What a thread works for: the stage of the innermost function that has one."""
    is_trio = False
    for _ in range(_FRAMES_MAX):
        if frame is None:
            break
        code = frame.f_code
        text = f"{code.co_filename} {code.co_name}"
        stage = _found.get(text)
        if stage is None:
            stage = _found[text] = named(text)
        if stage:
            return stage
        is_trio = is_trio or f"{os.sep}trio{os.sep}" in code.co_filename
        frame = frame.f_back
    return SCHEDULING if is_trio else OTHER


def named(text: str) -> str:
    """The stage of a function, named by path and name; empty if it has none by itself."""
    text = text.replace("\\", "/")
    if codec := _CODEC.search(text):
        return codec[1]
    return next((stage for stage, words in _STAGES if any(w in text for w in words)), "")


def read_samples(text: str) -> Iterator[tuple[float, str, float]]:
    """Wall time, stage and seconds of each whole line."""
    for line in text.splitlines(keepends=True):
        fields = line.rstrip("\n").split("\t")
        if line.endswith("\n") and len(fields) == 3:
            yield float(fields[0]), fields[1], float(fields[2])


def stages_between(paths: Iterable[Path], began_s: float, ended_s: float) -> Stages:
    """CPU seconds by stage of all these processes, between two moments of the wall clock."""
    found: Stages = {}
    for path in paths:
        if path.exists():
            for at_s, stage, used_s in read_samples(path.read_text()):
                if began_s <= at_s < ended_s:
                    found[stage] = found.get(stage, 0.0) + used_s
    return found


def median_profile(profiles: Sequence[Profile]) -> Profile:
    """The median of each stage over some rounds, milliseconds exact."""
    kinds = dict.fromkeys(kind for profile in profiles for kind in profile)
    found: Profile = {}
    for kind in kinds:
        rounds = [profile.get(kind, {}) for profile in profiles]
        names = sorted({name for stages in rounds for name in stages})
        found[kind] = {
            name: round(statistics.median([stages.get(name, 0.0) for stages in rounds]), 3)
            for name in names
        }
    return found


def main() -> int:
    """Run a network process that is sampled; returns the exit status."""
    from node import network_main

    trace = Path(sys.argv[sys.argv.index("--trace") + 1])
    begin(trace.with_suffix(NETWORK_SUFFIX))
    return network_main.main()


if __name__ == "__main__":
    from node.processes.interrupts import end_now

    end_now(main())
