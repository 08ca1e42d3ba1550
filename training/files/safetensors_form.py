"""Float32 tensors in the form of a safetensors file, from where they lie.

The library's own writer takes a copy of all tensors first: a model's size of fresh memory for each
checkpoint. Source: github.com/huggingface/safetensors, "Format".
"""

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from training.files.past_cache import BLOCK_BYTES

LENGTH_BYTES = 8
ALIGNMENT = 8


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    """What a header says of a tensor whose bytes are [start, stop) of the data."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def header_bytes(entries: Mapping[str, object], alignment: int = ALIGNMENT) -> bytes:
    """A file's first bytes: the length of the header, and the header, padded with blanks so that
    what follows begins at a multiple of `alignment`."""
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % alignment)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def file_parts(tensors: Mapping[str, NDArray[np.float32]]) -> Iterator[bytes | memoryview]:
    """The file's bytes, in order; nobody may write to the tensors, which are little-endian and
    contiguous, before the last of them is used.

    Tensors begin at a block of the file, and those that lie behind one another come in one piece:
    of a vector that begins at a page all can be written from where it lies.
    """
    entries, offset = {}, 0
    for name in sorted(tensors):
        tensor = tensors[name]
        assert tensor.dtype == np.dtype("<f4")
        entries[name] = entry("F32", list(tensor.shape), offset, offset + tensor.nbytes)
        offset += tensor.nbytes
    yield header_bytes(entries, BLOCK_BYTES)
    for piece_N in _joined(tensors[name].reshape(-1) for name in sorted(tensors)):
        yield piece_N.data


def _joined(vectors: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """The same elements; views of one vector that follow each other there are one view."""
    whole_N: NDArray[np.float32] | None = None
    start = stop = 0
    for vector_N in vectors:
        base_N, first = _place_of(vector_N)
        if base_N is not whole_N or first != stop:
            if whole_N is not None:
                yield whole_N[start:stop]
            whole_N, start = base_N, first
        stop = first + len(vector_N)
    if whole_N is not None:
        yield whole_N[start:stop]


def _place_of(vector_N: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """The vector that it is a view of, and where it begins there; of any other itself."""
    base_N = vector_N.base
    if not isinstance(base_N, np.ndarray) or base_N.ndim != 1 or base_N.dtype != vector_N.dtype:
        return vector_N, 0
    distance = _address(vector_N) - _address(base_N)
    is_plain = base_N.flags.c_contiguous and distance % vector_N.itemsize == 0
    return (base_N, distance // vector_N.itemsize) if is_plain else (vector_N, 0)


def _address(vector_N: NDArray[np.float32]) -> int:
    address: int = vector_N.__array_interface__["data"][0]
    return address
