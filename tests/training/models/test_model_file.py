"""A model in a file: only the bytes that the run names are ever executed."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from node.processes.children import child_environment
from node.settings.run_store import found_or_resume
from node.state.folder import make_folder, run_folder
from node.state.keystore import load_or_create_identity
from node.trainers.model_file import KEPT_FILE, founders_model, kept_model_file
from protocol import limits
from protocol.errors import ConfigError, ManifestError, ManifestMismatch
from protocol.grid import ShardSpec, TensorSpec
from protocol.manifest import ModelSpec, RunManifest, Setting
from tests.training.replicas import small_manifest
from training.models.building import build_from_file, build_model, check_forward, model_tensors
from training.models.genesis import (
    ModelFile,
    build_settings,
    file_initial,
    genesis_weights,
    named_model_file,
    read_model_file,
)

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Shape:
    width: int

class Tiny(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.embedding = nn.Embedding(256, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, 256)
        self.register_buffer("mask", torch.ones(3), persistent=False)

    def forward(self, x_BT):
        return self.head(self.norm(self.embedding(x_BT)))

def build(context, width):
    return Tiny(Shape(width))
"""
TENSORS = (
    TensorSpec("embedding.weight", (256, 4)),
    TensorSpec("head.bias", (256,)),
    TensorSpec("head.weight", (256, 4)),
    TensorSpec("norm.bias", (4,)),
    TensorSpec("norm.weight", (4,)),
)


@pytest.fixture
def file(tmp_path) -> ModelFile:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return read_model_file(path)


def spec_of(file: ModelFile, **settings) -> ModelSpec:
    everything = {"context": 8, "width": 4, "digest": file.digest, **settings}
    return ModelSpec(
        name="file",
        settings=tuple(Setting(name, everything[name]) for name in sorted(everything)),
        seed=5,
    )


def run_of(file: ModelFile, tensors=TENSORS, **settings) -> RunManifest:
    shard = ShardSpec("model", tensors, (tuple(range(len(tensors))),))
    return dataclasses.replace(small_manifest(), model=spec_of(file, **settings), shards=(shard,))


def file_with(folder: Path, source: str) -> ModelFile:
    path = folder / "other.py"
    path.write_text(source)
    return read_model_file(path)


def trap(folder: Path) -> tuple[ModelFile, Path]:
    """A file that leaves a trace when anything of it runs."""
    trace = folder / "ran"
    return file_with(folder, f"{SOURCE}\nopen({str(trace)!r}, 'w').close()\n"), trace


def test_the_file_is_built_with_the_runs_settings_and_holds_its_genesis(file):
    run = run_of(file)
    model = build_model(run, model_file=file.path)
    flat_N = torch.cat([p.flatten() for _, p in sorted(model.named_parameters())])

    assert np.array_equal(flat_N.detach().numpy(), genesis_weights(run)[0])
    assert model_tensors(model) == TENSORS
    assert model.context == 8
    check_forward(model, 8)


def test_what_is_built_is_the_bytes_that_were_compared_and_no_second_look_at_the_disk(tmp_path):
    checked, trace = trap(tmp_path)
    harmless = ModelFile(checked.path, SOURCE.encode())
    build_from_file(harmless, spec_of(harmless))

    assert not trace.exists()
    # No compilation is cached beside it either, which a later run would take for the source.
    assert not (tmp_path / "__pycache__").exists()
    build_from_file(checked, spec_of(checked))
    assert trace.exists()


@pytest.mark.parametrize(
    "take",
    [
        lambda run, path, folder: build_model(run, model_file=path),
        lambda run, path, folder: kept_model_file(run, path, folder),
    ],
    ids=["trainer", "node"],
)
def test_another_file_is_refused_before_anything_of_it_runs(tmp_path, file, take):
    other, trace = trap(tmp_path)
    with pytest.raises(ManifestError) as raised:
        take(run_of(file), other.path, tmp_path)

    assert not trace.exists()
    assert not (tmp_path / KEPT_FILE).exists()
    said = str(raised.value)
    assert f"has digest {other.digest}, the run names {file.digest}" in said
    assert "ask the founder for the file; a link never brings code" in said


def test_bytes_that_are_not_the_runs_are_not_built_even_if_nobody_checked_before(tmp_path, file):
    other, trace = trap(tmp_path)

    with pytest.raises(ConfigError, match="not the one that the run names"):
        build_from_file(other, spec_of(file))
    assert not trace.exists()


def test_without_a_file_the_option_to_give_is_named(file):
    with pytest.raises(ConfigError, match=rf"(?s){file.digest}.*--model-file"):
        named_model_file(None, spec_of(file))


def test_a_file_that_is_not_there_or_too_long_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the model file .*absent\.py: No such"):
        read_model_file(tmp_path / "absent.py")
    (tmp_path / "long.py").write_bytes(b"#" * (limits.MODEL_FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=r"long\.py is over 1048576 bytes"):
        read_model_file(tmp_path / "long.py")


@pytest.mark.parametrize("digest", ["", "ab", 7, "A" * 64, "g" * 64])
def test_a_manifest_without_a_proper_digest_is_refused(file, digest):
    with pytest.raises(ManifestError, match="digest"):
        named_model_file(file.path, spec_of(file, digest=digest))
    with pytest.raises(ManifestError, match="digest"):
        genesis_weights(run_of(file, digest=digest))


def test_a_manifest_without_a_context_is_refused(file):
    with pytest.raises(ManifestError, match="context"):
        genesis_weights(run_of(file, context="8"))


def test_the_digest_is_no_setting_of_build(file):
    assert build_settings(spec_of(file)) == {"context": 8, "width": 4}


def test_a_file_that_builds_another_model_than_the_runs_is_told_by_its_first_tensor(file):
    with pytest.raises(ManifestMismatch, match=r"embedding\.weight.*\(256, 5\).*\(256, 4\)"):
        build_model(run_of(file, width=5), model_file=file.path)


@pytest.mark.parametrize(
    ("name", "shape", "center", "spread"),
    [
        ("norm.weight", (4,), 1.0, 0.0),
        ("a.scale", (4,), 1.0, 0.0),
        ("gain", (), 1.0, 0.0),
        ("norm.bias", (4,), 0.0, 0.0),
        ("gru.bias_ih_l0", (12,), 0.0, 0.0),
        ("bias.weight", (4,), 1.0, 0.0),
        ("head.weight", (9, 4), 0.0, 0.5),
        ("head.bias", (1, 16), 0.0, 0.25),
        ("conv.weight", (3, 2, 8), 0.0, 0.25),
    ],
)
def test_first_values_follow_from_name_and_shape(name, shape, center, spread):
    initial = file_initial(TensorSpec(name, shape))

    assert (initial.shape, initial.center, initial.spread) == (shape, center, spread)


def test_genesis_weights_of_a_file_model_have_their_golden_bits(file):
    (weights_N,) = genesis_weights(run_of(file))
    embedding_N = weights_N[: 256 * 4]

    assert [value.hex() for value in embedding_N[:2].tolist()] == GOLDEN
    assert -0.5 <= embedding_N.min() < -0.49
    assert 0.49 < embedding_N.max() < 0.5
    assert weights_N[256 * 4 : 256 * 5].tolist() == [0.0] * 256
    assert weights_N[-8:].tolist() == [0.0] * 4 + [1.0] * 4


GOLDEN = ["0x1.84e7480000000p-2", "-0x1.d7fb300000000p-2"]


@pytest.mark.parametrize(
    ("builds", "complaint"),
    [
        ("nn.BatchNorm1d(3)", "buffer 'running_mean'.*persistent=False"),
        ("nn.Linear(2, 2).half()", r"'weight' is torch\.float16"),
        ("nn.Linear(2, 2).double()", r"'weight' is torch\.float64"),
        ("nn.LazyLinear(2)", "'weight' has no shape"),
        ("nn.ReLU()", "no parameters"),
        ("nn.ParameterList([torch.zeros(0, 2)])", r"'0' has no elements: \[0, 2\]"),
        ("nn.ParameterList([torch.zeros(1).expand(2)])", "'0' is expanded"),
        ("nn.Linear(2, 2).requires_grad_(False)", "no parameter is trained: 'bias'"),
        ("frozen(nn.Linear(2, 2))", r"the parameters weight are frozen.*would be lost"),
        ("same_memory(nn.Linear(2, 2), nn.Linear(2, 2))", r"0\.weight and 1\.weight are two over"),
        ("half_the_memory(nn.Linear(2, 2))", r"weight and part are two over one memory: tie the"),
        ("nn.Sequential(torch.compile(nn.Linear(2, 2), backend='eager'))", "torch.compile"),
    ],
)
def test_a_model_that_cannot_be_trained_together_is_refused_by_name(tmp_path, builds, complaint):
    file = file_with(tmp_path, f"{HABITS}\ndef build(**settings):\n    return {builds}\n")
    model = build_from_file(file, spec_of(file))

    with pytest.raises(ConfigError, match=complaint):
        model_tensors(model)


@pytest.mark.parametrize(
    "builds",
    ["tied(nn.Linear(2, 2), nn.Linear(2, 2))", "columns(torch.randn(4, 6))", "rows(torch.ones(9))"],
)
def test_one_parameter_of_two_names_or_parts_of_one_memory_can_be_trained(tmp_path, builds):
    file = file_with(tmp_path, f"{HABITS}\ndef build(**settings):\n    return {builds}\n")

    assert model_tensors(build_from_file(file, spec_of(file)))


HABITS = """
import torch
from torch import nn

def frozen(layer):
    layer.weight.requires_grad_(False)
    return layer

def same_memory(first, second):
    second.weight.data = first.weight.data
    return nn.Sequential(first, second)

def half_the_memory(layer):
    layer.part = nn.Parameter(layer.weight.data[1])
    return layer

def tied(first, second):
    second.weight = first.weight
    return nn.Sequential(first, second)

def columns(matrix):
    return nn.ParameterList([nn.Parameter(matrix[:, :2]), nn.Parameter(matrix[:, 2:])])

def rows(vector):
    return nn.ParameterList([nn.Parameter(vector[:4]), nn.Parameter(vector[4:])])
"""


def test_a_model_in_inference_mode_is_refused():
    with torch.inference_mode():
        model = torch.nn.Linear(2, 2)

    with pytest.raises(ConfigError, match="made in inference mode"):
        model_tensors(model)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1", r"defines no function build\(\*\*settings\)"),
        ("build = 1", "defines no function build"),
        ("def build(**settings): return 1", "returned a int, no nn.Module"),
    ],
)
def test_a_file_without_a_builder_is_told(tmp_path, source, complaint):
    file = file_with(tmp_path, source)

    with pytest.raises(ConfigError, match=complaint):
        build_from_file(file, spec_of(file))


def test_logits_of_another_shape_are_told():
    with pytest.raises(ConfigError, match=r"\(2, 8, 256\).*\(2, 8, 7\)"):
        check_forward(torch.nn.Embedding(256, 7), 8)


def test_the_verified_bytes_are_kept_for_the_next_start(tmp_path, file):
    run, folder = run_of(file), tmp_path / "run"
    folder.mkdir()
    kept = kept_model_file(run, file.path, folder)
    assert kept is not None
    file.path.unlink()

    assert kept.read_bytes() == SOURCE.encode()
    assert os.name == "nt" or kept.stat().st_mode & 0o777 == 0o600
    assert kept_model_file(run, None, folder) == kept
    kept.write_bytes(b"changed")
    with pytest.raises(ManifestError, match="the run names"):
        kept_model_file(run, None, folder)


def test_a_built_in_model_needs_no_file(tmp_path, file):
    assert kept_model_file(small_manifest(), None, tmp_path) is None
    with pytest.raises(ConfigError, match="leave --model-file out"):
        kept_model_file(small_manifest(), file.path, tmp_path)


@pytest.mark.slow
def test_a_founder_gets_the_model_and_its_tensors_from_a_child_process(tmp_path):
    file = file_with(tmp_path, f"{SOURCE}\nprint('a word of its own')\n")
    model, shard = founders_model(file.path, {"width": 4, "context": 8}, seed=5)

    assert model == spec_of(file)
    assert shard == ShardSpec("model", TENSORS, (tuple(range(len(TENSORS))),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("raise KeyError('a bug of mine')", r"(?s)other\.py.*KeyError: 'a bug of mine'"),
        ("import sys; sys.exit(7)", r"other\.py ended its process, with status 7: .*__main__"),
        ("import sys; sys.exit(0)", r"other\.py ended its process, with status 0"),
        ("import os; os._exit(8)", r"other\.py: building it ended with status 8"),
        ("def build(context): pass", r"unexpected keyword argument 'width'; .*: context, width"),
        ("\ndef build(\n", r"other\.py, line 2: SyntaxError: '\(' was never closed"),
        ("print(__file__)", "line 1: NameError: .*alone, .*it has no __file__"),
        ("import beside_it", "line 1: ModuleNotFoundError: .*: put what it imports into the file"),
        ("import absent_one", "line 1: ModuleNotFoundError: .*; install it here, and on every"),
        ("open('base.pt')", "line 1: FileNotFoundError: .*nothing beside it is found there"),
        (
            "from torch import nn\ndef build(**s): return nn.Linear(8, 8)",
            "RuntimeError: .*a run's model is called with byte values",
        ),
        (
            SOURCE.replace("x_BT)))", "x_BT))).detach()"),
            "cannot be trained: its logits carry no gradient",
        ),
        (
            SOURCE
            + "\nold = Tiny\ndef Tiny(shape):\n    torch.manual_seed(3)\n    return old(shape)",
            r'builds embedding\.weight.*as if they were pretrained.*first_values = "drawn"',
        ),
        (
            "from torch import nn\ndef build(**s): return nn.Embedding(256, 9)",
            r"other\.py: the model must give logits",
        ),
    ],
)
def test_what_is_wrong_with_a_founders_file_is_told(tmp_path, source, complaint):
    file = file_with(tmp_path, source)
    (tmp_path / "beside_it.py").touch()

    with pytest.raises(ConfigError, match=complaint) as raised:
        founders_model(file.path, {"width": 4, "context": 8}, seed=5)
    assert "Traceback" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_what_a_founder_may_not_mean_is_told_and_can_be_meant(tmp_path):
    own = "self.act, self.idle = nn.PReLU(), nn.Linear(2, 2)\n        self.register_buffer"
    source = SOURCE.replace("self.register_buffer", own).replace(
        "self.norm(", "self.act(self.norm("
    )
    source = source.replace("x_BT)))", "x_BT))))")
    file, told = file_with(tmp_path, source), list[str]()
    settings = {"width": 4, "context": 8}
    founders_model(file.path, settings, seed=5, warn=told.append)

    values, idle = told
    assert "not those of act.weight (all 0.25 in build, 1 in the run). If" in values
    assert "no gradient reaches idle.weight, idle.bias: they travel" in idle
    founders_model(file.path, settings, seed=5, is_drawn=True, warn=told.append)
    assert told == [values, idle, idle]


def test_a_joiners_file_whose_code_fails_there_is_told_in_a_sentence(tmp_path):
    file = file_with(tmp_path, f"{SOURCE}\nraise OSError('no licence here')\n")

    with pytest.raises(ConfigError, match=r"other\.py, line 25: OSError: no licence here"):
        build_model(run_of(file), model_file=file.path)


def test_memory_that_is_refused_while_a_file_is_built_stays_what_it_is(tmp_path):
    file = file_with(tmp_path, "def build(**s): raise RuntimeError('out of memory')")

    with pytest.raises(RuntimeError, match=r"^out of memory"):
        build_from_file(file, spec_of(file))


@pytest.mark.slow
def test_a_file_that_runs_for_ever_does_not_outlive_who_founds_with_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60.0)
        file = file_with(
            tmp_path,
            "import os, socket\n"
            f"here = socket.create_connection({server.getsockname()!r})\n"
            "here.sendall(b'%d' % os.getpid())\nwhile True: pass\n",
        )
        code = (
            "import pathlib, sys; from node.trainers.model_file import founders_model;"
            "founders_model(pathlib.Path(sys.argv[1]), {'width': 4, 'context': 8}, seed=5)"
        )
        command = [sys.executable, "-P", "-c", code, str(file.path)]
        with subprocess.Popen(command, env=child_environment()) as founder:
            connection, _ = server.accept()
            connection.settimeout(20.0)
            builder = int(connection.recv(20))
            founder.kill()
    with connection:
        try:
            # The end of its process, and with it of its socket.
            assert connection.recv(1) == b""
        except TimeoutError:
            with suppress(OSError):
                os.kill(builder, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
            raise


def test_a_founder_gives_no_digest_and_a_context(tmp_path, file):
    with pytest.raises(ConfigError, match="remove it"):
        founders_model(file.path, {"digest": "0" * 64, "context": 8}, seed=5)
    with pytest.raises(ConfigError, match="context"):
        founders_model(file.path, {"width": 4}, seed=5)


@pytest.mark.slow
def test_a_run_is_founded_with_a_file_beside_its_run_toml(tmp_path, file):
    (tmp_path / "run.toml").write_text(
        '[run]\ntitle = "mine"\n[model]\nfile = "mine.py"\nseed = 5\n'
        "[model.settings]\ncontext = 8\nwidth = 4\n"
    )
    state = tmp_path / "state"
    make_folder(state)
    signer = load_or_create_identity(state)

    def found() -> tuple[RunManifest, bool]:
        toml = tmp_path / "run.toml"
        signed, is_new = found_or_resume(toml, state, signer, lambda: 1e9, is_new=False)
        return signed.manifest, is_new

    manifest, is_new = found()
    kept = run_folder(state, manifest.digest) / KEPT_FILE

    assert is_new
    assert manifest.model == spec_of(file)
    assert manifest.shards[0].tensors == TENSORS
    assert kept.read_text() == SOURCE
    # Peers train what the file was then: whoever edits it hears of that, as of an edited run.toml.
    file.path.write_text("raise SystemExit")
    with pytest.raises(ConfigError, match=r"mine\.py has changed since it founded.*model\.py\)"):
        found()
    file.path.write_text(SOURCE)
    assert found() == (manifest, False)
    file.path.unlink()
    assert found() == (manifest, False)


def test_the_network_process_side_loads_no_torch():
    code = "import node.trainers.model_file, sys; sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=child_environment(), check=False).returncode == 0
