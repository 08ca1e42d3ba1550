"""A run that changes its method half-way: which rounds are whose, and what goes together."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import ConfigError
from protocol.manifest import OuterSpec, RunManifest, ThenSpec
from tests.training.in_flight_run import MOMENTS_TO_DIE, InFlightRun
from tests.training.replicas import INNER, OUTER, random_windows
from tests.training.test_one_step_delay import ROUNDS, STEPS, drifts_of, manifest_of
from training.device.inner import accumulate_gradient, make_optimizer
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, run_replicas
from training.methods.presets import wrong_then
from training.methods.stages import make_stages
from training.models.building import build_model
from training.models.genesis import genesis_weights, shard_spec
from training.outer.optimizers import OuterInfo, make_outer

FROM = 3
THEN = ThenSpec(
    preset="one_step_delay", from_round=FROM, optimizer="sgd", learning_rate=0.6, momentum=0.0
)


def staged(then: str = "one_step_delay", *, codec: str = "none") -> RunManifest:
    """At once with momentum, then another method."""
    manifest = manifest_of("diloco", codec=codec)
    return replace(manifest, outer=replace(manifest.outer, then=(replace(THEN, preset=then),)))


def cut_in_two(manifest: RunManifest) -> RunManifest:
    return replace(manifest, shards=(shard_spec(manifest.model, fragments=2),))


@dataclass
class Watched(Swarm):
    """Keeps every anchor."""

    seen: list[bytes] = field(default_factory=list)

    def _seal(self) -> None:
        super()._seal()
        self.seen.append(self.anchor.tobytes())


def trained(manifest: RunManifest, seed: int, replicas: int = 2) -> Watched:
    windows = random_windows(seed, steps=ROUNDS * STEPS * replicas).reshape(-1, replicas, 4, 9)

    def train(session: MemorySession) -> None:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        for step in range(ROUNDS * STEPS):
            diloco.step(accumulate_gradient(model, inner, windows[step, session.replica]))
        assert diloco.finished

    swarm = Watched(manifest, replicas)
    run_replicas(swarm, train)
    return swarm


def test_run_that_goes_on_with_a_delay_equals_its_reference(seed: int) -> None:
    manifest = staged()
    theta = genesis_weights(manifest)[0].astype(np.float64)
    velocity, in_flight = np.zeros_like(theta), np.zeros_like(theta)
    expected = []
    for index, (begun, drifts) in enumerate(drifts_of(manifest, seed, 2)):
        mean = np.mean(drifts, axis=0)
        if index < FROM:
            velocity = OUTER.momentum * velocity + mean
            theta = theta - OUTER.learning_rate * (mean + OUTER.momentum * velocity)
            expected.append(theta)
        else:
            theta = theta - THEN.learning_rate * in_flight
            expected.append(theta - THEN.learning_rate * mean)
            in_flight = mean
        begun[:] = [theta, theta]
    found = [np.frombuffer(seen, np.float32) for seen in trained(manifest, seed).seen]
    assert len(found) == len(expected) == ROUNDS
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) <= 2e-6


@pytest.mark.quick(1)
@pytest.mark.parametrize("then", ["one_step_delay", "eager", "fedavg"])
def test_rounds_before_the_later_method_are_the_first_one_s_to_the_bit(
    seed: int, then: str
) -> None:
    alone = trained(manifest_of("diloco", overlap=1), seed).seen
    manifest = staged(then)
    if then == "fedavg":
        manifest = replace(manifest, outer=replace(manifest.outer, overlap=1))
    both = trained(manifest, seed).seen
    assert both[:FROM] == alone[:FROM]
    assert both[FROM] != alone[FROM]


def test_fragments_are_synced_at_once_and_then_in_flight(seed: int) -> None:
    alone = trained(cut_in_two(manifest_of("streaming_sync", overlap=1)), seed).seen
    manifest = staged("streaming_diloco")
    outer = replace(manifest.outer, preset="streaming_sync")
    both = trained(cut_in_two(replace(manifest, outer=outer)), seed).seen
    assert both[:FROM] == alone[:FROM]
    assert both[-1] != alone[-1]


@pytest.mark.quick(2)
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
@pytest.mark.parametrize("dies_in", [1, FROM - 1, FROM, FROM + 1])
def test_a_restart_around_the_change_changes_no_bit(
    tmp_path: Path, seed: int, dies_in: int, moment: str, is_early: bool
) -> None:
    manifest = staged(codec="int4")
    whole = InFlightRun(manifest, tmp_path / "never", seed, is_early=is_early)
    expected = whole.train()
    deaths = {dies_in: moment}
    run = InFlightRun(manifest, tmp_path / "killed", seed, is_early=is_early, deaths=deaths)
    assert run.train() == expected
    assert run.starts == 2
    for index in range(ROUNDS):
        # What was handed over is handed over again, byte for byte.
        assert set(run.sent[index]) == set(whole.sent[index])


def stepped(
    spec: OuterSpec, rounds: range, slots: dict[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    rule, anchor_N = make_outer(spec), np.zeros(5, np.float32)
    for index in rounds:
        aggregate_N = np.random.default_rng(index).normal(size=5).astype(np.float32)
        step = rule.step(anchor_N, aggregate_N, OuterInfo(round=index, slots=slots))
        anchor_N = step.anchor_N
        slots.clear()
        slots.update(step.slots)
        assert tuple(slots) == rule.slots
    return anchor_N


def test_outer_step_is_each_rule_s_in_its_rounds_and_the_slots_are_always_there() -> None:
    both = replace(OUTER, then=(replace(THEN, momentum=0.0),))
    plain, later = replace(OUTER, then=()), replace(OUTER, optimizer="sgd", learning_rate=0.6)
    later = replace(later, momentum=0.0)
    slots: dict[str, NDArray[np.float32]] = {}
    assert np.array_equal(stepped(both, range(FROM), slots), stepped(plain, range(FROM), {}))
    assert slots["momentum"].any()
    behind = range(FROM, FROM + 2)
    assert np.array_equal(stepped(both, behind, slots), stepped(later, behind, {}))
    assert not slots["momentum"].any(), "what averaging does not use is forgotten"


def test_momentum_is_carried_over_between_rules_that_have_some() -> None:
    then = replace(THEN, optimizer="nesterov", learning_rate=0.7, momentum=0.5)
    both, whole = replace(OUTER, then=(then,)), range(2 * FROM)
    assert np.array_equal(stepped(both, whole, {}), stepped(OUTER, whole, {}))


@pytest.mark.parametrize(
    ("name", "later", "fragments", "overlap", "why"),
    [
        ("diloco", "eager", 1, 2, None),
        ("diloco", "fedavg", 1, 1, None),
        ("one_step_delay", "eager", 1, 2, None),
        ("streaming_sync", "streaming_diloco", 4, 2, None),
        ("eager", "diloco", 1, 2, "begin with 'diloco'"),
        ("diloco", "auto", 1, 1, "'auto' are as long as each peer likes"),
        ("diloco", "eager", 1, 1, "set [outer] overlap"),
        ("diloco", "streaming_diloco", 1, 2, "[outer] fragments is 1"),
        ("streaming_diloco", "eager", 4, 2, "[outer] fragments is 4"),
    ],
)
def test_methods_that_do_not_follow_each_other_are_refused(
    name: str, later: str, fragments: int, overlap: int, why: str | None
) -> None:
    lines = list(wrong_then(name, later, fragments=fragments, overlap=overlap))
    spec = replace(OUTER, preset=name, overlap=overlap, then=(replace(THEN, preset=later),))
    if why is None:
        assert lines == []
        stages = make_stages(spec, INNER, fragments)
        assert stages.at(FROM - 1) is stages.first is not stages.at(FROM)
        return
    assert len(lines) == 1
    assert why in lines[0]
    with pytest.raises(ConfigError, match="then: "):
        make_stages(spec, INNER, fragments)
