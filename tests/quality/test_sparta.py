"""Q11 as far as SPARTA goes: between training alone and averaging all weights as often."""

import sys

import pytest
import torch

from sim.methods.compare_main import run_swarm, swarm_of
from tests.quality.toy import HELD_OUT_WINDOWS, dataset_of, toy, train_replica
from training.device.inner import validation_loss
from training.evaluation.yardstick import model_of
from training.loop.replicas import MemorySession
from training.models.building import tokens_per_sample

DENSITY = {"density": 0.25}
"""A run of 120 rounds is too short for one in twenty (below)."""


def losses(
    preset: str, seed: int, *, replicas: int = 4, **outer: object
) -> tuple[float, float, int]:
    """Nats per byte of the replicas' own weights, of the anchor; one replica's payload bytes."""
    torch.set_num_threads(1)
    manifest = toy(preset, seed=seed, inner_steps=5, **outer)  # type: ignore[arg-type]
    dataset = dataset_of(seed)
    held_out_BW = dataset.held_out_windows(HELD_OUT_WINDOWS, tokens_per_sample(manifest))
    own = []

    def train(session: MemorySession) -> None:
        own.append(train_replica(manifest, session))

    swarm = swarm_of(manifest, replicas)
    run_swarm(swarm, train)
    mean = sum(validation_loss(model, held_out_BW) for model in own) / replicas
    anchor = validation_loss(model_of(manifest, tuple(swarm.anchors)), held_out_BW)
    return mean, anchor, swarm.payload_bytes // replicas


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_q11_a_part_of_the_weights_averaged_is_between_none_and_all(seed: int) -> None:
    alone, _, _ = losses("local_sgd", seed, replicas=1)
    averaged, _, all_bytes = losses("local_sgd", seed)
    quarter, anchor, quarter_bytes = losses("sparta", seed, codec_settings=DENSITY)
    twentieth, _, twentieth_bytes = losses("sparta", seed)
    told = f"{alone=:.4f} {twentieth=:.4f} {quarter=:.4f} {averaged=:.4f} {anchor=:.4f}"
    sys.stdout.write(f"sparta, seed {seed}: {told}\n")
    assert averaged < quarter < twentieth < alone
    # More than half of what averaging gains, for a quarter of its bytes.
    assert alone - quarter > 0.5 * (alone - averaged)
    assert abs(anchor - quarter) < 0.02
    assert (quarter_bytes, twentieth_bytes) == pytest.approx(
        (all_bytes / 4, all_bytes / 20), rel=0.03
    )
