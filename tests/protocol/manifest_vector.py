"""The manifest of the golden bytes, and who signs it."""

from protocol.grid import ShardSpec, TensorSpec
from protocol.identity import Ed25519Signer
from protocol.manifest import (
    WIRE_VERSION,
    CorpusSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunManifest,
    Setting,
    ThenSpec,
    TimingSpec,
)

SIGNER = Ed25519Signer(bytes(range(32)))

MANIFEST = RunManifest(
    wire=WIRE_VERSION,
    arithmetic=1,
    title="a barn - und Straße",
    founder=SIGNER.peer_id,
    created_unix_s=1_700_000_000,
    trust="friends",
    survive="any",
    rounds=40,
    model=ModelSpec(
        name="gpt",
        settings=(
            Setting("context", 64),
            Setting("dropout", 0.5),
            Setting("norm", "rms"),
            Setting("offset", -200),
            Setting("tied", True),
        ),
        seed=7,
    ),
    shards=(
        ShardSpec(
            "model",
            (TensorSpec("a", ()), TensorSpec("b", (300, 70_000)), TensorSpec("c", (5,))),
            ((0, 2), (1,)),
        ),
    ),
    cell_elements=1 << 18,
    corpus=CorpusSpec(
        name="stdlib",
        digest=bytes([0xC0]) * 32,
        training_blocks=900,
        held_out_blocks=100,
        document_blocks=7,
        block_bytes=65_536,
        token_bytes=2,
        vocab_size=50_000,
        held_out_tokens=300_000,
        held_out_text_bytes=1_234_567,
        shuffle_blocks=12,
        permutation_seed=11,
        tokenizer_digest=bytes([0x70]) * 32,
        probe_digest=bytes([0x71]) * 32,
    ),
    inner=InnerSpec(
        inner_steps=20,
        batch=16,
        learning_rate=0.003,
        learning_rate_floor=0.1,
        warmup_steps=40,
        beta1=0.9,
        beta2=0.95,
        weight_decay=0.1,
        clip_norm=1.0,
        drift_max=2,
    ),
    outer=OuterSpec(
        preset="diloco",
        codec="topk",
        codec_settings=(Setting("chunk", 1024), Setting("density", 0.0625)),
        feedback=0.5,
        aggregator="mean",
        optimizer="nesterov",
        learning_rate=0.7,
        momentum=0.5,
        overlap=1,
        then=(
            ThenSpec(
                preset="fedavg", from_round=25, optimizer="sgd", learning_rate=1.0, momentum=0.0
            ),
        ),
    ),
    timing=TimingSpec(deadline_floor_s=2.0, deadline_cap_s=60.0, heartbeat_s=0.5, suspect_s=2.5),
)
