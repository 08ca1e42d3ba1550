"""Chunked top-k: of every chunk the k largest magnitudes, and where they stand.

    payload = values, in order of position, by another codec | indices of all chunks

N elements, C of a chunk, k of them are sent

With feedback it is SparseLoCo's compressor (Sarfi et al. 2025). A coordinate waits C / k rounds on
average: runs of fewer than three times as many should send more.
"""

import math
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError, DecodeError
from training.compression.blocks import Dense2BitCodec, spans
from training.compression.dense import Float16Codec
from training.compression.seam import CODECS, Codec, Vector, as_float32

Bits = NDArray[np.uint8]
Indices = NDArray[np.int64]


class IndexCode(Protocol):
    """Stateless; a row's size depends on k and n only."""

    def row_bytes(self, count: int, bound: int) -> int:
        """Bytes of `count` indices below `bound`."""
        ...

    def pack(self, index_Rk: Indices, bound: int) -> Bits:
        """The rows, behind one another."""
        ...

    def unpack(self, data: Bits, count: int, bound: int) -> Indices:
        """The rows. Raises DecodeError unless each ascends and stays below `bound`."""
        ...


def pack_bits(number_Rk: Indices, width: int) -> Bits:
    """Each row's numbers, of each the lowest `width` bits, lowest first; each row ends with a whole
    byte."""
    planes = np.arange(width, dtype=np.int64)
    bit_RM = ((number_Rk[:, :, None] >> planes) & 1).astype(np.uint8).reshape(len(number_Rk), -1)
    return np.packbits(bit_RM, axis=1, bitorder="little")


def unpack_bits(data_RM: Bits, width: int, count: int) -> Indices:
    """What `pack_bits` packed. Raises DecodeError if the padding is not 0."""
    bit_RM = np.unpackbits(data_RM, axis=1, bitorder="little")
    if bit_RM[:, width * count :].any():
        raise DecodeError("the padding of a row of indices is not zero")
    bit_RkW = bit_RM[:, : width * count].reshape(len(data_RM), count, width)
    number_Rk = np.zeros((len(data_RM), count), dtype=np.int64)
    for place in range(width):
        number_Rk |= bit_RkW[:, :, place].astype(np.int64) << place
    return number_Rk


def _checked(index_Rk: Indices, bound: int) -> Indices:
    if (np.diff(index_Rk, axis=1) <= 0).any() or (index_Rk[:, -1] >= bound).any():
        raise DecodeError("indices do not ascend, or point behind the end")
    return index_Rk


class PlainIndices:
    """Every index in the same number of bits; two of 12 bits make three bytes."""

    def row_bytes(self, count: int, bound: int) -> int:
        """See IndexCode."""
        return (count * plain_width(bound) + 7) // 8

    def pack(self, index_Rk: Indices, bound: int) -> Bits:
        """See IndexCode."""
        return pack_bits(index_Rk, plain_width(bound))

    def unpack(self, data: Bits, count: int, bound: int) -> Indices:
        """See IndexCode."""
        data_RM = data.reshape(-1, self.row_bytes(count, bound))
        return _checked(unpack_bits(data_RM, plain_width(bound), count), bound)


def plain_width(bound: int) -> int:
    """Bits of an index below `bound`."""
    return max(1, (bound - 1).bit_length())


class GapIndices:
    """Elias-Fano (Elias 1974; Fano 1971): high bit p of a row is set if an index j has
    (index >> low) + j = p."""

    def row_bytes(self, count: int, bound: int) -> int:
        """See IndexCode."""
        low = low_bits(count, bound)
        return (count * low + 7) // 8 + (count + ((bound - 1) >> low) + 7) // 8

    def pack(self, index_Rk: Indices, bound: int) -> Bits:
        """See IndexCode."""
        rows, count = index_Rk.shape
        low = low_bits(count, bound)
        high_RM = np.zeros((rows, count + ((bound - 1) >> low)), dtype=np.uint8)
        place_Rk = (index_Rk >> low) + np.arange(count)
        np.put_along_axis(high_RM, place_Rk, 1, axis=1)
        parts = (
            pack_bits(index_Rk, low),
            np.packbits(high_RM, axis=1, bitorder="little"),
        )
        return np.concatenate(parts, axis=1)

    def unpack(self, data: Bits, count: int, bound: int) -> Indices:
        """See IndexCode."""
        low = low_bits(count, bound)
        data_RM = data.reshape(-1, self.row_bytes(count, bound))
        low_bytes = (count * low + 7) // 8
        low_Rk = unpack_bits(data_RM[:, :low_bytes], low, count)
        high_RM = np.unpackbits(data_RM[:, low_bytes:], axis=1, bitorder="little")
        if (np.count_nonzero(high_RM, axis=1) != count).any():
            raise DecodeError("a row has another number of indices")
        place_Rk = np.flatnonzero(high_RM).reshape(len(data_RM), count) % high_RM.shape[1]
        return _checked((place_Rk - np.arange(count)) << low | low_Rk, bound)


def low_bits(count: int, bound: int) -> int:
    """How many bits of each index are sent as they are."""
    return (bound // count).bit_length() - 1


CHUNK_MIN, CHUNK_MAX = 64, 4096


class TopKCodec:
    """`density` of each chunk of `chunk` elements is sent, at least one; of equal magnitudes those
    that stand first."""

    is_biased = True

    def __init__(
        self, values: Codec, indices: IndexCode, *, density: float = 1 / 64, chunk: int = CHUNK_MAX
    ) -> None:
        if chunk not in (1 << bits for bits in range(6, 13)):
            nearest = 1 << min(12, max(6, round(math.log2(max(chunk, 1)))))
            raise ConfigError(
                f"chunk {chunk} is no power of two from {CHUNK_MIN} to {CHUNK_MAX}; take {nearest}"
            )
        if not 1 / chunk <= density <= 1:
            nearest_density = 1.0 if density > 1 else 1 / chunk
            why = "sends nothing" if density == 0 else f"is not in {1 / chunk}..1"
            raise ConfigError(f"density {density} {why}; take {nearest_density}")
        self.values = values
        self.indices = indices
        self._chunk = chunk
        self._density = density

    def payload_bytes(self, numel: int) -> int:
        """Of 64 of 4096: 14 bits each with values of 2 bits and plain indices."""
        count, index_bytes = 0, 0
        for start, stop, width, kept in self.spans(numel):
            rows = (stop - start) // width
            count += rows * kept
            index_bytes += rows * self.indices.row_bytes(kept, width)
        return self.values.payload_bytes(count) + index_bytes

    def encode(self, x_N: Vector) -> bytes:
        """See Codec."""
        flat_N = as_float32(x_N)
        values, packed = [np.empty(0, dtype=np.float32)], []
        for start, stop, width, kept in self.spans(len(flat_N)):
            x_RC = flat_N[start:stop].reshape(-1, width)
            index_Rk = largest_indices(x_RC, kept)
            values.append(np.take_along_axis(x_RC, index_Rk, axis=1).reshape(-1))
            packed.append(self.indices.pack(index_Rk, width).tobytes())
        return b"".join((self.values.encode(np.concatenate(values)), *packed))

    def decode(self, payload: bytes | memoryview, numel: int) -> NDArray[np.float32]:
        """See Codec."""
        view = memoryview(payload).cast("B")
        if view.nbytes != self.payload_bytes(numel):
            raise DecodeError(f"{view.nbytes} bytes are no payload of {numel} elements")
        places, position = [np.empty(0, dtype=np.int64)], view.nbytes
        for start, stop, width, kept in reversed(self.spans(numel)):
            rows = (stop - start) // width
            begin = position - rows * self.indices.row_bytes(kept, width)
            data = np.frombuffer(view[begin:position], np.uint8)
            index_Rk = self.indices.unpack(data, kept, width)
            index_Rk += start + width * np.arange(rows)[:, None]
            places.append(index_Rk.reshape(-1))
            position = begin
        place_K = np.concatenate(places[::-1])
        x_N = np.zeros(numel, dtype=np.float32)
        x_N[place_K] = self.values.decode(view[:position], len(place_K))
        return x_N

    def spans(self, numel: int) -> list[tuple[int, int, int, int]]:
        """(first, behind the last, elements per chunk, how many are sent) of runs of whole chunks,
        and of the rest."""
        return [
            (start, stop, width, max(1, round(self._density * width)))
            for start, stop, width in spans(numel, self._chunk)
        ]


def largest_indices(x_RC: NDArray[np.float32], kept: int) -> Indices:
    """Ascending, the places of the `kept` largest magnitudes of each row; the lower of equals."""
    # Of floats that are not negative the bits have the same order, and compare faster.
    magnitude_RC = np.abs(x_RC).view(np.uint32)
    width = magnitude_RC.shape[1]
    least_R1 = np.partition(magnitude_RC, width - kept, axis=1)[:, width - kept, None]
    is_kept_RC = magnitude_RC >= least_R1
    surplus_R = np.count_nonzero(is_kept_RC, axis=1) - kept
    for row in np.flatnonzero(surplus_R):
        equal = np.flatnonzero(magnitude_RC[row] == least_R1[row])
        is_kept_RC[row, equal[len(equal) - surplus_R[row] :]] = False
    index_Rk: Indices = (np.flatnonzero(is_kept_RC) % width).reshape(len(x_RC), kept)
    return index_Rk


def _topk(indices: IndexCode, *, density: float = 1 / 64, chunk: int = CHUNK_MAX) -> TopKCodec:
    """Values as fp16: 28 bits per value with plain indices, 24 with gaps."""
    return TopKCodec(Float16Codec(), indices, density=density, chunk=chunk)


def _sparse2bit(
    indices: IndexCode, *, density: float = 1 / 64, chunk: int = CHUNK_MAX
) -> TopKCodec:
    """SparseLoCo's values of 2 bits: 14 bits per value with plain indices, 10 with gaps."""
    return TopKCodec(Dense2BitCodec(), indices, density=density, chunk=chunk)


CODECS.register("topk", partial(_topk, PlainIndices()))
CODECS.register("topk_gaps", partial(_topk, GapIndices()))
CODECS.register("sparse2bit", partial(_sparse2bit, PlainIndices()))
CODECS.register("sparse2bit_gaps", partial(_sparse2bit, GapIndices()))
