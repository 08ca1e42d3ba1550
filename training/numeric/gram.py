"""Norms and Gram matrices that are the same bits however the work is cut and ordered.

P peers, N elements of a slice, B elements of a block, L limbs, T tiles of K elements

Each row of a cell is rounded to integers of 15 bits at a power-of-two step of its own. Products
of such integers and their sums over a cell stay below 2^53, so BLAS gives the exact sum in whatever
order it adds (R7). The sums of cells are kept as fixed-point numbers in limbs of 40
bits, which float64 adds exactly: the total is the same for any cut into slices, on any machine.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from protocol.gram_wire import LOWEST_BIT, from_wire
from training.kernels import ROWS_MAX, Kernels, kernels_for
from training.numeric.arithmetic import Vector, all_finite

Matrix = NDArray[np.float64]

CELL_ELEMENTS = 1 << 18
"""The grid where nobody names another."""

_QUANTUM_BITS = 15
"""Bits of a quantised element beside its sign: products over 2^18 elements stay below 2^48. With
eleven, CAF was off by a thousandth where directions are nearly equal; more bits cost nothing."""

_LIMB_BITS = 40
"""A limb's integers are below 2^40 per cell, so 2^13 cells add up below 2^53."""

NUM_LIMBS = 12
"""From 2^-160 to 2^320: two rows of the largest float32 over 2^18 elements stay below 2^275."""

_EXPONENT_MIN = -100
"""Peaks below 2^-100 count as this: steps stay normal float32 numbers."""

_BLOCK_ELEMENTS = 1 << 17
"""Of all rows of a block together: their integers, as float64, are a megabyte. Measured for 2 to 32
rows: with fewer the calls cost more than the arithmetic, with more the cache is left."""

_TILED_BLOCK_ELEMENTS = 1 << 18
"""The same where the product is by tiles, of which each is in the cache by itself."""

_TILE_ELEMENTS = 512
"""Of each row, so that BLAS takes the product for a small one up to 32 rows."""

_TILE_GAP = 8
"""Elements between the rows of a tile: a power of two apart, they would fall on the same few lines
of the cache."""


_Products = Callable[[Vector, NDArray[np.int64]], Matrix]

_COMPARED_SHAPE = (16, 1 << 14)
_COMPARED_TIMES = 5
_COMPARED_FROM = 1 << 16
"""Elements of a cell, all rows together: with fewer it does not matter."""


@cache
def _faster_products() -> _Products:
    """Whichever is fastest on this machine, tried once: all are exact.

    OpenBLAS' kernels of 512 bits for small products are two to six times as fast as its product of
    a matrix and itself, which is the faster one elsewhere; which it has taken it does not say. Nor
    is it known beforehand how many registers the compiled ones find.
    """
    cell_PN = np.ones(_COMPARED_SHAPE, dtype=np.float32)
    exponents_P = _exponents(cell_PN)

    def least_s(products: _Products) -> float:
        took_s = []
        for _ in range(_COMPARED_TIMES):
            begun_s = time.perf_counter()
            products(cell_PN, exponents_P)
            took_s.append(time.perf_counter() - begun_s)
        return min(took_s)

    known: list[_Products] = [_untiled, _tiled]
    if kernels_for(cell_PN):
        known += [_compiled_wide, _compiled_narrow]
    return min(known, key=least_s)


def cells(numel: int, cell_elements: int) -> Iterator[slice]:
    """The cells of a slice that begins where a cell begins; the last may be short."""
    for start in range(0, numel, cell_elements):
        yield slice(start, min(start + cell_elements, numel))


def cell_gram(cell_PN: Vector) -> Matrix:
    """The (P, P) products of the quantised rows of one cell: exact, and in any order the same.

    Raises ValueError for a row that is not finite.
    """
    exponents_P = _exponents(cell_PN)
    is_large = 1 < len(cell_PN) <= ROWS_MAX and cell_PN.size >= _COMPARED_FROM
    products = _faster_products() if is_large else _untiled
    whole_PP = products(cell_PN, exponents_P)
    found_PP: Matrix = np.ldexp(whole_PP, exponents_P[:, None] + exponents_P - 2 * _QUANTUM_BITS)
    return found_PP


def _untiled(cell_PN: Vector, exponents_P: NDArray[np.int64]) -> Matrix:
    """The products of the integers, by one product of a block and itself after the other."""
    rows = len(cell_PN)
    whole_PP = np.zeros((rows, rows))
    for wide_PB in _widened(cell_PN, exponents_P):
        whole_PP += wide_PB @ wide_PB.T
    return whole_PP


def _tiled(cell_PN: Vector, exponents_P: NDArray[np.int64]) -> Matrix:
    """The same products, by those of two halves of the rows with others in many small tiles."""
    rows, width = _block_shape(cell_PN, _TILED_BLOCK_ELEMENTS)
    num_tiles, half = -(-width // _TILE_ELEMENTS), rows // 2
    place = np.empty((num_tiles, rows, _TILE_ELEMENTS + _TILE_GAP))
    tiles_TPK = place[:, :, :_TILE_ELEMENTS]
    whole_PP = np.zeros((rows, rows))
    for narrow_PB in _quantised(cell_PN, exponents_P, width):
        full, rest = divmod(narrow_PB.shape[1], _TILE_ELEMENTS)
        cut = full * _TILE_ELEMENTS
        tiles_TPK[:full] = narrow_PB[:, :cut].reshape(rows, full, _TILE_ELEMENTS).transpose(1, 0, 2)
        if rest:
            tiles_TPK[full, :, :rest] = narrow_PB[:, cut:]
            tiles_TPK[full, :, rest:] = 0.0
        used_TPK = tiles_TPK[: full + bool(rest)]
        turned_TKP = used_TPK.transpose(0, 2, 1)
        whole_PP[:half] += (used_TPK[:, :half] @ turned_TKP).sum(axis=0)
        # One column more than is asked for: of a matrix and itself numpy makes the other product.
        low_TPP = used_TPK[:, half:] @ turned_TKP[:, :, half - 1 :]
        whole_PP[half:, half - 1 :] += low_TPP.sum(axis=0)
    whole_PP[half:, :half] = whole_PP[:half, half:].T
    return whole_PP


def _compiled_wide(cell_PN: Vector, exponents_P: NDArray[np.int64]) -> Matrix:
    """The same products, compiled, with all that 32 registers of 512 bits hold at once."""
    return _compiled(Kernels.products_wide, cell_PN, exponents_P)


def _compiled_narrow(cell_PN: Vector, exponents_P: NDArray[np.int64]) -> Matrix:
    """The same, with what 16 of 256 bits hold."""
    return _compiled(Kernels.products_narrow, cell_PN, exponents_P)


_Compiled = Callable[[Kernels, Vector, Vector], Matrix]


def _compiled(products: _Compiled, cell_PN: Vector, exponents_P: NDArray[np.int64]) -> Matrix:
    if kernels := kernels_for(cell_PN):
        return products(kernels, cell_PN, _scales(exponents_P))
    return _untiled(cell_PN, exponents_P)  # Of rows that do not lie in one piece.


def cell_squares(cell_PN: Vector) -> NDArray[np.float64]:
    """The diagonal of `cell_gram`, to the bit: the squared norm of each quantised row."""
    exponents_P = _exponents(cell_PN)
    if kernels := kernels_for(cell_PN):
        whole_P = kernels.squares(cell_PN, _scales(exponents_P))
    else:
        whole_P = np.zeros(len(cell_PN))
        for wide_PB in _widened(cell_PN, exponents_P):
            whole_P += np.array([row_B @ row_B for row_B in wide_PB])
    found_P: NDArray[np.float64] = np.ldexp(whole_P, 2 * exponents_P - 2 * _QUANTUM_BITS)
    return found_P


def _exponents(cell_PN: Vector) -> NDArray[np.int64]:
    """For each row the least power of two above all its elements."""
    if kernels := kernels_for(cell_PN):
        peaks_P = kernels.peaks(cell_PN)
    else:
        # Row by row, so that the second pass finds it in the cache.
        peaks_P = np.array([max(row_N.max(), -row_N.min()) for row_N in cell_PN])
    if not all_finite(peaks_P):
        raise ValueError(f"row {int(np.argmin(np.isfinite(peaks_P)))} is not finite")
    _, exponents_P = np.frexp(peaks_P)
    bounded_P: NDArray[np.int64] = np.maximum(exponents_P.astype(np.int64), _EXPONENT_MIN)
    return bounded_P


def _block_shape(cell_PN: Vector, elements: int = _BLOCK_ELEMENTS) -> tuple[int, int]:
    """(P, B) of the largest block of a cell."""
    rows, numel = cell_PN.shape
    return rows, min(max(1, elements // rows), numel)


def _scales(exponents_P: NDArray[np.int64]) -> Vector:
    """What each row is multiplied by before it is rounded to integers."""
    scales_P: Vector = np.ldexp(np.float32(1.0), (_QUANTUM_BITS - exponents_P).astype(np.int32))
    return scales_P


def _quantised(cell_PN: Vector, exponents_P: NDArray[np.int64], width: int) -> Iterator[Vector]:
    """Blocks of so many integers of each row, float32, in a buffer that the next block takes."""
    rows = len(cell_PN)
    scales_P = _scales(exponents_P)
    narrow = np.empty((rows, width), dtype=np.float32)
    for start in range(0, cell_PN.shape[1], width):
        block_PB = cell_PN[:, start : start + width]
        narrow_PB = narrow[:, : block_PB.shape[1]]
        # A power of two changes no bit of the mantissa, and rint is IEEE: ties to even.
        np.multiply(block_PB, scales_P[:, None], out=narrow_PB)
        np.rint(narrow_PB, out=narrow_PB)
        yield narrow_PB


def _widened(cell_PN: Vector, exponents_P: NDArray[np.int64]) -> Iterator[Matrix]:
    """`_quantised` in float64, in a buffer that the next block takes."""
    wide = np.empty(_block_shape(cell_PN))
    for narrow_PB in _quantised(cell_PN, exponents_P, wide.shape[1]):
        wide_PB = wide[:, : narrow_PB.shape[1]]
        wide_PB[...] = narrow_PB
        yield wide_PB


# Sums over cells ----------------------------------------------------------------------------------


def limbs_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same numbers in fixed point: (L, ...) integers, the lowest limb first. Limbs add up."""
    limbs = np.zeros((NUM_LIMBS, *values.shape))
    rest = values.copy()
    for index in reversed(range(NUM_LIMBS)):
        base = 2.0 ** (LOWEST_BIT + _LIMB_BITS * index)
        # Each line is exact: a division by a power of two, a cut, a difference that fits.
        limbs[index] = np.trunc(rest / base)
        rest -= limbs[index] * base
    return limbs


def value_of(limbs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The numbers that limbs stand for, rounded to float64; the highest limb first."""
    total = np.zeros(limbs.shape[1:])
    for index in reversed(range(NUM_LIMBS)):
        total += limbs[index] * 2.0 ** (LOWEST_BIT + _LIMB_BITS * index)
    return total


def gram_stats(slice_PN: Vector, cell_elements: int) -> NDArray[np.float64]:
    """The Gram matrix of a slice as limbs, flat: (L * P * P,)."""
    rows, numel = slice_PN.shape
    total = np.zeros((NUM_LIMBS, rows, rows))
    for span in cells(numel, cell_elements):
        total += limbs_of(cell_gram(slice_PN[:, span]))
    return total.reshape(-1)


def gram_of(stats: NDArray[np.float64], rows: int) -> Matrix:
    """The (P, P) Gram matrix of summed stats. Raises ValueError if they are not of so many rows."""
    if stats.shape != (NUM_LIMBS * rows * rows,):
        raise ValueError(f"stats of shape {stats.shape} for {rows} rows")
    return value_of(stats.reshape(NUM_LIMBS, rows, rows))


# The wire form ------------------------------------------------------------------------------------


def wire_form(stats: NDArray[np.float64], rows: int) -> bytes:
    """Stats of a slice as they travel: the upper triangle row by row, little-endian float64.

    Each number is rounded once, from its exact sum over the cells of the slice.
    """
    upper = gram_of(stats, rows)[np.triu_indices(rows)]
    return upper.astype("<f8").tobytes()


def summed(forms: Sequence[bytes]) -> NDArray[np.float64]:
    """The stats of all slices from their wire forms, added up exactly.

    Raises ValueError if they are not of equally many rows, or `from_wire` does.
    """
    total = np.zeros(0)
    for number, data in enumerate(forms):
        limbs = limbs_of(from_wire(data)).reshape(-1)
        if number and len(limbs) != len(total):
            raise ValueError("Gram matrices of different sizes")
        total = total + limbs if number else limbs
    return total
