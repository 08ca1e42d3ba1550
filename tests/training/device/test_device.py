"""Which device is taken, and what is said where it is not there."""

import numpy as np
import pytest
import torch

from protocol.errors import ConfigError
from tests.training.devices import BFLOAT16_ON_CPU, available
from tests.training.replicas import random_windows, small_manifest
from training.device.device import Device, Found, autocasts_to_bfloat16, candidates, open_device
from training.device.inner import (
    accumulate_gradient,
    apply_gradient,
    batch_loss,
    make_optimizer,
)
from training.models.building import build_model, read_fragment, write_fragment

NOTHING, TWO, APPLE = Found(cuda=0, mps=False), Found(cuda=2, mps=False), Found(cuda=0, mps=True)


@pytest.mark.parametrize(
    ("wish", "found", "names"),
    [
        ("auto", NOTHING, ("cpu",)),
        ("auto", TWO, ("cuda:0", "cpu")),
        ("auto", APPLE, ("mps", "cpu")),
        ("auto", Found(cuda=1, mps=True), ("cuda:0", "mps", "cpu")),
        ("cpu", TWO, ("cpu",)),
        ("cuda", TWO, ("cuda:0",)),
        ("cuda:1", TWO, ("cuda:1",)),
        ("mps", APPLE, ("mps",)),
    ],
    ids=lambda value: str(value),
)
def test_a_wish_names_the_devices_to_try_best_first(wish, found, names):
    assert candidates(wish, found) == names


@pytest.mark.parametrize(
    ("wish", "found", "says"),
    [
        ("cuda", NOTHING, "--device cuda: this machine's torch sees no CUDA device; use --device"),
        ("cuda", NOTHING, "or install a torch with CUDA"),
        ("cuda:0", APPLE, r"there is: mps, cpu"),
        ("cuda:2", TWO, r"no such CUDA device, only: cuda:0, cuda:1, cpu"),
        ("mps", TWO, "sees no MPS device; use --device auto or cpu"),
        ("gpu", TWO, "--device 'gpu' is none of auto, cpu, cuda, cuda:N, mps"),
        ("cuda:", TWO, "none of"),
        ("cuda:-1", TWO, "none of"),
        ("cuda:1\n", TWO, "none of"),
        ("", TWO, "none of"),
    ],
    ids=lambda value: str(value),
)
def test_a_device_that_is_not_there_is_an_error_that_says_what_to_do(wish, found, says):
    with pytest.raises(ConfigError, match=says):
        candidates(wish, found)


def test_the_cpu_computes_in_float32():
    device = open_device("cpu")

    assert device == Device(torch.device("cpu"), None)
    assert (device.name, device.precision, device.is_cpu) == ("cpu", "float32", True)
    ones = torch.ones(4, 4)
    with device.autocast():
        assert (ones @ ones).dtype == torch.float32
    device.free_cache()


def test_auto_opens_the_best_device_there_is():
    assert str(open_device("auto").torch_device) == available()[0]


@pytest.mark.skipif("cuda:0" in available(), reason="there is a CUDA device")
def test_a_missing_device_is_refused_by_name():
    with pytest.raises(ConfigError, match="--device cuda:1: this machine's torch sees no CUDA"):
        open_device("cuda:1")


def test_what_a_device_multiplies_in_is_asked_by_doing_it():
    assert autocasts_to_bfloat16(torch.device("cpu"))
    assert not autocasts_to_bfloat16(torch.device("meta"))


@pytest.mark.parametrize("name", available())
def test_an_anchor_comes_through_the_model_to_the_bit(name, seed):
    manifest = small_manifest()
    (shard,) = manifest.shards
    model = build_model(manifest).to(open_device(name).torch_device)
    size = len(read_fragment(model, shard, 0))
    # Any bits at all: subnormal numbers, both zeros, infinities, NaNs with their payloads.
    anchor_N = np.frombuffer(np.random.default_rng(seed).bytes(4 * size), np.float32).copy()
    anchor_N[:6] = [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-40]
    write_fragment(model, shard, 0, anchor_N)

    assert read_fragment(model, shard, 0).tobytes() == anchor_N.tobytes()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_under_autocast_matrices_are_bfloat16_and_all_that_is_kept_is_float32(seed):
    manifest = small_manifest()
    model = build_model(manifest)
    optimizer = make_optimizer(model, manifest.inner)
    windows_BW = random_windows(seed, 1)[0]
    seen = []
    hook = model.get_submodule("blocks.0.feed_forward.up").register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    with BFLOAT16_ON_CPU.autocast():
        half_loss = batch_loss(model, windows_BW)
    hook.remove()

    assert BFLOAT16_ON_CPU.precision == "bfloat16"
    assert seen == [torch.bfloat16]
    assert half_loss.dtype == torch.float32
    before = float(batch_loss(model, windows_BW).detach())
    assert float(half_loss.detach()) == pytest.approx(before, rel=1e-2)
    for step in range(30):
        autocast = BFLOAT16_ON_CPU.autocast
        loss = accumulate_gradient(model, optimizer, windows_BW, autocast=autocast)
        apply_gradient(model, optimizer, manifest, step)
    assert loss < before - 0.5
    moments = [value for state in optimizer.state.values() for value in state.values()]
    gradients = [parameter.grad for parameter in model.parameters()]
    assert {tensor.dtype for tensor in (*model.parameters(), *moments)} == {torch.float32}
    assert {None if g is None else g.dtype for g in gradients} == {torch.float32}
