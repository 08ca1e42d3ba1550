"""What the swarm is compared with: a node alone, and the run's own checkpoints."""

import json
import subprocess
import sys

import numpy as np
import pytest

from node.processes.children import child_environment
from protocol.errors import ManifestError
from protocol.manifest import RunManifest
from tests.training.disk_run import MANIFEST_FILE, write_run
from training.channel.exchange import RunClock
from training.channel.manifest_file import read_manifest
from training.data.corpus import open_corpus
from training.device.inner import accumulate_gradient, apply_gradient, make_optimizer
from training.evaluation.yardstick import Point, genesis_loss, model_of, sample_text, train_alone
from training.files.state import CheckpointMeta, ShardState, save_checkpoint
from training.models.building import build_model, read_fragment
from training.models.genesis import genesis_weights


@pytest.fixture
def run(tmp_path) -> RunManifest:
    return write_run(tmp_path)


def test_a_node_alone_takes_all_steps_of_the_run_and_learns(run):
    points: list[Point] = []
    model = train_alone(run, open_corpus(run.corpus), points.append)

    assert [point.step for point in points] == [0, 10, 20, 30, 40, 50]
    assert points[-1].loss < points[0].loss - 1
    expected = build_model(run)
    optimizer = make_optimizer(expected, run.inner)
    dataset = open_corpus(run.corpus)
    for step in range(50):
        accumulate_gradient(expected, optimizer, dataset.windows(np.arange(4) + 4 * step, 8))
        apply_gradient(expected, optimizer, run, step)
    weights = [read_fragment(m, run.shards[0], 0).tobytes() for m in (model, expected)]
    assert weights[0] == weights[1]


def test_genesis_knows_nothing(run):
    assert genesis_loss(run, open_corpus(run.corpus)) > np.log(200)


def test_a_sample_continues_the_prompt_and_is_the_same_twice(run):
    model = model_of(run, genesis_weights(run))
    text = sample_text(run, model, b"def ", 20)

    assert text.startswith("def ")
    assert text == sample_text(run, model, b"def ", 20)


def test_a_manifest_of_another_digest_is_refused(run, tmp_path):
    assert read_manifest(tmp_path / MANIFEST_FILE, run.digest) == run

    with pytest.raises(ManifestError, match="is of run"):
        read_manifest(tmp_path / MANIFEST_FILE, bytes(32))


def yardstick(folder, run, *command):
    options = ["--manifest", str(folder / MANIFEST_FILE), "--run", run.digest.hex(), *command]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "training.yardstick_main", *options],
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    return done, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_command_measures_checkpoints_and_a_node_alone(run, tmp_path):
    clock = RunClock(round=5, step=50, tokens=1)
    meta = CheckpointMeta(run=run.digest, shard="model", seal=b"", clock=clock)
    state = ShardState(anchors=genesis_weights(run), slots=({},))
    path = save_checkpoint(tmp_path / "checkpoints", run.shards[0], state, meta)

    done, lines = yardstick(tmp_path, run, "measure", str(path), "--text-bytes", "20")
    assert done.returncode == 0, done.stderr
    (result,) = lines
    assert result["kind"] == "result"
    # The checkpoint holds the genesis weights, measured on the same text.
    assert result["loss_last"] == result["loss_first"] > np.log(200)
    assert result["checkpoints"][0]["round"] == 5

    done, lines = yardstick(tmp_path, run, "alone")
    assert done.returncode == 0, done.stderr
    assert [line["kind"] for line in lines] == ["point"] * 6 + ["result"]
    # One number for one loss: the curve ends at what is told of it, and began where the swarm did.
    assert lines[-1]["loss_alone"] == lines[-2]["loss"] < result["loss_first"] - 1
    assert lines[0]["loss"] == result["loss_first"]

    (path / "anchor.safetensors").write_bytes(b"")
    done, lines = yardstick(tmp_path, run, "measure", str(path))
    assert (done.returncode, lines) == (1, [])
    assert done.stderr.startswith("CheckpointError")
