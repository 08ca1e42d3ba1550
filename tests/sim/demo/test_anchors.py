"""The parent compares final weights by the bytes of the checkpoints."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sim.demo.result import anchor_bytes, anchors_equal, final_checkpoint
from tests.sim.demo.scene import manifest, options
from training.channel.exchange import RunClock
from training.files.state import CheckpointMeta, ShardState, save_checkpoint
from training.models.genesis import genesis_weights

WEIGHTS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.weight": np.array([0.0, 1.5], dtype=np.float32),
}


def write(folder: Path, weights=WEIGHTS) -> Path:
    folder.mkdir(parents=True)
    save_file(weights, folder / "anchor.safetensors")
    return folder


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / name) for name in ("B", "C", "D")]


def test_same_bytes_are_equal(checkpoints):
    assert anchors_equal(checkpoints)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_differing_byte_of_a_tensor_is_seen_wherever_it_is(checkpoints, index):
    path = checkpoints[index] / "anchor.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert anchor_bytes(checkpoints[index]) is not None
    assert not anchors_equal(checkpoints)


def test_zero_and_minus_zero_are_other_bytes(tmp_path):
    minus = WEIGHTS | {"b.weight": np.array([-0.0, 1.5], dtype=np.float32)}
    assert not anchors_equal([write(tmp_path / "B"), write(tmp_path / "C", minus)])


@pytest.mark.parametrize(
    "other",
    [
        {"a.weight": WEIGHTS["a.weight"]},
        {"a.weight": WEIGHTS["a.weight"].reshape(3, 2), "b.weight": WEIGHTS["b.weight"]},
        {"a.weight": WEIGHTS["a.weight"], "c.weight": WEIGHTS["b.weight"]},
        {"a.weight": WEIGHTS["a.weight"], "b.weight": WEIGHTS["b.weight"].view(np.int32)},
    ],
)
def test_other_names_shapes_or_types_are_not_equal(tmp_path, other):
    assert not anchors_equal([write(tmp_path / "B"), write(tmp_path / "C", other)])


def test_survivor_without_the_checkpoint_makes_it_false(checkpoints, tmp_path):
    assert not anchors_equal([*checkpoints, tmp_path / "E"])
    assert not anchors_equal([tmp_path / "E", *checkpoints])
    assert not anchors_equal([tmp_path / "E", tmp_path / "F"])


def test_torn_checkpoint_makes_it_false(checkpoints):
    path = checkpoints[1] / "anchor.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert not anchors_equal(checkpoints)


def test_nobody_left_is_not_equal():
    assert not anchors_equal([])


def test_checkpoint_of_the_last_round_is_where_a_node_writes_it(tmp_path):
    run = manifest(options(rounds=7))
    folder = tmp_path / "runs" / run.digest.hex()[:12] / "checkpoints"
    clock = RunClock(round=8, step=140, tokens=1)
    meta = CheckpointMeta(run=run.digest, shard=run.shards[0].name, seal=b"", clock=clock)
    state = ShardState(anchors=genesis_weights(run), slots=({},))
    written = save_checkpoint(folder, run.shards[0], state, meta)
    assert final_checkpoint(tmp_path, run) == written
    assert anchors_equal([written, written])
