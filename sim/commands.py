"""`barnraise sim`: worlds in virtual time, by name and seed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from node.commands.app import JsonOption, app, print_json, refuse_idle
from sim import bench_commands, process_commands

__all__ = ["bench_commands", "process_commands", "sim_app"]

sim_app = typer.Typer(
    help=(
        "Simulate many nodes and faults in virtual time; the same seed always gives "
        "the same result."
    ),
    no_args_is_help=True,
)
app.add_typer(sim_app, name="sim")


@sim_app.callback()
def sim() -> None:
    """Simulate many nodes and faults in virtual time; the same seed gives the same result."""
    from sim.world.quiet import hush

    hush()


HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Of commands whose arguments another one reads."""

ROBUSTNESS = "robustness"
"""What is no scenario: all attacks, with and without a defence."""

ScenarioArgument = Annotated[
    str, typer.Argument(help="A scenario name from `barnraise sim list`, or a scenario file.")
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seed of everything that is random.", min=0)
]
RecordedSeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed", help="Random seed; by default the one recorded in the file.", show_default=False
    ),
]
PeersOption = Annotated[
    int | None,
    typer.Option(
        "--peers", help="Number of peers, in place of the scenario's.", show_default=False
    ),
]
RoundsOption = Annotated[
    int | None,
    typer.Option(
        "--rounds", help="Number of rounds, in place of the scenario's.", show_default=False
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="File to which every record of every node is written.", show_default=False
    ),
]


@sim_app.command("run")
def run_scenario(
    scenario: ScenarioArgument,
    seed: SeedOption = 0,
    peers: PeersOption = None,
    rounds: RoundsOption = None,
    attack: Annotated[
        str | None,
        typer.Option(
            help="Attack and the share of peers that run it, as NAME:FRACTION.", show_default=False
        ),
    ] = None,
    audits: Annotated[
        float | None,
        typer.Option(help="Average number of audits per contribution.", show_default=False),
    ] = None,
    aggregator: Annotated[
        str | None,
        typer.Option(
            help="Aggregation rule of the run.",
            show_default="the scenario's; with --attack, `default` in place of `mean`",
        ),
    ] = None,
    trace: TraceOption = None,
    timeline: Annotated[bool, typer.Option(help="Print a timeline of the events.")] = True,
    json: JsonOption = False,
) -> None:
    """Simulate one scenario once; report the events and which invariants held."""
    from sim.trials import playing

    found = playing.overridden_scenario(
        scenario, peers=peers, rounds=rounds, attack=attack, audits=audits, aggregator=aggregator
    )
    with playing.record_writer(trace) as tracer:
        play = playing.play(found, seed, tracer=tracer)
    playing.show(play, with_timeline=timeline, to_stderr=json)
    if json:
        print_json(play.outcome.as_json())
    raise typer.Exit(1 if play.outcome.violation else 0)


ScenariosArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help=(
            "Scenario names or files; by default `mixed`. `robustness` runs all attacks instead."
        ),
        show_default=False,
    ),
]
SeedsOption = Annotated[
    str,
    typer.Option(
        help=(
            "Range FIRST..LAST or a single seed; with `robustness`, a single number is "
            "the count of seeds."
        )
    ),
]
InterpretedOption = Annotated[
    bool,
    typer.Option(
        "--interpreted",
        help="Run interpreted Python even if `make compiled` has built native code.",
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(help="Model: text, or gpt (takes half an hour); only for `sweep robustness`."),
]
LiarsOption = Annotated[
    int | None,
    typer.Option(
        help="Number of attackers; only for `sweep robustness`.",
        show_default="a quarter of the peers",
        min=1,
    ),
]
SkewOption = Annotated[
    float | None,
    typer.Option(
        help="Dirichlet parameter by which the peers' data differ; only for `sweep robustness`.",
        show_default="equal distributions",
    ),
]
BareOption = Annotated[
    bool,
    typer.Option(
        "--bare/--no-bare", help="Also evaluate the plain mean; only for `sweep robustness`."
    ),
]


@sim_app.command("sweep")
def sweep_scenarios(
    context: typer.Context,
    scenarios: ScenariosArgument = None,
    seeds: SeedsOption = "0..199",
    jobs: Annotated[
        int | None, typer.Option(help="Number of processes.", show_default="all cores", min=1)
    ] = None,
    peers: PeersOption = None,
    rounds: RoundsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the plot, the table and the failures.", show_default=False),
    ] = None,
    interpreted: InterpretedOption = False,
    model: ModelOption = "text",
    liars: LiarsOption = None,
    skew: SkewOption = None,
    bare: BareOption = True,
    json: JsonOption = False,
) -> None:
    """Run scenarios with many seeds; each failure is printed with the command that replays it."""
    from sim.trials import sweep as sweeping

    refuse_idle(context, _idle(scenarios or []))
    if scenarios == [ROBUSTNESS]:
        options = {"liars": liars, "model": model, "skew": skew, "with_bare": bare}
        _sweep_robustness(
            {"seeds": seeds, "peers": peers, "rounds": rounds, "jobs": jobs} | options, out, json
        )
    request = sweeping.Request(
        names=tuple(scenarios or ()),
        seeds=seeds,
        jobs=jobs,
        peers=peers,
        rounds=rounds,
        out=out,
        is_interpreted=interpreted,
    )
    end = sweeping.run_sweep(request, to_stderr=json)
    if json:
        print_json(end.as_json())
    raise typer.Exit(end.status)


def _idle(scenarios: list[str]) -> dict[str, str]:
    """Options of a sweep that nothing would read, and what they need."""
    if scenarios == [ROBUSTNESS]:
        return {"interpreted": f"a scenario: `{ROBUSTNESS}` runs none"}
    if ROBUSTNESS in scenarios:
        raise typer.BadParameter(f"`{ROBUSTNESS}` is no scenario: sweep it alone")
    return dict.fromkeys(("model", "liars", "skew", "bare"), f"`{ROBUSTNESS}`")


def _sweep_robustness(options: dict[str, Any], out: Path | None, json: bool) -> None:
    # Here, for it draws pictures: what draws them takes half a second to come.
    from sim.robustness import commands as robustness

    found, status = robustness.sweep_robustness(robustness.Asked(**options), out, to_stderr=json)
    if json:
        print_json(found)
    raise typer.Exit(status)


@sim_app.command()
def replay(
    scenario: ScenarioArgument,
    seed: RecordedSeedOption = None,
    peers: PeersOption = None,
    rounds: RoundsOption = None,
    trace: TraceOption = None,
) -> None:
    """Replay a failure: print its last records and whether the result is the same to the byte."""
    from sim.trials import playing

    found = playing.overridden_scenario(scenario, peers=peers, rounds=rounds)
    with playing.record_writer(trace) as tracer:
        raise typer.Exit(playing.replay(found, seed, tracer=tracer))


@sim_app.command()
def shrink(
    scenario: ScenarioArgument,
    seed: RecordedSeedOption = None,
    peers: PeersOption = None,
    rounds: RoundsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to which the smaller scenario is written.",
            show_default="NAME-SEED-small.toml",
        ),
    ] = None,
    tries: Annotated[int, typer.Option(help="Maximum number of simulations.", min=1)] = 400,
) -> None:
    """Shrink a failure to fewer faults, nodes, rounds and cells that break the same invariant."""
    from sim.trials import playing

    found = playing.overridden_scenario(scenario, peers=peers, rounds=rounds)
    raise typer.Exit(playing.shrink(found, seed, out=out, tries_max=tries))


@sim_app.command("list")
def list_scenarios(json: JsonOption = False) -> None:
    """List the scenarios, and those that cannot be run yet."""
    from sim.trials import playing

    if json:
        print_json(playing.listing())
    else:
        playing.show_listing()


@sim_app.command(
    "gossip",
    context_settings=HANDED_ON,
    help=(
        "Measure gossip among many nodes: delay, partitions, failed nodes, bytes. See"
        " `gossip --help`."
    ),
)
def gossip(context: typer.Context) -> None:
    """Hand the arguments on to the measurement, which has options of its own."""
    from sim.crowds.gossiping import app as gossiping

    gossiping(context.args, prog_name="barnraise sim gossip")


@sim_app.command(
    "explore",
    context_settings=HANDED_ON,
    help="Explore every order of events in a small swarm. See `explore --help`.",
)
def explore(context: typer.Context) -> None:
    """Hand the arguments on to the explorer, which has options of its own."""
    from sim.exploration.cases import app as explorer

    explorer(context.args, prog_name="barnraise sim explore")
