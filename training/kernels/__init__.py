"""What numpy does in several passes through memory, compiled into one, with the bits of numpy.

P rows, N elements of each, B blocks of K elements

Everything here has its equal in numpy, beside the place that asks for it: that one says what is
right, and takes over where nothing was compiled (`building.py`), where vectors are short, and where
they do not lie in one piece.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.kernels.building import LIBRARY, VARIABLE, source_digest


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """A number is its code times the step of its block, from the block's first level on, in float32
    and one operation at a time."""

    codes_N: NDArray[np.uint8]
    steps_B: NDArray[np.float32]
    firsts_B: NDArray[np.float32]
    block: int
    """Elements of each; the last may have fewer."""

    def __post_init__(self) -> None:
        """Raises ValueError for what does not fit: compiled code does not look."""
        num_blocks = -(-len(self.codes_N) // self.block)
        if not len(self.steps_B) == len(self.firsts_B) == num_blocks:
            raise ValueError(f"{len(self.codes_N)} codes in {len(self.steps_B)} blocks")
        if self.codes_N.dtype != np.uint8 or not self.codes_N.flags.c_contiguous:
            raise ValueError("codes are not bytes behind one another")


logger = logging.getLogger(__name__)

Vector = NDArray[np.float32]
Codes = NDArray[np.uint8]

ROWS_MAX = 64
"""Of `sort` and products: the seats of a group."""

_STRIPS = 16
"""Of `squared_norm`, as in `kernels.c`."""

_LANES = 64
"""Of sums of codes, as there."""

_FEWEST = 2048
"""Elements of the shortest vector for which a call pays."""

_POINTER, _SIZE, _FLOAT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float
_SIGNATURES = {
    "peaks": (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER),
    "weighted_sum": (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE),
    "scaled_sum": (_POINTER, _SIZE, _FLOAT, _POINTER, _SIZE),
    "sort": (*(_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE),),
    "sort_mean": (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER),
    **dict.fromkeys(
        ("products_wide", "products_narrow", "squares"),
        (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER),
    ),
    "int8_codes": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),
    "int8_values": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),
    "int8_sum": (_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _SIZE),
    "int8_squared_norm": (_POINTER, _SIZE, _POINTER, _SIZE, _POINTER),
    "bounds": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),
    "shift_codes": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _FLOAT, _POINTER),
    "shift_values": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER),
    "squared_norm": (_POINTER, _SIZE, _POINTER),
    "sgd": (_POINTER, _POINTER, _FLOAT, _POINTER, _SIZE),
    "shift_sgd": (_POINTER, _SIZE, *[_POINTER] * 3, _FLOAT, _POINTER, _SIZE),
    "nesterov": (*[_POINTER] * 3, _FLOAT, _FLOAT, _POINTER, _POINTER, _SIZE),
    "shift_nesterov": (_POINTER, _SIZE, *[_POINTER] * 4, _FLOAT, _FLOAT, *[_POINTER] * 2, _SIZE),
}
_RESULTS = {
    **dict.fromkeys(("sort", "sort_mean"), ctypes.c_int),
    **dict.fromkeys(("squared_norm", "int8_squared_norm"), ctypes.c_double),
}


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """A network of comparators: pairs of wires, (C, 2) int32, each the lower of two values and the
    higher; and the wires, int32, that are asked for."""

    rows: int
    pairs: NDArray[np.int32]
    wires: NDArray[np.int32]

    def __post_init__(self) -> None:
        """Raises ValueError for wires that there are not: the compiled code does not look."""
        if not 0 < self.rows <= ROWS_MAX:
            raise ValueError(f"a network of {self.rows} wires")
        for named in (self.pairs, self.wires):
            _require(named.dtype == np.int32)
            _require(named.flags.c_contiguous)
            if named.size and not 0 <= int(named.min()) <= int(named.max()) < self.rows:
                raise ValueError(f"a network of {self.rows} wires names others")


class Kernels:
    """The compiled functions. Whoever calls one has asked `kernels_for` about each vector that it
    is given; other threads of Python go on meanwhile."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises AttributeError if it lacks a function."""
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, f"barnraise_{name}")
            function.argtypes, function.restype = arguments, _RESULTS.get(name)
        self._library = library

    def peaks(self, x_PN: Vector) -> Vector:
        """The largest magnitude of each row, (P,); not finite where the row is not."""
        rows, numel = x_PN.shape
        peaks_P = np.empty(rows, dtype=np.float32)
        self._library.barnraise_peaks(_rows(x_PN), _stride(x_PN), rows, numel, _written(peaks_P))
        return peaks_P

    def weighted_sum(self, rows: Sequence[Vector], factors_P: Vector, out_N: Vector) -> None:
        """The sum of factor times row, first row first; `out_N` is none of the rows."""
        places, out = _pointers([_read(row_N) for row_N in rows]), _written(out_N)
        factors_P = _plain(factors_P)
        _require(len(factors_P) == len(rows))
        _require(all(row_N.shape == out_N.shape for row_N in rows))
        self._library.barnraise_weighted_sum(places, _read(factors_P), len(rows), out, len(out_N))

    def scaled_sum(self, rows: Sequence[Vector], factor: float, out_N: Vector) -> None:
        """The sum of rows, first row first, times a factor; `out_N` is none of the rows."""
        places, out = _pointers([_read(row_N) for row_N in rows]), _written(out_N)
        _require(all(row_N.shape == out_N.shape for row_N in rows))
        self._library.barnraise_scaled_sum(places, len(rows), factor, out, len(out_N))

    def sort(self, x_PN: Vector, wiring: Wiring, out_WN: Vector) -> bool:
        """Each coordinate through a network, and to `out_WN` the W wires that are asked for.

        False if some element is not finite: then nothing that was written is of use.
        """
        _require(out_WN.shape == (len(wiring.wires), x_PN.shape[1]))
        places = (*_network(x_PN, wiring), _written_rows(out_WN), _stride(out_WN))
        return bool(self._library.barnraise_sort(*places))

    def sort_mean(self, x_PN: Vector, wiring: Wiring, out_N: Vector) -> bool:
        """The same, and to `out_N` the mean of those wires, added in their order."""
        _require(out_N.shape == x_PN.shape[1:])
        return bool(self._library.barnraise_sort_mean(*_network(x_PN, wiring), _written(out_N)))

    def products_wide(self, x_PN: Vector, scales_P: Vector) -> NDArray[np.float64]:
        """The (P, P) products of the integers nearest to each row times its scale, which are below
        2^16; exact up to 2^21 elements. For registers of 512 bits."""
        return self._products(self._library.barnraise_products_wide, x_PN, scales_P)

    def products_narrow(self, x_PN: Vector, scales_P: Vector) -> NDArray[np.float64]:
        """The same, for fewer and shorter ones."""
        return self._products(self._library.barnraise_products_narrow, x_PN, scales_P)

    @staticmethod
    def _products(
        function: Callable[..., None], x_PN: Vector, scales_P: Vector
    ) -> NDArray[np.float64]:
        rows, numel = x_PN.shape
        _require(len(scales_P) == rows <= ROWS_MAX)
        upper_PP = np.zeros((rows, rows))
        places = (_rows(x_PN), _stride(x_PN), rows, numel, _read(scales_P))
        function(*places, _written(upper_PP, np.float64))
        return np.triu(upper_PP) + np.triu(upper_PP, 1).T

    def squares(self, x_PN: Vector, scales_P: Vector) -> NDArray[np.float64]:
        """The diagonal of those products, (P,)."""
        rows, numel = x_PN.shape
        _require(len(scales_P) == rows)
        squares_P = np.empty(rows)
        places = (_rows(x_PN), _stride(x_PN), rows, numel, _read(scales_P))
        self._library.barnraise_squares(*places, _written(squares_P, np.float64))
        return squares_P

    def int8_codes(self, x_BK: Vector, reciprocals_B: Vector) -> NDArray[np.uint8]:
        """The integers nearest to each block times its factor, at most 127: one byte each."""
        (blocks, width), reciprocals_B = x_BK.shape, _plain(reciprocals_B)
        _require(x_BK.flags.c_contiguous)
        _require(reciprocals_B.size == blocks)
        codes_BK = np.empty((blocks, width), dtype=np.uint8)
        self._library.barnraise_int8_codes(
            _read(x_BK), blocks, width, _read(reciprocals_B), _written(codes_BK, np.uint8)
        )
        return codes_BK

    def int8_values(self, codes_BK: NDArray[np.int8], scales_B: Vector, out_BK: Vector) -> None:
        """Each code times the scale of its block."""
        scales_B = _plain(scales_B)
        _require(codes_BK.shape == out_BK.shape)
        _require(codes_BK.flags.c_contiguous)
        _require(out_BK.flags.c_contiguous)
        _require(scales_B.size == len(out_BK))
        self._library.barnraise_int8_values(
            *(_read(codes_BK, np.int8), *out_BK.shape, _read(scales_B), _written(out_BK))
        )

    def int8_sum(
        self, coded: Sequence[tuple[Codes, Vector]], factors_P: Vector, block: int, out_N: Vector
    ) -> None:
        """The sum of factor times row, first row first; of each the codes, in whole blocks of a
        multiple of 64, and the scale of each block."""
        factors_P, coded = _plain(factors_P), [(codes_N, _plain(s)) for codes_N, s in coded]
        _require(len(factors_P) == len(coded))
        _require(block % _LANES == len(out_N) % block == 0)
        _require(all(_are_coded(codes_N, s, block, len(out_N)) for codes_N, s in coded))
        codes = _pointers([_read_codes(codes_N) for codes_N, _ in coded])
        scales = _pointers([_read(scales_B) for _, scales_B in coded])
        self._library.barnraise_int8_sum(
            *(codes, scales, _read(factors_P), len(coded), block, _written(out_N), len(out_N))
        )

    def int8_squared_norm(self, codes_N: Codes, scales_B: Vector, block: int) -> float:
        """`squared_norm` of each code times the scale of its block, of which a sixteenth of all has
        whole ones."""
        scales_B, numel = _plain(scales_B), codes_N.size
        _require(numel % (_STRIPS * block) == block % _LANES == 0)
        _require(not numel & (numel - 1))
        _require(_are_coded(codes_N, scales_B, block, numel))
        level = np.empty(numel // _STRIPS, dtype=np.float64)
        places = (_read_codes(codes_N), block, _read(scales_B), numel, _written(level, np.float64))
        return float(self._library.barnraise_int8_squared_norm(*places))

    def bounds(self, x_BK: Vector) -> tuple[Vector, Vector]:
        """The least and the largest element of each block, (B,) each; -0 is below 0."""
        _require(x_BK.flags.c_contiguous)
        least_B, most_B = np.empty((2, len(x_BK)), dtype=np.float32)
        places = (_written(least_B), _written(most_B))
        self._library.barnraise_bounds(_read(x_BK), *x_BK.shape, *places)
        return least_B, most_B

    def shift_codes(
        self, x_BK: Vector, firsts_B: Vector, per_step_B: Vector, most: int
    ) -> NDArray[np.uint8]:
        """How many steps each element lies above its block's first level, rounded, from 0 to
        `most`: one byte each."""
        firsts_B, per_step_B = _plain(firsts_B), _plain(per_step_B)
        _require(x_BK.flags.c_contiguous)
        _require(firsts_B.size == per_step_B.size == len(x_BK))
        codes_BK = np.empty(x_BK.shape, dtype=np.uint8)
        self._library.barnraise_shift_codes(
            *(_read(x_BK), *x_BK.shape, _read(firsts_B), _read(per_step_B)),
            *(float(most), _written(codes_BK, np.uint8)),
        )
        return codes_BK

    def shift_values(
        self, codes_BK: NDArray[np.uint8], steps_B: Vector, firsts_B: Vector, out_BK: Vector
    ) -> None:
        """Each code times the step of its block, from its first level on."""
        steps_B, firsts_B = _plain(steps_B), _plain(firsts_B)
        _require(codes_BK.shape == out_BK.shape)
        _require(codes_BK.flags.c_contiguous)
        _require(out_BK.flags.c_contiguous)
        _require(steps_B.size == firsts_B.size == len(out_BK))
        self._library.barnraise_shift_values(
            *(_read(codes_BK, np.uint8), *out_BK.shape),
            *(_read(steps_B), _read(firsts_B), _written(out_BK)),
        )

    def squared_norm(self, x_N: Vector) -> float:
        """The sum of squares by halves, of a power of two of elements, at least 2^8."""
        _require(x_N.size >= _STRIPS**2)
        _require(not x_N.size & (x_N.size - 1))
        level = np.empty(len(x_N) // _STRIPS, dtype=np.float64)
        places = (_read(x_N), len(x_N), _written(level, np.float64))
        return float(self._library.barnraise_squared_norm(*places))

    def sgd(self, anchor_N: Vector, aggregate_N: Vector, rate: float, out_N: Vector) -> None:
        """`out_N`, which may be the anchor, becomes anchor - rate * aggregate."""
        _require(anchor_N.shape == aggregate_N.shape == out_N.shape)
        self._library.barnraise_sgd(
            _read(anchor_N), _read(aggregate_N), rate, _written(out_N), len(out_N)
        )

    def shift_sgd(self, anchor_N: Vector, lattice: Lattice, rate: float, out_N: Vector) -> None:
        """The same of an aggregate that lies on a lattice."""
        _require(anchor_N.shape == lattice.codes_N.shape == out_N.shape)
        steps_B, firsts_B = _plain(lattice.steps_B), _plain(lattice.firsts_B)
        coded = (_read(lattice.codes_N, np.uint8), lattice.block, _read(steps_B), _read(firsts_B))
        self._library.barnraise_shift_sgd(
            *(*coded, _read(anchor_N), rate, _written(out_N), len(out_N))
        )

    def nesterov(
        self,
        vectors: tuple[Vector, Vector, Vector],
        numbers: tuple[float, float],
        out: tuple[Vector, Vector],
    ) -> None:
        """Of anchor, aggregate and momentum, with learning rate and momentum's factor, the next
        anchor and momentum; each may be written over the one before."""
        _require(len({x.shape for x in (*vectors, *out)}) == 1)
        places = (*map(_read, vectors), *numbers, *map(_written, out))
        self._library.barnraise_nesterov(*places, len(out[0]))

    def shift_nesterov(
        self,
        lattice: Lattice,
        before: tuple[Vector, Vector],
        numbers: tuple[float, float],
        out: tuple[Vector, Vector],
    ) -> None:
        """The same of an aggregate that lies on a lattice; of anchor and momentum before."""
        _require(len({x.shape for x in (lattice.codes_N, *before, *out)}) == 1)
        steps_B, firsts_B = _plain(lattice.steps_B), _plain(lattice.firsts_B)
        coded = (_read(lattice.codes_N, np.uint8), lattice.block, _read(steps_B), _read(firsts_B))
        places = (*coded, *map(_read, before), *numbers, *map(_written, out))
        self._library.barnraise_shift_nesterov(*places, len(out[0]))


def _plain(x: Vector) -> Vector:
    """The few numbers that say what to do with many: where they lie in a message, perhaps."""
    return x if x.flags.c_contiguous and x.flags.aligned else np.array(x, dtype=np.float32)


def _are_coded(codes_N: Codes, scales_B: Vector, block: int, numel: int) -> bool:
    is_plain = codes_N.itemsize == 1 and codes_N.flags.c_contiguous
    return is_plain and codes_N.size == numel and scales_B.size * block == numel


def _require(fits: bool) -> None:
    """No `assert`: Python leaves those out where it is asked to (`-O`), and this is what keeps the
    compiled code within the vectors that it is given."""
    if not fits:
        raise AssertionError("vectors that do not fit: compiled code would go past an end")


def _read(x: NDArray[Any], kind: type[np.generic] = np.float32) -> int:
    """Where a vector in one piece begins."""
    _require(x.flags.c_contiguous)
    return _place(x, kind)


def _read_codes(codes_N: Codes) -> int:
    """The same of bytes, with a sign or without."""
    return _read(codes_N, np.int8 if codes_N.dtype == np.int8 else np.uint8)


def _rows(x_PN: Vector) -> int:
    """Where rows begin that lie apart, each in one piece; `_stride` says how far."""
    step = x_PN.strides[0]
    _require(x_PN.ndim == 2 and step >= 0 and step % x_PN.itemsize == 0)
    _require(x_PN.shape[1] <= 1 or x_PN.strides[1] == x_PN.itemsize)
    return _place(x_PN, np.float32)


def _written_rows(x_PN: Vector) -> int:
    # Rows that lie upon each other are not written.
    _require(x_PN.flags.writeable and (len(x_PN) <= 1 or x_PN.strides[0] >= x_PN[0].nbytes))
    return _rows(x_PN)


def _written(x: NDArray[Any], kind: type[np.generic] = np.float32) -> int:
    _require(x.flags.writeable)
    return _read(x, kind)


def _place(x: NDArray[Any], kind: type[np.generic]) -> int:
    _require(x.dtype == kind and x.flags.aligned)
    address: int = x.__array_interface__["data"][0]
    return address


def _network(x_PN: Vector, wiring: Wiring) -> tuple[int, ...]:
    pairs, wires = wiring.pairs, wiring.wires
    _require(len(x_PN) == wiring.rows)
    network = (_read(pairs, np.int32), len(pairs), _read(wires, np.int32), len(wires))
    return (_rows(x_PN), _stride(x_PN), *x_PN.shape, *network)


def _stride(x_PN: Vector) -> int:
    """Elements from a row to the next."""
    return x_PN.strides[0] // x_PN.itemsize


def _pointers(addresses: Sequence[int]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(addresses))(*addresses)


def load(library: Path = LIBRARY) -> Kernels | None:
    """What was compiled, if it is of the source that lies beside it."""
    if os.environ.get(VARIABLE) == "numpy" or not library.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(library))
        loaded.barnraise_source.restype = ctypes.c_char_p
        if loaded.barnraise_source() != source_digest().encode():
            logger.info("%s is of another source: numpy alone until the next build", library)
            return None
        return Kernels(loaded)
    except (OSError, AttributeError) as error:
        logger.info("%s does not load: %s: numpy alone", library, error)
        return None


KERNELS = load()


def arithmetic() -> str:
    """Whose sums these are, in a word: `compiled`, or `numpy` alone."""
    return "numpy" if KERNELS is None else "compiled"


def kernels_for(*vectors: NDArray[Any]) -> Kernels | None:
    """The compiled functions, where there are some and a call pays: for float32 of at least some
    thousand elements, which lie in one piece, or whose rows do."""
    if KERNELS is None:
        return None
    return KERNELS if all(map(_suits, vectors)) else None


def _suits(x: NDArray[Any]) -> bool:
    if x.dtype != np.float32 or not x.flags.aligned or x.size < _FEWEST:
        return False
    if x.ndim == 1:
        return x.flags.c_contiguous
    return x.ndim == 2 and x.strides[1] == x.itemsize and x.strides[0] >= 0
