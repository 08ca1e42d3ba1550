"""Outer optimizers against torch.optim.SGD."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protocol.errors import ConfigError
from tests.training.replicas import OUTER, small_manifest
from training.loop.replicas import Weights
from training.outer.optimizers import OUTER_OPTIMIZERS, OuterInfo, OuterOptimizer, Slots, make_outer

NUMEL = 1000


def run(rule: OuterOptimizer, seed: int, rounds: int = 30) -> Weights:
    generator = np.random.default_rng(seed)
    anchor_N = generator.normal(size=NUMEL).astype(np.float32)
    slots: Slots = {}
    for index in range(rounds):
        aggregate_N = generator.normal(size=NUMEL).astype(np.float32)
        step = rule.step(anchor_N, aggregate_N, OuterInfo(round=index, slots=slots))
        anchor_N, slots = step.anchor_N, step.slots
    return anchor_N


def run_torch(seed: int, *, lr: float, momentum: float = 0.0, nesterov: bool = False) -> Weights:
    generator = np.random.default_rng(seed)
    anchor = torch.nn.Parameter(torch.from_numpy(generator.normal(size=NUMEL).astype(np.float32)))
    optimizer = torch.optim.SGD([anchor], lr=lr, momentum=momentum, nesterov=nesterov)
    for _ in range(30):
        anchor.grad = torch.from_numpy(generator.normal(size=NUMEL).astype(np.float32))
        optimizer.step()
    weights_N: Weights = anchor.detach().numpy()
    return weights_N


@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.5), (0.7, 0.9), (1.0, 0.1)])
def test_nesterov_equals_torch(seed: int, rate: float, momentum: float) -> None:
    ours_N = run(OUTER_OPTIMIZERS["nesterov"](rate, momentum), seed)
    theirs_N = run_torch(seed, lr=rate, momentum=momentum, nesterov=True)
    assert np.allclose(ours_N, theirs_N, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.5), (1.0, 0.9), (1.0, 0.0)])
def test_heavy_ball_equals_torch(seed: int, rate: float, momentum: float) -> None:
    ours_N = run(OUTER_OPTIMIZERS["heavy_ball"](rate, momentum), seed)
    theirs_N = run_torch(seed, lr=rate, momentum=momentum)
    assert np.allclose(ours_N, theirs_N, rtol=1e-5, atol=1e-4)


def test_nesterov_is_not_plain_momentum(seed: int) -> None:
    """The oracle can fail: the two differ by far more than its tolerance."""
    ours_N = run(OUTER_OPTIMIZERS["nesterov"](0.7, 0.5), seed)
    assert np.abs(ours_N - run_torch(seed, lr=0.7, momentum=0.5)).max() > 0.1


def test_sgd_equals_torch(seed: int) -> None:
    ours_N = run(OUTER_OPTIMIZERS["sgd"](0.7), seed)
    assert np.allclose(ours_N, run_torch(seed, lr=0.7), rtol=1e-5, atol=2e-5)


def test_nesterov_without_momentum_equals_sgd_to_the_bit(seed: int) -> None:
    plain_N = run(OUTER_OPTIMIZERS["sgd"](0.7), seed)
    assert run(OUTER_OPTIMIZERS["nesterov"](0.7, 0.0), seed).tobytes() == plain_N.tobytes()


@pytest.mark.parametrize("name", list(OUTER_OPTIMIZERS))
def test_step_is_pure_float32_and_leaves_the_named_slots(name: str, seed: int) -> None:
    rule = OUTER_OPTIMIZERS[name](0.7, 0.0)
    generator = np.random.default_rng(seed)
    anchor_N, aggregate_N = generator.normal(size=(2, NUMEL)).astype(np.float32)
    slots = {key: generator.normal(size=NUMEL).astype(np.float32) for key in rule.slots}
    before = anchor_N.tobytes(), aggregate_N.tobytes(), [slot.tobytes() for slot in slots.values()]
    info = OuterInfo(round=3, slots=slots)
    first, second = (rule.step(anchor_N, aggregate_N, info) for _ in range(2))
    after = anchor_N.tobytes(), aggregate_N.tobytes(), [slot.tobytes() for slot in slots.values()]
    assert after == before
    assert tuple(first.slots) == rule.slots
    assert first.anchor_N.dtype == np.float32
    assert all(slot.dtype == np.float32 for slot in first.slots.values())
    assert first.anchor_N.tobytes() == second.anchor_N.tobytes()


@pytest.mark.parametrize("name", list(OUTER_OPTIMIZERS))
def test_cell_by_cell_equals_the_whole_to_the_bit(name: str, seed: int) -> None:
    rule = OUTER_OPTIMIZERS[name](0.7, 0.0)
    generator = np.random.default_rng(seed)
    anchor_N, aggregate_N = generator.normal(size=(2, NUMEL)).astype(np.float32)
    slots = {key: generator.normal(size=NUMEL).astype(np.float32) for key in rule.slots}
    whole = rule.step(anchor_N, aggregate_N, OuterInfo(round=0, slots=slots))
    for start, stop in ((0, 256), (256, NUMEL)):
        part = OuterInfo(round=0, slots={key: slot[start:stop] for key, slot in slots.items()})
        step = rule.step(anchor_N[start:stop], aggregate_N[start:stop], part)
        assert step.anchor_N.tobytes() == whole.anchor_N[start:stop].tobytes()


def test_sgd_with_momentum_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"momentum is 0.5, .* has none"):
        OUTER_OPTIMIZERS["sgd"](0.7, 0.5)


def test_manifest_names_the_outer_optimizer() -> None:
    manifest = small_manifest(outer=replace(OUTER, learning_rate=0.5, momentum=0.25))
    anchor_N, aggregate_N = np.ones(2, dtype=np.float32), np.ones(2, dtype=np.float32)
    step = make_outer(manifest.outer).step(anchor_N, aggregate_N, OuterInfo(round=0, slots={}))
    assert step.anchor_N.tolist() == [1 - 0.5 * 1.25] * 2
