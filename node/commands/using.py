"""`barnraise export`, `barnraise generate`, `barnraise eval`: what was trained, put to use."""

import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import app, print_json
from node.commands.options import JsonOption, ManifestOption, RunOption, StateOption

if TYPE_CHECKING:
    from rich.progress import TaskID

    from node.using.child import Evaluated, TextWanted, WeightsSource, WeightsUsed
    from node.using.export import ExportedFile

RoundOption = Annotated[
    int | None,
    typer.Option("--round", help="Use the weights that this round sealed; by default the newest."),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        help=(
            "Read the weights from a file written by `barnraise export` in place of a state folder."
        )
    ),
]
ModelFileOption = Annotated[
    Path | None, typer.Option(help="The model file of the run, if its manifest names one.")
]
DeviceOption = Annotated[
    str, typer.Option(help="Device to compute on: auto, cpu, cuda, cuda:N or mps.")
]


@app.command()
def export(
    state: StateOption = None,
    run: RunOption = None,
    manifest: ManifestOption = None,
    round_index: RoundOption = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.safetensors"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: JsonOption = False,
) -> None:
    """Write a run's weights to one safetensors file that records their origin."""
    from node.state.folder import default_state
    from node.using.checkpoint_find import find_run
    from node.using.export import export_run

    found = find_run(state or default_state(), run=run, manifest=manifest)
    written = export_run(found, out, _warn, round_index=round_index, force=force)
    if json:
        print_json(_written_json(written))
        return
    size = f"{written.parameters:,} parameters, {written.num_bytes:,} bytes"
    sys.stdout.write(
        f"{written.path}: what round {written.provenance.sealed_round} sealed, {size}\n"
    )


@app.command()
def generate(
    state: StateOption = None,
    run: RunOption = None,
    manifest: ManifestOption = None,
    round_index: RoundOption = None,
    model: ModelOption = None,
    model_file: ModelFileOption = None,
    device: DeviceOption = "auto",
    prompt: Annotated[str, typer.Option(help="Text for the model to continue.")] = "",
    num_bytes: Annotated[int, typer.Option("--bytes", help="Number of bytes to generate.")] = 400,
    temperature: Annotated[
        float,
        typer.Option(
            help=(
                "Sampling temperature: 1 keeps the model's probabilities, lower values favour"
                " likely bytes, 0 always takes the likeliest."
            )
        ),
    ] = 0.8,
    top_k: Annotated[
        int, typer.Option(help="Sample only from this many likeliest bytes; 0 means all.")
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(help="Random seed; the same seed gives the same text.", show_default="random"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Generate text: the model continues the prompt byte by byte."""
    from node.using.child import TextWanted, WeightsChoice, find_source
    from training.evaluation import Sampling

    source = find_source(
        WeightsChoice(
            state=state,
            run=run,
            manifest=manifest,
            round_index=round_index,
            model=model,
            model_file=model_file,
            device=device,
        )
    )
    wanted = TextWanted(
        prompt=prompt.encode("utf-8", "surrogateescape"),
        num_bytes=num_bytes,
        sampling=Sampling(
            seed=secrets.randbelow(2**32) if seed is None else seed,
            temperature=temperature,
            top_k=top_k,
        ),
    )
    if json:
        _generate_json(source, wanted)
    else:
        _generate_text(source, wanted)


@app.command(name="eval")
def evaluate_run(
    state: StateOption = None,
    run: RunOption = None,
    manifest: ManifestOption = None,
    round_index: RoundOption = None,
    model: ModelOption = None,
    model_file: ModelFileOption = None,
    device: DeviceOption = "auto",
    windows: Annotated[
        int, typer.Option(help="Number of held-out windows; fewer are quicker and less exact.")
    ] = 1024,
    every: Annotated[bool, typer.Option("--all", help="Evaluate every kept checkpoint.")] = False,
    json: JsonOption = False,
) -> None:
    """Measure the loss on the held-out text of the run."""
    import trio

    from node.using.child import Listener, WeightsChoice, evaluate, find_source
    from protocol.errors import ConfigError

    if every and (round_index is not None or model is not None):
        raise ConfigError("--all takes every checkpoint: leave out --round and --model")
    source = find_source(
        WeightsChoice(
            state=state,
            run=run,
            manifest=manifest,
            round_index=round_index,
            model=model,
            model_file=model_file,
            device=device,
        )
    )
    with _progress() as (begin, tell):
        listener = Listener(weights=begin, passed_over=_warn)
        results = trio.run(partial(evaluate, source, windows, listener, tell, every=every))
    if json:
        rows = [_evaluated_json(result) for result in results]
        about = {"run": source.manifest.digest.hex(), "title": source.manifest.title}
        print_json(about | rows[-1] | {"checkpoints": rows})
    else:
        _print_table(results)


def _generate_text(source: "WeightsSource", wanted: "TextWanted") -> None:
    """The text to standard output as it comes, what it is of to standard error."""
    import trio

    from node.reporting.shown import shown
    from node.using.child import Listener, make_text
    from node.using.text_out import TextOut

    out = TextOut(sys.stdout.buffer)

    def begin(weights: "WeightsUsed") -> None:
        title = shown(source.manifest.title)
        _say(f"{title}, round {weights.round}, seed {wanted.sampling.seed}")
        out.write(wanted.prompt)

    listener = Listener(weights=begin, passed_over=_warn)
    trio.run(make_text, source, wanted, listener, lambda byte: out.write(bytes([byte])))
    out.end()


def _generate_json(source: "WeightsSource", wanted: "TextWanted") -> None:
    import trio

    from node.using.child import Listener, make_text

    made, used = bytearray(), list["WeightsUsed"]()
    listener = Listener(weights=used.append, passed_over=_warn)
    trio.run(make_text, source, wanted, listener, made.append)
    sampling = wanted.sampling
    print_json(
        _weights_json(used[-1])
        | {
            "run": source.manifest.digest.hex(),
            "title": source.manifest.title,
            "prompt": wanted.prompt.decode("utf-8", "replace"),
            "text": made.decode("utf-8", "replace"),
            "bytes": len(made),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
        }
    )


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _warn(reason: str) -> None:
    _say(f"barnraise: {reason}")


@contextmanager
def _progress() -> Iterator[tuple[Callable[["WeightsUsed"], None], Callable[[int, int], None]]]:
    """What draws a bar on standard error where that is a terminal, and nothing elsewhere."""
    from rich.progress import Progress

    from node.reporting.terminal import PeopleConsole

    with Progress(console=PeopleConsole(stderr=True), disable=not sys.stderr.isatty()) as progress:
        tasks = list["TaskID"]()

        def begin(weights: "WeightsUsed") -> None:
            tasks.append(progress.add_task(f"round {weights.round}", total=None))

        def tell(done: int, total: int) -> None:
            progress.update(tasks[-1], completed=done, total=total)

        yield begin, tell


def _print_table(results: Sequence["Evaluated"]) -> None:
    from rich.table import Table

    from node.reporting.terminal import PeopleConsole

    table = Table("round", "step", "tokens", "nats per byte", "bits per byte", "perplexity")
    for result in results:
        used = result.weights
        measured = (result.loss, result.bits_per_byte, result.perplexity)
        counts = (used.round, used.step, used.tokens)
        table.add_row(*(f"{n:,}" for n in counts), *(f"{x:.4f}" for x in measured))
    console = PeopleConsole()
    console.print(table)
    console.print(
        f"over {results[-1].num_bytes:,} held-out bytes in {results[-1].windows:,} windows"
    )


def _weights_json(used: "WeightsUsed") -> dict[str, object]:
    return {
        "round": used.round,
        "step": used.step,
        "tokens": used.tokens,
        "seal": used.seal,
        "parameters": used.parameters,
        "device": used.device,
    }


def _evaluated_json(result: "Evaluated") -> dict[str, object]:
    return _weights_json(result.weights) | {
        "loss": result.loss,
        "bits_per_byte": result.bits_per_byte,
        "perplexity": result.perplexity,
        "windows": result.windows,
        "bytes": result.num_bytes,
    }


def _written_json(written: "ExportedFile") -> dict[str, object]:
    provenance = written.provenance
    return {
        "path": str(written.path),
        "run": provenance.manifest.digest.hex(),
        "title": provenance.manifest.title,
        "model": provenance.manifest.model.name,
        "founder": provenance.about["founder"],
        "round": provenance.sealed_round,
        "step": provenance.clock.step,
        "tokens": provenance.clock.tokens,
        "seal": provenance.seal.hex(),
        "tensors": provenance.tensors.hex(),
        "parameters": written.parameters,
        "bytes": written.num_bytes,
    }
