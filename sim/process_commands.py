"""`barnraise demo`, `barnraise compare`, `barnraise local`: real processes on this machine."""

import time
from pathlib import Path
from typing import Annotated

import typer

from node.commands.app import SEED_MAX, JsonOption, app, print_json, refuse_idle
from protocol import limits

KeepOption = Annotated[
    bool, typer.Option("--keep", help="Keep the nodes' keys and checkpoints afterwards.")
]


def new_folder(command: str, out: Path | None) -> Path:
    """The folder that was named, or one that is named after the command and the time."""
    return (out or Path(time.strftime(f"barnraise-{command}-%Y%m%d-%H%M%S"))).absolute()


@app.command()
def demo(
    peers: Annotated[
        int,
        typer.Option(
            help="Number of nodes that start together; with 4 or more, one of them is killed."
        ),
    ] = 4,
    rounds: Annotated[int, typer.Option(help="Number of rounds to seal.")] = 40,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for the plot, the page and the logs.", show_default=False),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the first weights and of the order of the text.", min=0, max=SEED_MAX
        ),
    ] = 0,
    json: JsonOption = False,
    keep: KeepOption = False,
    test_switch: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train a small model with real nodes on this machine; one is killed, one joins late."""
    began_s = time.monotonic()
    from rich.console import Console

    from sim.demo.main import Surroundings, run_demo
    from sim.demo.story import DemoOptions

    options = DemoOptions(
        peers=peers,
        rounds=rounds,
        seed=seed,
        folder=new_folder("demo", out),
        keep_state=keep,
        test_switch=test_switch,
    )
    around = Surroundings(
        console=Console(stderr=json, highlight=False),
        now_s=lambda: time.monotonic() - began_s,
    )
    end = run_demo(options, around)
    if json and end.result is not None:
        print_json(end.result.as_json())
    raise typer.Exit(end.status)


@app.command()
def compare(
    presets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PRESET...", help="Names of the presets to compare.", show_default="six of them"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Total inner steps per peer.", min=1)] = 600,
    peers: Annotated[
        int, typer.Option(help="Number of replicas, all in one process.", min=1, max=64)
    ] = 4,
    inner_steps: Annotated[
        int | None,
        typer.Option(
            "--inner-steps",
            help="Inner steps per round (H).",
            show_default="each preset's own",
            min=1,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the first weights and of the order of samples.", min=0, max=SEED_MAX
        ),
    ] = 0,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="run.toml that sets the model, the data and the inner loop.",
            show_default="a toy GPT",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the plot and the numbers.")] = Path(
        "compare"
    ),
    json: JsonOption = False,
) -> None:
    """Train the same model on the same text with each preset; compare loss, bytes and time."""
    from sim.compare.main import PRESETS_DEFAULT, CompareOptions, run_compare

    options = CompareOptions(
        presets=tuple(dict.fromkeys(presets or PRESETS_DEFAULT)),
        steps=steps,
        peers=peers,
        inner_steps=inner_steps,
        seed=seed,
        file=file,
        folder=out.absolute(),
    )
    found, status = run_compare(options, to_stderr=json)
    if json:
        print_json(found)
    raise typer.Exit(status)


ElementsOption = Annotated[int, typer.Option(help="Number of parameters of the made-up model.")]
RoundsOption = Annotated[
    int | None,
    typer.Option(help="Number of rounds to seal.", show_default="as many as fit in --duration"),
]
TrustOption = Annotated[
    str,
    typer.Option(
        help=(
            "friends (contributions are averaged) or open (a robust aggregation rule that"
            " tolerates attackers)."
        )
    ),
]
AttackOption = Annotated[
    str | None,
    typer.Option(
        help=(
            "Attack and the share of nodes that run it, such as scale:0.25; implies an open run."
        ),
        show_default=False,
    ),
]
AUDITS_USUAL = 0.25
AuditsOption = Annotated[
    float | None,
    typer.Option(
        help="Average number of audits per contribution.",
        show_default=f"{AUDITS_USUAL} with --attack, otherwise none",
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        help="Each node's network link: rate, round-trip time and loss, such as 20mbit,80ms,1%.",
        show_default="unlimited loopback",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(help="New folder for the traces, the logs and the plot.", show_default=False),
]
ChaosOption = Annotated[
    str | None,
    typer.Option(
        help=(
            "Faults to inject, separated by commas: kill, freeze, churn, stall, reset, partition."
        )
    ),
]
RecklessOption = Annotated[
    bool, typer.Option("--reckless", help="Allow faults that leave less than a quorum alive.")
]
TrainerOption = Annotated[
    str, typer.Option(help="made-up (no torch, 40 MB per node) or real (trains the demo's model).")
]
FragmentsOption = Annotated[
    int,
    typer.Option(
        help="Number of fragments of the model; each round synchronises one of them.", min=1
    ),
]
SeatsOption = Annotated[
    int,
    typer.Option(
        help=(
            "Maximum number of contributors per round; if there are more nodes, they take turns."
        ),
        min=2,
        max=limits.SEATS_MAX,
    ),
]
PresetOption = Annotated[
    str | None, typer.Option(help="Training method, by its preset name.", show_default="the demo's")
]
ThenOption = Annotated[
    str | None,
    typer.Option(
        help="Switch to another preset from a round on, such as eager:25.", show_default=False
    ),
]
LagOption = Annotated[
    int | None,
    typer.Option(help="Number of rounds in flight: 1 or 2.", show_default="the preset's"),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        help="Inner steps per round (H), only with --trainer real.",
        show_default="the preset's",
        min=1,
    ),
]


def _duration_s(duration: str | None, rounds: int | None) -> float | None:
    from sim.processes.shaper import seconds_named

    text = "60s" if duration is None and rounds is None else duration
    return None if text is None else seconds_named("--duration", text)


def _idle(trainer: str, chaos: str | None) -> dict[str, str]:
    """Options that nothing would read, and what they need."""
    idle = {"steps": "--trainer real"} if trainer == "made-up" else {}
    if trainer == "real":
        idle |= dict.fromkeys(("train", "elements"), "--trainer made-up")
    if chaos is None:
        idle |= dict.fromkeys(("every", "reckless"), "--chaos")
    return idle


SeedOption = Annotated[
    int,
    typer.Option(
        help="Seed that decides which faults hit which node and when.", min=0, max=SEED_MAX
    ),
]


DurationOption = Annotated[
    str | None,
    typer.Option(help="How long faults are injected while rounds are sealed.", show_default="60s"),
]


@app.command()
def local(
    context: typer.Context,
    peers: Annotated[int, typer.Option(help="Number of nodes that start together.")] = 4,
    rounds: RoundsOption = None,
    duration: DurationOption = None,
    shape: ShapeOption = None,
    chaos: ChaosOption = None,
    trust: TrustOption = "friends",
    attack: AttackOption = None,
    audits: AuditsOption = None,
    every: Annotated[str, typer.Option(help="Time between two faults.")] = "10s",
    reckless: RecklessOption = False,
    seed: SeedOption = 0,
    trainer: TrainerOption = "made-up",
    train: Annotated[str, typer.Option(help="Simulated training time per round.")] = "0.5s",
    elements: ElementsOption = 100_000,
    fragments: FragmentsOption = 1,
    seats: SeatsOption = limits.SEATS_MAX,
    preset: PresetOption = None,
    then: ThenOption = None,
    lag: LagOption = None,
    steps: StepsOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    keep: KeepOption = False,
    test_switch: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run real nodes on this machine, inject faults, and check their traces against the protocol
    rules.
    """
    began_s = time.monotonic()
    refuse_idle(context, _idle(trainer, chaos))
    from rich.console import Console

    from sim.attacks.alone import lies_of_nodes
    from sim.local.main import run_local
    from sim.local.options import LocalOptions, kinds_named, then_named
    from sim.processes.shaper import seconds_named, shape_named

    options = LocalOptions(
        peers=peers,
        rounds=rounds,
        duration_s=_duration_s(duration, rounds),
        shape=None if shape is None else shape_named(shape),
        kinds=kinds_named(chaos),
        every_s=seconds_named("--every", every),
        is_reckless=reckless,
        seed=seed,
        trainer=trainer,
        train_s=seconds_named("--train", train),
        elements=elements,
        fragments=fragments,
        seats=seats,
        preset=preset,
        then=then_named(then),
        lag=lag,
        steps=steps,
        folder=new_folder("local", out),
        keep_state=keep,
        trust=trust if attack is None else "open",
        attack=None if attack is None else lies_of_nodes(attack, peers),
        audits=(AUDITS_USUAL if attack else 0.0) if audits is None else audits,
        test_switch=test_switch,
    )
    console = Console(stderr=json, highlight=False)
    end = run_local(options, console, lambda: time.monotonic() - began_s)
    if json and end.result is not None:
        print_json(end.result.as_json())
    raise typer.Exit(end.status)
