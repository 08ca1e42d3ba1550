"""Sorted indices as bits: one row's bytes, and what is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import DecodeError
from training.compression.sparse import GapIndices, IndexCode, PlainIndices

SHAPES = [(64, 4096), (1, 1), (1, 2), (2, 2), (1, 3), (1, 40), (1, 65), (7, 8), (8, 8), (3, 77)]

every_code = pytest.mark.parametrize("code", [PlainIndices(), GapIndices()])
every_shape = pytest.mark.parametrize(("count", "bound"), SHAPES)


def rows_of(seed: int, rows: int, count: int, bound: int) -> NDArray[np.int64]:
    generator = np.random.default_rng(seed)
    drawn = [np.sort(generator.choice(bound, count, replace=False)) for _ in range(rows)]
    return np.array([*drawn, np.arange(count), np.arange(bound - count, bound)], dtype=np.int64)


@every_code
@every_shape
def test_indices_survive_their_code(code: IndexCode, count: int, bound: int, seed: int) -> None:
    index_Rk = rows_of(seed, 20, count, bound)
    packed = code.pack(index_Rk, bound).reshape(-1)
    assert packed.nbytes == len(index_Rk) * code.row_bytes(count, bound)
    assert code.unpack(packed, count, bound).tolist() == index_Rk.tolist()


@pytest.mark.quick(6)
@every_code
@every_shape
def test_bytes_with_a_flipped_bit_are_other_indices_or_refused(
    code: IndexCode, count: int, bound: int, seed: int
) -> None:
    """Wherever it is among several rows: no index twice or behind the end, and nothing has two
    payloads."""
    packed = code.pack(rows_of(seed, 1, count, bound), bound).reshape(-1)
    for position in range(8 * len(packed)):
        hostile = packed.copy()
        hostile[position // 8] ^= 1 << position % 8
        try:
            index_Rk = code.unpack(hostile, count, bound)
        except DecodeError:
            continue
        assert index_Rk.min() >= 0
        assert index_Rk.max() < bound
        assert (np.diff(index_Rk, axis=1) > 0).all()
        assert code.pack(index_Rk, bound).tobytes() == hostile.tobytes()


def test_twelve_bit_indices_are_two_in_three_bytes() -> None:
    packed = PlainIndices().pack(np.array([[0x123, 0xABC]], dtype=np.int64), 4096)
    assert packed.tobytes().hex() == "23c1ab"


def test_plain_index_takes_the_bits_of_the_largest() -> None:
    sizes = [PlainIndices().row_bytes(8, bound) for bound in (1, 2, 3, 4, 5, 64, 65, 4096)]
    assert sizes == [1, 1, 2, 2, 3, 6, 7, 12]


def test_sorted_gaps_take_eight_bits_per_index_of_64_in_4096() -> None:
    assert GapIndices().row_bytes(64, 4096) == 64
    assert PlainIndices().row_bytes(64, 4096) == 96


@pytest.mark.parametrize("bad", [[5, 5], [6, 5], [5, 40]])
def test_indices_that_do_not_ascend_or_stay_below_the_end_are_refused(bad: list[int]) -> None:
    packed = PlainIndices().pack(np.array([bad], dtype=np.int64), 64).reshape(-1)
    with pytest.raises(DecodeError, match="ascend"):
        PlainIndices().unpack(packed, 2, 40)
