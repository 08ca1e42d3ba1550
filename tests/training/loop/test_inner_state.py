"""The trainer's transaction on the disk: whole, ours and the newest, or an older one."""

import dataclasses
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.grid import ShardSpec
from tests.training.full_disk import files_of_at_most
from tests.training.replicas import small_manifest
from training.channel.exchange import Contribution
from training.files.durable import WRITING
from training.files.tensor_file import TensorFile, read_tensors, write_tensors
from training.loop.inner_state import InnerFolder, InnerState
from training.methods.method import anchor_digest

MANIFEST = small_manifest()
(NUMEL,) = MANIFEST.layout(0).fragment_numels


def vector(number):
    return np.random.default_rng(number).normal(size=NUMEL).astype(np.float32)


def state(number=4, **changes):
    contribution = Contribution(
        fragment=0,
        payloads=(bytes([number]) * 7, b"", b"rest"),
        tokens=640 + number,
        samples=10,
        steps=20,
        residual_before=b"\x01" * 32,
        residual_after=b"\x02" * 32,
        loss=0.1 + number,
    )
    given = InnerState(
        round=number,
        anchor=anchor_digest(vector(number)),
        contribution=contribution,
        residuals=(vector(10 + number),),
        residual_after_N=vector(20 + number),
        optimizer="AdamW",
        moments={"exp_avg/norm.weight": torch.arange(4.0), "step/norm.weight": torch.tensor(3.0)},
    )
    return dataclasses.replace(given, **changes)


def parts(state):
    """All of a state, comparable to the bit."""

    def raw(x_N):
        return None if x_N is None else (x_N.dtype, x_N.tobytes())

    moments = {name: (t.dtype, t.shape, t.tolist()) for name, t in state.moments.items()}
    fields = (state.round, state.anchor, state.contribution, state.optimizer)
    return fields, [raw(x_N) for x_N in state.residuals], raw(state.residual_after_N), moments


def is_equal(found, expected):
    return found is not None and parts(found) == parts(expected)


def store(folder, manifest=MANIFEST):
    return InnerFolder(folder, manifest)


def path_of(folder, number):
    return Path(folder) / f"round-{number:06d}.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rounds 1, 2 and 3."""
    for number in (1, 2, 3):
        store(tmp_path / "inner").save(state(number))
    return tmp_path / "inner"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"residuals": (None,)},
        {"residuals": (None,), "residual_after_N": None},
        {"moments": {}},
        {"moments": {"momentum_buffer/a.b": torch.ones(2, 3, dtype=torch.bfloat16)}},
        {"contribution": dataclasses.replace(state().contribution, loss=float("inf"))},
        {"contribution": dataclasses.replace(state().contribution, payloads=())},
    ],
)
def test_a_state_comes_back_to_the_bit(tmp_path, changes):
    store(tmp_path / "new").save(state(**changes))

    assert is_equal(store(tmp_path / "new").newest(9), state(**changes))


def test_a_folder_that_is_not_there_has_no_state(tmp_path):
    assert store(tmp_path / "absent").newest(5) is None
    assert not (tmp_path / "absent").exists()


def test_three_rounds_are_kept_and_the_newest_is_found(folder):
    store(folder).save(state(4))

    names = sorted(path.name for path in folder.iterdir())
    assert names == [path_of("", number).name for number in (2, 3, 4)]
    assert is_equal(store(folder).newest(4), state(4))


def test_states_of_later_rounds_are_passed_over_and_go_with_the_next_save(folder):
    assert is_equal(store(folder).newest(2), state(2))
    again = state(2, anchor=bytes(32))
    store(folder).save(again)

    assert not path_of(folder, 3).exists()
    assert is_equal(store(folder).newest(9), again)


def test_a_torn_or_changed_newest_file_falls_back_and_says_which_and_why(folder, caplog):
    path = path_of(folder, 3)
    data = path.read_bytes()
    offsets = [0, 7, 8, 9, 200, *range(500, len(data), len(data) // 10), len(data) - 1]
    for offset in offsets:
        flipped = data[:offset] + bytes([data[offset] ^ 0x10]) + data[offset + 1 :]
        for damaged in (data[:offset], flipped):
            path.write_bytes(damaged)
            caplog.clear()
            assert is_equal(store(folder).newest(3), state(2))
            (record,) = caplog.records
            assert record.levelno == logging.WARNING
            assert str(path) in record.getMessage()
            assert "reason=" in record.getMessage()


def test_a_crash_between_any_two_changes_of_the_disk_leaves_this_state_or_the_one_before(
    folder, tmp_path
):
    store(tmp_path / "alone").save(state(4))
    data = path_of(tmp_path / "alone", 4).read_bytes()

    def after_crash(number, *, unfinished=None, finished=False, pruned=False):
        copy = tmp_path / f"crash-{number}"
        shutil.copytree(folder, copy)
        writing = copy / (WRITING + path_of("", 4).name)
        if unfinished is not None:
            writing.write_bytes(data[:unfinished])
        if finished:
            path_of(copy, 4).write_bytes(data)
        if pruned:
            path_of(copy, 1).unlink()
        return copy

    cuts = [0, 8, 500, len(data) // 2, len(data) - 1, len(data)]
    before = [after_crash(number, unfinished=cut) for number, cut in enumerate(cuts)]
    after = [after_crash(10, finished=True), after_crash(11, finished=True, pruned=True)]
    for copy in before:
        assert is_equal(store(copy).newest(4), state(3))
    for copy in after:
        assert is_equal(store(copy).newest(4), state(4))
    for copy in (*before, *after):
        store(copy).save(state(5))
        assert is_equal(store(copy).newest(5), state(5))
        assert len(list(copy.iterdir())) == 3


@pytest.mark.parametrize(
    "manifest",
    [
        dataclasses.replace(MANIFEST, title="another run"),
        dataclasses.replace(
            MANIFEST,
            shards=(ShardSpec("other", MANIFEST.shards[0].tensors, MANIFEST.shards[0].fragments),),
        ),
    ],
)
def test_a_state_of_another_run_or_shard_is_not_taken(folder, manifest, caplog):
    assert store(folder, manifest).newest(3) is None
    assert len(caplog.records) == 3
    assert f"is of run {MANIFEST.digest.hex()[:12]}, shard model" in caplog.text


def test_a_file_under_another_rounds_name_is_not_taken(folder, caplog):
    path_of(folder, 3).rename(path_of(folder, 8))

    assert is_equal(store(folder).newest(8), state(2))
    assert "holds the state of round 3" in caplog.text


@pytest.mark.parametrize("size", [NUMEL - 1, NUMEL + 1])
@pytest.mark.parametrize("name", ["residuals", "residual_after_N"])
def test_a_residual_of_another_size_is_not_taken(folder, name, size):
    wrong_N = np.zeros(size, np.float32)
    store(folder).save(state(4, **{name: (wrong_N,) if name == "residuals" else wrong_N}))

    assert is_equal(store(folder).newest(4), state(3))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *((key, None) for key in ("version", "run", "shard", "round", "anchor", "optimizer")),
        *((key, "zz") for key in ("version", "round", "anchor", "tokens", "loss", "fragment")),
        ("fragment", "1"),
        ("fragment", "-1"),
        ("round", "03"),
    ],
)
def test_a_whole_file_of_another_version_is_not_taken(folder, key, text):
    """Its digest is right, what is in it means something else."""
    content = read_tensors(path_of(folder, 3), tensors_max=99)
    metadata = {name: value for name, value in content.metadata.items() if name != key}
    if text is not None:
        metadata[key] = text
    write_tensors(path_of(folder, 3), TensorFile(content.tensors, metadata))

    assert is_equal(store(folder).newest(3), state(2))


@pytest.mark.parametrize(
    "tensors",
    [
        {"lengths": torch.tensor([7, 0, 5])},
        {"lengths": torch.tensor([12, -1])},
        {"lengths": None},
        {"payload": None},
        {"residual/0": torch.zeros(NUMEL, dtype=torch.float64)},
    ],
)
def test_a_whole_file_with_other_tensors_is_not_taken(folder, tensors):
    content = read_tensors(path_of(folder, 3), tensors_max=99)
    changed = {name: t for name, t in {**content.tensors, **tensors}.items() if t is not None}
    write_tensors(path_of(folder, 3), TensorFile(changed, content.metadata))

    assert is_equal(store(folder).newest(3), state(2))


def test_a_full_disk_names_the_folder_and_what_to_do_and_loses_nothing(folder):
    names = sorted(folder.iterdir())
    with files_of_at_most(4096), pytest.raises(OSError, match="free space there") as raised:
        store(folder).save(state(4))

    assert str(folder) in str(raised.value)
    assert raised.value.errno is not None
    assert sorted(folder.iterdir()) == names
    assert is_equal(store(folder).newest(4), state(3))
    store(folder).save(state(4))
    assert is_equal(store(folder).newest(4), state(4))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="make it writable") as raised:
        store(tmp_path / "file" / "inner").save(state())

    assert str(tmp_path / "file" / "inner") in str(raised.value)


def test_the_digest_of_an_anchor_tells_every_bit():
    anchor_N = np.zeros(5, np.float32)
    other_N = anchor_N.copy()
    other_N[4] = -0.0

    assert anchor_digest(anchor_N) == anchor_digest(anchor_N.copy()) != anchor_digest(other_N)
