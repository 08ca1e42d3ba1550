"""`barnraise bench`: what the README claims, measured."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import SEED_MAX, app, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from sim.bench.path import PathOptions

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
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Keep the nodes' keys and checkpoints afterwards.")
]


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
    from rich.console import Console

    from sim.bench.main import (
        EXIT_DONE,
        EXIT_FAILED,
        Teller,
        bench_fault,
        clock,
        commit_named,
    )
    from sim.bench.options import FaultOptions
    from sim.bench.report import fault_json, print_faults
    from sim.local.shape import seconds_named

    options = FaultOptions(
        peers=peers,
        elements=elements,
        folder=_folder(out),
        seed=seed,
        train_s=seconds_named("--train", train),
        fault=kind,
        moment=moment,
        victim=victim,
        repeat=repeat,
        rounds=rounds,
        keep_state=keep,
    )
    console = Console(stderr=json, highlight=False)
    with _stopping(console, options.folder):
        runs, numel = bench_fault(options, Teller(console, clock()))
    print_faults(console, options, runs)
    if json:
        print_json(fault_json(options, commit_named(), numel, runs))
    raise typer.Exit(EXIT_DONE if all(run.is_good for run in runs) else EXIT_FAILED)


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
    from rich.console import Console

    from sim.bench.allreduce import bench_allreduce
    from sim.bench.main import EXIT_DONE, EXIT_FAILED, Teller, clock, commit_named
    from sim.bench.options import AllreduceOptions
    from sim.bench.report import allreduce_json, print_allreduce

    options = AllreduceOptions(
        peers=peers,
        elements=elements,
        folder=_folder(out),
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
    console = Console(stderr=json, highlight=False)
    with _stopping(console, options.folder):
        result, numel = bench_allreduce(options, Teller(console, clock()))
    print_allreduce(console, result)
    if json:
        print_json(allreduce_json(options, commit_named(), numel, result))
    raise typer.Exit(EXIT_DONE if result.is_good else EXIT_FAILED)


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
    from rich.console import Console

    if shape or breaks:
        from sim.bench.path import PathOptions
        from sim.local.shape import shape_named

        line = shape_named(shape or "200mbit,60ms")
        _link_path(
            PathOptions(shape=line, mib=mib, security=security, breaks=breaks, seed=seed),
            json=json,
        )
        return
    from sim.bench.link import LinkOptions, bench_link
    from sim.bench.link_report import link_json, print_link
    from sim.bench.main import EXIT_DONE, EXIT_FAILED, Teller, clock, commit_named, until_signal

    options = LinkOptions(mib=mib, security=security, repeat=repeat, is_profiled=profile)
    console = Console(stderr=json, highlight=False)
    with _stopping(console), until_signal():
        result = bench_link(options, Teller(console, clock()))
    print_link(console, options, result)
    if json:
        print_json(link_json(options, commit_named(), result))
    # Of the others a failure is their own.
    raise typer.Exit(EXIT_FAILED if result.transfers["ours"].failed else EXIT_DONE)


def _link_path(options: "PathOptions", *, json: bool) -> None:
    from rich.console import Console

    from sim.bench.main import EXIT_DONE, EXIT_FAILED, Teller, clock, commit_named
    from sim.bench.path import bench_path, path_json, path_text

    console = Console(stderr=json, highlight=False)
    with _stopping(console):
        result = bench_path(options, Teller(console, clock()))
    console.print(path_text(options, result), markup=False)
    if json:
        print_json(path_json(options, commit_named(), result))
    raise typer.Exit(EXIT_FAILED if result.faults else EXIT_DONE)


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
    from rich.console import Console

    from sim.bench.aggregators import (
        check_size,
        costs_json,
        made_up_updates,
        measure,
        print_costs,
    )
    from sim.bench.main import Teller, clock, commit_named, until_signal

    check_size(peers, elements)
    console = Console(stderr=json, highlight=False)
    tell = Teller(console, clock())
    with _stopping(console), until_signal():
        costs = measure(made_up_updates(peers, elements, seed), tell)
    print_costs(console, costs)
    if json:
        about = {"peers": peers, "elements": elements, "seed": seed, "commit": commit_named()}
        print_json(costs_json(costs, about))


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

    from rich.console import Console

    from sim.bench.codec_costs import bench_codecs
    from sim.bench.main import commit_named, until_signal
    from sim.bench.report import print_codecs

    console = Console(stderr=json, highlight=False)
    with _stopping(console), until_signal(), console.status("measuring"):
        results = bench_codecs(names or [], elements, seed)
    print_codecs(console, results)
    if json:
        by_name = {one.name: asdict(one) for one in results}
        about = {"elements": elements, "seed": seed, "commit": commit_named()}
        print_json(about | {"codecs": by_name} | by_name)


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
    from rich.console import Console

    from sim.bench.discovery import (
        DiscoveryOptions,
        DiscoveryResult,
        bench_discovery,
        discovery_json,
    )
    from sim.bench.main import (
        EXIT_DONE,
        EXIT_FAILED,
        Teller,
        clock,
        commit_named,
        run_until_signal,
    )

    options = DiscoveryOptions(peers=peers, keys=keys, frozen=frozen, is_at_once=at_once, seed=seed)
    console = Console(stderr=json, highlight=False)
    results: list[DiscoveryResult] = []

    async def play() -> None:
        results.append(await bench_discovery(options, Teller(console, clock())))

    with _stopping(console):
        run_until_signal(play)
    (result,) = results
    told = discovery_json(options, commit_named(), result)
    for name, value in told.items():
        console.print(f"{name:>20}  {value}", markup=False)
    if json:
        print_json(told)
    raise typer.Exit(EXIT_DONE if result.num_found == options.keys else EXIT_FAILED)


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
    from rich.console import Console

    from sim.bench.main import EXIT_DONE, Teller, clock, commit_named, run_until_signal
    from sim.bench.overlap import OverlapRun, overlap_json
    from sim.local.options import LocalOptions
    from sim.local.shape import shape_named

    options = LocalOptions(
        peers=peers,
        folder=_folder(out),
        shape=shape_named(shape),
        seed=seed,
        trainer="real",
        preset=preset,
        lag=lag,
        steps=steps,
    )
    console, now_s = Console(stderr=json, highlight=False), clock()
    run = OverlapRun(options, rounds, now_s, Teller(console, now_s))
    with _stopping(console, options.folder):
        run_until_signal(run.play)
    assert run.result is not None, "played to its end"
    about = {"preset": preset, "peers": peers, "shape": shape, "commit": commit_named()}
    about |= {"steps": steps, "lag": run.lag, "seed": seed}
    told = overlap_json(run.result, about)
    for name, value in told.items():
        console.print(f"{name:>20}  {value}", markup=False)
    if json:
        print_json(told)
    raise typer.Exit(EXIT_DONE)


@contextmanager
def _stopping(console: "Console", folder: Path | None = None) -> Iterator[None]:
    """Say that a signal has ended the bench, and end with its status."""
    from sim.bench.main import Interrupted

    try:
        yield
    except Interrupted as signal:
        see = "" if folder is None else f"; see {folder}"
        words = f"Stopped. No process is left running{see}"
        console.print(words, markup=False, soft_wrap=True)
        raise typer.Exit(signal.status) from None


def _folder(out: Path | None) -> Path:
    name = time.strftime("barnraise-bench-%Y%m%d-%H%M%S")
    return (Path(name) if out is None else out).absolute()
