"""The run that the demo trains: every number of its manifest, in one place."""

import time
from pathlib import Path

from node.demo.options import DemoOptions
from node.state.folder import mark_unsigned
from node.state.keystore import load_or_create_identity
from protocol.identity import PeerId
from protocol.manifest import (
    ARITHMETIC_VERSION,
    WIRE_VERSION,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunManifest,
    Setting,
    TimingSpec,
    sign_manifest,
)
from protocol.wire import encode
from training.data.corpus import pin_corpus
from training.models.genesis import shard_spec

CORPUS = "stdlib"

# Some 120 000 parameters: a node on half a core ends a round in about a second.
MODEL = (
    Setting("context", 64),
    Setting("heads", 4),
    Setting("layers", 2),
    Setting("width", 64),
)

INNER = InnerSpec(
    inner_steps=20,
    batch=16,
    learning_rate=0.008,
    learning_rate_floor=0.1,
    warmup_steps=120,
    beta1=0.9,
    beta2=0.99,
    weight_decay=0.1,
    clip_norm=1.0,
    drift_max=2,
)

# With fewer than some 50 rounds an outer momentum of 0.9 is no better than one node alone.
OUTER = OuterSpec(
    preset="diloco",
    codec="fp16",
    feedback=1.0,
    aggregator="mean",
    optimizer="nesterov",
    learning_rate=0.7,
    momentum=0.5,
    overlap=1,
)

# Eight cells, so that every node is the reducer of some.
CELL_ELEMENTS = 16_384

TIMING = TimingSpec(deadline_floor_s=3.0, deadline_cap_s=20.0, heartbeat_s=0.5, suspect_s=4.0)


def demo_manifest(options: DemoOptions, founder: PeerId) -> RunManifest:
    """The manifest of one demo. Raises CorpusError where this Python lacks its library sources."""
    model = ModelSpec(name="gpt", settings=MODEL, seed=options.seed)
    return RunManifest(
        wire=WIRE_VERSION,
        arithmetic=ARITHMETIC_VERSION,
        title="barnraise demo",
        founder=founder,
        created_unix_s=int(time.time()),
        trust="friends",
        survive="any",
        rounds=options.rounds,
        model=model,
        shards=(shard_spec(model),),
        cell_elements=CELL_ELEMENTS,
        corpus=pin_corpus(CORPUS, permutation_seed=options.seed),
        inner=INNER,
        outer=OUTER,
        timing=TIMING,
    )


def found_run(options: DemoOptions, *, state: Path, manifest_path: Path) -> RunManifest:
    """Make the founder's key in its state folder, and the signed manifest as a file for all."""
    signer = load_or_create_identity(state)
    manifest = demo_manifest(options, signer.peer_id)
    mark_unsigned(state, manifest.digest)
    manifest_path.write_bytes(encode(sign_manifest(manifest, signer)))
    return manifest
