from dataclasses import replace

import pytest
from rich.console import Console

from protocol.errors import ConfigError
from protocol.manifest import ModelSpec
from sim.local.main import run_local
from sim.local.options import (
    ELEMENTS_MAX,
    ELEMENTS_MIN,
    LocalOptions,
    local_manifest,
    model_settings,
    then_named,
)
from sim.processes.node_process import node_name
from tests.node.builders import peers_named
from training.methods.stages import make_stages
from training.models.genesis import genesis_weights, shard_spec

(FOUNDER,) = peers_named(1)


@pytest.mark.parametrize(
    "elements", [ELEMENTS_MIN, 5_000, 65_727, 65_800, 100_000, 1_000_001, ELEMENTS_MAX]
)
def test_model_has_as_many_elements_as_asked_or_a_few_fewer(elements):
    model = ModelSpec(name="gpt", settings=model_settings(elements), seed=0)
    numel = sum(tensor.numel for tensor in shard_spec(model).tensors)
    assert elements - 64 < numel <= elements


@pytest.mark.parametrize(("elements", "cells"), [(ELEMENTS_MIN, 1), (100_000, 24), (3_000_000, 24)])
def test_grid_has_cells_for_every_reducer(tmp_path, elements, cells):
    manifest = local_manifest(LocalOptions(peers=4, folder=tmp_path, elements=elements), FOUNDER)
    assert cells <= manifest.layout(0).num_cells(0) <= 2 * cells + 1
    (anchor_N,) = genesis_weights(manifest)
    assert len(anchor_N) == manifest.layout(0).fragment_numels[0]


def test_real_trainer_trains_the_demos_model(tmp_path):
    manifest = local_manifest(LocalOptions(peers=4, folder=tmp_path, trainer="real"), FOUNDER)
    assert manifest.model.setting("layers") == 2
    assert manifest.inner.inner_steps == 20


@pytest.mark.parametrize(
    ("preset", "then", "overlap", "fragments"),
    [
        ("diloco_int8", "eager:5", 2, 1),
        ("diloco_int8", "fedavg:5", 1, 1),
        ("streaming_sync", "streaming_diloco:5", 2, 4),
    ],
)
def test_method_that_follows_is_in_the_manifest(tmp_path, preset, then, overlap, fragments):
    options = LocalOptions(peers=3, folder=tmp_path, preset=preset, then=then_named(then))
    manifest = local_manifest(options, FOUNDER)
    (later,) = manifest.outer.then
    assert (f"{later.preset}:{later.from_round}", manifest.outer.overlap) == (then, overlap)
    assert manifest.layout(0).num_fragments == fragments
    steps = manifest.inner.inner_steps
    inner = replace(manifest.inner, inner_steps=steps + 9)
    stages = make_stages(manifest.outer, inner, fragments)
    assert stages.at(4) is not stages.at(5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lag": 2}, "one round in flight, not 2"),
        ({"preset": "streaming_diloco"}, "one round in flight, not 2"),
        ({"trainer": "real", "steps": 5}, "a round has 8 segments, and 5 steps are fewer"),
    ],
)
def test_audits_of_a_run_that_cannot_have_them_are_refused(tmp_path, changes, says):
    options = LocalOptions(peers=4, folder=tmp_path, trust="open", audits=0.5, **changes)
    with pytest.raises(ConfigError, match=f"--audits: .*{says}.*--audits 0"):
        local_manifest(options, FOUNDER)


def test_audits_are_for_several_fragments_as_well(tmp_path):
    options = LocalOptions(peers=4, folder=tmp_path, trust="open", audits=0.5, fragments=3)
    manifest = local_manifest(options, FOUNDER)
    assert (manifest.layout(0).num_fragments, manifest.audits.rate) == (3, 0.5)


@pytest.mark.extended
def test_options_that_make_no_run_leave_no_folder(tmp_path):
    options = LocalOptions(peers=4, folder=tmp_path / "out", fragments=999_999)
    with pytest.raises(ConfigError, match="fragments is 999999"):
        run_local(options, Console(), lambda: 0.0)
    assert not options.folder.exists()


@pytest.mark.parametrize("text", ["eager", "eager:", "eager:0", "eager:x", "eager:-3", ":"])
def test_method_without_a_round_is_refused(text):
    with pytest.raises(ConfigError, match="such as eager:25"):
        then_named(text)
    assert then_named(None) is None


def test_names_of_nodes_go_on_behind_z():
    assert [node_name(number) for number in (0, 1, 25, 26, 27, 52)] == [
        "A",
        "B",
        "Z",
        "AA",
        "AB",
        "BA",
    ]
