"""The process that trains one preset for `barnraise compare`: all replicas of a run, in threads.

    python -P -m sim.methods.compare_main --manifest FILE --run DIGEST --peers 4

Every line of standard output is one JSON object: "point" while it trains, one "result" at the end.
An error is one line on standard error, and exit status 1.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from protocol.manifest import RunManifest
from sim.methods.compass import CompassSwarm
from sim.methods.gossip import MIXINGS, AcidSwarm, Corrected, GossipSwarm, NoLoCoSwarm
from sim.methods.virtual_swarm import (
    AsyncSwarm,
    Polynomial,
    SampledSwarm,
    VirtualSwarm,
    fedbuff_weights,
    fedfix_weights,
)
from training.data.sampling import Dataset
from training.evaluation.measuring import measure, measuring_parser, say
from training.loop.replicas import MemorySession, Swarm, run_replicas
from training.methods.presets import PRESETS

T = TypeVar("T")

# The in-process swarm of each preset --------------------------------------------------------------

SPEEDS = (1.0, 1.0, 2.0, 4.0)
"""Of replicas, in turn, where some are faster (Q9)."""

_MIXING_OF: Mapping[str, str] = {
    "gossip": "pairwise",
    "gossip_corrected": "pairwise",
    "gossip_ring": "ring",
    "gossip_multi_step": "multi_step",
    "gossip_accelerated": "accelerated",
    "dfedsam": "multi_step",
}


def swarm_of(manifest: RunManifest, replicas: int) -> Swarm:
    """The swarm that trains this run, none of its rounds kept but the last."""
    name = manifest.outer.preset
    if name in _MIXING_OF:
        mixing = MIXINGS[_MIXING_OF[name]]()
        if name == "gossip_corrected":
            mixing = Corrected(mixing, manifest.shards[0].tensors)
        return GossipSwarm(manifest, replicas, rounds_kept=1, mixing=mixing)
    if name == "noloco":
        return NoLoCoSwarm(manifest, replicas, rounds_kept=1)
    if name == "acid":
        return AcidSwarm(manifest, replicas, rounds_kept=1)
    if name == "fedcompass":
        steps = manifest.inner.inner_steps
        step_s = tuple(taken_s / steps for taken_s in _round_seconds(replicas))
        return CompassSwarm(manifest, replicas, step_s=step_s)
    if name == "modest":
        return SampledSwarm(manifest, replicas, size=max(1, replicas // 2))
    if name in ("fedbuff", "fedfix"):
        return _asynchronous(manifest, replicas, name)
    return Swarm(manifest, replicas, rounds_kept=1)


def _round_seconds(replicas: int) -> tuple[float, ...]:
    """What each takes for H steps; the slowest a second."""
    return tuple(1.0 / SPEEDS[replica % len(SPEEDS)] for replica in range(replicas))


def _asynchronous(manifest: RunManifest, replicas: int, name: str) -> AsyncSwarm:
    seconds = _round_seconds(replicas)
    shares = [1.0 / replicas] * replicas
    if name == "fedfix":
        # Half a round of the slowest: others come once or twice in it.
        interval_s = max(seconds) / 2
        weights = fedfix_weights(shares, seconds, interval_s)
        return AsyncSwarm(
            manifest, replicas, seconds=seconds, weights=weights, interval_s=interval_s
        )
    size = max(1, replicas // 2)
    weights = fedbuff_weights(shares, seconds, size)
    return AsyncSwarm(
        manifest,
        replicas,
        seconds=seconds,
        weights=weights,
        size=size,
        staleness=Polynomial(),
    )


def run_swarm(swarm: Swarm, train: Callable[[MemorySession], T]) -> None:
    """`train(session)` for every replica, until the run is over; the first failure is raised."""
    if isinstance(swarm, VirtualSwarm):
        swarm.conducted(train)
    else:
        run_replicas(swarm, train)


# The process --------------------------------------------------------------------------------------

POINTS = 24
"""Of the curve; a validation costs as much as some ten steps."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train one run; returns the exit status."""
    options = _parser().parse_args(arguments)
    # Replicas are threads; with threads of its own each, torch is many times slower.
    return measure(options, 1, lambda manifest, dataset: _train(manifest, dataset, options))


def _train(manifest: RunManifest, dataset: Dataset, options: argparse.Namespace) -> None:
    from training.device.inner import (
        accumulate_gradient,
        finite_loss,
        make_optimizer,
        validation_loss,
    )
    from training.evaluation.yardstick import held_out, model_of
    from training.loop.diloco import DiLoCo
    from training.loop.idle_validation import VALIDATION_WINDOWS
    from training.loop.replicas import MemorySession, Weights
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
