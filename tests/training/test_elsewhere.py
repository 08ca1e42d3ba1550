"""A trainer on a device that is not the host's: every preset of nodes, to the bit as on the CPU.

An accelerator refuses what mixes it with the host; so does this one, which needs none.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from node.settings.check import check_run_file
from protocol.manifest import RunManifest
from sim.methods.compare_main import run_swarm, swarm_of
from tests.training.devices import assert_same_moments
from tests.training.elsewhere import DEVICE, Elsewhere
from tests.training.replicas import random_windows, small_manifest
from training.device.inner import accumulate_gradient, make_optimizer, optimizer_tensors
from training.loop.diloco import DiLoCo
from training.loop.inner_state import InnerFolder
from training.loop.replicas import MemorySession, Swarm
from training.methods.presets import IN_PROCESS, PRESETS
from training.models.building import build_model, read_fragment, write_fragment

ROUNDS, STEPS, BATCH, CONTEXT = 3, 5, 2, 8

SMALL = f"""
[run]
title = "t"
rounds = {ROUNDS}
[model.settings]
width = 16
heads = 2
layers = 4
context = {CONTEXT}
[inner]
inner_steps = {STEPS}
batch = {BATCH}
learning_rate = 0.01
"""


@pytest.fixture(autouse=True)
def _moved_by_swapping():
    """So that a model may take tensors of another class for its own."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def manifest_of(folder: Path, preset: str) -> RunManifest:
    path = folder / "run.toml"
    path.write_text(f"{SMALL}[outer]\npreset = '{preset}'\n")
    return check_run_file(path, 2).manifest


def trained(manifest: RunManifest, seed: int, *, is_far: bool) -> tuple[list[bytes], list[float]]:
    """The anchors behind a run of two replicas, and the losses of the first."""
    swarm, losses = swarm_of(manifest, 2), list[float]()

    def train(session: MemorySession) -> None:
        model = build_model(manifest)
        if is_far:
            model = model.to(DEVICE)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        rng = np.random.default_rng((seed, session.replica))
        while not diloco.finished:
            windows_BW = rng.integers(0, 256, (BATCH, CONTEXT + 1), dtype=np.uint8)
            radius = manifest.inner.sam_radius
            loss = accumulate_gradient(model, inner, windows_BW, sam_radius=radius)
            diloco.step(loss)
            if session.replica == 0:
                losses.append(loss)
        kept = [*model.parameters(), *optimizer_tensors(model, inner).values()]
        there = [tensor.device for tensor in kept if tensor.dim()]
        assert set(there) == {DEVICE if is_far else torch.device("cpu")}

    def train_there(session: MemorySession) -> None:
        with Elsewhere():
            train(session)

    # The CPU would else have attention of its own making.
    with sdpa_kernel([SDPBackend.MATH]):
        run_swarm(swarm, train_there if is_far else train)
    return [anchor_N.tobytes() for anchor_N in swarm.anchors], losses


QUICK = ("diloco_ternary", "scaffold", "sparseloco")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in sorted(set(PRESETS) - set(IN_PROCESS))
    ],
)
def test_run_there_is_the_run_on_the_cpu_to_the_bit(tmp_path: Path, preset: str, seed: int) -> None:
    manifest = manifest_of(tmp_path, preset)
    anchors, losses = trained(manifest, seed, is_far=False)
    assert trained(manifest, seed, is_far=True) == (anchors, losses)
    assert len(losses) == ROUNDS * STEPS
    assert len(set(losses)) > 1


def test_an_anchor_comes_through_to_the_bit(seed: int) -> None:
    manifest = small_manifest()
    (shard,) = manifest.shards
    with Elsewhere() as there:
        model = build_model(manifest).to(DEVICE)
        size = len(read_fragment(model, shard, 0))
        there.moved_bytes = 0
        anchor_N = np.frombuffer(np.random.default_rng(seed).bytes(4 * size), np.float32)
        write_fragment(model, shard, 0, anchor_N)
        assert read_fragment(model, shard, 0).tobytes() == anchor_N.tobytes()
        assert there.moved_bytes == 4 * size


def test_moments_go_to_the_disk_and_back(seed: int, tmp_path: Path) -> None:
    manifest = small_manifest()
    (session,) = Swarm(manifest, replicas=1).sessions()
    store = InnerFolder(tmp_path, manifest)

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = build_model(manifest).to(DEVICE)
        return model, make_optimizer(model, manifest.inner)

    with Elsewhere():
        model, optimizer = made()
        diloco = DiLoCo(model, optimizer, exchange=session, inner_store=store)
        for windows_BW in random_windows(seed, manifest.inner.inner_steps):
            diloco.step(accumulate_gradient(model, optimizer, windows_BW))
        again, other = made()
        DiLoCo(again, other, exchange=session, inner_store=store)
        assert_same_moments(optimizer_tensors(model, optimizer), optimizer_tensors(again, other))
