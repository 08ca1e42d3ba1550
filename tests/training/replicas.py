"""A small manifest for replicas in one process (`training.loop.replicas`), and their text."""

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.identity import PeerId
from protocol.manifest import (
    WIRE_VERSION,
    CorpusSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunManifest,
    Setting,
    TimingSpec,
)
from training.models.genesis import shard_spec

# Replicas are threads here; with threads of its own each, torch is many times slower.
torch.set_num_threads(1)


INNER = InnerSpec(
    inner_steps=10,
    batch=4,
    learning_rate=0.003,
    learning_rate_floor=0.1,
    warmup_steps=5,
    beta1=0.9,
    beta2=0.95,
    weight_decay=0.1,
    clip_norm=1.0,
    drift_max=2,
)
OUTER = OuterSpec(
    preset="diloco",
    codec="none",
    feedback=1.0,
    aggregator="mean",
    optimizer="nesterov",
    learning_rate=0.7,
    momentum=0.5,
    overlap=1,
)


def small_manifest(*, inner: InnerSpec = INNER, outer: OuterSpec = OUTER) -> RunManifest:
    """Five rounds of a GPT with some 7 000 parameters in two cells."""
    settings = (Setting("context", 8), Setting("heads", 2), Setting("layers", 1))
    model = ModelSpec(name="gpt", settings=(*settings, Setting("width", 16)), seed=5)
    return RunManifest(
        wire=WIRE_VERSION,
        arithmetic=1,
        title="replicas in one process",
        founder=PeerId(bytes(32)),
        created_unix_s=0,
        trust="friends",
        survive="any",
        rounds=5,
        model=model,
        shards=(shard_spec(model),),
        cell_elements=4096,
        corpus=CorpusSpec(
            name="random",
            digest=bytes(32),
            training_blocks=1,
            held_out_blocks=1,
            document_blocks=0,
            block_bytes=1024,
            token_bytes=1,
            vocab_size=256,
            held_out_tokens=1024,
            held_out_text_bytes=1024,
            shuffle_blocks=1,
            permutation_seed=0,
        ),
        inner=inner,
        outer=outer,
        timing=TimingSpec(
            deadline_floor_s=1.0, deadline_cap_s=60.0, heartbeat_s=1.0, suspect_s=5.0
        ),
    )


def random_windows(seed: int, steps: int, batch: int = 4, window: int = 9) -> NDArray[np.uint8]:
    """(steps, batch, window) random bytes."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, size=(steps, batch, window), dtype=np.uint8)
