"""What few bits cost: presets against DiLoCo in float32, the same model, text, H and seed.

The toy GPT of `barnraise compare` (119 104 parameters, four peers), 200 rounds of 5 steps. Nats per
byte of held-out text, seed 0: float32 1.5802, int4 1.5794, ternary 1.5824, SparseLoCo 1.5824.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from node.processes.children import child_environment
from protocol.manifest import sign_manifest
from protocol.wire import encode
from sim.compare.main import SIGNER, CompareOptions, runs_of

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Result:
    loss: float
    payload_bytes: int


@cache
def result_of(preset: str) -> Result:
    options = CompareOptions(
        presets=(preset,),
        steps=1000,
        peers=4,
        inner_steps=5,
        seed=0,
        file=None,
        folder=Path(),
    )
    (run,) = runs_of(options)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "manifest.msgpack"
        path.write_bytes(encode(sign_manifest(run.manifest, SIGNER)))
        words = ["--manifest", str(path), "--run", run.manifest.digest.hex(), "--peers", "4"]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sim.methods.compare_main", *words],
            env=child_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
    told = json.loads(done.stdout.splitlines()[-1])
    return Result(told["loss"], told["payload_bytes"])


@pytest.mark.parametrize(
    ("preset", "fewer", "nats"),
    [("diloco_ternary", 15, 0.02), ("sparseloco", 60, 0.02), ("sparseloco_64", 180, 0.08)],
)
def test_fewer_bytes_cost_little_loss(preset: str, fewer: int, nats: float) -> None:
    dense, coarse = result_of("diloco_fp32"), result_of(preset)
    assert dense.payload_bytes >= fewer * coarse.payload_bytes
    assert coarse.loss <= dense.loss + nats
