"""What a program has beyond the run's names and shapes is refused or said, never dropped unsaid."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from protocol.errors import ConfigError, ManifestMismatch
from protocol.manifest import RunManifest
from tests.training.replicas import random_windows, small_manifest
from training.device.inner import accumulate_gradient, make_optimizer
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm
from training.models.building import (
    build_model,
    check_optimizer,
    check_parameters,
    read_fragment,
    unwrapped,
)

Bend = Callable[[Any], object]


class HearingSession(MemorySession):
    """The session of somebody's own program."""

    heard: tuple[str, ...] = ()

    def values_replaced(self, names: Sequence[str]) -> None:
        self.heard += tuple(names)


class SeatlessSession:
    """What takes no seat: whoever asks for where to begin would wait for one."""

    manifest: RunManifest = small_manifest()

    @property
    def start(self):
        raise AssertionError("a seat was taken")


def loop_object(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> DiLoCo:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return DiLoCo(model, optimizer, exchange=SeatlessSession())  # type: ignore[arg-type]


def share_memory(model: Any) -> None:
    block = model.blocks[0]
    block.feed_forward_norm.weight.data = block.attention_norm.weight.data


BENDS: list[tuple[Bend, str]] = [
    (lambda m: m.add_module("bn", nn.BatchNorm1d(3, affine=False)), r"buffer 'bn\.running_mean'"),
    (lambda m: m.norm.requires_grad_(False), r"norm\.weight are frozen"),
    (share_memory, r"attention_norm\.weight and .*feed_forward_norm\.weight are two over"),
    (lambda m: m.norm.to(torch.bfloat16), r"'norm\.weight' is torch\.bfloat16.*autocast"),
    (lambda m: m.add_module("lora", nn.Linear(2, 2)), r"does not train lora\.weight"),
]


@pytest.mark.parametrize(("bend", "complaint"), BENDS)
def test_what_a_program_has_beyond_names_and_shapes_is_refused_before_it_has_a_seat(
    bend: Bend, complaint: str
) -> None:
    model: Any = build_model(small_manifest())
    bend(model)

    with pytest.raises(ConfigError, match=complaint):
        loop_object(model)


def test_frozen_parameters_beside_the_run_are_said_to_be_the_programs_own(caplog) -> None:
    model: Any = build_model(small_manifest())
    model.add_module("base", nn.Linear(2, 2).requires_grad_(False))
    with caplog.at_level(logging.WARNING):
        check_parameters(model, small_manifest())

    assert "the run has no base.weight, base.bias: frozen here" in caplog.text


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda m: torch.optim.SGD(m.blocks.parameters()), r"lacks embedding\.weight, norm\.w"),
        (lambda m: torch.optim.SGD([*m.parameters(), nn.Parameter(torch.ones(1))]), "no param"),
        (lambda m: torch.optim.SGD(build_model(small_manifest()).parameters()), "no parameters of"),
        (
            lambda m: torch.optim.AdamW(
                [
                    {"params": m.blocks.parameters(), "lr": 0.1},
                    {"params": [m.embedding.weight, m.positions.weight, m.norm.weight]},
                ]
            ),
            r"rates 0\.001, 0\.1, and a run sets one",
        ),
    ],
)
def test_an_optimizer_of_something_else_or_with_rates_of_its_own_is_refused(
    make: Callable[[Any], torch.optim.Optimizer], complaint: str
) -> None:
    model: Any = build_model(small_manifest())

    with pytest.raises(ConfigError, match=complaint):
        loop_object(model, make(model))


def test_a_rate_scheduler_is_said_to_have_no_effect(caplog) -> None:
    model: Any = build_model(small_manifest())
    optimizer = make_optimizer(model, small_manifest().inner)
    with caplog.at_level(logging.WARNING):
        check_optimizer(model, optimizer, small_manifest())
        assert not caplog.records
        torch.optim.lr_scheduler.LinearLR(optimizer)
        check_optimizer(model, optimizer, small_manifest())

    assert "scheduler of this optimizer has no effect" in caplog.text


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda m: torch.compile(nn.DataParallel(m), backend="eager")]
)
def test_a_compiled_or_wrapped_model_trains_as_what_it_wraps(wrap: Bend, seed: int) -> None:
    manifest = small_manifest()
    ends: list[bytes] = []
    for model in (build_model(manifest), build_model(manifest)):
        handed: nn.Module = wrap(model) if ends else model  # type: ignore[assignment]
        optimizer = make_optimizer(handed, manifest.inner)
        (session,) = Swarm(manifest, replicas=1).sessions()
        diloco = DiLoCo(handed, optimizer, exchange=session)
        for windows_BW in random_windows(seed, steps=12):
            diloco.step(accumulate_gradient(model, optimizer, windows_BW))
        ends.append(read_fragment(model, manifest.shards[0], 0).tobytes())
        assert unwrapped(handed) is model

    assert ends[0] == ends[1]


def test_a_model_that_is_wrapped_inside_names_the_wrapper() -> None:
    model: Any = build_model(small_manifest())
    model.norm = torch.compile(model.norm, backend="eager")

    with pytest.raises(ConfigError, match=r"called norm\._orig_mod\.weight.*layer\.compile\(\)"):
        loop_object(model)
    model.blocks = nn.ModuleList()
    model.norm = nn.RMSNorm(3)
    with pytest.raises(ManifestMismatch, match="not in the model"):
        loop_object(model)


def test_a_program_hears_that_the_runs_values_replace_its_own() -> None:
    manifest = small_manifest()
    model: Any = build_model(manifest)
    swarm = Swarm(manifest, replicas=2)
    first, second = (HearingSession(swarm, session.replica) for session in swarm.sessions())
    DiLoCo(model, make_optimizer(model, manifest.inner), exchange=first)
    assert first.heard == ()
    with torch.no_grad():
        model.norm.weight += 1.0
    DiLoCo(model, make_optimizer(model, manifest.inner), exchange=second)

    assert "norm.weight" in second.heard
