"""The yardstick process: measures a run's checkpoints, or trains one node alone to compare.

    python -P -m training.yardstick_main --manifest FILE --run DIGEST measure CHECKPOINT...
    python -P -m training.yardstick_main --manifest FILE --run DIGEST alone

A process of its own, so that the command line loads no torch. Every line of standard output is one
JSON object with a `kind`: "point" while it trains, and one "result" at the end. An error is one
line on standard error, and exit status 1.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.manifest import RunManifest
from training.data.sampling import Dataset
from training.evaluation.measuring import measure, measuring_parser, say
from training.files.state import load_checkpoint
from training.outer.optimizers import make_outer

if TYPE_CHECKING:
    from training.evaluation.yardstick import Point


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one measurement; returns the exit status."""
    options = _parser().parse_args(arguments)

    def work(manifest: RunManifest, dataset: Dataset) -> None:
        if options.command == "alone":
            _alone(manifest, dataset)
        else:
            prompt = options.prompt.encode()
            _measure(manifest, dataset, options.checkpoints, prompt, options.text_bytes)

    return measure(options, options.threads, work)


def _measure(
    manifest: RunManifest,
    dataset: Dataset,
    checkpoints: Sequence[Path],
    prompt: bytes,
    text_bytes: int,
) -> None:
    from training.device.inner import validation_loss
    from training.evaluation.yardstick import curve_sample, genesis_loss, model_of, sample_text

    slots = make_outer(manifest.outer).slots
    held_out_BW = curve_sample(manifest, dataset)
    results = []
    for path in checkpoints:
        checkpoint = load_checkpoint(path, manifest.shards[0], run=manifest.digest, slots=slots)
        model = model_of(manifest, checkpoint.state.anchors)
        result: dict[str, object] = {
            "path": str(path),
            "round": checkpoint.meta.clock.round,
            "tokens": checkpoint.meta.clock.tokens,
            "loss": validation_loss(model, held_out_BW),
            "text": sample_text(manifest, model, prompt, text_bytes),
        }
        results.append(result)
    say(
        "result",
        loss_first=genesis_loss(manifest, dataset),
        loss_last=results[-1]["loss"],
        text=results[-1]["text"],
        checkpoints=results,
    )


def _alone(manifest: RunManifest, dataset: Dataset) -> None:
    from training.device.inner import validation_loss
    from training.evaluation.yardstick import curve_sample, train_alone

    points: list[tuple[int, float]] = []

    def show(point: "Point") -> None:
        points.append((point.step, point.loss))
        say("point", step=point.step, loss=point.loss, steps=manifest.total_inner_steps)

    model = train_alone(manifest, dataset, show)
    loss = validation_loss(model, curve_sample(manifest, dataset))
    say("result", loss_alone=loss, points=points)


def _parser() -> argparse.ArgumentParser:
    parser = measuring_parser("training.yardstick_main", __doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("alone", help="train one node for all steps of the run")
    measure = commands.add_parser(
        "measure", help="measure the losses of checkpoints, and generate text from the last one"
    )
    measure.add_argument("checkpoints", type=Path, nargs="+", help="folders, oldest first")
    measure.add_argument("--prompt", default="def ")
    measure.add_argument("--text-bytes", type=int, default=200)
    return parser


if __name__ == "__main__":
    sys.exit(main())
