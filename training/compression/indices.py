"""Which k of the first n numbers: sorted indices as bits, one row per chunk.

R rows of k indices, ascending, each below n

    plain   every index in as many bits as the largest takes: 12 for chunks of 4096
    gaps    Elias-Fano: of each index the low bits as they are, of the high ones the gaps in unary.
            k (2 + log2(n / k)) bits at most, 8 per index for 64 of 4096 (7.4 is the entropy), and
            of fixed size, where Rice codes of the gaps are not
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DecodeError

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
