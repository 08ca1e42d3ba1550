"""The small run that every laboratory begins from: every number of its manifest, in one place."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from node.settings.run_file import topology_for
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
    ThenSpec,
    TimingSpec,
    sign_manifest,
)
from protocol.wire import encode
from training.compression import codec_defaults
from training.data.corpus import pin_corpus
from training.methods.presets import PRESETS, Preset
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


def small_manifest(title: str, founder: PeerId, *, rounds: int, seed: int) -> RunManifest:
    """A run among friends. Raises CorpusError where this Python lacks its library sources."""
    model = ModelSpec(name="gpt", settings=MODEL, seed=seed)
    return RunManifest(
        wire=WIRE_VERSION,
        arithmetic=ARITHMETIC_VERSION,
        title=title,
        founder=founder,
        created_unix_s=int(time.time()),
        trust="friends",
        survive="any",
        rounds=rounds,
        model=model,
        shards=(shard_spec(model),),
        cell_elements=CELL_ELEMENTS,
        corpus=pin_corpus(CORPUS, permutation_seed=seed),
        inner=INNER,
        outer=OUTER,
        timing=TIMING,
    )


def sign_run(
    make: Callable[[PeerId], RunManifest], state: Path, manifest_path: Path
) -> RunManifest:
    """Make the founder's key in its state folder, and the signed manifest as a file for all."""
    signer = load_or_create_identity(state)
    manifest = make(signer.peer_id)
    mark_unsigned(state, manifest.digest)
    manifest_path.write_bytes(encode(sign_manifest(manifest, signer)))
    return manifest


def outer_spec(name: str, preset: Preset) -> OuterSpec:
    """A preset as a founder writes it out, among friends."""
    settings = {**codec_defaults(preset.codec), **preset.codec_settings}
    spec = OuterSpec(
        preset=name,
        codec=preset.codec,
        codec_settings=tuple(Setting(key, settings[key]) for key in sorted(settings)),
        feedback=preset.feedback,
        aggregator=preset.aggregator or "mean",
        optimizer=preset.optimizer,
        learning_rate=preset.learning_rate,
        momentum=preset.momentum,
        overlap=preset.overlap,
    )
    return replace(spec, topology=topology_for(spec, "friends"))


def with_then(outer: OuterSpec, name: str, from_round: int, rounds: int) -> OuterSpec:
    """The same run with another preset's method from a round on, as a founder writes it out."""
    later = PRESETS[name](rounds)
    then = ThenSpec(
        preset=name,
        from_round=from_round,
        optimizer=later.optimizer,
        learning_rate=later.learning_rate,
        momentum=later.momentum,
    )
    return replace(outer, overlap=max(outer.overlap, later.overlap), then=(then,))
