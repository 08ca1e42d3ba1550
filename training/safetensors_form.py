"""Float32 tensors in the form of a safetensors file, from where they lie.

The library's own writer takes a copy of all tensors first: a model's size of fresh memory for each
checkpoint. Source: github.com/huggingface/safetensors, "Format".
"""

import json
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

LENGTH_BYTES = 8
ALIGNMENT = 8


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    """What a header says of a tensor whose bytes are [start, stop) of the data."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def header_bytes(entries: Mapping[str, object]) -> bytes:
    """A file's first bytes: the length of the header, and the header, padded with blanks."""
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def file_parts(tensors: Mapping[str, NDArray[np.float32]]) -> Iterator[bytes | memoryview]:
    """The file's bytes, in order; nobody may write to the tensors, which are little-endian and
    contiguous, before the last of them is used."""
    entries, offset = {}, 0
    for name in sorted(tensors):
        tensor = tensors[name]
        assert tensor.dtype == np.dtype("<f4")
        entries[name] = entry("F32", list(tensor.shape), offset, offset + tensor.nbytes)
        offset += tensor.nbytes
    yield header_bytes(entries)
    for name in sorted(tensors):
        yield tensors[name].reshape(-1).data
