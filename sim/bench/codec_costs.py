"""`barnraise bench codecs`: what a codec costs and what it loses.

N elements

Each codec works in a process of its own, all libraries on one thread. Times are the processor's
and, of each cell, the best of several: who else uses the machine costs wall time and cache, never
work.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from node.processes.children import child_environment
from protocol.errors import ConfigError, StateError
from protocol.limits import CELL_ELEMENTS_MAX, MIB
from sim.local.options import ELEMENTS_MAX, ELEMENTS_MIN
from training.compression import CODECS, Codec, bits_per_element, in_grade

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
    if not ELEMENTS_MIN <= elements <= ELEMENTS_MAX:
        raise ConfigError(f"--elements {elements} is not in {ELEMENTS_MIN}..{ELEMENTS_MAX}")
    chosen = list(names or CODECS)
    for name in chosen:
        CODECS[name]()
    return [_measured_apart(name, elements, seed) for name in chosen]


def _measured_apart(name: str, elements: int, seed: int) -> CodecResult:
    command = [sys.executable, "-P", "-m", __name__, name, str(elements), str(seed)]
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


def measure(name: str, elements: int, seed: int) -> CodecResult:
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


if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))  # noqa: T201
