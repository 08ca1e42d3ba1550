"""The process that trains one preset for `barnraise compare`: all replicas of a run, in threads.

    python -P -m sim.methods.compare_main --manifest FILE --run DIGEST --peers 4

Every line of standard output is one JSON object: "point" while it trains, one "result" at the end.
An error is one line on standard error, and exit status 1.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from protocol.manifest import RunManifest
from training.data.corpus import Dataset
from training.evaluation.measuring import measure, measuring_parser, say
from training.methods.presets import PRESETS

POINTS = 24
"""Of the curve; a validation costs as much as some ten steps."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train one run; returns the exit status."""
    options = _parser().parse_args(arguments)
    # Replicas are threads; with threads of its own each, torch is many times slower.
    return measure(options, 1, lambda manifest, dataset: _train(manifest, dataset, options))


def _train(manifest: RunManifest, dataset: Dataset, options: argparse.Namespace) -> None:
    from sim.methods.swarms import run_swarm, swarm_of
    from training.device.inner import (
        accumulate_gradient,
        finite_loss,
        make_optimizer,
        validation_loss,
    )
    from training.evaluation.yardstick import held_out, model_of
    from training.loop.diloco import DiLoCo
    from training.loop.replicas import MemorySession, Weights
    from training.loop.trainer_loop import VALIDATION_WINDOWS
    from training.models.building import build_model, read_fragment, tokens_per_sample

    peers, model_file = options.peers, options.model_file
    swarm = swarm_of(manifest, peers)
    inner, context = manifest.inner, tokens_per_sample(manifest)
    curve_BW = dataset.held_out_windows(VALIDATION_WINDOWS, context)
    every = max(1, manifest.rounds // POINTS)
    began_s, aside_s, told = time.monotonic(), 0.0, 0
    own: list[list[Weights]] = []

    def tell(loss: float) -> None:
        say(
            "point",
            step=swarm.clock.step,
            loss=loss,
            payload_bytes=swarm.payload_bytes // peers,
            wall_s=round(time.monotonic() - began_s - aside_s, 3),
        )

    def train(session: MemorySession) -> None:
        nonlocal aside_s, told
        model = build_model(manifest, model_file=model_file)
        optimizer = make_optimizer(model, inner)
        diloco = DiLoCo(model, optimizer, exchange=session)
        while not diloco.finished:
            ((first, _),) = diloco.lease
            samples_B = np.arange(first, first + inner.batch) + diloco.local_step * inner.batch
            windows_BW = dataset.windows(samples_B, context)
            loss = accumulate_gradient(model, optimizer, windows_BW, sam_radius=inner.sam_radius)
            is_sealed = diloco.step(loss) is not None
            # Where replicas are drawn, the first is not there in every round.
            if is_sealed and session.replica == 0 and diloco.clock.round >= told + every:
                # The others train on meanwhile, and wait at the end of the round.
                told = diloco.clock.round - diloco.clock.round % every
                looked_s = time.monotonic()
                tell(validation_loss(model, curve_BW))
                aside_s += time.monotonic() - looked_s
        shard = manifest.shards[0]
        own.append([read_fragment(model, shard, f) for f in range(len(shard.fragments))])

    tell(validation_loss(build_model(manifest, model_file=model_file), curve_BW))
    run_swarm(swarm, train)
    wall_s = time.monotonic() - began_s - aside_s
    held_out_BW = held_out(manifest, dataset)
    # The anchor of replicas with weights of their own has elements of many rounds.
    has_own = PRESETS[manifest.outer.preset](manifest.rounds).has_own_weights
    finals = own if has_own else swarm.finals()
    models = [model_of(manifest, tuple(weights), model_file=model_file) for weights in finals]
    losses = [finite_loss(model, held_out_BW, 64) for model in models]
    say(
        "result",
        loss=sum(losses) / len(losses),
        payload_bytes=swarm.payload_bytes // peers,
        result_bytes=swarm.result_bytes,
        rounds=swarm.clock.round,
        steps=swarm.clock.step,
        wall_s=round(wall_s, 3),
    )


def _parser() -> argparse.ArgumentParser:
    parser = measuring_parser("sim.methods.compare_main", __doc__)
    parser.add_argument("--peers", type=int, required=True, help="number of replicas")
    parser.add_argument(
        "--model-file", type=Path, help="the model file of the run, if its manifest names one"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
