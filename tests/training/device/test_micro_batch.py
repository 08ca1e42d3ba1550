"""Micro-batches: the same batch in smaller pieces, and what happens when memory is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from protocol.errors import ConfigError
from protocol.manifest import ModelSpec, RunManifest
from tests.training.devices import BFLOAT16_ON_CPU, SCARCE
from tests.training.replicas import random_windows, small_manifest
from training.device.device import open_device
from training.device.inner import (
    MicroBatch,
    accumulate_gradient,
    batch_loss,
    is_out_of_memory,
    make_optimizer,
)
from training.loop.diloco import DiLoCo
from training.loop.replicas import Swarm
from training.models.building import Gpt, write_fragment
from training.models.genesis import genesis_weights

MANIFEST = small_manifest()
BATCH = MANIFEST.inner.batch
CPU = open_device("cpu")


def refuse() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")


def refuse_like_mps() -> None:
    raise RuntimeError("MPS backend out of memory (MPS allocated: 9.05 GB, max allowed: 9.07 GB)")


def ask_the_cpu_for_an_exabyte() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


class Tight(Gpt):
    """A GPT on a device that holds the activations of `most` sequences, and says so its own way.

    `seen` counts the sequences of each forward pass that fitted.
    """

    def __init__(self, model: ModelSpec, most: int, refuse: Callable[[], None] = refuse) -> None:
        super().__init__(model)
        self.most = most
        self.refuse = refuse
        self.seen: list[int] = []

    def forward(self, bytes_BT: Tensor) -> Tensor:
        if len(bytes_BT) > self.most:
            self.refuse()
        self.seen.append(len(bytes_BT))
        return super().forward(bytes_BT)


def tight(most: int, refuse: Callable[[], None] = refuse) -> Tight:
    model = Tight(MANIFEST.model, most, refuse)
    write_fragment(model, MANIFEST.shards[0], 0, genesis_weights(MANIFEST)[0])
    return model


def optimizer_of(model: nn.Module, manifest: RunManifest = MANIFEST) -> torch.optim.Optimizer:
    return make_optimizer(model, manifest.inner)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def windows_of(seed: int, batch: int):
    return random_windows(seed, 1, batch=batch)[0]


def full_batch(windows_BW) -> tuple[float, list[Tensor]]:
    """The plain way: one pass."""
    model = tight(10**9)
    loss = batch_loss(model, windows_BW)
    loss.backward()
    return float(loss.detach()), gradients(model)


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 7, 10, 64])
def test_gradient_of_micro_batches_is_that_of_the_batch(micro_batch, seed):
    windows_BW = windows_of(seed, 10)
    expected_loss, expected = full_batch(windows_BW)
    model = tight(micro_batch)
    loss = accumulate_gradient(model, optimizer_of(model), windows_BW, micro_batch=micro_batch)

    assert sum(model.seen) == 10
    assert max(model.seen) == min(micro_batch, 10)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for ours, theirs in zip(gradients(model), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_batch_that_fits_is_one_pass_to_the_bit(seed):
    windows_BW = windows_of(seed, 10)
    expected_loss, expected = full_batch(windows_BW)
    model = tight(10)
    optimizer = optimizer_of(model)
    for _ in range(2):  # Gradients of the step before do not stay.
        loss = MicroBatch(CPU, 10).gradient(model, optimizer, windows_BW)

    assert model.seen == [10, 10]
    assert loss == expected_loss
    assert all(map(torch.equal, gradients(model), expected))


@pytest.mark.parametrize("refuse", [refuse, refuse_like_mps, ask_the_cpu_for_an_exabyte])
def test_refused_memory_halves_the_micro_batch_and_repeats_the_step(refuse, seed, caplog):
    windows_BW = windows_of(seed, 10)
    expected_loss, expected = full_batch(windows_BW)
    model = tight(3, refuse)
    micro_batch = MicroBatch(CPU, 10)
    loss = micro_batch.gradient(model, optimizer_of(model), windows_BW)

    # 10 and 5 did not fit.
    assert micro_batch.size == 2
    assert model.seen == [2] * 5
    assert [f"micro_batch={size}" in caplog.text for size in (5, 2, 1)] == [True, True, False]
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for ours, theirs in zip(gradients(model), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_what_was_summed_up_before_memory_was_refused_is_not_counted_twice(seed):
    windows_BW = windows_of(seed, 12)
    _, expected = full_batch(windows_BW)
    model = tight(6)
    micro_batch = MicroBatch(CPU, 12)
    optimizer = optimizer_of(model)
    micro_batch.gradient(model, optimizer, windows_BW)
    model.seen.clear()

    def refuse_the_second_pass(module, inputs):
        if len(model.seen) == 1 and len(inputs[0]) > 3:
            refuse()

    model.register_forward_pre_hook(refuse_the_second_pass)
    micro_batch.gradient(model, optimizer, windows_BW)
    assert model.seen == [6, 3, 3, 3, 3]
    for ours, theirs in zip(gradients(model), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_size_stays_where_it_was_halved_to(seed):
    model = tight(2)
    micro_batch = MicroBatch(CPU, 4)
    optimizer = optimizer_of(model)
    for _ in range(2):
        micro_batch.gradient(model, optimizer, windows_of(seed, 4))
        assert micro_batch.size == 2
    model.most = 10**9
    micro_batch.gradient(model, optimizer, windows_of(seed, 4))
    assert model.seen == [2] * 6


def test_one_sequence_that_does_not_fit_is_an_error_that_says_what_to_do(seed):
    model = tight(0)
    micro_batch = MicroBatch(CPU, 4)
    with pytest.raises(ConfigError, match=r"cpu has too little free memory.*--device"):
        micro_batch.gradient(model, optimizer_of(model), windows_of(seed, 4))
    assert micro_batch.size == 1


def test_other_errors_of_a_model_are_not_taken_for_a_lack_of_memory(seed):
    def break_down() -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)")

    micro_batch = MicroBatch(CPU, 4)
    model = tight(0, break_down)
    with pytest.raises(RuntimeError, match="mat1"):
        micro_batch.gradient(model, optimizer_of(model), windows_of(seed, 4))
    assert micro_batch.size == 4


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("anything"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("expected scalar type Float but found BFloat16"), False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_allocators_are_understood(error, is_one):
    assert is_out_of_memory(error) == is_one


def test_nothing_is_tried_out_on_the_cpu():
    model = tight(0)
    micro_batch = MicroBatch(CPU, 8)
    micro_batch.try_out(model, optimizer_of(model), 9)

    assert (model.seen, micro_batch.size) == ([], 8)


def test_a_device_is_tried_out_before_training_and_nothing_stays_of_it():
    model = tight(3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = optimizer_of(model)
    micro_batch = MicroBatch(SCARCE, 8)
    micro_batch.try_out(model, optimizer, 9)

    assert (model.seen, micro_batch.size) == ([2], 2)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(map(torch.equal, model.parameters(), before))
    assert not optimizer.state


@pytest.mark.parametrize(
    ("device", "most", "at_once"), [(CPU, 9, 64), (CPU, 3, 2), (SCARCE, 9, 8), (SCARCE, 3, 2)]
)
def test_passes_without_gradients_take_what_surely_fits(device, most, at_once, seed):
    model = tight(most)
    micro_batch = MicroBatch(device, 8)
    micro_batch.gradient(model, optimizer_of(model), windows_of(seed, 8))

    assert micro_batch.at_once(64) == at_once


def test_autocast_holds_in_every_micro_batch(seed):
    model = tight(1)
    seen = []
    model.get_submodule("blocks.0.feed_forward.up").register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    MicroBatch(BFLOAT16_ON_CPU, 2).gradient(model, optimizer_of(model), windows_of(seed, 2))

    assert seen == [torch.bfloat16] * 2


def test_a_node_short_of_memory_contributes_the_same_samples_and_nearly_the_same_bits(seed):
    contributions, drifts = [], []
    for most in (BATCH, 1):
        model = tight(most)
        optimizer = optimizer_of(model)
        swarm = Swarm(MANIFEST, replicas=1)
        (session,) = swarm.sessions()
        diloco = DiLoCo(model, optimizer, exchange=session)
        micro_batch = MicroBatch(CPU, BATCH)
        for windows_BW in random_windows(seed, MANIFEST.inner.inner_steps):
            diloco.step(micro_batch.gradient(model, optimizer, windows_BW))
        contribution = swarm.contributions[0, 0]
        contributions.append((contribution.samples, contribution.tokens, contribution.steps))
        drifts.append(np.concatenate([np.frombuffer(p, "<f4") for p in contribution.payloads]))

    assert contributions[0] == contributions[1]
    # Adam makes a full step of a gradient near zero, whatever its sign; the rest agrees closely.
    apart = np.abs(drifts[0] - drifts[1])
    assert np.linalg.norm(apart) < 0.05 * np.linalg.norm(drifts[0])
