"""Our rules beside those of byzfl 0.0.11, in one run: processor time, and whether they agree.

    pip download --no-deps byzfl==0.0.11 scipy; pip install --no-deps --target FOLDER *.whl
    python -m tests.bench.byzfl_compare --byzfl FOLDER --peers 16 --elements 1000000

A development-only oracle: it is in no lock. P peers, N elements
"""

import argparse
import os
import resource
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sim.bench.costs import made_up_updates
from training.aggregation import AGGREGATORS
from training.aggregation.gram_rules import Arc, Krum, Mean, MultiKrum
from training.channel.child_process import ONE_BLAS_THREAD
from training.numeric.arithmetic import Vector

SHARE = 0.2
"""Of byzfl's processor time: the most that a rule may take, unless memory bounds it."""

AGREES = 1e-4
_NAME = "tests.bench.byzfl_compare"
MEMORY_BOUND = frozenset({"mean", "norm_clip", "arc", "centered_clip"})


@dataclass(frozen=True, slots=True)
class Pair:
    """A rule of ours, the same or the like of byzfl, and whether both define the same."""

    ours: Callable[[Vector], Vector]
    theirs: Callable[[Vector], Any]
    is_same: bool = True


def load_byzfl(folder: Path) -> tuple[Any, Any]:
    """Its rules and the steps before them, without what its package loads besides."""
    sys.path.insert(0, str(folder))
    package = types.ModuleType("byzfl")
    package.__path__ = [str(folder / "byzfl")]
    sys.modules["byzfl"] = package
    from byzfl.aggregators import (  # type: ignore[import-not-found]  # installed nowhere
        aggregators,
        preaggregators,
    )

    return aggregators, preaggregators


def pairs(byzfl: tuple[Any, Any], peers: int, f: int, length: float) -> dict[str, Pair]:
    """By name of ours. `length` is the median length of the rows."""
    rules, steps = byzfl

    def ours(name: str) -> Callable[[Vector], Vector]:
        rule = AGGREGATORS[name](f)
        return lambda rows_PN: rule(rows_PN).value

    def of(rule: Any) -> Callable[[Vector], Vector]:
        return lambda rows_PN: rule(rows_PN).value

    def after(step: Any, rule: Any) -> Callable[[Vector], Any]:
        return lambda rows_PN: rule(step(rows_PN))

    near = peers - f - 1  # The paper has one less.
    mean = rules.Average()
    return {
        "mean": Pair(ours("mean"), mean),
        "median": Pair(ours("median"), rules.Median()),
        "trimmed_mean": Pair(ours("trimmed_mean"), rules.TrMean(f)),
        "mea_med": Pair(ours("mea_med"), rules.Meamed(f)),
        "krum": Pair(of(Krum(f, neighbours=near)), rules.Krum(f)),
        "multi_krum": Pair(of(MultiKrum(f, neighbours=near)), rules.MultiKrum(f)),
        # Three steps from zero there, as many as it takes from a good start here.
        "geometric_median": Pair(ours("geometric_median"), rules.GeometricMedian(), is_same=False),
        "centered_clip": Pair(
            ours("centered_clip"), rules.CenteredClipping(L=20, tau=length), is_same=False
        ),
        # One power step from a random start there.
        "caf": Pair(ours("caf"), rules.CAF(f), is_same=False),
        "nnm_trimmed_mean": Pair(ours("nnm_trimmed_mean"), after(steps.NNM(f), rules.TrMean(f))),
        "arc": Pair(of(Mean(f, pre=(Arc(),))), after(steps.ARC(f), mean)),
        "norm_clip": Pair(ours("norm_clip"), after(steps.Clipping(c=length), mean)),
    }


def say(line: str) -> None:
    """At once: a later line may take minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def cpu_s(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median over repeats; the result of the last one."""
    took = []
    for _ in range(repeats):
        begun = time.process_time()
        result = call()
        took.append(time.process_time() - begun)
    return median(took), result


def compare(rows_PN: Vector, name: str, pair: Pair, repeats: int) -> str:
    """One line of the table."""
    # Some rules write to what they are given; a copy is not theirs to pay for.
    given_PN = rows_PN.copy()
    pair.ours(given_PN[:, :4096])  # Warm.
    ours_s, ours_N = cpu_s(partial(pair.ours, given_PN), repeats)
    try:
        theirs_s, theirs_N = cpu_s(partial(pair.theirs, given_PN), 1 if name == "arc" else repeats)
    except MemoryError:
        return f"| `{name}` | {1000 * ours_s:.0f} | out of memory | | | |"
    difference = float(
        np.linalg.norm(ours_N - np.asarray(theirs_N, dtype=np.float64))
        / max(float(np.linalg.norm(theirs_N)), 1e-30)
    )
    share = ours_s / max(theirs_s, 1e-9)
    verdicts = [] if name in MEMORY_BOUND else ["fast" if share <= SHARE else "MISSED"]
    if pair.is_same:
        verdicts.append("agrees" if difference <= AGREES else "DIFFERS")
    shown = f"{difference:.0e}" if pair.is_same else "other definition"
    return (
        f"| `{name}` | {1000 * ours_s:.0f} | {1000 * theirs_s:.0f} | {share:.2f} | {shown} "
        f"| {', '.join(verdicts)} |"
    )


def main() -> None:
    """Print the table, a line as soon as it is measured."""
    parser = argparse.ArgumentParser(prog="tests.bench.byzfl_compare", description=__doc__)
    parser.add_argument("--byzfl", type=Path, required=True, help="where byzfl and scipy are")
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rules", nargs="*", help="all, if left out")
    parser.add_argument("--gib", type=int, default=12, help="most memory of this process")
    asked = parser.parse_args()
    told = os.environ | ONE_BLAS_THREAD
    if told != os.environ:
        # As nodes do it. numpy is loaded already, and has read what was there.
        os.execve(sys.executable, [sys.executable, "-P", "-m", _NAME, *sys.argv[1:]], told)
    resource.setrlimit(resource.RLIMIT_AS, (asked.gib << 30, asked.gib << 30))
    rows_PN = made_up_updates(asked.peers, asked.elements, seed=0)
    length = float(np.median([np.linalg.norm(row_N) for row_N in rows_PN]))
    f = asked.peers // 4
    table = pairs(load_byzfl(asked.byzfl), asked.peers, f, length)
    say(f"{asked.peers} x {asked.elements}, f = {f}, ms of processor time")
    say("| rule | ours | byzfl | ratio | difference | |")
    say("|---|---|---|---|---|---|")
    for name, pair in table.items():
        if asked.rules is None or name in asked.rules:
            say(compare(rows_PN, name, pair, asked.repeats))
    default = AGGREGATORS["default"]()
    mean = AGGREGATORS["mean"]()
    default_s, _ = cpu_s(lambda: default(rows_PN), asked.repeats)
    mean_s, _ = cpu_s(lambda: mean(rows_PN), asked.repeats)
    say(f"`default`: {1000 * default_s:.0f} ms, {default_s / mean_s:.1f} times `mean`")


if __name__ == "__main__":
    main()
