"""Checkpoints: whole, ours and exact, or a CheckpointError."""

import dataclasses
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import training.files.durable
from protocol.errors import CheckpointError
from protocol.grid import ShardSpec, TensorSpec
from tests.training.full_disk import files_of_at_most
from tests.training.syncs import Syncs
from training.channel.exchange import RunClock
from training.files.durable import SystemFile
from training.files.state import (
    ANCHOR_FILE,
    META_FILE,
    OUTER_FILE,
    CheckpointMeta,
    ShardState,
    checkpoint_folders,
    checkpoint_name,
    load_checkpoint,
    save_checkpoint,
)

RUN = bytes(range(32))
SPEC = ShardSpec(
    "model",
    (TensorSpec("a", (2, 3)), TensorSpec("b", (4,)), TensorSpec("c", ())),
    ((0, 2), (1,)),
)
SLOTS = ("momentum",)
FILES = (ANCHOR_FILE, OUTER_FILE, META_FILE)


def state(number=0.0):
    anchors = (np.arange(7, dtype=np.float32) + np.float32(number), np.full(4, number, np.float32))
    return ShardState(anchors=anchors, slots=tuple({"momentum": -x} for x in anchors))


def meta(round_index=42, *, seal=bytes(32)):
    clock = RunClock(round=round_index, step=20 * round_index, tokens=7)
    return CheckpointMeta(run=RUN, shard="model", seal=seal, clock=clock)


def save(folder, round_index=42):
    return save_checkpoint(folder, SPEC, state(round_index), meta(round_index))


def load(path, *, spec=SPEC, run=RUN, slots=SLOTS):
    return load_checkpoint(path, spec, run=run, slots=slots)


def latest(folder):
    """The first that is whole, as whoever starts tries them."""
    for path in checkpoint_folders(folder):
        with suppress(CheckpointError):
            return load(path)
    return None


def equal(ours, theirs):
    vectors = [*zip(ours.anchors, theirs.anchors, strict=True)]
    for one, other in zip(ours.slots, theirs.slots, strict=True):
        assert one.keys() == other.keys()
        vectors += [(one[name], other[name]) for name in one]
    return all(a.tobytes() == b.tobytes() and a.dtype == b.dtype for a, b in vectors)


def test_a_checkpoint_comes_back_to_the_bit(tmp_path):
    path = save(tmp_path)
    loaded = load(path)

    assert path == tmp_path / "round-000042"
    assert loaded.meta == meta()
    assert equal(loaded.state, state(42))


def test_the_files_are_plain_safetensors_with_the_shards_names_and_shapes(tmp_path):
    path = save(tmp_path)

    shapes = {name: tensor.shape for name, tensor in load_file(path / ANCHOR_FILE).items()}
    assert shapes == {"a": (2, 3), "b": (4,), "c": ()}
    assert sorted(load_file(path / OUTER_FILE)) == ["momentum/a", "momentum/b", "momentum/c"]


def test_equal_states_are_equal_bytes_whoever_wrote_them(tmp_path):
    ours, theirs = save(tmp_path / "ours"), save(tmp_path / "theirs")

    assert all((ours / name).read_bytes() == (theirs / name).read_bytes() for name in FILES)


def test_a_missing_slot_vector_is_zero(tmp_path):
    first = dataclasses.replace(state(), slots=({"momentum": np.ones(7, np.float32)}, {}))
    loaded = load(save_checkpoint(tmp_path, SPEC, first, meta())).state

    assert loaded.slots[0]["momentum"].tolist() == [1.0] * 7
    assert loaded.slots[1]["momentum"].tolist() == [0.0] * 4


def test_an_optimizer_without_slots_has_none_in_its_checkpoint(tmp_path):
    plain = dataclasses.replace(state(), slots=({}, {}))
    path = save_checkpoint(tmp_path, SPEC, plain, meta())

    assert load(path, slots=()).state.slots == ({}, {})


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_found(tmp_path, name):
    path = save(tmp_path)
    data = (path / name).read_bytes()
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << index % 8
        (path / name).write_bytes(changed)
        with pytest.raises(CheckpointError):
            load(path)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", FILES)
def test_every_truncation_and_every_addition_is_found(tmp_path, name):
    path = save(tmp_path)
    data = (path / name).read_bytes()
    shorter = [data[:length] for length in range(0, len(data), 3)]
    for changed in (*shorter, data[:-1], data + b"\n", data + data):
        (path / name).write_bytes(changed)
        with pytest.raises(CheckpointError):
            load(path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(tmp_path, name):
    path = save(tmp_path)
    (path / name).unlink()

    with pytest.raises(CheckpointError, match=name):
        load(path)


@pytest.mark.parametrize("name", [ANCHOR_FILE, OUTER_FILE])
def test_files_of_two_checkpoints_do_not_mix(tmp_path, name):
    path, other = save(tmp_path, 41), save(tmp_path, 42)
    shutil.copyfile(other / name, path / name)

    with pytest.raises(CheckpointError, match="not the file that was written"):
        load(path)


def test_a_header_length_of_an_exabyte_is_refused_before_parsing(tmp_path):
    path = save(tmp_path)
    data = (path / ANCHOR_FILE).read_bytes()
    (path / ANCHOR_FILE).write_bytes((1 << 60).to_bytes(8, "little") + data[8:])

    with pytest.raises(CheckpointError, match="header"):
        load(path)


def test_a_checkpoint_of_another_run_or_shard_is_refused(tmp_path):
    path = save(tmp_path)

    with pytest.raises(CheckpointError, match="of run"):
        load(path, run=bytes(32))
    with pytest.raises(CheckpointError, match="shard other"):
        load(path, spec=dataclasses.replace(SPEC, name="other"))


@pytest.mark.parametrize(
    "tensors",
    [
        (TensorSpec("a", (3, 2)), *SPEC.tensors[1:]),
        (*SPEC.tensors[:2], TensorSpec("d", ())),
        (TensorSpec("a", (2, 3)), TensorSpec("b", (5,)), TensorSpec("c", ())),
    ],
)
def test_tensors_of_another_name_or_shape_are_refused(tmp_path, tensors):
    path = save(tmp_path)

    with pytest.raises(CheckpointError, match=ANCHOR_FILE):
        load(path, spec=dataclasses.replace(SPEC, tensors=tensors))


def test_the_state_of_another_outer_optimizer_is_refused(tmp_path):
    path = save(tmp_path)

    with pytest.raises(CheckpointError, match="outer optimizer"):
        load(path, slots=("variance",))


def test_a_folder_under_another_rounds_name_is_refused(tmp_path):
    path = save(tmp_path)
    moved = path.rename(tmp_path / checkpoint_name(43))

    with pytest.raises(CheckpointError, match="round 42"):
        load(moved)


@pytest.mark.parametrize("text", ["[" * 4000, "[]", "null", '{"digest": 3}', "{}", "\udcff"])
def test_meta_that_is_something_else_is_refused(tmp_path, text):
    path = save(tmp_path)
    (path / META_FILE).write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(CheckpointError):
        load(path)


def test_meta_of_a_later_version_is_refused(tmp_path):
    path = save(tmp_path)
    body = json.loads((path / META_FILE).read_bytes())
    (path / META_FILE).write_text(json.dumps(body | {"version": 2}, indent=1, sort_keys=True))

    with pytest.raises(CheckpointError, match="another version"):
        load(path)


def test_three_checkpoints_are_kept_and_latest_is_the_newest(tmp_path):
    for round_index in range(5):
        save(tmp_path, round_index)

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["latest", *map(checkpoint_name, (2, 3, 4))]
    found = latest(tmp_path)
    assert found is not None
    assert found.meta.clock.round == 4


@pytest.mark.parametrize("name", FILES)
def test_a_torn_latest_falls_back_to_the_one_before(tmp_path, name):
    for round_index in (1, 2, 3):
        path = save(tmp_path, round_index)
    (path / name).write_bytes((path / name).read_bytes()[:-1])

    found = latest(tmp_path)
    assert found is not None
    assert found.meta.clock.round == 2
    assert equal(found.state, state(2))


@pytest.mark.parametrize("pointer", [None, b"", b"round-00", b"../../etc", b"\xff" * 100])
def test_a_broken_pointer_falls_back_to_the_newest_whole_checkpoint(tmp_path, pointer):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "latest").unlink()
    if pointer is not None:
        (tmp_path / "latest").write_bytes(pointer)

    found = latest(tmp_path)
    assert found is not None
    assert found.meta.clock.round == 2


def test_a_pointer_to_a_missing_folder_falls_back_to_an_older_one(tmp_path):
    save(tmp_path, 1)
    shutil.rmtree(save(tmp_path, 2))

    found = latest(tmp_path)
    assert found is not None
    assert found.meta.clock.round == 1


def test_nothing_whole_is_none(tmp_path):
    assert latest(tmp_path / "absent") is None
    shutil.rmtree(save(tmp_path))
    assert latest(tmp_path) is None


def test_a_round_sealed_anew_on_a_shorter_branch_replaces_what_was_there(tmp_path):
    for round_index in (1, 2, 3):
        save(tmp_path, round_index)
    save_checkpoint(tmp_path, SPEC, state(99), meta(2, seal=b"\x01" * 32))

    found = latest(tmp_path)
    assert found is not None
    assert found.meta.seal == b"\x01" * 32
    assert equal(found.state, state(99))
    assert not (tmp_path / checkpoint_name(3)).exists()


def test_what_a_crash_left_half_written_is_never_loaded_and_goes_with_the_next_save(tmp_path):
    save(tmp_path, 1)
    half = tmp_path / ".writing-round-000002"
    half.mkdir()
    (half / ANCHOR_FILE).write_bytes(b"half")

    found = latest(tmp_path)
    assert found is not None
    assert found.meta.clock.round == 1
    save(tmp_path, 2)
    assert not half.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows opens no folders")
def test_a_full_disk_leaves_nothing_of_the_new_checkpoint(tmp_path):
    save(tmp_path, 1)
    before = sorted(tmp_path.rglob("*"))
    with files_of_at_most(100), pytest.raises(OSError, match="large"):
        save(tmp_path, 2)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_name_of_the_folder_is_on_the_disk_before_the_first_checkpoint_is_in_it(
    tmp_path, monkeypatch
):
    synced: list[Path] = []
    monkeypatch.setattr(training.files.durable, "fsync_folder", synced.append)
    folder = tmp_path / "run" / "checkpoints"
    save(folder)
    assert {folder.parent, tmp_path} <= set(synced)


@pytest.mark.skipif(os.name == "nt", reason="Windows opens no folders")
def test_all_of_a_checkpoint_is_on_the_disk_before_its_name_and_that_before_it_is_the_latest(
    tmp_path, monkeypatch
):
    syncs = Syncs(monkeypatch)
    save(tmp_path, 1)
    target, above = checkpoint_name(1), f"sync {tmp_path.name}"
    inside = sorted((tmp_path / target).iterdir())
    places = (*inside, tmp_path / target, tmp_path / "latest", tmp_path, *tmp_path.parents)
    happened = syncs.take(*places)
    begin = happened.index(f"name {target}")
    # The names in its folder may come before what they are of: nobody looks there yet.
    assert {f"sync {path.name}" for path in (*inside, tmp_path / target)} <= set(happened[:begin])
    assert happened[begin:] == [f"name {target}", above, "sync latest", "name latest", above]


class Crash(BaseException):
    """The machine stops here."""


@pytest.mark.quick(1)
@pytest.mark.parametrize("sealed_again", [False, True])
def test_a_crash_between_any_two_changes_of_the_disk_leaves_a_whole_checkpoint(
    tmp_path, monkeypatch, sealed_again
):
    for stop_after in range(100):
        folder = tmp_path / str(stop_after)
        for round_index in (1, 2, 3):
            save(folder, round_index)
        with monkeypatch.context() as patch:
            crash_after(patch, stop_after)
            try:
                save_checkpoint(folder, SPEC, state(99), meta(3 if sealed_again else 4))
                crashed = False
            except Crash:
                crashed = True
        for path in folder.glob("round-*"):
            load(path)  # Under its name a checkpoint is whole.
        found = latest(folder)
        assert found is not None
        before = [state(3)] if not sealed_again else [state(3), state(2)]
        assert any(equal(found.state, whole) for whole in [state(99), *before])
        save(folder, 5)
        assert sorted(folder.glob(".writing-*")) == []
        if not crashed:
            assert equal(found.state, state(99))
            assert stop_after > 8
            return
    raise AssertionError("a save changes the disk a hundred times")


def crash_after(patch, changes):
    left = [changes]

    def stopping(change):
        def wrapper(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return change(*arguments, **options)

        return wrapper

    for owner, name in (
        *((os, name) for name in ("fsync", "unlink", "rmdir")),
        *((Path, name) for name in ("mkdir", "rename", "replace", "write_bytes", "write_text")),
        *((SystemFile, name) for name in ("write", "sync")),
    ):
        patch.setattr(owner, name, stopping(getattr(owner, name)))
