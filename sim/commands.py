"""`barnraise sim`: worlds in virtual time, by name and seed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from node.commands.app import app, print_json
from node.commands.options import refuse_idle
from sim.bench import commands as bench_commands
from sim.local import commands as local_commands

__all__ = ["bench_commands", "local_commands", "sim_app"]

sim_app = typer.Typer(
    help="Run many nodes in virtual time: any disaster, from one seed, the same every time.",
    no_args_is_help=True,
)
app.add_typer(sim_app, name="sim")


@sim_app.callback()
def sim() -> None:
    """Run many nodes in virtual time: any disaster, from one seed, the same every time."""
    from sim.world.hush import hush

    hush()


ROBUSTNESS = "robustness"
"""What is no scenario: all attacks, with and without a defence."""

ScenarioArgument = Annotated[
    str, typer.Argument(help="A name of `barnraise sim list`, or a scenario's file.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Everything random comes from it.", min=0)]
PeersOption = Annotated[
    int | None, typer.Option("--peers", help="Instead of the scenario's.", show_default=False)
]
RoundsOption = Annotated[
    int | None, typer.Option("--rounds", help="Instead of the scenario's.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Last line: one JSON object.")]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", help="Every record of every node goes here.", show_default=False),
]


@sim_app.command("run")
def run_scenario(
    scenario: ScenarioArgument,
    seed: SeedOption = 0,
    peers: PeersOption = None,
    rounds: RoundsOption = None,
    attack: Annotated[
        str | None, typer.Option(help="NAME:FRACTION of the peers.", show_default=False)
    ] = None,
    audits: Annotated[
        float | None,
        typer.Option(help="So many per contribution, on average.", show_default=False),
    ] = None,
    aggregator: Annotated[
        str | None,
        typer.Option(
            help="The rule of the run.",
            show_default="the scenario's; where that is the mean, `default` with --attack",
        ),
    ] = None,
    trace: TraceOption = None,
    timeline: Annotated[bool, typer.Option(help="What happened when.")] = True,
    json: JsonOption = False,
) -> None:
    """Run one scenario once, and tell what happened and what was kept."""
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


@sim_app.command("sweep")
def sweep_scenarios(
    context: typer.Context,
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names or files; `mixed` if there is none; `robustness`: all attacks.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="FIRST..LAST, or one; of `robustness` a number is how many.")
    ] = "0..199",
    jobs: Annotated[
        int | None, typer.Option(help="Processes.", show_default="all cores", min=1)
    ] = None,
    peers: PeersOption = None,
    rounds: RoundsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for plot, table and failures.", show_default=False),
    ] = None,
    interpreted: Annotated[
        bool, typer.Option("--interpreted", help="Even if `make compiled` has been run.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="Of `robustness`: text, or gpt, which takes half an hour.")
    ] = "text",
    liars: Annotated[
        int | None,
        typer.Option(help="Of `robustness`.", show_default="a quarter of the peers", min=1),
    ] = None,
    skew: Annotated[
        float | None,
        typer.Option(
            help="Of `robustness`: peers' data differ, by this number of Dirichlet's.",
            show_default="they do not",
        ),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare/--no-bare", help="Of `robustness`: the bare mean, too.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Run many seeds of some scenarios; each failure comes with the command that replays it."""
    from sim.trials import sweeping

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
    seed: Annotated[
        int | None,
        typer.Option(help="Left out, the one that the file has recorded.", show_default=False),
    ] = None,
    peers: PeersOption = None,
    rounds: RoundsOption = None,
    trace: TraceOption = None,
) -> None:
    """Run a failure again: its last records, and whether it comes out the same to the byte."""
    from sim.trials import playing

    found = playing.overridden_scenario(scenario, peers=peers, rounds=rounds)
    with playing.record_writer(trace) as tracer:
        raise typer.Exit(playing.replay(found, seed, tracer=tracer))


@sim_app.command()
def shrink(
    scenario: ScenarioArgument,
    seed: Annotated[
        int | None,
        typer.Option(help="Left out, the one that the file has recorded.", show_default=False),
    ] = None,
    peers: PeersOption = None,
    rounds: RoundsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The smaller scenario goes here.", show_default="NAME-SEED-small.toml"),
    ] = None,
    tries: Annotated[int, typer.Option(help="Worlds to run at most.", min=1)] = 400,
) -> None:
    """Make a failure smaller: fewer faults, nodes, rounds and cells that break the same promise."""
    from sim.trials import playing

    found = playing.overridden_scenario(scenario, peers=peers, rounds=rounds)
    raise typer.Exit(playing.shrink(found, seed, out=out, tries_max=tries))


@sim_app.command("list")
def list_scenarios(json: JsonOption = False) -> None:
    """Name the scenarios that there are, and those that cannot be run yet."""
    from sim.trials import playing

    if json:
        print_json(playing.listing())
    else:
        playing.show_listing()


@sim_app.command(
    "gossip",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
    help="Measure gossip among many nodes: lag, splits, the dead, bytes. See `gossip --help`.",
)
def gossip(context: typer.Context) -> None:
    """Hand the arguments on to the measurement, which has options of its own."""
    from sim.crowds.gossiping import app as gossiping

    gossiping(context.args, prog_name="barnraise sim gossip")


@sim_app.command(
    "explore",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
    help="Walk through every order of events of a small swarm: see `explore --help`.",
)
def explore(context: typer.Context) -> None:
    """Hand the arguments on to the explorer, which has options of its own."""
    from sim.exploration.run import app as explorer

    explorer(context.args, prog_name="barnraise sim explore")
