"""The largest cosine waves of each tile: DeMo's compressor (Peng, Quesnelle and Kingma 2024).

    payload = for each run of tiles: a scale of each, <f4 | codes of values, <i1 | their positions

N elements, T tiles of R x C, M = R C elements of one, K waves of each are sent

A tile is 64 x 64 elements that stand behind one another; of what is left over whole rows of 64 are
one, and the rest of a row is another. In DeMo it is a square of a tensor, but a codec sees cells.
What was not sent is the residual's: DeMo's decoupled momentum is error feedback around this codec,
with the gradient for the contribution.

Decoding is exact: waves and codes are whole numbers, and no sum of theirs leaves the 53 bits of a
float64, so that a matrix product has the same bits in whatever order it is summed.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError, DecodeError
from training.compression.blocks import spans
from training.compression.seam import CODECS, Vector, as_float32
from training.compression.sparse import GapIndices, largest_indices
from training.numeric.arithmetic import all_finite

Matrix = NDArray[np.float64]

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
