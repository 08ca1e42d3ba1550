"""`barnraise export`, `generate` and `eval` as people run them, on a state folder of the disk."""

import dataclasses
import json
import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3

from node.state.folder import MANIFEST_FILE, run_folder
from node.trainers.model_file import KEPT_FILE
from protocol.grid import ShardSpec, TensorSpec
from protocol.identity import Ed25519Signer
from protocol.manifest import ModelSpec, RunManifest, Setting, sign_manifest
from protocol.wire import encode
from tests.e2e.demo_command import environment
from tests.node.state_run import StateRun, write_state
from tests.training.disk_run import write_run
from tests.training.files.test_exported import rewrite
from training.channel.exchange import RunClock
from training.data.corpus import open_corpus
from training.device.inner import validation_loss
from training.evaluation.yardstick import held_out, model_of, train_alone
from training.files.state import CheckpointMeta, ShardState, save_checkpoint
from training.models.building import read_fragment
from training.models.genesis import genesis_weights

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-P", "-m", "node.cli"]
TIMEOUT_S = 120.0


def barnraise(*arguments: object, cwd: Path | None = None):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def report(*arguments: object):
    done = barnraise(*arguments, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


def refusal(*arguments: object) -> tuple[int, str]:
    done = barnraise(*arguments)
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stderr.decode()


@dataclass
class Trained:
    """A state folder: round 1 knows nothing, round 5 has learned something."""

    state: Path
    manifest: RunManifest
    checkpoints: Path


def save(folder: Path, manifest: RunManifest, sealed_round: int, anchor_N) -> None:
    clock = RunClock(round=sealed_round + 1, step=10 * sealed_round, tokens=1000 * sealed_round)
    seal = bytes([sealed_round]) * 32
    meta = CheckpointMeta(run=manifest.digest, shard="model", seal=seal, clock=clock)
    state = ShardState(anchors=(anchor_N,), slots=({},))
    save_checkpoint(folder, manifest.shards[0], state, meta)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    state = tmp_path_factory.mktemp("state")
    manifest = write_run(state)
    folder = run_folder(state, manifest.digest)
    folder.mkdir(parents=True)
    (state / MANIFEST_FILE).rename(folder / MANIFEST_FILE)
    model = train_alone(manifest, open_corpus(manifest.corpus), lambda _: None)
    checkpoints = folder / "checkpoints"
    save(checkpoints, manifest, 1, genesis_weights(manifest)[0])
    save(checkpoints, manifest, 5, read_fragment(model, manifest.shards[0], 0))
    return Trained(state, manifest, checkpoints)


@pytest.fixture
def copied(trained, tmp_path) -> Trained:
    """The same, to be spoiled."""
    state = tmp_path / "copy"
    shutil.copytree(trained.state, state)
    folder = run_folder(state, trained.manifest.digest)
    return Trained(state, trained.manifest, folder / "checkpoints")


def test_eval_measures_every_checkpoint_on_the_held_out_text(trained):
    body = report("eval", "--state", trained.state, "--all")
    first, last = body["checkpoints"]
    assert [first["round"], last["round"]] == [1, 5]
    dataset = open_corpus(trained.manifest.corpus)
    for row, anchor_N in ((first, genesis_weights(trained.manifest)[0]),):
        model = model_of(trained.manifest, [anchor_N])
        expected = validation_loss(model, held_out(trained.manifest, dataset))
        assert row["loss"] == pytest.approx(expected, abs=1e-5)
    assert last["loss"] < first["loss"] - 1
    assert last["bits_per_byte"] == pytest.approx(
        trained.manifest.corpus.bits_per_byte(last["loss"]), rel=1e-6
    )
    assert last["bits_per_byte"] == pytest.approx(last["loss"] * 1.442695, rel=1e-2)
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]), rel=1e-6)
    assert (last["windows"], last["held_out_tokens"], last["step"]) == (1024, 8 * 1024, 50)
    # The newest is what the run has come to: it stands at the top.
    assert body["loss"] == last["loss"]
    table = barnraise("eval", "--state", trained.state, "--windows", 64).stdout.decode()
    assert "nats per byte" in table
    assert "over 512 held-out bytes" in table


def test_exported_file_needs_nothing_else_and_says_the_same(trained, tmp_path):
    out = tmp_path / "swarm.safetensors"
    written = report("export", "--state", trained.state, "--out", out)
    assert (written["round"], written["seal"]) == (5, "05" * 32)
    assert written["parameters"] == sum(t.numel for t in trained.manifest.shards[0].tensors)
    there = report("eval", "--state", trained.state, "--windows", 128)
    here = report("eval", "--model", out, "--windows", 128)
    assert (here["loss"], here["run"]) == (there["loss"], trained.manifest.digest.hex())
    texts = [
        report("generate", *source, "--seed", 3, "--bytes", 50)["text"]
        for source in (("--model", out), ("--state", trained.state))
    ]
    assert texts[0] == texts[1]


def test_text_comes_after_its_prompt_and_again_with_its_seed(trained):
    options = ("--state", trained.state, "--prompt", "import é", "--bytes", 60)
    first, second, other = (
        barnraise("generate", *options, "--seed", seed).stdout.decode() for seed in (7, 7, 8)
    )
    assert first == second != other
    assert first.startswith("import é")
    body = report("generate", *options, "--seed", 7)
    assert body["bytes"] == 60
    assert (body["prompt"], body["seed"], body["round"]) == ("import é", 7, 5)
    assert len(first.removeprefix("import é")) <= 61
    likeliest = [
        report("generate", *options, "--temperature", 0, "--seed", seed)["text"] for seed in (7, 8)
    ]
    assert likeliest[0] == likeliest[1]


def test_text_streams_and_ctrl_c_ends_it_at_once_with_all_its_processes(trained):
    process = subprocess.Popen(
        [*COMMAND, "generate", "--state", str(trained.state), "--bytes", "1000000"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    # It has come although most of it is still to be drawn.
    assert process.stdout.read(20)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    # The ends of both pipes are the ends of all processes that could write to them.
    process.communicate(timeout=TIMEOUT_S)
    assert time.monotonic() - asked < 2.0
    assert process.returncode == 130


def test_reader_that_goes_away_ends_it_without_a_traceback(trained):
    command = [*COMMAND, "generate", "--state", str(trained.state), "--bytes", "1000000"]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(20)
    process.stdout.close()
    errors = process.stderr.read()
    process.wait(timeout=TIMEOUT_S)
    assert b"Traceback" not in errors
    process.stderr.close()


def test_torn_newest_checkpoint_gives_way_to_the_older_one_and_that_is_said(copied):
    (copied.checkpoints / "round-000006" / "anchor.safetensors").write_bytes(b"torn")
    for command in (["generate", "--bytes", 5], ["eval", "--windows", 8]):
        done = barnraise(*command, "--state", copied.state, "--json")
        assert done.returncode == 0
        assert json.loads(done.stdout.splitlines()[-1])["round"] == 1
        assert b"not whole" in done.stderr
        assert b"round-000006" in done.stderr


def test_no_whole_checkpoint_is_an_error_that_says_what_to_do(copied):
    for path in copied.checkpoints.glob("round-*/meta.json"):
        path.unlink()
    for command in ("export", "generate", "eval"):
        status, message = refusal(command, "--state", copied.state)
        assert status == 1
        assert "start the node again" in message


def test_text_of_another_python_is_named_by_eval_and_nothing_to_generate(tmp_path):
    """The run's corpus is on no machine; what was learned from it is all that writing needs."""
    signer = Ed25519Signer(bytes(range(32)))
    manifest = write_run(tmp_path)
    corpus = dataclasses.replace(manifest.corpus, name="stdlib-3.9.1", digest=bytes(32))
    manifest = dataclasses.replace(manifest, corpus=corpus)
    folder = run_folder(tmp_path, manifest.digest)
    save(folder / "checkpoints", manifest, 1, genesis_weights(manifest)[0])
    (folder / MANIFEST_FILE).write_bytes(encode(sign_manifest(manifest, signer)))
    status, message = refusal("eval", "--state", tmp_path)
    assert status == 2
    assert "start barnraise with 3.9.1" in message
    assert report("generate", "--state", tmp_path, "--bytes", 3)["bytes"] == 3


def test_what_cannot_be_used_is_told_and_with_which_status(trained, tmp_path):
    out = tmp_path / "swarm.safetensors"
    report("export", "--state", trained.state, "--out", out)
    flipped = bytearray(out.read_bytes())
    flipped[-1] ^= 1
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(flipped)
    rewrite(out, lambda header: header["__metadata__"].update(title="my own work"))
    foreign = trained.checkpoints / "round-000006" / "anchor.safetensors"
    expected = [
        (("generate", "--state", tmp_path / "absent"), 2, "--model"),
        (("generate", "--model", tmp_path / "absent"), 2, "No such file"),
        (("generate", "--model", foreign), 2, "no export of barnraise"),
        (("generate", "--model", damaged), 1, "is damaged"),
        (("eval", "--model", out), 1, "its title is not the run's"),
        (("eval", "--model", out, "--state", trained.state), 2, "leave out --state"),
        (("eval", "--state", trained.state, "--round", 3), 2, "it keeps: 1, 5"),
        (("eval", "--state", trained.state, "--windows", 0), 2, "--windows 0"),
        (("generate", "--state", trained.state, "--bytes", 0), 2, "--bytes 0"),
        (("generate", "--state", trained.state, "--temperature", "nan"), 2, "temperature nan"),
        (("generate", "--state", trained.state, "--device", "abacus"), 2, "--device"),
        (("export", "--state", trained.state, "--out", out), 2, "--force"),
    ]
    for arguments, status, words in expected:
        told = refusal(*arguments)
        assert told[0] == status, (arguments, told)
        assert words in told[1], (arguments, told)


def test_run_that_is_going_on_is_readable_at_any_moment(tmp_path):
    """A node seals thirty rounds a second; every look at its folder finds a whole checkpoint."""
    run = write_state(tmp_path / "state", 1)
    is_over = threading.Event()

    def seal_rounds() -> None:
        for index in range(2, 100_000):
            if is_over.wait(0.03):
                return
            run.save(index % 200 if index < 200 else 200)

    node = threading.Thread(target=seal_rounds)
    node.start()
    try:
        rounds = [
            report("export", "--state", run.state, "--out", tmp_path / f"{look}")["round"]
            for look in range(6)
        ]
    finally:
        is_over.set()
        node.join()
    assert rounds == sorted(rounds)
    assert rounds[-1] > rounds[0]


MODEL_FILE = """
import torch

print("hello from the model file")


class Bigram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(256, 256))

    def forward(self, bytes_BT):
        return self.table[bytes_BT]


def build(context):
    return Bigram()
"""


def test_model_in_a_file_is_run_only_where_its_digest_is_the_runs(tmp_path):
    model_file = tmp_path / "bigram.py"
    model_file.write_text(MODEL_FILE)
    settings = (
        Setting("context", 8),
        Setting("digest", blake3(model_file.read_bytes()).hexdigest()),
    )
    shard = ShardSpec("model", (TensorSpec("table", (256, 256)),), ((0,),))
    run: StateRun = write_state(
        tmp_path / "state",
        1,
        model=ModelSpec(name="file", settings=settings, seed=0),
        shards=(shard,),
    )
    options = ("generate", "--state", run.state, "--bytes", 4)
    status, message = refusal(*options)
    assert status == 2
    assert "--model-file" in message
    # What the file prints is not taken for what the model writes.
    assert report(*options, "--model-file", model_file)["bytes"] == 4
    # A node keeps a copy of what it was given.
    (run.folder / KEPT_FILE).write_text(MODEL_FILE)
    assert report(*options)["bytes"] == 4
    model_file.write_text(MODEL_FILE.replace("hello", "goodbye"))
    status, message = refusal(*options, "--model-file", model_file)
    assert status == 2
    assert "goodbye" not in message
