"""The process behind `barnraise generate` and `barnraise eval`: a run's weights, put to use.

    python -P -m training.use_main --run DIGEST --manifest FILE --checkpoints FOLDER generate ...
    python -P -m training.use_main --run DIGEST --model FILE.safetensors eval ...

A process of its own, so that the command line loads no torch. Every line of standard output is one
JSON object with a `kind`: "weights" for each set that is used, "passed over" for a checkpoint that
is not whole, "byte", "progress" and "loss" while it works, "error" where it ends with exit status 1
for a reason that the user can be told.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BarnraiseError, ConfigError, StateError
from protocol.manifest import RunManifest
from training.channel.child_process import (
    exit_when_stdin_closes,
    leave_interrupts_to_parent,
    set_thread_budget,
)
from training.channel.exchange import RunClock
from training.channel.frames import failure_frame
from training.channel.manifest_file import open_known_manifest, read_manifest
from training.data.corpus import open_corpus
from training.evaluation import Sampling
from training.evaluation.writing import TextWriter, run_tokenizer
from training.files.exported import read_provenance, read_tensors, require_whole_model
from training.files.state import every_whole, newest_whole
from training.numeric import Tokens

if TYPE_CHECKING:
    from torch import nn

    from training.device.device import Device

EXIT_FAILED = 1

_BATCH_WINDOWS = 64
"""Held-out windows that go through the model at once, while memory lasts."""


class Say(Protocol):
    """Writes one line."""

    def __call__(self, kind: str, **fields: object) -> None:
        """An object of that kind with these fields."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Flat anchors by fragment, the clock of the round that starts from them, and their seal."""

    anchors: tuple[NDArray[np.float32], ...]
    clock: RunClock
    seal: bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one task; returns the exit status."""
    options = _parser().parse_args(arguments)
    leave_interrupts_to_parent()
    exit_when_stdin_closes()
    say = _own_output()
    try:
        use = Use(options, say)
        if options.command == "generate":
            use.generate()
        else:
            use.evaluate()
    except (BarnraiseError, OSError) as error:
        told = error if isinstance(error, BarnraiseError) else StateError(str(error))
        failed = failure_frame(told)
        say("error", error=failed.kind, message=failed.message, field=failed.field)
        return EXIT_FAILED
    return 0


def _own_output() -> Say:
    """Standard output for us alone: what a model file prints goes to standard error instead."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def say(kind: str, **fields: object) -> None:
        out.write(json.dumps({"kind": kind, **fields}) + "\n")
        out.flush()

    return say


class Use:
    """One task on one run's weights. torch is loaded when nothing cheaper can go wrong any more."""

    def __init__(self, options: argparse.Namespace, say: Say) -> None:
        self._options = options
        self._say = say

    def generate(self) -> None:
        """Continue the prompt. Raises BarnraiseError for weights that cannot be used."""
        options = self._options
        sampling = Sampling(seed=options.seed, temperature=options.temperature, top_k=options.top_k)
        manifest, found = self._open()
        (weights,) = found
        device = self._load_torch()
        from training.device.inner import is_out_of_memory
        from training.evaluation.yardstick import generate

        writer = TextWriter(run_tokenizer(manifest.corpus, options.corpus))
        prompt = writer.read(bytes.fromhex(options.prompt_hex))
        try:
            model = self._model(manifest, weights, device)
            told = 0
            # A token is at least one byte of text, but for those that are none.
            for token in generate(model, prompt, options.bytes, sampling):
                for byte in writer.write(token)[: options.bytes - told]:
                    self._say("byte", value=byte)
                    told += 1
                if told == options.bytes:
                    break
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise _memory_error(device) from error

    def evaluate(self) -> None:
        """Measure the held-out loss. Raises BarnraiseError for weights that cannot be used."""
        manifest, found = self._open()
        # Another text is what goes wrong most often.
        dataset = open_corpus(manifest.corpus, self._options.corpus)
        device = self._load_torch()
        from training.models.building import tokens_per_sample

        context = tokens_per_sample(manifest)
        held_out_BW = dataset.held_out_windows(self._options.windows, context)
        windows = len(held_out_BW)
        for weights in found:
            loss = self._loss(self._model(manifest, weights, device), held_out_BW, device)
            self._say("loss", loss=loss, windows=windows, tokens=windows * context)

    def _load_torch(self) -> "Device":
        set_thread_budget(self._options.threads)
        from training.device.device import open_device

        return open_device(self._options.device)

    def _loss(self, model: "nn.Module", held_out_BW: Tokens, device: "Device") -> float:
        from training.device.inner import finite_loss, is_out_of_memory

        def tell(done: int) -> None:
            self._say("progress", done=done, total=len(held_out_BW))

        batch_windows = _BATCH_WINDOWS
        while True:
            try:
                return finite_loss(model, held_out_BW, batch_windows, tell=tell)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if batch_windows == 1:
                    raise _memory_error(device) from error
            # Out here the error is gone, and with it its frames, which held the activations.
            device.free_cache()
            batch_windows //= 2

    def _open(self) -> tuple[RunManifest, Iterator[Weights]]:
        """The run's manifest, and the weights to use one after the other."""
        options = self._options
        run = bytes.fromhex(options.run)
        if options.model is not None:
            open_signed = partial(open_known_manifest, run=run)
            manifest = read_provenance(options.model, open_signed).manifest
            found = _exported(options.model, run)
        else:
            manifest = read_manifest(options.manifest, run)
            found = self._checkpoints(manifest)
        require_whole_model(manifest)
        return manifest, found

    def _checkpoints(self, manifest: RunManifest) -> Iterator[Weights]:
        def pass_over(reason: str) -> None:
            self._say("passed over", reason=reason)

        folder, round_index = self._options.checkpoints, self._options.round
        found = (
            every_whole(folder, manifest, pass_over)
            if self._options.all
            else iter([newest_whole(folder, manifest, pass_over, round_index=round_index)])
        )
        for checkpoint in found:
            meta = checkpoint.meta
            yield Weights(anchors=checkpoint.state.anchors, clock=meta.clock, seal=meta.seal)

    def _model(self, manifest: RunManifest, weights: Weights, device: "Device") -> "nn.Module":
        """Tells which weights these are, and makes the model of them on the device."""
        from training.evaluation.yardstick import model_of

        clock = weights.clock
        model = model_of(manifest, weights.anchors, model_file=self._options.model_file)
        self._say(
            "weights",
            round=clock.round - 1,
            step=clock.step,
            tokens=clock.tokens,
            seal=weights.seal.hex(),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            device=device.name,
        )
        return model.to(device.torch_device)


def _memory_error(device: "Device") -> ConfigError:
    return ConfigError(
        f"{device.name} has too little free memory for this model: end other programs that use it, "
        "or choose another device with --device"
    )


def _exported(path: Path, run: bytes) -> Iterator[Weights]:
    # Read once more: so the tensors are held against the header that they stand behind.
    provenance = read_provenance(path, partial(open_known_manifest, run=run))
    anchors = read_tensors(path, provenance)
    yield Weights(anchors=anchors, clock=provenance.clock, seal=provenance.seal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="training.use_main",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", required=True, help="digest of the manifest, hexadecimal")
    parser.add_argument("--manifest", type=Path, help="the signed manifest of the run")
    parser.add_argument("--checkpoints", type=Path, help="folder of a run's checkpoints")
    parser.add_argument(
        "--round", type=int, help="use the weights that this round sealed; by default the newest"
    )
    parser.add_argument(
        "--all", action="store_true", help="evaluate every checkpoint, oldest first"
    )
    parser.add_argument("--model", type=Path, help="read an exported file in place of checkpoints")
    parser.add_argument(
        "--model-file", type=Path, help="the model file of the run, if its manifest names one"
    )
    parser.add_argument("--corpus", type=Path, help="the token store of the run's text")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="generate text byte by byte")
    generate.add_argument(
        "--prompt-hex", default="", help="bytes for the model to continue, hexadecimal"
    )
    generate.add_argument("--bytes", type=int, required=True)
    generate.add_argument("--temperature", type=float, required=True)
    generate.add_argument("--top-k", type=int, required=True)
    generate.add_argument("--seed", type=int, required=True)
    evaluate = commands.add_parser("eval", help="measure the loss on held-out text")
    evaluate.add_argument("--windows", type=int, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
