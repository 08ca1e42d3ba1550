"""The seam of methods: what DiLoCo's hooks say, and that the loop knows this seam and no method."""

import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

import training.loop
import training.methods
from protocol.errors import ConfigError
from protocol.grid import ShardSpec
from protocol.manifest import InnerSpec, OuterSpec
from tests.training.replicas import INNER, OUTER, random_windows, small_manifest
from training.channel.exchange import Outcome, RunClock
from training.device.inner import accumulate_gradient, make_optimizer
from training.loop.diloco import DiLoCo
from training.loop.inner_state import InnerFolder
from training.loop.replicas import MemorySession, Swarm, run_replicas
from training.methods.method import METHODS, Due, Method, MethodNotes, MethodSetting, Pace, Vector
from training.methods.presets import PRESETS, Preset
from training.models.building import build_model, read_fragment

LOOP, METHODS_ROOM = (
    Path(inspect.getfile(room)).parent for room in (training.loop, training.methods)
)
SEAMS = {"method", "stages", "presets"}
"""Modules of methods that are no method: the seam, the maker by the manifest, the numbers."""


def method(name: str, *, inner_steps: int, fragments: int, overlap: int = 1, tau: int = 0):
    inner = replace(INNER, inner_steps=inner_steps)
    spec = replace(OUTER, overlap=overlap)
    return METHODS[name](
        MethodSetting(spec=spec, inner=inner, num_fragments=fragments, pace=Pace(inner), tau=tau)
    )


def test_diloco_is_due_at_step_h_only() -> None:
    diloco = method("diloco", inner_steps=3, fragments=1)
    assert [diloco.due(step, 0) for step in (1, 2)] == [Due(), Due()]
    assert diloco.due(3, 0) == Due(begin=(0,), finish=(0,))


def test_diloco_takes_the_fragments_in_turn() -> None:
    diloco = method("diloco", inner_steps=1, fragments=3)
    assert [diloco.due(1, index).begin for index in range(5)] == [(0,), (1,), (2,), (0,), (1,)]


def test_unknown_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="diloco"):
        METHODS["never"]


def test_every_preset_names_a_method() -> None:
    assert {PRESETS[name](100).method for name in PRESETS} <= set(METHODS)


# The loop knows no method -----------------------------------------------------------------------


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module and every name of a module that is imported, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def known_of_methods(source: str) -> set[str]:
    """What a source says of methods: modules, classes, names, and what presets say of them."""
    tree = ast.parse(source)
    files = {path.stem for path in METHODS_ROOM.glob("*.py")} - SEAMS - {"__init__"}
    classes = {kind.__name__ for kind in all_methods(Method)} - {"Method"}
    flags = {field.name for field in dataclasses.fields(Preset)} | {
        name for name, value in vars(Preset).items() if isinstance(value, property)
    }
    # What the manifest says of a run is no flag of a method, but for the two at the end.
    for law in (OuterSpec, InnerSpec, ShardSpec):
        flags -= {field.name for field in dataclasses.fields(law)}
    flags |= {"preset", "overlap"}
    found = {name for name in imported(tree) if name.removeprefix("training.methods.") in files}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in classes | {"METHODS", "PRESETS"}:
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in flags:
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and node.value in {*METHODS, *PRESETS}:
            found.add(str(node.value))
    return found


def all_methods(kind: type[Method]) -> Iterator[type[Method]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from all_methods(narrower)


@pytest.mark.parametrize("path", sorted(LOOP.glob("*.py")), ids=lambda path: path.stem)
def test_the_loop_imports_no_method_and_knows_no_flag_of_one(path: Path) -> None:
    assert known_of_methods(path.read_text()) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from training.methods.scaffold import anything", {"training.methods.scaffold"}),
        ("def f():\n    from training.methods import sparta", {"training.methods.sparta"}),
        ("if method.is_delayed: pass", {"is_delayed"}),
        ("if self._preset.has_variates: pass", {"has_variates"}),
        ("if spec.overlap > 1: pass", {"overlap"}),
        ("isinstance(method, Eager)", {"Eager"}),
        ("if spec.preset == 'sparta': pass", {"preset", "sparta"}),
        ("from training.methods.method import Method", set()),
    ],
)
def test_a_loop_that_knew_a_method_would_be_seen(source: str, found: set[str]) -> None:
    assert known_of_methods(source) == found


class HalfWay(Method):
    """Made up here alone: working weights meet the anchor half-way, and a round is remembered."""

    def __init__(self, setting: MethodSetting) -> None:
        super().__init__(setting)
        self.seen: list[str] = []

    @override
    def after_step(self, rate_step: int) -> None:
        self.seen.append(f"step {rate_step}")

    @override
    def record_drift(self, drift_N: Vector) -> None:
        assert np.any(drift_N)
        self.seen.append("drift")

    @override
    def settle(self, outcome: Outcome) -> None:
        self.seen.append(f"sealed {outcome.clock.round - 1}")

    @override
    def take_in(
        self, round_index: int, outcome: Outcome, local: Callable[[], Vector], sent_N: Vector | None
    ) -> Vector:
        met_N: Vector = outcome.anchor_N + np.float32(0.5) * (local() - outcome.anchor_N)
        return met_N

    @override
    def notes(self) -> MethodNotes:
        return MethodNotes({"seen": str(len(self.seen))})


@pytest.fixture
def half_way(monkeypatch: pytest.MonkeyPatch) -> list[HalfWay]:
    made: list[HalfWay] = []

    def make(setting: MethodSetting) -> HalfWay:
        made.append(HalfWay(setting))
        return made[-1]

    for registry, factory in ((METHODS, make), (PRESETS, preset_of_test)):
        monkeypatch.setattr(registry, "_factories", {**dict(registry.items()), "half_way": factory})
    return made


def preset_of_test(rounds: int) -> Preset:
    return Preset(summary=f"half-way in {rounds} rounds", method="half_way")


def test_a_method_that_a_test_registers_trains_through_its_hooks(
    half_way: list[HalfWay], tmp_path: Path, seed: int
) -> None:
    inner = replace(INNER, inner_steps=2)
    manifest = small_manifest(inner=inner, outer=replace(OUTER, preset="half_way"))
    windows = random_windows(seed, 2 * manifest.rounds)
    ends: list[Vector] = []

    def train(session: MemorySession) -> None:
        model = build_model(manifest)
        optimizer = make_optimizer(model, inner)
        store = InnerFolder(tmp_path, manifest)
        diloco = DiLoCo(model, optimizer, exchange=session, inner_store=store)
        for windows_BW in windows:
            diloco.step(accumulate_gradient(model, optimizer, windows_BW))
        ends.append(read_fragment(model, manifest.shards[0], 0))

    swarm = Swarm(manifest, 1)
    run_replicas(swarm, train)
    (used,) = half_way
    assert used.seen[:6] == ["step 0", "step 1", "drift", "sealed 0", "step 2", "step 3"]
    assert used.seen[-1] == f"sealed {manifest.rounds - 1}"
    assert np.abs(ends[0] - swarm.anchor).max() > 1e-4, "half of the way is left"
    kept = InnerFolder(tmp_path, manifest).newest(manifest.rounds)
    assert kept is not None
    assert kept.notes == MethodNotes({"seen": str(len(used.seen) - 1)})
    assert swarm.clock == replace(RunClock(round=5, step=10, tokens=0), tokens=swarm.clock.tokens)


def test_the_room_of_the_loop_is_looked_at() -> None:
    assert {path.stem for path in LOOP.glob("*.py")} >= {"diloco", "inner_state", "trainer_loop"}
