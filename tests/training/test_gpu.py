"""What holds on the CPU, on an accelerator: run wherever torch sees one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from protocol.manifest import ModelSpec, RunManifest, Setting
from tests.training.devices import assert_same_moments, available
from tests.training.replicas import OUTER, random_windows, small_manifest
from training.device.device import Device, open_device
from training.device.inner import MicroBatch, accumulate_gradient, make_optimizer, optimizer_tensors
from training.loop.diloco import DiLoCo
from training.loop.inner_state import InnerFolder
from training.loop.replicas import Swarm
from training.models.building import build_model, read_fragment, write_fragment
from training.models.genesis import shard_spec

pytestmark = [
    pytest.mark.gpu,
    # As many as there are; on a machine without one the mark skips the single case.
    pytest.mark.parametrize("name", [n for n in available() if n != "cpu"] or ["cuda"]),
]


def on(name: str, manifest: RunManifest) -> tuple[Device, nn.Module, torch.optim.Optimizer]:
    device = open_device(name)
    model = build_model(manifest).to(device.torch_device)
    return device, model, make_optimizer(model, manifest.inner)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_auto_takes_the_accelerator_and_names_it(name):
    device = open_device("auto")
    assert str(device.torch_device) == available()[0] != "cpu"
    assert device.name.startswith(str(device.torch_device))
    if name.startswith("cuda") and torch.cuda.get_device_capability(name) >= (8, 0):
        assert open_device(name).precision == "bfloat16"


def test_an_anchor_comes_through_the_device_to_the_bit(name, seed):
    manifest = small_manifest()
    _, model, _ = on(name, manifest)
    (shard,) = manifest.shards
    size = len(read_fragment(model, shard, 0))
    anchor_N = np.frombuffer(np.random.default_rng(seed).bytes(4 * size), np.float32)
    write_fragment(model, shard, 0, anchor_N)

    assert read_fragment(model, shard, 0).tobytes() == anchor_N.tobytes()


def test_rounds_on_the_device_lower_the_loss_and_end_on_the_anchor(name, seed):
    manifest = small_manifest(outer=replace(OUTER, codec="fp16"))
    device, model, optimizer = on(name, manifest)
    (session,) = Swarm(manifest, replicas=1).sessions()
    diloco = DiLoCo(model, optimizer, exchange=session)
    micro_batch = MicroBatch(device, manifest.inner.batch)
    micro_batch.try_out(model, optimizer, 9)
    (windows_BW,) = random_windows(seed, 1)
    losses = []
    while not diloco.finished:
        losses.append(micro_batch.gradient(model, optimizer, windows_BW))
        diloco.step(losses[-1])

    assert micro_batch.size == manifest.inner.batch
    assert losses[-1] < losses[0] - 0.5
    weights_N = read_fragment(model, manifest.shards[0], 0)
    assert weights_N.tobytes() == session.swarm.anchor.tobytes()
    kept = [*model.parameters(), *optimizer_tensors(model, optimizer).values()]
    assert {tensor.dtype for tensor in kept} == {torch.float32}


def test_moments_go_to_the_disk_and_back_to_the_device(name, seed, tmp_path):
    manifest = small_manifest()
    _, model, optimizer = on(name, manifest)
    (session,) = Swarm(manifest, replicas=1).sessions()
    store = InnerFolder(tmp_path, manifest)
    diloco = DiLoCo(model, optimizer, exchange=session, inner_store=store)
    for windows_BW in random_windows(seed, manifest.inner.inner_steps):
        diloco.step(accumulate_gradient(model, optimizer, windows_BW))
    _, again, other = on(name, manifest)
    DiLoCo(again, other, exchange=session, inner_store=store)

    assert_same_moments(optimizer_tensors(model, optimizer), optimizer_tensors(again, other))


def test_a_batch_beyond_the_memory_is_cut_until_it_fits(name, seed):
    """8192 windows of 256 bytes have logits of 2 GiB alone; the device lends 1 GiB."""
    if not name.startswith("cuda"):
        pytest.skip("only CUDA can be told to lend less memory than it has")
    settings = {"context": 256, "heads": 2, "layers": 1, "width": 64}
    model_spec = ModelSpec(
        name="gpt", settings=tuple(Setting(key, settings[key]) for key in settings), seed=5
    )
    manifest = replace(small_manifest(), model=model_spec, shards=(shard_spec(model_spec),))
    device, model, optimizer = on(name, manifest)
    batch = 8192
    (windows_BW,) = random_windows(seed, 1, batch=batch, window=257)
    accumulate_gradient(
        model, optimizer, windows_BW, micro_batch=batch // 128, autocast=device.autocast
    )
    expected = gradients(model)

    micro_batch = MicroBatch(device, batch)
    total = torch.cuda.get_device_properties(device.torch_device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2**30 / total, device.torch_device)
    try:
        micro_batch.gradient(model, optimizer, windows_BW)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.torch_device)

    assert 1 <= micro_batch.size < batch // 2
    for ours, theirs in zip(gradients(model), expected, strict=True):
        assert float((ours - theirs).norm()) <= 0.02 * float(theirs.norm()) + 1e-6
