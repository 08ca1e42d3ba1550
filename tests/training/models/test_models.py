"""Models, their genesis weights and what is asked of them."""

import dataclasses
import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from protocol.errors import CheckpointError, ConfigError, ManifestError
from protocol.grid import TensorSpec
from protocol.manifest import ModelSpec, RunManifest, Setting
from tests.training.replicas import random_windows, small_manifest
from training.device.inner import (
    accumulate_gradient,
    apply_gradient,
    batch_loss,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    validation_loss,
)
from training.models.building import MODELS, build_model, read_fragment, write_fragment
from training.models.genesis import SCHEMAS, cut, genesis_weights, shard_spec


def demo_model(**changes: int) -> ModelSpec:
    settings = {"context": 64, "heads": 4, "layers": 2, "width": 64} | changes
    return ModelSpec(
        name="gpt", settings=tuple(Setting(key, settings[key]) for key in sorted(settings)), seed=1
    )


def manifest_of(model: ModelSpec) -> RunManifest:
    return dataclasses.replace(small_manifest(), model=model, shards=(shard_spec(model),))


def parameters_of(model: ModelSpec) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in build_model(manifest_of(model)).named_parameters()}


def test_every_model_has_a_schema_and_every_schema_a_model() -> None:
    assert list(MODELS) == list(SCHEMAS)


def test_parameters_are_those_of_the_schema() -> None:
    manifest = manifest_of(demo_model())
    found = {name: tuple(p.shape) for name, p in build_model(manifest).named_parameters()}
    (shard,) = manifest.shards
    assert found == {tensor.name: tensor.shape for tensor in shard.tensors}
    assert sum(tensor.numel for tensor in shard.tensors) == 119_104


def test_genesis_weights_have_their_golden_bits() -> None:
    """Other bits here mean that two machines would start from two anchors."""
    (weights_N,) = genesis_weights(manifest_of(demo_model()))
    assert weights_N.dtype == np.float32
    assert hashlib.sha256(weights_N.astype("<f4").tobytes()).hexdigest()[:16] == "f1bb8d053ce3ad81"


def test_genesis_weights_depend_on_the_seed_and_lie_in_their_bounds() -> None:
    (first_N,) = genesis_weights(manifest_of(demo_model()))
    other = dataclasses.replace(demo_model(), seed=2)
    (second_N,) = genesis_weights(manifest_of(other))
    assert np.mean(first_N != second_N) > 0.99
    model = parameters_of(demo_model())
    embedding = model["embedding.weight"].numpy()
    assert 0.95 / 8 < np.abs(embedding).max() <= 1 / 8
    assert abs(embedding.mean()) < 0.005
    assert torch.equal(model["norm.weight"], torch.ones(64))


def test_genesis_weights_of_one_tensor_do_not_depend_on_the_others() -> None:
    deep, shallow = parameters_of(demo_model(layers=3)), parameters_of(demo_model(layers=2))
    assert torch.equal(deep["embedding.weight"], shallow["embedding.weight"])


def test_fragments_share_the_model_block_by_block_and_from_all_depths() -> None:
    shard = shard_spec(demo_model(layers=6), fragments=4)
    names = [{shard.tensors[index].name for index in piece} for piece in shard.fragments]
    assert set.union(*names) == {tensor.name for tensor in shard.tensors}
    assert sum(map(len, names)) == len(shard.tensors), "each once"
    depths = [{name.split(".")[1] for name in some if name.startswith("blocks")} for some in names]
    assert depths == [{"0", "4"}, {"1", "5"}, {"2"}, {"3"}]
    # Whoever has fewer blocks has the large tensors of none.
    assert any("embedding.weight" in some for some in names[2:])
    numels = [sum(shard.tensors[index].numel for index in piece) for piece in shard.fragments]
    assert max(numels) < 2 * min(numels)
    assert cut(shard.tensors, 1) == (tuple(range(len(shard.tensors))),)


def test_blocks_are_in_the_order_of_their_numbers() -> None:
    tensors = tuple(TensorSpec(f"layers.{number}.w", (2,)) for number in (0, 1, 10, 2, 3))
    assert cut(tensors, 2) == ((0, 2, 3), (1, 4))


@pytest.mark.parametrize("count", [5, 60])
def test_more_fragments_than_blocks_and_tensors_are_refused(count: int) -> None:
    tensors = tuple(TensorSpec(name, (2,)) for name in ("a.0.w", "a.0.x", "a.1.w", "b", "c"))
    assert len(cut(tensors, 4)) == 4
    with pytest.raises(ManifestError, match=rf"fragments is {count}, .* set it to 4 or less"):
        cut(tensors, count)


def test_genesis_refuses_a_shard_that_is_not_the_model_s() -> None:
    manifest = dataclasses.replace(manifest_of(demo_model()), model=demo_model(width=32))
    with pytest.raises(ManifestError, match=r"blocks\.0\.attention"):
        genesis_weights(manifest)


def test_genesis_and_the_numpy_seams_load_no_torch() -> None:
    modules = (
        *("models.genesis", "numeric.arithmetic", "aggregation", "compression", "outer"),
        *("methods.method", "methods.presets"),
    )
    code = "import sys\n" + "".join(f"import training.{module}\n" for module in modules)
    command = [sys.executable, "-c", code + "assert 'torch' not in sys.modules"]
    subprocess.run(command, check=True)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"heads": 5}, "heads"), ({"width": 0}, "width"), ({"layers": 10**9}, "layers")],
)
def test_setting_out_of_range_is_refused_by_name(changes: dict[str, int], named: str) -> None:
    with pytest.raises(ManifestError, match=named):
        shard_spec(demo_model(**changes))


def test_missing_setting_and_unknown_model_are_refused_by_name() -> None:
    with pytest.raises(ManifestError, match="needs the setting"):
        shard_spec(ModelSpec(name="gpt", settings=(), seed=0))
    with pytest.raises(ConfigError, match="unknown model 'oracle'; known: gpt"):
        shard_spec(ModelSpec(name="oracle", settings=(), seed=0))


def test_fragment_written_is_the_fragment_read(seed: int) -> None:
    manifest = small_manifest()
    (shard,) = manifest.shards
    model = build_model(manifest)
    parameters = [id(parameter) for parameter in model.parameters()]
    size = sum(tensor.numel for tensor in shard.tensors)
    weights_N = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    weights_N.flags.writeable = False
    write_fragment(model, shard, 0, weights_N)
    assert np.array_equal(read_fragment(model, shard, 0), weights_N)
    assert [id(parameter) for parameter in model.parameters()] == parameters


def test_fragments_are_flat_in_the_order_of_the_schema() -> None:
    manifest = small_manifest()
    (shard,) = manifest.shards
    model = build_model(manifest)
    by_name = dict(model.named_parameters())
    expected_N = torch.cat([by_name[name].flatten() for name in sorted(by_name)])
    assert np.array_equal(read_fragment(model, shard, 0), expected_N.detach().numpy())
    assert np.array_equal(genesis_weights(manifest)[0], expected_N.detach().numpy())


def test_gpt_sees_no_byte_behind_the_position(seed: int) -> None:
    model = build_model(small_manifest())
    bytes_BT = torch.from_numpy(random_windows(seed, 1, window=8)[0]).long()
    changed_BT = bytes_BT.clone()
    changed_BT[:, 5] = (changed_BT[:, 5] + 1) % 256
    with torch.no_grad():
        difference = (model(bytes_BT) - model(changed_BT)).abs().amax(dim=(0, 2))
    assert float(difference[:5].max()) < 1e-6
    assert float(difference[5:].min()) > 1e-4


def test_learning_rate_warms_up_peaks_and_ends_at_the_floor() -> None:
    manifest = small_manifest()
    rates = [learning_rate(manifest, step) for step in range(manifest.total_inner_steps + 9)]
    assert rates[0] == pytest.approx(0.003 / 5)
    assert rates[4] == rates[5] == pytest.approx(0.003) == max(rates)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-9:] == pytest.approx([0.0003] * 9)


def test_validation_loss_is_the_mean_over_windows_whatever_the_batch(seed: int) -> None:
    model = build_model(small_manifest())
    windows_BW = random_windows(seed, 1, batch=10)[0]
    with torch.no_grad():
        expected = float(batch_loss(model, windows_BW))
    assert validation_loss(model, windows_BW, 10) == pytest.approx(expected, abs=1e-6)
    assert validation_loss(model, windows_BW, 3) == pytest.approx(expected, abs=1e-5)
    assert 5.0 < expected < 7.0
    assert model.training


def test_training_lowers_the_loss_of_what_it_trains_on(seed: int) -> None:
    manifest = small_manifest()
    model = build_model(manifest)
    optimizer = make_optimizer(model, manifest.inner)
    windows_BW = random_windows(seed, 1)[0]
    before = validation_loss(model, windows_BW)
    for step in range(50):
        accumulate_gradient(model, optimizer, windows_BW)
        apply_gradient(model, optimizer, manifest, step)
    assert validation_loss(model, windows_BW) < before - 0.5


def test_moments_of_a_checkpoint_continue_the_same_run(seed: int) -> None:
    manifest = small_manifest()
    windows = random_windows(seed, 6)
    kept = build_model(manifest)
    optimizer = make_optimizer(kept, manifest.inner)
    for step, windows_BW in enumerate(windows):
        if step == 3:
            resumed = build_model(manifest)
            resumed.load_state_dict(kept.state_dict())
            again = make_optimizer(resumed, manifest.inner)
            saved = {key: t.clone() for key, t in optimizer_tensors(kept, optimizer).items()}
            load_optimizer_tensors(resumed, again, saved)
        accumulate_gradient(kept, optimizer, windows_BW)
        apply_gradient(kept, optimizer, manifest, step)
    for step in range(3, 6):
        accumulate_gradient(resumed, again, windows[step])
        apply_gradient(resumed, again, manifest, step)
    (shard,) = manifest.shards
    assert np.array_equal(read_fragment(kept, shard, 0), read_fragment(resumed, shard, 0))


def test_moments_of_another_model_are_refused_and_change_nothing(seed: int) -> None:
    manifest = small_manifest()
    model = build_model(manifest)
    optimizer = make_optimizer(model, manifest.inner)
    accumulate_gradient(model, optimizer, random_windows(seed, 1)[0])
    apply_gradient(model, optimizer, manifest, 0)
    tensors = optimizer_tensors(model, optimizer)
    before = {key: tensor.clone() for key, tensor in tensors.items()}
    missing = dict(list(tensors.items())[1:])
    reshaped = tensors | {"exp_avg/norm.weight": torch.zeros(3)}
    for foreign in (missing, reshaped):
        with pytest.raises(CheckpointError):
            load_optimizer_tensors(model, optimizer, foreign)
    after = optimizer_tensors(model, optimizer)
    assert all(torch.equal(after[key], before[key]) for key in before)
