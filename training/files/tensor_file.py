"""Tensors of any kind in one safetensors file, every byte of it under a digest.

    8 bytes     length of the header
    header      JSON: dtype, shape and place of each tensor, and the metadata
    data        the tensors
    32 bytes    BLAKE3 of all before; to a reader of safetensors a tensor called `digest`

The digest comes last, so that it is made while the file is written: a shard's moments need not be
held twice, and an error of the disk shows as the OSError that it is.
"""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol import limits
from protocol.errors import CheckpointError
from training.files.durable import replace_durably
from training.files.state import check_header, entry, header_bytes

TENSORS_MAX = 1 << 17
"""Of any file of ours: 16 384 tensors of a manifest, and what optimizers keep of each."""

_DIGEST = "digest"
_DIGEST_BYTES = 32

_DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class TensorFile:
    """What a file holds: tensors on the CPU by name, and text by key."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


Guard = Callable[[], AbstractContextManager[None]]


def write_tensors(path: Path, content: TensorFile, *, guard: Guard = nullcontext) -> None:
    """Write the file durably; a crash leaves the old one or the new one (see `replace_durably`).

    Tensors may lie on any device. Those of one width are written in the order of their names, each
    within a `guard()`. Raises OSError where the disk is full.
    """
    assert _DIGEST not in content.tensors
    with closing(_parts(content, guard)) as parts:
        replace_durably(path, parts)


def read_tensors(path: Path, *, tensors_max: int) -> TensorFile:
    """The whole file, copied into memory.

    Raises CheckpointError if it is torn or any byte of it changed, or if its header is longer than
    that of `tensors_max` tensors can be.
    """
    try:
        check_header(path, tensors_max + 1)
        _check_digest(path)
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name != _DIGEST]  # noqa: SIM118 - no mapping
            # What the library gives may be a view of the file, which is replaced one day.
            tensors = {name: file.get_tensor(name).clone() for name in names}
            return TensorFile(tensors, dict(file.metadata() or {}))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def read_metadata(path: Path) -> dict[str, str]:
    """The text of a file alone, which is not held against the digest. Raises CheckpointError."""
    try:
        check_header(path, TENSORS_MAX)
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _parts(content: TensorFile, guard: Guard) -> Generator[bytes | memoryview, None, None]:
    # Wide elements first: each tensor then lies where its type may lie.
    names = sorted(content.tensors, key=lambda n: (-content.tensors[n].element_size(), n))
    header: dict[str, object] = {"__metadata__": dict(content.metadata)}
    offset = 0
    for name in names:
        tensor = content.tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = entry(_DTYPES[tensor.dtype], list(tensor.shape), offset, end)
        offset = end
    header[_DIGEST] = entry("U8", [_DIGEST_BYTES], offset, offset + _DIGEST_BYTES)
    head = header_bytes(header)
    hasher = blake3(head)
    yield head
    for name in names:
        with guard():  # It is written when this goes on.
            data = _bytes_of(content.tensors[name])
            hasher.update(data)
            yield data
    yield hasher.digest()


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _check_digest(path: Path) -> None:
    with path.open("rb") as file:
        left = file.seek(0, os.SEEK_END) - _DIGEST_BYTES
        file.seek(0)
        hasher = blake3()
        while left > 0 and (part := file.read(min(left, limits.MIB))):
            hasher.update(part)
            left -= len(part)
        if left != 0 or file.read() != hasher.digest():
            raise CheckpointError(f"{path} is not the file that was written")
