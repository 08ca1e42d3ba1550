"""`barnraise export`, `barnraise generate`, `barnraise eval`: what was trained, put to use."""

import dataclasses
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import (
    ForceOption,
    JsonOption,
    RunChoice,
    app,
    grouped,
    print_json,
    progress_bars,
    say,
)

if TYPE_CHECKING:
    from node.using.child import Evaluated, TextWanted, WeightsSource, WeightsUsed
    from node.using.run_on_disk import ExportedFile

RoundOption = Annotated[
    int | None,
    typer.Option("--round", help="Use the weights that this round sealed; by default the newest."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOptions(RunChoice):
    """Options that name weights, and where to compute with them."""

    round_index: RoundOption = None
    model: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Read the weights from a file written by `barnraise export` in place of a state"
                " folder."
            )
        ),
    ] = None
    model_file: Annotated[
        Path | None, typer.Option(help="The model file of the run, if its manifest names one.")
    ] = None
    corpus: Annotated[
        Path | None,
        typer.Option(help="The token store of the run, if its text is the founder's."),
    ] = None
    device: Annotated[
        str, typer.Option(help="Device to compute on: auto, cpu, cuda, cuda:N or mps.")
    ] = "auto"

    def source(self) -> "WeightsSource":
        """Those weights. Raises ConfigError and CheckpointError saying what to do."""
        from node.using.child import WeightsChoice, find_source

        return find_source(WeightsChoice(**dataclasses.asdict(self)))


@app.command()
@grouped
def export(
    *,
    choice: RunChoice,
    round_index: RoundOption = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.safetensors"),
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a run's weights to one safetensors file that records their origin."""
    from node.using.run_on_disk import export_run

    written = export_run(choice.find(), out, _warn, round_index=round_index, force=force)
    _tell_age(written.provenance.sealed_round, written.newest_round)
    if json:
        print_json(_written_json(written))
        return
    size = f"{written.parameters:,} parameters, {written.num_bytes:,} bytes"
    sys.stdout.write(
        f"{written.path}: what round {written.provenance.sealed_round} sealed, {size}\n"
    )


@app.command()
@grouped
def generate(
    *,
    weights: WeightsOptions,
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
    from node.using.child import TextWanted
    from training.evaluation import Sampling

    source = weights.source()
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
@grouped
def evaluate_run(
    *,
    weights: WeightsOptions,
    windows: Annotated[
        int, typer.Option(help="Number of held-out windows; fewer are quicker and less exact.")
    ] = 1024,
    every: Annotated[bool, typer.Option("--all", help="Evaluate every kept checkpoint.")] = False,
    json: JsonOption = False,
) -> None:
    """Measure the loss on the held-out text of the run."""
    import trio

    from node.using.child import Listener, evaluate
    from protocol.errors import ConfigError

    if every and (weights.round_index is not None or weights.model is not None):
        raise ConfigError("--all takes every checkpoint: leave out --round and --model")
    source = weights.source()
    with progress_bars() as (begin, tell):
        listener = Listener(weights=lambda w: begin(f"round {w.round}"), passed_over=_warn)
        results = trio.run(partial(evaluate, source, windows, listener, tell, every=every))
    _tell_age(results[-1].weights.round, source.newest_round)
    if json:
        rows = [_evaluated_json(result) for result in results]
        about = {
            "run": source.manifest.digest.hex(),
            "title": source.manifest.title,
            "newest_round": source.newest_round,
        }
        print_json(about | rows[-1] | {"checkpoints": rows})
    else:
        _print_table(results)


def _generate_text(source: "WeightsSource", wanted: "TextWanted") -> None:
    """The text to standard output as it comes, what it is of to standard error."""
    import trio

    from node.text.shown import TextOut, shown
    from node.using.child import Listener, make_text

    out = TextOut(sys.stdout.buffer)

    def begin(weights: "WeightsUsed") -> None:
        title = shown(source.manifest.title)
        say(f"{title}, round {weights.round}, seed {wanted.sampling.seed}")
        _tell_age(weights.round, source.newest_round)
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
        dataclasses.asdict(used[-1])
        | {
            "run": source.manifest.digest.hex(),
            "title": source.manifest.title,
            "newest_round": source.newest_round,
            "prompt": wanted.prompt.decode("utf-8", "replace"),
            "text": made.decode("utf-8", "replace"),
            "bytes": len(made),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
        }
    )


def _tell_age(sealed_round: int, newest_round: int | None) -> None:
    from node.using.run_on_disk import age_text

    if text := age_text(sealed_round, newest_round):
        _warn(text)


def _warn(reason: str) -> None:
    say(f"barnraise: {reason}")


def _print_table(results: Sequence["Evaluated"]) -> None:
    from rich.table import Table

    from node.text.terminal import PeopleConsole

    table = Table("round", "step", "tokens", "nats per token", "bits per byte", "perplexity")
    for result in results:
        used = result.weights
        measured = (result.loss, result.bits_per_byte, result.perplexity)
        counts = (used.round, used.step, used.tokens)
        table.add_row(*(f"{n:,}" for n in counts), *(f"{x:.4f}" for x in measured))
    console = PeopleConsole()
    console.print(table)
    console.print(
        f"over {results[-1].num_tokens:,} held-out tokens in {results[-1].windows:,} windows"
    )


def _evaluated_json(result: "Evaluated") -> dict[str, object]:
    return dataclasses.asdict(result.weights) | {
        "loss": result.loss,
        "bits_per_byte": result.bits_per_byte,
        "perplexity": result.perplexity,
        "windows": result.windows,
        "held_out_tokens": result.num_tokens,
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
        "newest_round": written.newest_round,
    }
