"""The run that a world plays through: a small vector instead of a model, the shipped rules."""

import math
from dataclasses import replace

from protocol.grid import ShardSpec, TensorSpec
from protocol.identity import PeerId
from protocol.manifest import (
    ARITHMETIC_VERSION,
    WIRE_VERSION,
    CorpusSpec,
    ModelSpec,
    RunManifest,
    Setting,
    StopSpec,
    TimingSpec,
)
from sim.processes.recipe import INNER, OUTER

CELL_ELEMENTS = 1024
_SHORT_BY = 100
"""The last cell is not full: what counts on equal cells is to show it."""


CREATED_UNIX_S = 1_700_000_000


def toy_run(
    founder: PeerId,
    *,
    rounds: int,
    cells: int | tuple[int, ...],
    timing: TimingSpec,
    ends_after_s: float = 0.0,
    trust: str = "friends",
) -> RunManifest:
    """The manifest of a run over `cells` cells of one tensor, or so many of each of some that are
    synced in turn; 0 s stands for no date of its end."""
    counts = cells if isinstance(cells, tuple) else (cells,)
    # Of one fragment the tensor is called as ever; no two fragments are of equal size.
    names = ["w"] if len(counts) == 1 else [f"w{number:04}" for number in range(len(counts))]
    tensors = tuple(
        TensorSpec(name, (count * CELL_ELEMENTS - _SHORT_BY - number,))
        for number, (name, count) in enumerate(zip(names, counts, strict=True))
    )
    fragments = tuple((number,) for number in range(len(counts)))
    return RunManifest(
        wire=WIRE_VERSION,
        arithmetic=ARITHMETIC_VERSION,
        title="simulated",
        founder=founder,
        created_unix_s=CREATED_UNIX_S,
        trust=trust,
        survive="any",
        rounds=rounds,
        model=ModelSpec(name="gpt", settings=(Setting("width", 3),), seed=0),
        shards=(ShardSpec("model", tensors, fragments),),
        cell_elements=CELL_ELEMENTS,
        corpus=CorpusSpec(
            name="none",
            digest=bytes(32),
            training_blocks=900,
            held_out_blocks=100,
            document_blocks=0,
            block_bytes=4096,
            token_bytes=1,
            vocab_size=256,
            held_out_tokens=409600,
            held_out_text_bytes=409600,
            shuffle_blocks=900,
            permutation_seed=3,
        ),
        inner=replace(INNER, learning_rate=1e-3, warmup_steps=1, beta2=0.95),
        outer=OUTER,
        timing=timing,
        stop=StopSpec(unix_s=CREATED_UNIX_S + math.ceil(ends_after_s) if ends_after_s else 0),
    )
