"""`barnraise bench aggregators`: what every registered rule costs, on whole vectors."""

import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from protocol.errors import ConfigError
from sim.bench.needs import check_memory
from training.aggregation import AGGREGATORS
from training.kernels import arithmetic
from training.numeric.arithmetic import Vector

REPEATS = 5
PEERS_MAX, ELEMENTS_MAX = 64, 1 << 30
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
    if not 1 <= peers <= PEERS_MAX:
        raise ConfigError(f"--peers {peers} is not in 1..{PEERS_MAX}")
    if not 1 <= elements <= ELEMENTS_MAX:
        raise ConfigError(f"--elements {elements} is not in 1..{ELEMENTS_MAX}")
    check_memory(_INPUTS * 4 * peers * elements)


def made_up_updates(peers: int, elements: int, seed: int) -> Vector:
    """(P, N) rows that share a direction, as pseudo-gradients do."""
    luck = np.random.Generator(np.random.PCG64(seed))
    updates_PN = luck.standard_normal((peers, elements), dtype=np.float32)
    updates_PN *= np.float32(_NOISE)
    updates_PN += luck.standard_normal(elements, dtype=np.float32)
    return updates_PN


def measure(updates_PN: Vector, tell: Callable[[str], None]) -> dict[str, RuleCost]:
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
