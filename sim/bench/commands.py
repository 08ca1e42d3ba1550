"""`barnraise bench`: what the README claims, measured."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import app, print_json
from node.commands.options import SEED_MAX

if TYPE_CHECKING:
    from rich.console import Console

    from sim.bench.path import PathOptions

bench_app = typer.Typer(
    help="Measure: real nodes, the real protocol, encrypted, on this machine.",
    no_args_is_help=True,
)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench() -> None:
    """Measure: real nodes, the real protocol, encrypted, on this machine."""


PeersOption = Annotated[int, typer.Option(help="Nodes.")]
ElementsOption = Annotated[int, typer.Option(help="Numbers that each contributes, float32.")]
SeedOption = Annotated[
    int, typer.Option(help="Everything that is left to chance.", min=0, max=SEED_MAX)
]
OutOption = Annotated[
    Path | None, typer.Option(help="New folder for traces and logs.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Last line: one JSON object.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the nodes' keys and checkpoints.")]


@bench_app.command("fault")
def fault(
    peers: PeersOption = 4,
    elements: ElementsOption = 50_000_000,
    kind: Annotated[str, typer.Option("--fault", help="kill, freeze or none.")] = "kill",
    moment: Annotated[
        str, typer.Option(help="training, parts, have, vote, sum, seal or random.")
    ] = "random",
    victim: Annotated[
        str, typer.Option(help="member, reducer, closer, founder, bootstrap or random.")
    ] = "random",
    repeat: Annotated[int, typer.Option(help="Runs, each with the next seed.")] = 5,
    rounds: Annotated[int, typer.Option(help="Of a run without a fault.")] = 200,
    seed: SeedOption = 0,
    train: Annotated[str, typer.Option(help="Made-up training time of a round.")] = "0.2s",
    out: OutOption = None,
    keep: KeepOption = False,
    json: JsonOption = False,
) -> None:
    """A peer dies or freezes in the middle of a round: how long until the others have an exact
    seal, and whether every sum is exact and equal everywhere."""
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
    codec: Annotated[str, typer.Option(help="How numbers travel: none, fp16, int8, ...")] = "none",
    aggregator: Annotated[str, typer.Option(help="How contributions become one.")] = "mean",
    momentum: Annotated[float, typer.Option(help="Of the outer step; 0: none is kept.")] = 0.0,
    rounds: Annotated[int, typer.Option(help="To measure, behind a first one.")] = 3,
    security: Annotated[str, typer.Option(help="tls or noise.")] = "tls",
    seed: SeedOption = 0,
    profile: Annotated[bool, typer.Option("--profile", help="CPU by stage; slower.")] = False,
    out: OutOption = None,
    keep: KeepOption = False,
    json: JsonOption = False,
) -> None:
    """Average a vector of each node over all: seconds, processor time, memory, bytes, error."""
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
    mib: Annotated[int, typer.Option(help="To move in one transfer.")] = 256,
    security: Annotated[str, typer.Option(help="noise or tls.")] = "noise",
    repeat: Annotated[int, typer.Option(help="Turns, behind a first one.")] = 5,
    profile: Annotated[bool, typer.Option("--profile", help="CPU by stage; slower.")] = False,
    shape: Annotated[
        str, typer.Option(help="A line between them instead, such as 200mbit,60ms.")
    ] = "",
    breaks: Annotated[int, typer.Option("--break", help="So often, with --shape.")] = 0,
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
    peers: Annotated[int, typer.Option(help="Rows.")] = 16,
    elements: Annotated[int, typer.Option(help="Of each row, float32.")] = 1_000_000,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Make one vector of many by every rule that there is: seconds, processor time, memory."""
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
        list[str] | None, typer.Argument(help="Codecs; all if none is named.", metavar="[NAME]...")
    ] = None,
    elements: ElementsOption = 10_000_000,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """What each codec costs and loses: speed on one thread, bytes per element, error."""
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
    keys: Annotated[int, typer.Option(help="To store and to find, one at a time.")] = 1000,
    frozen: Annotated[int, typer.Option(help="Nodes that freeze behind the stores.")] = 0,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="All enter at one time, and until they know all.")
    ] = False,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Store and find keys in a DHT of one process per node: milliseconds, processor time."""
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
    peers: Annotated[int, typer.Option(help="Nodes, with a real trainer each.")] = 3,
    shape: Annotated[str, typer.Option(help="Each node's line.")] = "20mbit,80ms",
    preset: Annotated[str, typer.Option(help="The method.")] = "auto",
    steps: Annotated[
        int, typer.Option(help="Inner steps of a round; with auto the most.", min=1)
    ] = 1000,
    lag: Annotated[
        int | None, typer.Option(help="Rounds in flight, 1 or 2.", show_default="the preset's")
    ] = None,
    rounds: Annotated[int, typer.Option(help="To measure, of each node.", min=1, max=64)] = 10,
    seed: SeedOption = 0,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """What an inner step takes alone, and while nodes sync over lines of that shape."""
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
