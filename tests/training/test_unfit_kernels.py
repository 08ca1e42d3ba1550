"""Compiled code looks at no shape: what does not fit is refused before it reads past an end."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from training import kernels
from training.kernels import Kernels, Lattice, Wiring

X_N = np.ones(4096, dtype=np.float32)
SHORT_N = X_N[:4000]
ROWS_PN = np.ones((4, 4096), dtype=np.float32)
GAPS_PN = np.ones((4, 8192), dtype=np.float32)[:, ::2]
CODES_PN = np.ones((4, 4096), dtype=np.uint8)
CODES_N = CODES_PN[0]
FOUR = np.ones(4, dtype=np.float32)
THREE = FOUR[:3]
HALVES_PN: np.ndarray = np.ones((4, 4096), dtype=np.float16)
HALVES_N: np.ndarray = HALVES_PN[0]
LATTICE = Lattice(CODES_N, FOUR, FOUR, 1024)
WIRING = Wiring(4, np.array([[0, 1]], dtype=np.int32), np.array([0, 1], dtype=np.int32))
LEVELS_PN = CODES_PN.view(np.int8)


def out(*shape: int) -> np.ndarray:
    return np.empty(shape, dtype=np.float32)


UNFIT: dict[str, Callable[[Kernels], object]] = {
    "sum, row": lambda k: k.weighted_sum([X_N, SHORT_N], FOUR[:2], out(4096)),
    "sum, factors": lambda k: k.weighted_sum([X_N, X_N], FOUR[:1], out(4096)),
    "sum, out": lambda k: k.scaled_sum([X_N], 1.0, out(4097)),
    "sort, out": lambda k: k.sort(ROWS_PN, WIRING, out(1, 4096)),
    "sort, rows": lambda k: k.sort(ROWS_PN[:3], WIRING, out(2, 4096)),
    "mean, out": lambda k: k.sort_mean(ROWS_PN, WIRING, out(4000)),
    "mean, rows": lambda k: k.sort_mean(ROWS_PN[:3], WIRING, out(4096)),
    "products, scales": lambda k: k.products_narrow(ROWS_PN, THREE),
    "squares, scales": lambda k: k.squares(ROWS_PN, THREE),
    "codes, gaps": lambda k: k.int8_codes(GAPS_PN, FOUR),
    "codes, scales": lambda k: k.int8_codes(ROWS_PN, THREE),
    "values, out": lambda k: k.int8_values(LEVELS_PN, FOUR, out(4, 4095)),
    "values, scales": lambda k: k.int8_values(LEVELS_PN, THREE, out(4, 4096)),
    "values, gaps": lambda k: k.int8_values(LEVELS_PN, FOUR, GAPS_PN),
    "values, code gaps": lambda k: k.int8_values(LEVELS_PN[:, ::2], FOUR, out(4, 2048)),
    "coded sum, factors": lambda k: k.int8_sum([(CODES_N, FOUR)], FOUR[:2], 1024, out(4096)),
    "coded sum, codes": lambda k: k.int8_sum([(CODES_N[:2048], FOUR)], FOUR[:1], 1024, out(4096)),
    "coded sum, scales": lambda k: k.int8_sum([(CODES_N, THREE)], FOUR[:1], 1024, out(4096)),
    "coded sum, floats": lambda k: k.int8_sum([(X_N, FOUR)], FOUR[:1], 1024, out(4096)),  # type: ignore[list-item]  # what is tried
    "coded sum, block": lambda k: k.int8_sum([(CODES_N, FOUR)], FOUR[:1], 1000, out(4000)),
    "coded norm, scales": lambda k: k.int8_squared_norm(CODES_N, THREE, 256),
    "coded norm, block": lambda k: k.int8_squared_norm(CODES_N, FOUR, 1024),
    "bounds, gaps": lambda k: k.bounds(GAPS_PN),
    "steps, firsts": lambda k: k.shift_codes(ROWS_PN, THREE, FOUR, 255),
    "steps, factors": lambda k: k.shift_codes(ROWS_PN, FOUR, THREE, 255),
    "steps, gaps": lambda k: k.shift_codes(GAPS_PN, FOUR, FOUR, 255),
    "levels, firsts": lambda k: k.shift_values(CODES_PN, FOUR, THREE, out(4, 4096)),
    "levels, steps": lambda k: k.shift_values(CODES_PN, THREE, FOUR, out(4, 4096)),
    "levels, out": lambda k: k.shift_values(CODES_PN, FOUR, FOUR, out(4, 4095)),
    "levels, gaps": lambda k: k.shift_values(CODES_PN, FOUR, FOUR, GAPS_PN),
    "sum, gaps": lambda k: k.scaled_sum([GAPS_PN[0]], 1.0, out(4096)),
    "sum, doubles": lambda k: k.scaled_sum([X_N.astype(np.float64)], 1.0, out(4096)),
    "sum, out of halves": lambda k: k.scaled_sum([X_N], 1.0, HALVES_N),
    "sum, factors in halves": lambda k: k.weighted_sum([X_N], HALVES_N[:1], out(4096)),
    "peaks, gaps": lambda k: k.peaks(GAPS_PN),
    "peaks, backwards": lambda k: k.peaks(ROWS_PN[::-1]),
    "sort, out upon itself": lambda k: k.sort(ROWS_PN, WIRING, np.broadcast_to(X_N, (2, 4096))),
    "sort, halves": lambda k: k.sort(HALVES_PN, WIRING, out(2, 4096)),
    "squares, scales in halves": lambda k: k.squares(ROWS_PN, HALVES_N[:4]),
    "values, wide codes": lambda k: k.int8_values(ROWS_PN.view(np.int8)[:, :4096], FOUR, GAPS_PN),
    "values, out of halves": lambda k: k.int8_values(LEVELS_PN, FOUR, HALVES_PN),
    "step, out of halves": lambda k: k.sgd(X_N, X_N, 0.1, HALVES_N),
    "norm, no power": lambda k: k.squared_norm(SHORT_N),
    "norm, few": lambda k: k.squared_norm(X_N[:128]),
    "step, aggregate": lambda k: k.sgd(X_N, SHORT_N, 0.5, out(4096)),
    "step, lattice": lambda k: k.shift_sgd(SHORT_N, LATTICE, 0.5, out(4000)),
    "momentum": lambda k: k.nesterov((X_N, X_N, SHORT_N), (0.5, 0.9), (out(4096), out(4096))),
    "momentum, lattice": lambda k: k.shift_nesterov(
        LATTICE, (X_N, SHORT_N), (0.5, 0.9), (out(4096), out(4096))
    ),
}


@pytest.mark.skipif(kernels.KERNELS is None, reason="nothing was compiled")
@pytest.mark.parametrize("what", UNFIT)
def test_vectors_that_do_not_fit_are_refused(what: str) -> None:
    assert kernels.KERNELS is not None
    with pytest.raises(AssertionError):
        UNFIT[what](kernels.KERNELS)


@pytest.mark.parametrize(
    ("codes_N", "steps", "firsts"),
    [(CODES_N, 3, 4), (CODES_N, 4, 5), (CODES_N[::2], 2, 2), (X_N, 4, 4)],
)
def test_lattice_that_does_not_fit_is_refused(codes_N: np.ndarray, steps: int, firsts: int) -> None:
    with pytest.raises(ValueError, match=r"blocks|bytes"):
        Lattice(codes_N, X_N[:steps], X_N[:firsts], 1024)


WITHOUT_ASSERTS = """
import sys
assert False, "this Python has its asserts"
from tests.training.test_unfit_kernels import UNFIT
from training import kernels
for name, call in UNFIT.items():
    try:
        call(kernels.KERNELS)
    except AssertionError:
        continue
    sys.exit(f"{name} went through")
print(len(UNFIT))
"""


@pytest.mark.skipif(kernels.KERNELS is None, reason="nothing was compiled")
def test_python_without_asserts_refuses_them_too() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", WITHOUT_ASSERTS],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == str(len(UNFIT))


def test_what_keeps_compiled_code_in_bounds_is_no_assert() -> None:
    """Also where nothing was compiled: by the source."""
    tree = ast.parse(Path(kernels.__file__).read_text("utf-8"))
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
