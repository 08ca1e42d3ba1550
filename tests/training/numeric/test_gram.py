"""Exactness of the Gram matrix: integers, limbs, and the order in which nothing may depend."""

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.gram_wire import LOWEST_BIT, from_wire, wire_bytes
from training import kernels
from training.numeric import gram
from training.numeric.arithmetic import dominant, eigen, product, weighted_sum

PEERS, CELL = 5, 512


def slice_of(seed: int, numel: int, spread: int = 20) -> NDArray[np.float32]:
    """Rows and cells of very unequal sizes."""
    luck = np.random.default_rng(seed)
    rows_PN = luck.normal(size=(PEERS, numel))
    for start in range(0, numel, CELL):
        rows_PN[:, start : start + CELL] *= 2.0 ** luck.uniform(-spread, spread, size=(PEERS, 1))
    return rows_PN.astype(np.float32)


def quantised(row_N: NDArray[np.float32]) -> list[Fraction]:
    """What the module says that it rounds a cell's row to, in exact numbers."""
    _, exponent = np.frexp(np.abs(row_N).max())
    step = Fraction(2) ** (int(exponent) - 15)
    return [round(Fraction(float(x)) / step) * step for x in row_N]


def test_gram_is_the_exact_product_of_the_quantised_rows(seed: int) -> None:
    rows_PN = slice_of(seed, CELL)
    exact = [quantised(row_N) for row_N in rows_PN]
    found_PP = gram.cell_gram(rows_PN)
    for a in range(PEERS):
        for b in range(PEERS):
            wanted = sum(x * y for x, y in zip(exact[a], exact[b], strict=True))
            assert Fraction(float(found_PP[a, b])) == wanted


def test_squares_are_the_diagonal_to_the_bit(seed: int) -> None:
    rows_PN = slice_of(seed, 3 * gram._BLOCK_ELEMENTS // PEERS + 17)
    squares_P = gram.cell_squares(rows_PN)
    assert squares_P.tobytes() == np.diagonal(gram.cell_gram(rows_PN)).tobytes()


@pytest.mark.quick(2)
@pytest.mark.parametrize("rows", [2, 3, 4, 7, 16, 33, 64])
def test_tiles_give_the_same_bits_as_whole_blocks(seed: int, rows: int) -> None:
    block = gram._BLOCK_ELEMENTS // rows
    for numel in (1, 511, 512, block, 2 * block + 700):
        luck = np.random.default_rng((seed, rows, numel))
        cell_PN = luck.normal(size=(rows, numel)).astype(np.float32)
        exponents_P = gram._exponents(cell_PN)
        tiled_PP = gram._tiled(cell_PN, exponents_P)
        assert tiled_PP.any()
        assert tiled_PP.tobytes() == gram._untiled(cell_PN, exponents_P).tobytes()


_DIGEST = """
import numpy as np
from training import kernels
from training.numeric import gram
rows_PN = np.random.default_rng(7).normal(size=(5, 70_000)).astype(np.float32)
exponents_P = gram._exponents(rows_PN)
for products in (gram._tiled, gram._untiled):
    print(products(rows_PN, exponents_P).tobytes().hex())
"""


def test_plain_processor_and_other_kernels_give_the_same_bits() -> None:
    """Of those that numpy and BLAS have for this processor, and of the plainest."""
    found = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(found), "OPENBLAS_CORETYPE": "Haswell"}
    told = {
        line
        for env in ({}, plain)
        for line in subprocess.check_output(
            [sys.executable, "-c", _DIGEST], env=os.environ | env, text=True
        ).split()
    }
    assert len(told) == 1


def test_faster_product_is_tried_once_and_is_one_that_there_is() -> None:
    found = gram._faster_products()
    compiled = (gram._compiled_wide, gram._compiled_narrow) if kernels.KERNELS else ()
    assert found in (gram._tiled, gram._untiled, *compiled)
    assert gram._faster_products() is found


def test_stats_are_equal_for_every_cut_and_order_of_slices(seed: int) -> None:
    numel = 11 * CELL + 100
    rows_PN, luck = slice_of(seed, numel), np.random.default_rng(seed)
    whole = gram.gram_stats(rows_PN, CELL)
    for _ in range(5):
        cuts = sorted(luck.choice(np.arange(1, 12), size=4, replace=False) * CELL)
        pieces = np.split(rows_PN, cuts, axis=1)
        luck.shuffle(pieces)
        total = sum((gram.gram_stats(piece, CELL) for piece in pieces), np.zeros(1))
        assert total.tobytes() == whole.tobytes()


def test_limbs_add_up_without_any_rounding(seed: int) -> None:
    luck = np.random.default_rng(seed)
    values = luck.normal(size=40) * 2.0 ** luck.integers(-60, 270, size=40)
    total = sum((gram.limbs_of(np.array([value])) for value in values), np.zeros(1))
    exact = sum(Fraction(float(value)) for value in values)
    held = sum(
        Fraction(float(limb)) * Fraction(2) ** (LOWEST_BIT + gram._LIMB_BITS * index)
        for index, limb in enumerate(total[:, 0])
    )
    assert held == exact
    assert gram.value_of(total)[0] == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-20, 1.0, 3e38])
def test_rows_of_any_size_have_a_finite_gram(size: float) -> None:
    rows_PN = np.full((2, CELL), size, dtype=np.float32)
    rows_PN[1] = 1.0
    found_PP = gram.gram_of(gram.gram_stats(rows_PN, CELL), 2)
    assert np.isfinite(found_PP).all()
    assert found_PP[1, 1] == CELL
    wanted = float(rows_PN[0, 0]) ** 2 * CELL
    assert found_PP[0, 0] == pytest.approx(wanted, rel=1e-3, abs=1e-40)


def test_rounding_moves_distances_by_less_than_three_millionths(seed: int) -> None:
    rows_PN = np.random.default_rng(seed).normal(size=(PEERS, 1 << 16)).astype(np.float32)
    wide_PN = rows_PN.astype(np.float64)
    exact_PP = wide_PN @ wide_PN.T
    found_PP = gram.gram_of(gram.gram_stats(rows_PN, 1 << 14), PEERS)
    assert np.abs(found_PP - exact_PP).max() < 3e-6 * np.diagonal(exact_PP).max()


def test_row_that_is_not_finite_is_refused() -> None:
    rows_PN = np.ones((3, CELL), dtype=np.float32)
    rows_PN[1, 5] = np.nan
    with pytest.raises(ValueError, match="row 1"):
        gram.cell_gram(rows_PN)


def test_stats_of_another_number_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="for 4 rows"):
        gram.gram_of(gram.gram_stats(np.ones((3, 8), dtype=np.float32), CELL), 4)


def test_weighted_sum_of_many_blocks_is_the_sum_row_by_row(seed: int) -> None:
    luck = np.random.default_rng(seed)
    rows_PN = luck.normal(size=(PEERS, 40_000)).astype(np.float32)
    factors_P = luck.normal(size=PEERS).astype(np.float32)
    total_N = rows_PN[0] * factors_P[0]
    for row_N, factor in zip(rows_PN[1:], factors_P[1:], strict=True):
        total_N = total_N + row_N * factor
    assert weighted_sum(rows_PN, factors_P).tobytes() == total_N.tobytes()


@pytest.mark.parametrize("rows", [1, 2, 7, 20])
def test_eigenvalues_and_vectors_are_those_of_lapack(rows: int, seed: int) -> None:
    half_PP = np.random.default_rng(seed).normal(size=(rows, rows + 2))
    matrix_PP = half_PP @ half_PP.T
    values_P, vectors_PP = eigen(matrix_PP)
    assert np.allclose(values_P, np.linalg.eigvalsh(matrix_PP)[::-1], rtol=1e-9, atol=1e-9)
    assert np.allclose(product(matrix_PP, vectors_PP), vectors_PP * values_P, atol=1e-8)


def test_dominant_vector_reaches_the_largest_eigenvalue(seed: int) -> None:
    half_PP = np.random.default_rng(seed).normal(size=(9, 12))
    matrix_PP = half_PP @ half_PP.T
    top_P = dominant(matrix_PP)
    assert top_P @ matrix_PP @ top_P == pytest.approx(np.linalg.eigvalsh(matrix_PP)[-1], rel=1e-3)
    assert np.array_equal(dominant(np.zeros((3, 3))), [1.0, 0.0, 0.0])


# The wire form ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0, 20, 90])
def test_wire_forms_of_all_slices_give_the_gram_matrix_but_for_one_rounding(
    spread: int, seed: int
) -> None:
    rows_PN = slice_of(seed, 7 * CELL, spread)
    pieces = np.split(rows_PN, [2 * CELL, 5 * CELL], axis=1)
    forms = [gram.wire_form(gram.gram_stats(piece, CELL), PEERS) for piece in pieces]
    assert {len(form) for form in forms} == {wire_bytes(PEERS)}
    found_PP = gram.gram_of(gram.summed(forms), PEERS)
    exact_PP = gram.gram_of(gram.gram_stats(rows_PN, CELL), PEERS)
    lengths_P = np.sqrt(np.diagonal(exact_PP))
    assert (np.abs(found_PP - exact_PP) <= 1e-15 * lengths_P[:, None] * lengths_P).all()
    assert gram.summed(forms[::-1]).tobytes() == gram.summed(forms).tobytes()


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-20, 1.0, 1e20, 3e38])
def test_wire_form_of_rows_of_any_size_is_taken(size: float, seed: int) -> None:
    rows_PN = slice_of(seed, 2 * CELL, spread=0)
    rows_PN[0] *= np.float32(size) / np.abs(rows_PN[0]).max()
    rows_PN[1] = rows_PN[0]
    rows_PN[2] = 0.0
    form = gram.wire_form(gram.gram_stats(rows_PN, CELL), PEERS)
    found_PP = from_wire(form)
    assert found_PP.tobytes() == np.ascontiguousarray(found_PP.T).tobytes()


def wire_of(matrix_PP: NDArray[np.float64]) -> bytes:
    return matrix_PP[np.triu_indices(len(matrix_PP))].astype("<f8").tobytes()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "0 bytes"),
        (bytes(7), "7 bytes"),
        (bytes(16), "16 bytes"),
        (wire_of(np.full((2, 2), np.nan)), "out of range"),
        (wire_of(np.full((2, 2), np.inf)), "out of range"),
        (wire_of(np.full((2, 2), 1e300)), "out of range"),
        (wire_of(np.diag([1.0, -1e-9])), "negative square"),
        (wire_of(np.array([[1.0, 1.001], [1.001, 1.0]])), "above the lengths"),
        (wire_of(np.array([[1.0, -2.1], [-2.1, 4.0]])), "above the lengths"),
    ],
)
def test_what_no_rows_can_have_is_no_gram_matrix(data: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        from_wire(data)
