"""The yardstick process: measures a run's checkpoints, or trains one node alone to compare.

    python -P -m training.yardstick_main --manifest FILE --run DIGEST measure CHECKPOINT...
    python -P -m training.yardstick_main --manifest FILE --run DIGEST alone

A process of its own, so that the command line loads no torch. Every line of standard output is one
JSON object with a `kind`: "point" while it trains, and one "result" at the end. An error is one
line on standard error, and exit status 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.errors import BarnraiseError
from protocol.manifest import RunManifest
from training.child_process import (
    exit_when_stdin_closes,
    leave_interrupts_to_parent,
    set_thread_budget,
)
from training.data import Dataset, open_corpus
from training.manifest_file import read_manifest
from training.outer import make_outer
from training.state import load_checkpoint

if TYPE_CHECKING:
    from training.yardstick import Point

EXIT_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one measurement; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.child:
        leave_interrupts_to_parent()
        exit_when_stdin_closes()
    try:
        manifest = read_manifest(options.manifest, bytes.fromhex(options.run))
        dataset = open_corpus(manifest.corpus)
        set_thread_budget(options.threads)
        if options.command == "alone":
            _alone(manifest, dataset)
        else:
            prompt = options.prompt.encode()
            _measure(manifest, dataset, options.checkpoints, prompt, options.text_bytes)
    except (BarnraiseError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return EXIT_FAILED
    return 0


def _measure(
    manifest: RunManifest,
    dataset: Dataset,
    checkpoints: Sequence[Path],
    prompt: bytes,
    text_bytes: int,
) -> None:
    from training.evaluation import validation_loss
    from training.generation import sample_text
    from training.yardstick import genesis_loss, held_out, model_of

    slots = make_outer(manifest.outer).slots
    held_out_BW = held_out(manifest, dataset)
    results = []
    for path in checkpoints:
        checkpoint = load_checkpoint(path, manifest.shards[0], run=manifest.digest, slots=slots)
        model = model_of(manifest, checkpoint.state.anchors)
        result: dict[str, object] = {
            "path": str(path),
            "round": checkpoint.meta.clock.round,
            "loss": validation_loss(model, held_out_BW),
            "text": sample_text(manifest, model, prompt, text_bytes),
        }
        results.append(result)
    _say(
        "result",
        loss_first=genesis_loss(manifest, dataset),
        loss_last=results[-1]["loss"],
        text=results[-1]["text"],
        checkpoints=results,
    )


def _alone(manifest: RunManifest, dataset: Dataset) -> None:
    from training.evaluation import validation_loss
    from training.yardstick import held_out, train_alone

    points: list[tuple[int, float]] = []

    def show(point: "Point") -> None:
        points.append((point.step, point.loss))
        _say("point", step=point.step, loss=point.loss, steps=manifest.total_inner_steps)

    model = train_alone(manifest, dataset, show)
    loss = validation_loss(model, held_out(manifest, dataset))
    _say("result", loss_alone=loss, points=points)


def _say(kind: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="training.yardstick_main",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--manifest", type=Path, required=True, help="the signed manifest")
    parser.add_argument("--run", required=True, help="its digest, hexadecimal")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument(
        "--child", action="store_true", help="end when standard input closes; ignore Ctrl+C"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("alone", help="train one node for all steps of the run")
    measure = commands.add_parser("measure", help="losses, and text from the last checkpoint")
    measure.add_argument("checkpoints", type=Path, nargs="+", help="folders, oldest first")
    measure.add_argument("--prompt", default="def ")
    measure.add_argument("--text-bytes", type=int, default=200)
    return parser


if __name__ == "__main__":
    sys.exit(main())
