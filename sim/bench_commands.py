"""`barnraise bench`: what the README claims, measured.

Each command imports what it runs: the help of `barnraise` takes no second.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from node.commands.app import SEED_MAX, JsonOption, app, print_json
from node.commands.founding import SkipMachineCheckOption
from sim.process_commands import KeepOption, new_folder

if TYPE_CHECKING:
    from rich.console import Console

bench_app = typer.Typer(
    help="Benchmarks: real nodes with the real, encrypted protocol on this machine.",
    no_args_is_help=True,
)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench() -> None:
    """Benchmarks: real nodes with the real, encrypted protocol on this machine."""


PeersOption = Annotated[int, typer.Option(help="Number of nodes.")]
ElementsOption = Annotated[int, typer.Option(help="Float32 elements in each contribution.")]
SeedOption = Annotated[
    int, typer.Option(help="Seed of everything that is random.", min=0, max=SEED_MAX)
]
OutOption = Annotated[
    Path | None, typer.Option(help="New folder for the traces and the logs.", show_default=False)
]


@dataclass(frozen=True, slots=True)
class _Sitting:
    """One bench at work: where it tells, and how it ends."""

    console: "Console"
    tell: Callable[[str], None]
    is_json: bool

    def show(self, found: Mapping[str, object]) -> None:
        """A line for each finding, for people."""
        for name, value in found.items():
            self.console.print(f"{name:>20}  {value}", markup=False)

    def end(self, found: Mapping[str, object], *, is_good: bool = True) -> NoReturn:
        """Print the line of `--json`, and end with the exit status."""
        if self.is_json:
            print_json(found)
        raise typer.Exit(0 if is_good else 1)


@contextmanager
def _sitting(json: bool, folder: Path | None = None) -> Iterator[_Sitting]:
    """A signal ends it, which is said, with the status of the signal."""
    from rich.console import Console

    from sim.processes.sitting import Interrupted, Teller, clock

    console = Console(stderr=json, highlight=False)
    try:
        yield _Sitting(console, Teller(console, clock()), json)
    except Interrupted as signal:
        see = "" if folder is None else f"; see {folder}"
        words = f"Stopped. No process is left running{see}"
        console.print(words, markup=False, soft_wrap=True)
        raise typer.Exit(signal.status) from None


@bench_app.command("fault")
def fault(
    peers: PeersOption = 4,
    elements: ElementsOption = 50_000_000,
    kind: Annotated[
        str, typer.Option("--fault", help="Fault to inject: kill, freeze or none.")
    ] = "kill",
    moment: Annotated[
        str,
        typer.Option(help="Moment of the fault: training, parts, have, vote, sum, seal or random."),
    ] = "random",
    victim: Annotated[
        str,
        typer.Option(
            help="Role of the victim: member, reducer, closer, founder, bootstrap or random."
        ),
    ] = "random",
    repeat: Annotated[
        int, typer.Option(help="Number of repetitions; each uses the next seed.")
    ] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds to seal, only with --fault none.")] = 200,
    seed: SeedOption = 0,
    train: Annotated[str, typer.Option(help="Simulated training time per round.")] = "0.2s",
    out: OutOption = None,
    keep: KeepOption = False,
    json: JsonOption = False,
) -> None:
    """Kill or freeze a peer during a round and measure how long the others take to seal an exact
    round; every sum is checked to be exact and equal on all nodes.
    """
    from sim.bench.faults import FaultOptions, bench_fault, fault_json, print_faults
    from sim.processes.shaper import seconds_named
    from sim.processes.sitting import commit_named

    options = FaultOptions(
        peers=peers,
        elements=elements,
        folder=new_folder("bench", out),
        seed=seed,
        train_s=seconds_named("--train", train),
        fault=kind,
        moment=moment,
        victim=victim,
        repeat=repeat,
        rounds=rounds,
        keep_state=keep,
    )
    with _sitting(json, options.folder) as sitting:
        runs, numel = bench_fault(options, sitting.tell)
    print_faults(sitting.console, options, runs)
    found = fault_json(options, commit_named(), numel, runs)
    sitting.end(found, is_good=all(run.is_good for run in runs))


@bench_app.command("allreduce")
def allreduce(
    peers: PeersOption = 4,
    elements: ElementsOption = 100_000_000,
    codec: Annotated[
        str, typer.Option(help="Codec of the contributions: none, fp16, int8, ...")
    ] = "none",
    aggregator: Annotated[str, typer.Option(help="Aggregation rule.")] = "mean",
    momentum: Annotated[
        float, typer.Option(help="Momentum of the outer step; 0 keeps no momentum.")
    ] = 0.0,
    rounds: Annotated[
        int, typer.Option(help="Number of measured rounds, after a warm-up round.")
    ] = 3,
    security: Annotated[str, typer.Option(help="Connection encryption: tls or noise.")] = "tls",
    seed: SeedOption = 0,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile CPU time by stage; this slows the run down.")
    ] = False,
    out: OutOption = None,
    keep: KeepOption = False,
    json: JsonOption = False,
) -> None:
    """Average one vector per node over all nodes; measure seconds, CPU time, memory, bytes and
    error.
    """
    from sim.bench.allreduce import (
        AllreduceOptions,
        allreduce_json,
        bench_allreduce,
        print_allreduce,
    )
    from sim.processes.sitting import commit_named

    options = AllreduceOptions(
        peers=peers,
        elements=elements,
        folder=new_folder("bench", out),
        seed=seed,
        train_s=0.0,
        codec=codec,
        aggregator=aggregator,
        momentum=momentum,
        rounds=rounds,
        security=security,
        keep_state=keep,
        is_profiled=profile,
    )
    with _sitting(json, options.folder) as sitting:
        result, numel = bench_allreduce(options, sitting.tell)
    print_allreduce(sitting.console, result)
    found = allreduce_json(options, commit_named(), numel, result)
    sitting.end(found, is_good=result.is_good)


@bench_app.command("link")
def link(
    mib: Annotated[int, typer.Option(help="MiB to send per transfer.")] = 256,
    security: Annotated[str, typer.Option(help="Connection encryption: noise or tls.")] = "noise",
    repeat: Annotated[
        int, typer.Option(help="Number of measured transfers, after a warm-up transfer.")
    ] = 5,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile CPU time by stage; this slows the run down.")
    ] = False,
    shape: Annotated[
        str,
        typer.Option(help="Emulate a network link between the processes, such as 200mbit,60ms."),
    ] = "",
    breaks: Annotated[
        int, typer.Option("--break", help="Break the connections this often, only with --shape.")
    ] = 0,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Two processes on this machine: the rate of bulk streams, its processor time, and the round
    trip of small frames; beside libp2p as it comes, and plain sockets.

    With --shape: a joiner fetches a state over such a line, on which connections break."""
    from sim.bench import link as bench
    from sim.processes.shaper import shape_named
    from sim.processes.sitting import commit_named

    if shape or breaks:
        line = shape_named(shape or "200mbit,60ms")
        path = bench.PathOptions(shape=line, mib=mib, security=security, breaks=breaks, seed=seed)
        with _sitting(json) as sitting:
            found = bench.bench_path(path, sitting.tell)
        sitting.console.print(bench.path_text(path, found), markup=False)
        sitting.end(bench.path_json(path, commit_named(), found), is_good=not found.faults)
    options = bench.LinkOptions(mib=mib, security=security, repeat=repeat, is_profiled=profile)
    with _sitting(json) as sitting:
        result = bench.bench_link(options, sitting.tell)
    bench.print_link(sitting.console, options, result)
    # Of the others a failure is their own.
    is_good = not result.transfers["ours"].failed
    sitting.end(bench.link_json(options, commit_named(), result), is_good=is_good)


@bench_app.command("aggregators")
def aggregators(
    peers: Annotated[int, typer.Option(help="Number of contributions.")] = 16,
    elements: Annotated[
        int, typer.Option(help="Float32 elements in each contribution.")
    ] = 1_000_000,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Aggregate many vectors by every aggregation rule; measure seconds, CPU time and memory."""
    from sim.bench import costs
    from sim.processes.sitting import commit_named, until_signal

    costs.check_size(peers, elements)
    with _sitting(json) as sitting, until_signal():
        found = costs.measure_rules(costs.made_up_updates(peers, elements, seed), sitting.tell)
    costs.print_costs(sitting.console, found)
    about = {"peers": peers, "elements": elements, "seed": seed, "commit": commit_named()}
    sitting.end(costs.costs_json(found, about))


@bench_app.command("codecs")
def codecs(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of the codecs to measure; by default all.", metavar="[NAME]..."),
    ] = None,
    elements: ElementsOption = 10_000_000,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Measure each codec: speed on one thread, bytes per element and error."""
    from dataclasses import asdict

    from sim.bench.costs import bench_codecs, print_codecs
    from sim.processes.sitting import commit_named, until_signal

    with _sitting(json) as sitting, until_signal(), sitting.console.status("measuring"):
        results = bench_codecs(names or [], elements, seed)
    print_codecs(sitting.console, results)
    by_name = {one.name: asdict(one) for one in results}
    about = {"elements": elements, "seed": seed, "commit": commit_named()}
    sitting.end(about | {"codecs": by_name} | by_name)


@bench_app.command("discovery")
def discovery(
    peers: PeersOption = 16,
    keys: Annotated[
        int, typer.Option(help="Number of keys to store and then find, one at a time.")
    ] = 1000,
    frozen: Annotated[
        int, typer.Option(help="Number of nodes that are frozen after the keys are stored.")
    ] = 0,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help=(
                "Start all nodes at the same time and measure how long they take to discover "
                "each other."
            ),
        ),
    ] = False,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Store and find keys in a DHT with one process per node; measure milliseconds and CPU time."""
    from sim.bench.discovery import (
        DiscoveryOptions,
        DiscoveryResult,
        bench_discovery,
        discovery_json,
    )
    from sim.processes.sitting import commit_named, run_until_signal

    options = DiscoveryOptions(peers=peers, keys=keys, frozen=frozen, is_at_once=at_once, seed=seed)
    results: list[DiscoveryResult] = []
    with _sitting(json) as sitting:

        async def play() -> None:
            results.append(await bench_discovery(options, sitting.tell))

        run_until_signal(play)
    found = discovery_json(options, commit_named(), results[0])
    sitting.show(found)
    sitting.end(found, is_good=results[0].num_found == keys)


@bench_app.command("homes")
def homes(
    speeds: Annotated[
        str, typer.Option(help="Share of a core that each home's trainer gets, in order.")
    ] = "0.4,0.4,0.2,0.2",
    lines: Annotated[
        str, typer.Option(help="Rate of each home's line, up and down; one rate is for all.")
    ] = "20mbit",
    round_trip: Annotated[str, typer.Option(help="Round-trip time between two homes.")] = "60ms",
    seconds: Annotated[str, typer.Option(help="How long the homes train, each time.")] = "120s",
    preset: Annotated[str, typer.Option(help="Training method, by its preset name.")] = "diloco",
    steps: Annotated[
        int, typer.Option(help="Inner steps per round (H); with `auto`, the maximum.", min=1)
    ] = 20,
    seed: SeedOption = 0,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Does joining help? Train homes of given speeds and lines alone and then together, for the
    same time; compare tokens per second and loss.
    """
    from sim.bench import homes as bench
    from sim.processes.shaper import seconds_named
    from sim.processes.sitting import commit_named, run_until_signal

    options = bench.HomesOptions(
        speeds=bench.speeds_named(speeds),
        rates=bench.rates_named(lines),
        round_trip_s=seconds_named("--round-trip", round_trip),
        seconds=seconds_named("--seconds", seconds),
        folder=new_folder("bench", out),
        preset=preset,
        steps=steps,
        seed=seed,
    )
    with _sitting(json, options.folder) as sitting:
        run = bench.HomesRun(options, sitting.tell)
        run_until_signal(run.play)
        found = bench.homes_json(options, run.found, {"commit": commit_named()})
        bench.print_homes(sitting.console, options, run.found)
        bench.draw_homes(options, run.found, options.folder / bench.PLOT_FILE)
        sitting.console.print(f"{bench.PLOT_FILE} is in {options.folder}", soft_wrap=True)
    sitting.end(found)


@bench_app.command("overlap")
def overlap(
    peers: Annotated[int, typer.Option(help="Number of nodes, each with a real trainer.")] = 3,
    shape: Annotated[
        str, typer.Option(help="Each node's network link: rate and round-trip time.")
    ] = "20mbit,80ms",
    preset: Annotated[str, typer.Option(help="Training method, by its preset name.")] = "auto",
    steps: Annotated[
        int,
        typer.Option(help="Inner steps per round (H); with the preset `auto`, the maximum.", min=1),
    ] = 1000,
    lag: Annotated[
        int | None,
        typer.Option(help="Number of rounds in flight: 1 or 2.", show_default="the preset's"),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Number of measured rounds per node.", min=1, max=64)
    ] = 10,
    seed: SeedOption = 0,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Measure an inner step alone and while nodes synchronise over a network link of a given
    shape.
    """
    from sim.bench.overlap import OverlapRun, overlap_json
    from sim.local.options import LocalOptions
    from sim.processes.shaper import shape_named
    from sim.processes.sitting import commit_named, run_until_signal

    options = LocalOptions(
        peers=peers,
        folder=new_folder("bench", out),
        shape=shape_named(shape),
        seed=seed,
        trainer="real",
        preset=preset,
        lag=lag,
        steps=steps,
    )
    with _sitting(json, options.folder) as sitting:
        run = OverlapRun(options, rounds, sitting.tell)
        run_until_signal(run.play)
    assert run.result is not None, "played to its end"
    about = {"preset": preset, "peers": peers, "shape": shape, "commit": commit_named()}
    about |= {"steps": steps, "lag": run.lag, "seed": seed}
    found = overlap_json(run.result, about)
    sitting.show(found)
    sitting.end(found)


@bench_app.command("size")
def size(
    sizes: Annotated[
        str,
        typer.Option(help="Sizes of the built-in GPT, separated by commas: 120k, 10m, 50m, ..."),
    ] = "10m,50m",
    steps: Annotated[int, typer.Option(help="Inner steps per round (H).")] = 10,
    rounds: Annotated[int, typer.Option(help="Number of measured rounds per node.")] = 10,
    batch: Annotated[int, typer.Option(help="Sequences per step.")] = 2,
    context: Annotated[int, typer.Option(help="Bytes per sequence.")] = 64,
    seed: SeedOption = 0,
    skip_machine_check: SkipMachineCheckOption = False,
    out: OutOption = None,
    keep: KeepOption = False,
    json: JsonOption = False,
) -> None:
    """Train with two real nodes at each size; measure memory, bytes written and the share of time
    in steps, beside what `barnraise check` foretells.
    """
    from sim.bench.size import SizeOptions, SizeRun, print_sizes, size_json
    from sim.processes.sitting import commit_named, run_until_signal

    options = SizeOptions(
        sizes=tuple(name.strip() for name in sizes.split(",")),
        folder=new_folder("bench", out),
        steps=steps,
        rounds=rounds,
        batch=batch,
        context=context,
        seed=seed,
        is_unchecked=skip_machine_check,
        keep_state=keep,
    )
    with _sitting(json) as sitting:
        run = SizeRun(options, sitting.tell)
        run_until_signal(run.play)
    print_sizes(sitting.console, run.rows)
    sitting.end(size_json(options, commit_named(), run.rows))


@bench_app.command("data")
def data(
    mib: Annotated[
        int, typer.Option(help="MiB of the mixed set, which is tokenised some ten times.")
    ] = 8,
    large_mib: Annotated[
        int, typer.Option(help="MiB of the set that is packed to measure memory.")
    ] = 2048,
    kills: Annotated[int, typer.Option(help="Number of times that one pack is killed.")] = 3,
    seed: SeedOption = 0,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Pack made-up sets into token stores and read them: speed beside the tokenizers library,
    equal digests whatever the threads and behind kills, memory, and windows per second."""
    from sim.bench.token_stores import DataBenchOptions, bench_data, data_faults
    from sim.processes.sitting import commit_named, until_signal

    options = DataBenchOptions(
        folder=new_folder("bench", out), mib=mib, large_mib=large_mib, kills=kills, seed=seed
    )
    with _sitting(json, options.folder) as sitting, until_signal():
        found = bench_data(options, sitting.tell)
    faults = data_faults(found)
    about = {"mib": mib, "seed": seed, "commit": commit_named(), "missed": faults}
    sitting.show(found | about)
    sitting.end(found | about, is_good=not faults)
