"""Compiled arithmetic has the bits of numpy's, and numpy's takes over where there is none."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from training import kernels
from training.aggregation import AGGREGATORS
from training.compression import CODECS, Codec, check_payload
from training.compression.blocks import BLOCK
from training.kernels import building
from training.numeric import gram
from training.numeric.arithmetic import all_finite, squared_norm, weighted_sum
from training.outer.optimizers import OUTER_OPTIMIZERS, OuterInfo, OuterStep

NUMELS = (2048, 4099, 3 * 16384 + 77)
KINDS = ("normal", "sizes", "few values", "zeros", "huge", "tiny")

compiled = pytest.mark.skipif(kernels.KERNELS is None, reason="nothing was compiled")


@contextmanager
def numpy_alone() -> Iterator[None]:
    before, kernels.KERNELS = kernels.KERNELS, None
    try:
        yield
    finally:
        kernels.KERNELS = before


def rows_of(kind: str, shape: tuple[int, int], seed: int) -> NDArray[np.float32]:
    """Finite numbers in which a wrong order, a fused product or a lost sign shows."""
    luck = np.random.default_rng(seed)
    x_PN: NDArray[np.float64] = luck.standard_normal(shape)
    match kind:
        case "sizes":
            x_PN *= 10.0 ** luck.uniform(-30, 30, size=shape)
        case "few values":
            x_PN = np.rint(x_PN) * 0.25
        case "zeros":
            x_PN = np.where(luck.random(shape) < 0.5, 0.0, -0.0)
        case "huge":
            x_PN = np.clip(2e38 * x_PN, -3.4e38, 3.4e38)
        case "tiny":
            x_PN *= 1e-41
    return x_PN.astype(np.float32)


def assert_same_bits(compute: Callable[[], list[bytes]]) -> None:
    with np.errstate(all="ignore"):
        found = compute()
        with numpy_alone():
            wanted = compute()
    assert [bytes(one) for one in found] == [bytes(one) for one in wanted]


@compiled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", NUMELS)
def test_sums_and_norms_have_the_bits_of_numpy(kind: str, numel: int, seed: int) -> None:
    x_PN = rows_of(kind, (13, numel), seed)
    factors_P = np.random.default_rng(seed).normal(size=13).astype(np.float32)
    assert_same_bits(lambda: [weighted_sum(x_PN, factors_P).tobytes()])
    assert_same_bits(lambda: [weighted_sum(x_PN[:1], factors_P[:1]).tobytes()])
    wide = rows_of(kind, (2, 1 << 16), seed)
    assert_same_bits(lambda: [np.float64(squared_norm(row_N)).tobytes() for row_N in wide])


@pytest.mark.quick(4)
@compiled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 33, 64])
def test_products_of_every_shape_are_those_of_blas(kind: str, rows: int, seed: int) -> None:
    for numel in (2048, 2 * 2048 + 13, 70_000 // rows):
        cell_PN = rows_of(kind, (rows, numel + 5), seed)[:, 3 : 3 + numel]
        exponents_P = gram._exponents(cell_PN)
        with numpy_alone():
            assert gram._exponents(cell_PN).tobytes() == exponents_P.tobytes()
            wanted_PP = gram._untiled(cell_PN, exponents_P)
            squares_P = gram.cell_squares(cell_PN)
        for products in (gram._compiled_wide, gram._compiled_narrow):
            assert np.array_equal(products(cell_PN, exponents_P), wanted_PP)
        assert gram.cell_squares(cell_PN).tobytes() == squares_P.tobytes()


def aggregated(name: str, x_PN: NDArray[np.float32]) -> list[bytes]:
    found = AGGREGATORS[name](None)(x_PN)
    return [found.value.tobytes(), found.scores.tobytes()]


@pytest.mark.quick(each="name")
@compiled
@pytest.mark.parametrize("name", list(AGGREGATORS))
@pytest.mark.parametrize("kind", KINDS)
def test_rules_have_the_bits_of_numpy(name: str, kind: str, seed: int) -> None:
    for rows, numel in ((16, 4099), (5, 20_000), (1, 3000), (64, 2048)):
        whole_PN = rows_of(kind, (rows, numel + 9), seed)
        # Rows with a gap between them, as a reducer's slice of whole vectors has.
        x_PN = whole_PN[:, 9:]
        assert_same_bits(partial(aggregated, name, x_PN))


@compiled
@pytest.mark.parametrize("name", ["median", "trimmed_mean", "nnm_trimmed_mean", "caf"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_row_that_is_not_finite_is_named_by_both(name: str, value: float, seed: int) -> None:
    x_PN = rows_of("normal", (9, 40_000), seed)
    x_PN[6, 39_999] = x_PN[7, 3] = value
    messages = []
    for _ in range(2):
        with pytest.raises(ValueError, match=r"row [67] is not finite") as caught:
            AGGREGATORS[name](2)(x_PN)
        messages.append(str(caught.value))
    with numpy_alone(), pytest.raises(ValueError, match="is not finite") as caught:
        AGGREGATORS[name](2)(x_PN)
    assert messages == [str(caught.value)] * 2


def coded(codec: Codec, x_N: NDArray[np.float32]) -> list[bytes]:
    payload = codec.encode(x_N)
    check_payload(codec, payload, len(x_N))
    return [payload, codec.decode(payload, len(x_N)).tobytes()]


@pytest.mark.quick(each="name")
@compiled
@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("kind", KINDS)
def test_codecs_have_the_bits_of_numpy(name: str, kind: str, seed: int) -> None:
    for numel in (2 * BLOCK, 5 * BLOCK + 1, 200_003):
        (x_N,) = rows_of(kind, (1, numel), seed)
        assert_same_bits(partial(coded, CODECS[name](), x_N))


@compiled
@pytest.mark.parametrize("name", list(OUTER_OPTIMIZERS))
@pytest.mark.parametrize("kind", KINDS)
def test_outer_steps_have_the_bits_of_numpy_in_any_place(name: str, kind: str, seed: int) -> None:
    anchor_N, aggregate_N, velocity_N = rows_of(kind, (3, 5001), seed)
    has_momentum = "momentum" in OUTER_OPTIMIZERS[name](0.7).slots
    rule = OUTER_OPTIMIZERS[name](0.7, 0.9 if has_momentum else 0.0)

    def compute(place: str) -> list[bytes]:
        before = {"momentum": velocity_N.copy()} if has_momentum else {}
        from_N, info = anchor_N.copy(), OuterInfo(round=1, slots=before)
        out = {
            "new": None,
            "given": OuterStep(np.empty_like(from_N), {k: v + 1 for k, v in before.items()}),
            "same": OuterStep(from_N, before),
        }[place]
        step = rule.step(from_N, aggregate_N, info, out)
        assert out is None or step is out
        return [step.anchor_N.tobytes(), *(slot_N.tobytes() for slot_N in step.slots.values())]

    for place in ("new", "given", "same"):
        assert_same_bits(partial(compute, place))
        with np.errstate(all="ignore"):
            assert compute(place) == compute("new")


def test_numbers_of_other_kinds_are_left_to_numpy() -> None:
    long_N = np.zeros(10_000, dtype=np.float32)
    assert kernels.kernels_for(long_N) is kernels.KERNELS
    assert kernels.kernels_for(long_N.reshape(4, -1)[:, 1:]) is kernels.KERNELS
    odd = np.frombuffer(bytes(40_001), dtype=np.uint8)[1:].view(np.float32)
    others = (
        long_N[:100],
        long_N[::2],
        long_N.astype(np.float64),
        long_N.astype(">f4"),
        long_N.reshape(-1, 100).T,
        long_N.reshape(100, -1)[::-1],
        odd,
    )
    for x in others:
        assert kernels.kernels_for(x) is None
        assert all_finite(x)


@compiled
def test_unfit_places_and_wires_are_refused() -> None:
    assert kernels.KERNELS is not None
    x_N = np.ones(4096, dtype=np.float32)
    frozen_N = np.frombuffer(bytes(4 * 4096), dtype=np.float32)
    with pytest.raises(AssertionError):
        kernels.KERNELS.sgd(x_N, x_N, 0.5, frozen_N)
    with pytest.raises(AssertionError):
        kernels.KERNELS.sgd(x_N, x_N[:4000], 0.5, x_N)
    with pytest.raises(AssertionError):
        kernels.KERNELS.products_wide(np.ones((65, 2048), np.float32), np.ones(65, np.float32))
    some, none = np.array([[0, 4]], dtype=np.int32), np.array([], dtype=np.int32)
    for rows, pairs, wires in ((4, some, none), (4, none, some), (65, none, none), (0, none, none)):
        with pytest.raises(ValueError, match="a network of"):
            kernels.Wiring(rows, pairs, wires)


# Building -----------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in (building.SOURCE.name, "products.h"):
        (tmp_path / name).write_bytes(building.SOURCE.with_name(name).read_bytes())
    return tmp_path / building.SOURCE.name


def compiler_of(folder: Path, script: str) -> str:
    path = folder / "some cc"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return f"'{path}' -g0"


@compiled
def test_what_was_built_loads_and_other_source_does_not(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    # How fast it is is no question here, and to make it so takes five seconds.
    plain = tuple("-O0" if flag == "-O3" else flag for flag in building._FLAGS)
    monkeypatch.setattr(building, "_FLAGS", plain)
    library = tmp_path / "built.so"
    assert "built with" in building.build(library, sources)
    assert list(tmp_path.glob(".building-*")) == []
    found = kernels.load(library)
    assert found is not None
    assert found.peaks(np.array([[1, -3, 2]], dtype=np.float32)) == 3.0
    sources.write_text(sources.read_text("utf-8") + "\n/* another */\n", encoding="utf-8")
    other = tmp_path / "other.so"
    assert "built with" in building.build(other, sources)
    assert kernels.load(other) is None


def test_what_is_no_library_of_ours_is_not_loaded(tmp_path: Path) -> None:
    library = tmp_path / "some.so"
    assert kernels.load(library) is None
    library.write_bytes(b"\x7fELF, but cut off")
    assert kernels.load(library) is None
    for found in Path(sysconfig.get_config_var("DESTSHARED") or "/").glob("_queue*.so"):
        assert kernels.load(found) is None  # It loads, and has nothing of ours.


@pytest.mark.skipif(os.name != "posix", reason="no compiler is asked elsewhere")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such thing >&2; exit 1", "no such thing"),
        ("exit 3", "exit status 3"),
        # It says that it is through, and there is no library, or one that is none.
        ("exit 0", "not built"),
        ('for last; do :; done; echo junk > "$last"', "not built"),
    ],
)
def test_compiler_that_fails_leaves_what_was_there(
    script: str, said: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(building.VARIABLE, raising=False)
    library = tmp_path / "built.so"
    library.write_bytes(b"of before")
    monkeypatch.setenv("CC", compiler_of(tmp_path, script))
    told = building.build(library, sources)
    assert told.startswith("not built: ")
    assert said in told
    assert library.read_bytes() == b"of before"
    assert list(tmp_path.glob(".building-*")) == []


def test_without_a_compiler_numpy_does_it_all(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert building.build(tmp_path / "built.so", sources).startswith("not built: ")
    monkeypatch.setenv(building.VARIABLE, "numpy")
    assert building.build(tmp_path / "built.so", sources) == (
        "not built: BARNRAISE_KERNELS says numpy"
    )
    assert not (tmp_path / "built.so").exists()


def test_variable_says_numpy_to_a_process() -> None:
    code = "from training import kernels; print(kernels.KERNELS)"
    environment = os.environ | {building.VARIABLE: "numpy"}
    told = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "None"
