"""Tensors on the disk: any byte that changed is found, and nothing is believed before."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from protocol.errors import CheckpointError
from tests.training.full_disk import files_of_at_most
from training.files.durable import WRITING, replace_durably
from training.files.tensor_file import TensorFile, read_tensors, write_tensors

CONTENT = TensorFile(
    {
        "a/step": torch.tensor(3.0),
        "b/moment": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),
        "c/half": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
        "d/bytes": torch.tensor([255, 0, 7], dtype=torch.uint8),
        "e/none": torch.empty(0, 4),
        "f/long": torch.tensor([1 << 60], dtype=torch.int64),
        "g/flags": torch.tensor([True, False]),
    },
    {"round": "42", "text": 'a "quoted" \N{GREEK SMALL LETTER ALPHA}\n'},
)


def bits(tensor):
    return (tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "round.safetensors"
    write_tensors(path, CONTENT)
    return path


def read(path):
    return read_tensors(path, tensors_max=len(CONTENT.tensors))


def test_tensors_of_every_kind_come_back_to_the_bit(path):
    content = read(path)

    assert content.metadata == CONTENT.metadata
    assert {name: bits(tensor) for name, tensor in content.tensors.items()} == {
        name: bits(tensor) for name, tensor in CONTENT.tensors.items()
    }


def test_any_reader_of_safetensors_reads_the_file(path):
    tensors = load_file(path)

    assert sorted(tensors) == sorted([*CONTENT.tensors, "digest"])
    assert torch.equal(tensors["b/moment"], CONTENT.tensors["b/moment"])


def test_equal_content_is_equal_bytes_in_whatever_order(path, tmp_path):
    backwards = dict(reversed(list(CONTENT.tensors.items())))
    write_tensors(tmp_path / "other", TensorFile(backwards, CONTENT.metadata))

    assert (tmp_path / "other").read_bytes() == path.read_bytes()


def test_a_flipped_bit_in_any_byte_is_found(path):
    data = path.read_bytes()
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << index % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError):
            read(path)


def test_every_truncation_and_every_addition_is_found(path):
    data = path.read_bytes()
    for changed in (*(data[:length] for length in range(len(data))), data + b"\0", data + data):
        path.write_bytes(changed)
        with pytest.raises(CheckpointError):
            read(path)


def test_a_missing_file_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="absent"):
        read(tmp_path / "absent")


def test_a_header_length_of_an_exabyte_is_refused_before_anything_is_read(path):
    data = path.read_bytes()
    path.write_bytes((1 << 60).to_bytes(8, "little") + data[8:])

    with pytest.raises(CheckpointError, match="header of 1152921504606846976"):
        read(path)


def test_a_whole_file_with_more_tensors_than_there_can_be_is_refused(path):
    many = {f"tensor-{index:0200}": torch.zeros(1) for index in range(100)}
    write_tensors(path, TensorFile(many, {}))

    with pytest.raises(CheckpointError, match="header"):
        read_tensors(path, tensors_max=3)


def test_what_was_read_does_not_change_with_the_file(path):
    content = read(path)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))

    assert bits(content.tensors["b/moment"]) == bits(CONTENT.tensors["b/moment"])


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path):
    before = path.read_bytes()
    with files_of_at_most(100), pytest.raises(OSError, match="too large"):
        write_tensors(path, CONTENT)

    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_unfinished_file_of_a_crash_is_written_over(path):
    path.with_name(WRITING + path.name).write_bytes(b"half" * 1000)
    replace_durably(path, [b"who", memoryview(b"le")])

    assert path.read_bytes() == b"whole"
    assert list(path.parent.iterdir()) == [path]
