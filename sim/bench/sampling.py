"""What the threads of a process work for, sampled: `begin` in the process that is measured.

The system's timer of processor time rings every few milliseconds that the process works. Each time
every thread's own clock says how much of that was its, and what it is doing is what it did: a line
of wall time, stage and seconds. The file is read while or after the process runs, however it ends.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from sim.bench.stages import stage_of

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
