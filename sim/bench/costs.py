"""`barnraise bench aggregators` and `barnraise bench codecs`: what each rule and each codec costs.

N elements

Every registered rule works on whole vectors, in this process. Each codec works in a process of its
own, all libraries on one thread; what it loses is told as well. Times are the processor's and, of
each cell, the best of several: who else uses the machine costs wall time and cache, never work.
"""

import json
import math
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from node.processes.children import child_environment
from node.processes.machine import Wants, check_machine, read_machine
from protocol.errors import StateError
from protocol.limits import CELL_ELEMENTS_MAX, MIB
from sim.local.options import ELEMENTS_MAX, ELEMENTS_MIN
from sim.processes.sitting import check_range
from sim.processes.usage import ADVICE
from training.aggregation import AGGREGATORS
from training.compression import CODECS, Codec, bits_per_element, in_grade
from training.kernels import arithmetic
from training.numeric.arithmetic import Vector

REPEATS = 5
PEERS_MAX, RULE_ELEMENTS_MAX = 64, 1 << 30
_INPUTS = 3
"""What the greediest rule takes, in vectors of the input: itself, and two beside it."""

_NOISE = 2.3
"""How much larger the noise of an honest pseudo-gradient is than what all share: measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCost:
    """One rule: medians of five runs behind a first one, and the memory beside the input."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def check_size(peers: int, elements: int) -> None:
    """Raises ConfigError for what cannot be measured, also for want of memory."""
    check_range("--peers", peers, 1, PEERS_MAX)
    check_range("--elements", elements, 1, RULE_ELEMENTS_MAX)
    wants = Wants(memory_bytes=_INPUTS * 4 * peers * elements, disk_bytes=0)
    check_machine(wants, read_machine(Path()), advice=ADVICE.format("--peers or --elements"))


def made_up_updates(peers: int, elements: int, seed: int) -> Vector:
    """(P, N) rows that share a direction, as pseudo-gradients do."""
    luck = np.random.Generator(np.random.PCG64(seed))
    updates_PN = luck.standard_normal((peers, elements), dtype=np.float32)
    updates_PN *= np.float32(_NOISE)
    updates_PN += luck.standard_normal(elements, dtype=np.float32)
    return updates_PN


def measure_rules(updates_PN: Vector, tell: Callable[[str], None]) -> dict[str, RuleCost]:
    """Every rule once to warm up, five times to measure, once for its memory."""
    found = {}
    for name in AGGREGATORS:
        rule = AGGREGATORS[name]()
        rule(updates_PN)
        walls_s, cpus_s = [], []
        for _ in range(REPEATS):
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            rule(updates_PN)
            cpus_s.append(time.process_time() - cpu_s)
            walls_s.append(time.perf_counter() - wall_s)
        tracemalloc.start()
        rule(updates_PN)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        found[name] = RuleCost(
            wall_s=round(median(walls_s), 6),
            cpu_s=round(median(cpus_s), 6),
            peak_mib=round(peak / 2**20, 1),
        )
        tell(f"{name}: {found[name].cpu_s:.3f} s of CPU")
    return found


def costs_json(costs: dict[str, RuleCost], about: Mapping[str, object]) -> dict[str, object]:
    """The line that `--json` ends with; `about` says of what the costs are."""
    rules = {name: asdict(cost) for name, cost in costs.items()}
    return {**about, "arithmetic": arithmetic(), "rules": rules} | rules


def print_costs(console: Console, costs: dict[str, RuleCost]) -> None:
    """A table for people, the mean as measure."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("rule", "wall s", "CPU s", "of the mean", "MiB beside the input"):
        table.add_column(head, justify="left" if head == "rule" else "right")
    unit_s = max(costs["mean"].cpu_s, 1e-9)
    for name, cost in costs.items():
        share = f"{cost.cpu_s / unit_s:.1f} x"
        table.add_row(
            name, f"{cost.wall_s:.4f}", f"{cost.cpu_s:.4f}", share, f"{cost.peak_mib:.1f}"
        )
    console.print(table)
    console.print(f"arithmetic: {arithmetic()}")


# Codecs ------------------------------------------------------------------------------------------

PASSES = 7

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecResult:
    """One codec on normal numbers. Speeds are of float32: what goes into `encode`, and what comes
    out of `decode`."""

    name: str
    bytes_per_param: float
    bits_of_cell: float
    """Bits per element that a full cell takes, by the codec's own formula."""

    encode_mib_s: float
    decode_mib_s: float
    relative_error: float
    """L2 norm of what was lost, over that of what was encoded."""

    is_biased: bool


def bench_codecs(names: Sequence[str], elements: int, seed: int) -> list[CodecResult]:
    """The codecs of these names, or every one.

    Raises ConfigError for an unknown name and for a number of elements out of bounds, StateError
    where a process dies, of too little memory for one.
    """
    check_range("--elements", elements, ELEMENTS_MIN, ELEMENTS_MAX)
    chosen = list(names or CODECS)
    for name in chosen:
        CODECS[name]()
    return [_measured_apart(name, elements, seed) for name in chosen]


def _measured_apart(name: str, elements: int, seed: int) -> CodecResult:
    command = [sys.executable, "-P", "-m", "sim.bench.costs", name, str(elements), str(seed)]
    environment = child_environment() | dict.fromkeys(_ONE_THREAD, "1")
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        check=False,
        start_new_session=True,  # Ctrl+C is the parent's to understand: it ends this one.
    )
    if done.returncode != 0:
        raise StateError(f"codec {name}: its process ended with status {done.returncode}")
    return CodecResult(**json.loads(done.stdout))


def measure_codec(name: str, elements: int, seed: int) -> CodecResult:
    """One codec, in this process."""
    codec = CODECS[name]()
    x_N = (np.random.default_rng(seed).normal(size=elements) * 1e-2).astype(np.float32)
    cells = [
        x_N[start : start + CELL_ELEMENTS_MAX] for start in range(0, elements, CELL_ELEMENTS_MAX)
    ]
    payloads = [codec.encode(cell_N) for cell_N in cells]
    relative_error = _relative_error(codec, payloads, cells)
    # Nothing is kept: a fresh page for each result would be what is measured.
    encode_s = sum(_best_s(partial(codec.encode, cell_N)) for cell_N in cells)
    decode_s = sum(
        _best_s(partial(codec.decode, payload, len(cell_N)))
        for payload, cell_N in zip(payloads, cells, strict=True)
    )
    return CodecResult(
        name=name,
        bytes_per_param=sum(map(len, payloads)) / elements,
        bits_of_cell=bits_per_element(in_grade(codec, 0, CELL_ELEMENTS_MAX)),
        encode_mib_s=4 * elements / MIB / encode_s,
        decode_mib_s=4 * elements / MIB / decode_s,
        relative_error=relative_error,
        is_biased=codec.is_biased,
    )


def _relative_error(
    codec: Codec, payloads: Sequence[bytes], cells: Sequence[NDArray[np.float32]]
) -> float:
    lost, total = 0.0, 0.0
    for payload, cell_N in zip(payloads, cells, strict=True):
        lost += float(
            np.square(codec.decode(payload, len(cell_N)) - cell_N, dtype=np.float64).sum()
        )
        total += float(np.square(cell_N, dtype=np.float64).sum())
    return math.sqrt(lost / total)


def _best_s(work: Callable[[], object]) -> float:
    best_s = float("inf")
    for _ in range(PASSES):
        began_s = time.thread_time()
        work()
        best_s = min(best_s, time.thread_time() - began_s)
    # A clock that ticks slowly says 0 of very little work.
    return max(best_s, 1e-6)


def print_codecs(console: Console, results: Sequence[CodecResult]) -> None:
    """A line per codec; GB are of float32, bits those of a full cell's element."""
    table = Table(box=None, pad_edge=False)
    table.add_column("codec", no_wrap=True)
    for title in ("bits", "bytes/element", "encode GB/s", "decode GB/s", "error", "bias"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in results:
        table.add_row(
            one.name,
            f"{one.bits_of_cell:.3f}",
            f"{one.bytes_per_param:.4f}",
            f"{one.encode_mib_s * MIB / 1e9:.2f}",
            f"{one.decode_mib_s * MIB / 1e9:.2f}",
            f"{one.relative_error:.2g}",
            "yes" if one.is_biased else "no",
        )
    console.print(table)
    console.print(f"arithmetic: {arithmetic()}")


if __name__ == "__main__":
    print(json.dumps(asdict(measure_codec(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))  # noqa: T201
