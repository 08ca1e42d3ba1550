"""What a bench came to: tables for people, one JSON object for programs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from protocol.limits import MIB
from sim.bench.codec_costs import CodecResult
from sim.bench.options import AllreduceOptions, FaultOptions
from sim.bench.stages import Profile, median_profile
from training.kernels import arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """One run of `bench fault`. Times are seconds; None where nothing came of it."""

    seed: int
    moment: str
    role: str
    victim: str
    """The node's name; empty in a calm run."""

    round: int
    recovered_s: float | None
    """From the fault until the last survivor had its first seal after it."""

    next_round_s: float | None
    """Until the last survivor had the first round that was begun without the victim."""

    calm_round_s: float | None
    """The median round before the fault."""

    result_exact: bool
    digests_equal: bool
    false_exclusions: int
    num_exact: int
    broken: str
    """The first promise that was broken, or why the run failed, in words; empty if all is well."""

    @property
    def is_good(self) -> bool:
        """Whether nothing was broken."""
        return self.result_exact and self.digests_equal and not self.broken


def fault_json(
    options: FaultOptions, commit: str, elements: int, runs: Sequence[FaultResult]
) -> dict[str, object]:
    """The line that `--json` ends with."""
    broken = next((run.broken for run in runs if run.broken), "")
    return {
        "recovered_s": _median_of_all([run.recovered_s for run in runs]),
        "result_exact": bool(runs) and all(run.result_exact for run in runs),
        "digests_equal": bool(runs) and all(run.digests_equal for run in runs),
        "false_exclusions": sum(run.false_exclusions for run in runs),
        "next_round_s": _median_of_all([run.next_round_s for run in runs]),
        "calm_round_s": _median([run.calm_round_s for run in runs]),
        "rounds_checked": sum(run.num_exact for run in runs),
        "broken": broken,
        "fault": options.fault,
        "moment": options.moment,
        "victim": options.victim,
        "peers": options.peers,
        "elements": elements,
        "seed": options.seed,
        "commit": commit,
        "runs": [asdict(run) for run in runs],
    }


def print_faults(console: Console, options: FaultOptions, runs: Sequence[FaultResult]) -> None:
    """A line per run, and the median."""
    table = Table(
        *("seed", "victim", "moment", "first seal", "next round", "calm round", "exact", "equal"),
        *("false exclusions",),
        box=None,
        pad_edge=False,
    )
    for run in runs:
        table.add_row(
            str(run.seed),
            f"{run.victim} {run.role}".strip(),
            run.moment,
            _seconds(run.recovered_s),
            _seconds(run.next_round_s),
            _seconds(run.calm_round_s),
            _yes(run.result_exact),
            _yes(run.digests_equal),
            str(run.false_exclusions),
        )
    console.print(table)
    for run in runs:
        if run.broken:
            words = f"seed {run.seed}: {run.broken}; see {options.folder}"
            console.print(words, style="bold red", markup=False, soft_wrap=True)
    median_s = _median_of_all([run.recovered_s for run in runs])
    if not options.is_calm and median_s is not None:
        console.print(f"first seal of all survivors: {median_s:.2f} s after the fault (median)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceRound:
    """One measured round."""

    round: int
    wall_s: float
    """From the hand-over of all contributions until every node goes on from the sealed state."""

    exchange_s: float
    """From the first COMMIT to the last SEAL."""

    cpu_s: float
    """Of all processes of all nodes, from the hand-over to the end."""

    bytes_sent_per_peer: int
    profile: Profile = field(default_factory=dict)
    """Empty where none was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceResult:
    """What `bench allreduce` measured and checked."""

    rounds: tuple[AllreduceRound, ...]
    peak_bytes: int
    max_error: float
    result_exact: bool
    digests_equal: bool
    security: str
    state_bytes: int
    """Of the peak: anchor and momentum of all nodes, which are there without an exchange."""
    broken: str

    @property
    def is_good(self) -> bool:
        """Whether nothing was broken, and something was measured."""
        return self.result_exact and self.digests_equal and not self.broken and bool(self.rounds)


def allreduce_json(
    options: AllreduceOptions, commit: str, elements: int, result: AllreduceResult
) -> dict[str, object]:
    """The line that `--json` ends with: medians over the rounds."""
    rounds = result.rounds
    return {
        "wall_s": _median([one.wall_s for one in rounds]),
        "exchange_s": _median([one.exchange_s for one in rounds]),
        "cpu_s": _median([one.cpu_s for one in rounds]),
        "peak_mib": round(result.peak_bytes / 2**20, 1),
        "exchange_peak_mib": round((result.peak_bytes - result.state_bytes) / 2**20, 1),
        "bytes_sent_per_peer": _median([float(one.bytes_sent_per_peer) for one in rounds]),
        "max_error": result.max_error,
        "digests_equal": result.digests_equal,
        "security": result.security,
        "arithmetic": arithmetic(),
        "result_exact": result.result_exact,
        "peers": options.peers,
        "elements": elements,
        "codec": options.codec,
        "aggregator": options.aggregator,
        "momentum": options.momentum,
        "seed": options.seed,
        "commit": commit,
        "broken": result.broken,
        "profile": median_profile([one.profile for one in rounds]),
        "rounds": [asdict(one) for one in rounds],
    }


def print_allreduce(console: Console, result: AllreduceResult) -> None:
    """A line per round, and what holds for all."""
    table = Table("round", "wall", "exchange", "CPU", "sent per peer", box=None, pad_edge=False)
    for one in result.rounds:
        table.add_row(
            str(one.round),
            f"{one.wall_s:.2f} s",
            f"{one.exchange_s:.2f} s",
            f"{one.cpu_s:.2f} s",
            f"{one.bytes_sent_per_peer / 1e6:.0f} MB",
        )
    console.print(table)
    _print_profile(console, median_profile([one.profile for one in result.rounds]))
    console.print(
        f"memory {result.peak_bytes / 2**20:.0f} MiB at most,"
        f" {(result.peak_bytes - result.state_bytes) / 2**20:.0f} beside the states of all,"
        f" {result.max_error:.2g} from the mean at most, exact: {_yes(result.result_exact)},"
        f" equal: {_yes(result.digests_equal)}, {result.security}, {arithmetic()}"
    )
    if result.broken:
        console.print(result.broken, style="bold red", markup=False)


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


def _print_profile(console: Console, profile: Profile) -> None:
    """CPU seconds by stage, the costliest first, of the processes of all nodes together."""
    if not any(profile.values()):
        return
    table = Table("CPU s a round", *profile, box=None, pad_edge=False)
    names = {name for stages in profile.values() for name in stages}
    total = {name: sum(stages.get(name, 0.0) for stages in profile.values()) for name in names}
    for name in sorted(names, key=lambda name: -total[name]):
        table.add_row(name, *(f"{stages.get(name, 0.0):.2f}" for stages in profile.values()))
    console.print(table)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


def _median_of_all(values: Sequence[float | None]) -> float | None:
    """The median where None is longer than any time: who never recovers makes no swarm faster.

    None where the median is such a one, or there is nothing.
    """
    if not values:
        return None
    found = statistics.median([math.inf if value is None else value for value in values])
    return round(found, 3) if math.isfinite(found) else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"
