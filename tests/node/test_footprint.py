"""The table of what a node takes: its sizes are those of what is really held and written."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from node.settings.footprint import (
    CHECKPOINT,
    MOMENTS,
    TABLE,
    activation_bytes,
    amounts,
    seldom_bytes,
    total,
    units_of,
)
from protocol.manifest import AuditSpec, ModelSpec, RunManifest, Setting
from tests.training.replicas import OUTER, small_manifest
from training.device.inner import batch_loss
from training.models.building import build_model
from training.models.genesis import GPT_SIZES, shard_spec
from training.outer.optimizers import make_outer


def manifest_of(name: str, **changes: int) -> RunManifest:
    """A run of the built-in model of that size."""
    settings = GPT_SIZES[name].settings | changes
    model = ModelSpec(
        name="gpt", settings=tuple(Setting(key, settings[key]) for key in sorted(settings)), seed=0
    )
    return replace(small_manifest(), model=model, shards=(shard_spec(model),))


def kept_bytes(manifest: RunManifest) -> int:
    """What torch keeps of one pass for the way back, weights apart."""
    model = build_model(manifest)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    context = GPT_SIZES["120k"].context
    windows_BW = np.zeros((manifest.inner.batch, context + 1), dtype=np.uint8)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = batch_loss(model, windows_BW)
    del loss
    return sum(kept.values())


@pytest.mark.parametrize("changes", [{}, {"layers": 4, "width": 256}])
def test_activations_are_what_torch_keeps_of_a_pass(changes: dict[str, int]) -> None:
    manifest = manifest_of("120k", **changes)
    assert activation_bytes(manifest) == pytest.approx(kept_bytes(manifest), rel=0.1)


def test_every_row_has_a_reason_and_a_unit_that_there_is() -> None:
    units = units_of(small_manifest(outer=OUTER), 4)
    for item in TABLE:
        assert item.unit in units
        assert item.why
        assert item.times > 0
    assert len({(one.process, one.place, one.purpose) for one in TABLE}) == len(TABLE)


def audited() -> RunManifest:
    return replace(small_manifest(outer=OUTER), trust="open", audits=AuditSpec(rate=0.2))


def test_audits_are_in_the_totals_of_memory_disk_and_writes() -> None:
    plain, with_audits = replace(audited(), audits=AuditSpec()), audited()
    for place in ("disk", "written"):
        more = [one.purpose for one, _ in amounts(with_audits, 4, place)]
        less = [one.purpose for one, _ in amounts(plain, 4, place)]
        assert set(more) - set(less) == {"traces for audits"}
        assert total(with_audits, 4, place) > 1.2 * total(plain, 4, place)
    assert total(with_audits, 4, "memory") > total(plain, 4, "memory")


@pytest.mark.parametrize("fragments", [1, 2])
def test_network_process_holds_what_two_audits_begin_with(fragments: int) -> None:
    manifest = audited()
    manifest = replace(manifest, shards=(shard_spec(manifest.model, fragments=fragments),))
    found = {one.purpose: size for one, size in amounts(manifest, 4, "memory", "network")}
    numel = manifest.layout(0).numel
    assert found["audits"] == 2 * 4 * (3 * numel + 2 * numel // fragments)


def test_checkpoints_and_moments_of_a_large_model_are_written_seldom_and_of_a_small_one_never() -> (
    None
):
    small, large = manifest_of("120k"), manifest_of("10m")
    numel = large.layout(0).numel
    state = 4 * numel * (1 + len(make_outer(large.outer).slots))
    assert seldom_bytes(large, 4) == {CHECKPOINT: state, MOMENTS: 8 * numel}
    assert seldom_bytes(small, 4) == {CHECKPOINT: 0, MOMENTS: 0}
    each = {one.purpose for one, _ in amounts(small, 4, "written")}
    assert CHECKPOINT in each
    assert CHECKPOINT not in {one.purpose for one, _ in amounts(large, 4, "written")}


def test_anchor_is_copied_where_the_trainer_cannot_read_it_in_place() -> None:
    whole = small_manifest(outer=OUTER)
    cut = replace(whole, shards=(shard_spec(whole.model, fragments=2),))
    for process in ("network", "trainer"):
        found = {one.purpose: size for one, size in amounts(cut, 4, "memory", process)}
        assert found["anchor, its own"] == 4 * whole.layout(0).numel
        assert "anchor, its own" not in {
            one.purpose for one, _ in amounts(whole, 4, "memory", process)
        }
    # What is encoded at a time is a fragment.
    assert total(cut, 4, "memory", "trainer") < total(whole, 4, "memory", "trainer") + 4 * (
        whole.layout(0).numel
    )


def test_what_a_run_does_not_have_takes_nothing() -> None:
    plain = replace(OUTER, feedback=0.0, optimizer="sgd", momentum=0.0)
    manifest = small_manifest(outer=plain)
    manifest = replace(manifest, inner=replace(manifest.inner, optimizer="sgd"))
    purposes = {one.purpose for one, _ in amounts(manifest, 4, "memory")}
    purposes |= {one.purpose for one, _ in amounts(manifest, 4, "card")}
    gone = {"outer state", "residual", "moments", "variates", "weights before a climb"}
    assert not purposes & gone
    full = small_manifest(outer=OUTER)
    assert {"outer state", "residual", "moments"} <= {
        one.purpose for place in ("memory", "card") for one, _ in amounts(full, 4, place)
    }
