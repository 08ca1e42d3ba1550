"""Codecs that send the largest of each chunk, elements or cosine waves, and where they stand.

Of chunked top-k, which sends the k largest magnitudes of every chunk, the

    payload = values, in order of position, by another codec | indices of all chunks

N elements, C of a chunk, k of them are sent

With feedback it is SparseLoCo's compressor (Sarfi et al. 2025). A coordinate waits C / k rounds on
average: runs of fewer than three times as many should send more.
"""

import math
from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError, DecodeError
from training.compression.blocks import Dense2BitCodec, spans
from training.compression.dense import Float16Codec
from training.compression.seam import CODECS, Codec, Vector, as_float32
from training.numeric.arithmetic import all_finite

Bits = NDArray[np.uint8]
Indices = NDArray[np.int64]


# Which k of the first n numbers: sorted indices as bits, one row per chunk -----------------------
#
# R rows of k indices, ascending, each below n
#
#   plain   every index in as many bits as the largest takes: 12 for chunks of 4096
#   gaps    Elias-Fano: of each index the low bits as they are, of the high ones the gaps in unary.
#           k (2 + log2(n / k)) bits at most, 8 per index for 64 of 4096 (7.4 is the entropy), and
#           of fixed size, where Rice codes of the gaps are not


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


# Chunked top-k -----------------------------------------------------------------------------------


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


Matrix = NDArray[np.float64]

# The largest cosine waves of each tile: DeMo's compressor (Peng, Quesnelle and Kingma 2024) ------
#
#   payload = for each run of tiles: a scale of each, <f4 | codes of values, <i1 | their positions
#
# T tiles of R x C, M = R C elements of one, K waves of each are sent
#
# A tile is 64 x 64 elements that stand behind one another; of what is left over whole rows of 64
# are one, and the rest of a row is another. In DeMo it is a square of a tensor, but a codec sees
# cells. What was not sent is the residual's: DeMo's decoupled momentum is error feedback around
# this codec, with the gradient for the contribution.
#
# Decoding is exact: waves and codes are whole numbers, and no sum of theirs leaves the 53 bits of a
# float64, so that a matrix product has the same bits in whatever order it is summed.

SIDE = 64
TILE = SIDE * SIDE
_CODE_MAX = 127
_WAVE_BITS = 20
"""Of a wave's values behind the point. The absolute values of a column add up to 7.3 at most, so
with codes of 7 bits both products stay below 127 x 7.3^2 x 2^40, which is 2^52.7."""

_MOST = np.float32(2.0**120)
"""Of a wave's value: what is larger is cut, and the residual has the rest. All waves of a tile come
to 128 times that at most, which is a number."""


class _Run(NamedTuple):
    """Tiles of one shape behind one another: the first element and that behind the last."""

    start: int
    stop: int
    rows: int
    columns: int
    kept: int

    @property
    def size(self) -> int:
        """Elements of a tile."""
        return self.rows * self.columns

    @property
    def tiles(self) -> int:
        """How many there are."""
        return (self.stop - self.start) // self.size


class CosineCodec:
    """`density` of the waves of each tile is sent, at least one; of equal ones the first."""

    is_biased = True

    def __init__(self, *, density: float = 1 / 128) -> None:
        if not 1 / TILE <= density <= 1:
            nearest = 1.0 if density > 1 else 1 / TILE
            why = "sends nothing" if density == 0 else f"is not in {1 / TILE}..1"
            raise ConfigError(f"density {density} {why}; take {nearest}")
        self._density = density
        self._indices = GapIndices()

    def payload_bytes(self, numel: int) -> int:
        """Of 32 of 4096: 17 bits each, and 4 bytes per tile."""
        return sum(map(self._size, self._runs(numel)))

    def encode(self, x_N: Vector) -> bytes:
        """See Codec."""
        flat_N = as_float32(x_N)
        return b"".join(self._encoded(run, flat_N) for run in self._runs(len(flat_N)))

    def _encoded(self, run: _Run, flat_N: NDArray[np.float32]) -> bytes:
        x_TRC = flat_N[run.start : run.stop].astype(np.float64)
        x_TRC = x_TRC.reshape(run.tiles, run.rows, run.columns)
        waves_TRC = _waves(run.rows) @ x_TRC @ _waves(run.columns).T * 2.0 ** (-2 * _WAVE_BITS)
        wave_TM = waves_TRC.reshape(run.tiles, run.size).clip(-_MOST, _MOST)
        index_TK = largest_indices(wave_TM.astype(np.float32), run.kept)
        value_TK = np.take_along_axis(wave_TM, index_TK, axis=1)
        scale_T1 = (np.abs(value_TK).max(axis=1, keepdims=True) / _CODE_MAX).astype("<f4")
        # Of a tile without a wave any scale is right.
        scale_T1 = np.maximum(scale_T1, np.finfo(np.float32).smallest_subnormal)
        code_TK = np.rint(value_TK / scale_T1).clip(-_CODE_MAX, _CODE_MAX).astype("<i1")
        packed = self._indices.pack(index_TK, run.size)
        return b"".join((scale_T1.astype("<f4").tobytes(), code_TK.tobytes(), packed.tobytes()))

    def decode(self, payload: bytes | memoryview, numel: int) -> NDArray[np.float32]:
        """See Codec."""
        view = memoryview(payload).cast("B")
        if view.nbytes != self.payload_bytes(numel):
            raise DecodeError(f"{view.nbytes} bytes are no payload of {numel} elements")
        x_N = np.empty(numel, dtype=np.float32)
        for run in self._runs(numel):
            x_TRC = self._decoded(run, view[: self._size(run)])
            with np.errstate(over="ignore"):
                x_N[run.start : run.stop] = x_TRC.reshape(-1)
            view = view[self._size(run) :]
        if not all_finite(x_N):
            raise DecodeError("a payload holds a scale that nobody sends")
        return x_N

    def _decoded(self, run: _Run, view: memoryview) -> Matrix:
        scales, values = 4 * run.tiles, (4 + run.kept) * run.tiles
        scale_T11 = np.frombuffer(view[:scales], "<f4").reshape(-1, 1, 1)
        code_TK = np.frombuffer(view[scales:values], "<i1").reshape(run.tiles, run.kept)
        packed = np.frombuffer(view[values:], np.uint8)
        index_TK = self._indices.unpack(packed, run.kept, run.size)
        # Written so that what is not a number is refused, too; before it becomes a float64, for of
        # some numpy warns then.
        if (code_TK < -_CODE_MAX).any() or not (scale_T11 > 0.0).all():
            raise DecodeError("a payload holds a code or a scale that nobody sends")
        wave_TM = np.zeros((run.tiles, run.size))
        np.put_along_axis(wave_TM, index_TK, code_TK.astype(np.float64), axis=1)
        wave_TRC = wave_TM.reshape(run.tiles, run.rows, run.columns)
        x_TRC: Matrix = _waves(run.rows).T @ wave_TRC @ _waves(run.columns)
        with np.errstate(invalid="ignore"):
            x_TRC *= 2.0 ** (-2 * _WAVE_BITS) * scale_T11.astype(np.float64)
        return x_TRC

    def _size(self, run: _Run) -> int:
        return run.tiles * (4 + run.kept + self._indices.row_bytes(run.kept, run.size))

    def _runs(self, numel: int) -> Iterator[_Run]:
        for start, stop, width in spans(numel, TILE):
            if width == TILE:
                yield _Run(start, stop, SIDE, SIDE, self._kept(TILE))
                continue
            rows, rest = divmod(width, SIDE)
            if rows:
                yield _Run(start, stop - rest, rows, SIDE, self._kept(rows * SIDE))
            if rest:
                yield _Run(stop - rest, stop, 1, rest, self._kept(rest))

    def _kept(self, size: int) -> int:
        return max(1, round(self._density * size))


@cache
def _waves(side: int) -> Matrix:
    """Row k: the wave of k half periods over so many places, orthonormal, in units of 2^-20.

    Whole numbers, so that a library's cosine may be off in its last bit.
    """
    place_S, wave_S1 = np.arange(side), np.arange(side)[:, None]
    wave_SS = np.cos(np.pi * (2 * place_S + 1) * wave_S1 / (2 * side)) * np.sqrt(2.0 / side)
    wave_SS[0] = np.sqrt(1.0 / side)
    found: Matrix = np.rint(wave_SS * 2.0**_WAVE_BITS)
    return found


CODECS.register("cosine", CosineCodec)
