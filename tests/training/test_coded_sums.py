"""Sums and steps over numbers that are still coded have the bits of those over decoded ones."""

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from node.holdings.states import StepRules
from protocol.errors import DecodeError
from protocol.grid import Layout, ShardSpec, TensorSpec
from tests.training.test_kernels import KINDS, assert_same_bits, compiled, numpy_alone, rows_of
from training.aggregation import AGGREGATORS
from training.compression import CODECS, adder_of, check_payload, lattice_of
from training.compression.blocks import BLOCK, Int8Codec
from training.compression.seeded import RandomShiftCodec
from training.kernels import KERNELS, Lattice
from training.numeric.arithmetic import squared_norm, weighted_sum
from training.numeric.memory import SpareVectors
from training.outer.optimizers import OUTER_OPTIMIZERS, OuterStep, steps_on_lattice

PEERS = 5


def payloads_of(rows_PN: NDArray[np.float32]) -> list[memoryview]:
    """Where payloads lie in a message: at any byte."""
    with np.errstate(all="ignore"):
        encoded = [Int8Codec().encode(row_N) for row_N in rows_PN]
    return [
        memoryview(bytes(place) + payload)[place:] for place, payload in enumerate(encoded, start=1)
    ]


# Sums over payloads -------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("kind", KINDS)
def test_sum_of_payloads_is_that_of_what_they_decode_to(kind: str, seed: int) -> None:
    codec, luck = Int8Codec(), np.random.default_rng(seed)
    for numel in (2 * BLOCK, 7 * BLOCK, 1 << 16):
        payloads = payloads_of(rows_of(kind, (PEERS, numel), seed))
        rows_PN = np.stack([codec.decode(payload, numel) for payload in payloads])
        for rows in (1, 2, PEERS):
            factors_P = luck.normal(size=rows).astype(np.float32)
            # A row that has no share is left out; so is the first, whose zeros have signs.
            factors_P[: rows // 2] = 0.0
            with np.errstate(all="ignore"):
                found_N = codec.weighted_sum(payloads[:rows], factors_P, numel)
                wanted_N = weighted_sum(rows_PN[:rows], factors_P)
            assert found_N is not None
            assert found_N.tobytes() == wanted_N.tobytes()


@compiled
@pytest.mark.parametrize("kind", KINDS)
def test_norm_of_a_payload_is_that_of_what_it_decodes_to(kind: str, seed: int) -> None:
    codec = Int8Codec()
    for exponent in (15, 16, 18):
        numel = 1 << exponent
        (payload,) = payloads_of(rows_of(kind, (1, numel), seed))
        found = codec.squared_norm(payload, numel)
        # Near the largest number a product may not be finite: decoding says which.
        assert (found is None) == (kind == "huge")
        assert found in (None, squared_norm(codec.decode(payload, numel)))


def test_what_is_not_compiled_for_is_left_to_those_who_decode(seed: int) -> None:
    codec = Int8Codec()
    for numel in (100, BLOCK, 3 * BLOCK + 5, (1 << 15) - BLOCK):
        payloads = payloads_of(rows_of("normal", (2, numel), seed))
        assert codec.squared_norm(payloads[0], numel) is None
        if numel % BLOCK or numel < 2 * BLOCK:
            assert codec.weighted_sum(payloads, np.ones(2, dtype=np.float32), numel) is None
    numel = 1 << 15
    payloads = payloads_of(rows_of("normal", (2, numel), seed))
    assert codec.weighted_sum(payloads, np.zeros(2, dtype=np.float32), numel) is None
    with numpy_alone():
        assert codec.squared_norm(payloads[0], numel) is None
        assert codec.weighted_sum(payloads, np.ones(2, dtype=np.float32), numel) is None


@pytest.mark.parametrize(("place", "value"), [(0, -1.0), (31, np.inf), (3, np.nan)])
def test_norm_of_a_payload_with_a_scale_that_nobody_sends_is_refused(
    place: int, value: float, seed: int
) -> None:
    numel = 1 << 15
    hostile = bytearray(Int8Codec().encode(rows_of("normal", (1, numel), seed)[0]))
    hostile[4 * place : 4 * place + 4] = np.float32(value).tobytes()
    with pytest.raises(DecodeError):
        Int8Codec().squared_norm(bytes(hostile), numel)


@pytest.mark.parametrize("place", [0, 12_345, -1])
def test_norm_of_a_payload_with_a_code_that_nobody_sends_is_refused(place: int, seed: int) -> None:
    numel = 1 << 15
    payload = Int8Codec().encode(rows_of("normal", (1, numel), seed)[0])
    hostile = bytearray(payload)
    hostile[place if place < 0 else 4 * numel // BLOCK + place] = 128
    for wrong in (bytes(hostile), payload[:-1], payload + b"\0"):
        with pytest.raises(DecodeError):
            Int8Codec().squared_norm(wrong, numel)


@pytest.mark.parametrize("name", list(CODECS))
def test_codecs_that_add_up_payloads_are_those_that_say_so(name: str) -> None:
    assert (adder_of(CODECS[name]()) is not None) == (name in ("int8", "graded"))


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_rule_with_factors_is_the_weighted_sum_of_the_rows(name: str, seed: int) -> None:
    rows_PN = rows_of("normal", (PEERS, 3000), seed)
    rows_PN[1] *= 30.0
    rule, weights_P = AGGREGATORS[name](1, cell_elements=3000), np.arange(1.0, 1 + PEERS)
    measured = rule.measure(rows_PN)
    coefficients = rule.coefficients(measured.stats, weights_P)
    for squares_CP in (measured.squares_CP, None):
        factors_P = rule.row_factors(coefficients, squares_CP)
        if factors_P is not None:
            wanted_N = rule.combine_measured(rows_PN, coefficients, squares_CP)
            assert weighted_sum(rows_PN, factors_P).tobytes() == wanted_N.tobytes()
    # Rules that judge whole vectors do have them, or nothing was looked at.
    is_sum = name in {"mean", "krum", "geometric_median", "norm_clip", "caf", "default"}
    assert is_sum <= (rule.row_factors(coefficients, measured.squares_CP) is not None)


def test_factors_of_clipped_cells_are_not_known_before_their_norms(seed: int) -> None:
    rule = AGGREGATORS["default"]()
    factors_P = np.ones(PEERS, dtype=np.float32)
    assert rule.row_factors(factors_P, None) is None
    assert rule.row_factors(factors_P, np.ones((2, PEERS))) is None


# Steps on a lattice -------------------------------------------------------------------------------


def rules_of(name: str, numel: int) -> StepRules:
    has_momentum = "momentum" in OUTER_OPTIMIZERS[name](0.7).slots
    outer = OUTER_OPTIMIZERS[name](0.7, 0.9 if has_momentum else 0.0)
    layout = Layout(ShardSpec("model", (TensorSpec("w", (numel,)),), ((0,),)), numel)
    spare = SpareVectors(numel, most=1)
    return StepRules(layout, outer, RandomShiftCodec(), anchors=spare, spare=spare)


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("name", list(OUTER_OPTIMIZERS))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", [600, 2 * BLOCK, 5 * BLOCK + 77])
def test_step_of_a_checked_result_is_that_of_what_it_decodes_to(
    name: str, kind: str, numel: int, seed: int
) -> None:
    rules = rules_of(name, numel)
    x_N, *before = rows_of(kind, (3, numel), seed)[: 2 + len(rules.outer.slots)]
    payload: bytes = memoryview(b"\0" + rules.codec.encode(x_N))[1:]  # type: ignore[assignment]
    check_payload(rules.codec, payload, numel)

    def stepped(place: str, *, is_checked: bool) -> list[bytes]:
        from_VN = [vector_N.copy() for vector_N in before]
        to_VN = from_VN if place == "same" else [vector_N + 1 for vector_N in before]
        slots = dict(zip(rules.outer.slots, to_VN[1:], strict=True))
        out = None if place == "new" else OuterStep(to_VN[0], slots)
        step = rules.step(from_VN, payload, 1, out, is_checked=is_checked)
        return [step.anchor_N.tobytes(), *(slot_N.tobytes() for slot_N in step.slots.values())]

    with np.errstate(all="ignore"):
        wanted = stepped("new", is_checked=False)
        for place in ("new", "given", "same"):
            assert stepped(place, is_checked=True) == wanted
            assert_same_bits(partial(stepped, place, is_checked=True))


def test_rules_that_step_on_a_lattice_are_those_that_subtract_what_they_are_given() -> None:
    found = {name for name in OUTER_OPTIMIZERS if steps_on_lattice(type(OUTER_OPTIMIZERS[name](1)))}
    assert found == {"sgd", "nesterov"}


def test_lattice_is_what_a_payload_decodes_to_and_of_bytes_alone(seed: int) -> None:
    numel = 3 * BLOCK + 77
    x_N = rows_of("sizes", (1, numel), seed)[0]
    for bits in (4, 8):
        codec = RandomShiftCodec(bits=bits)
        payload = codec.encode(x_N)
        lattice = lattice_of(codec, payload, numel)
        assert (lattice is not None) == (bits == 8)
        if lattice is not None:
            block_N = np.arange(numel) // lattice.block
            found_N = lattice.codes_N * lattice.steps_B[block_N] + lattice.firsts_B[block_N]
            assert found_N.tobytes() == codec.decode(payload, numel).tobytes()
    assert lattice_of(CODECS["none"](), x_N.tobytes(), numel) is None


def test_lattice_that_does_not_fit_is_refused() -> None:
    codes_N, two = np.zeros(BLOCK + 1, dtype=np.uint8), np.ones(2, dtype=np.float32)
    Lattice(codes_N, two, two, BLOCK)
    for wrong in (
        (codes_N, two, two[:1], BLOCK),
        (codes_N, two[:1], two, BLOCK),
        (codes_N[:BLOCK], two, two, BLOCK),
        (codes_N.astype(np.int16), two, two, BLOCK),
        (np.zeros(2 * BLOCK + 2, dtype=np.uint8)[::2], two, two, BLOCK),
    ):
        with pytest.raises(ValueError, match="codes"):
            Lattice(*wrong)


@compiled
def test_compiled_sums_of_codes_refuse_what_does_not_fit() -> None:
    assert KERNELS is not None
    codes_N, scales_B = np.zeros(1 << 15, dtype=np.uint8), np.ones(32, dtype=np.float32)
    out_N, one = np.empty(1 << 15, dtype=np.float32), np.ones(1, dtype=np.float32)
    KERNELS.int8_sum([(codes_N, scales_B)], one, BLOCK, out_N)
    assert KERNELS.int8_squared_norm(codes_N, scales_B, BLOCK) == 0.0
    for sum_of in (
        ([(codes_N, scales_B[1:])], one, BLOCK, out_N),
        ([(codes_N[1:], scales_B)], one, BLOCK, out_N),
        ([(codes_N, scales_B)], np.ones(2, dtype=np.float32), BLOCK, out_N),
        ([(codes_N[: 100 * 32], scales_B)], one, 100, out_N[: 100 * 32]),
    ):
        with pytest.raises(AssertionError):
            KERNELS.int8_sum(*sum_of)
    for norm_of in ((codes_N[:-BLOCK], scales_B[:-1]), (codes_N, scales_B[1:])):
        with pytest.raises(AssertionError):
            KERNELS.int8_squared_norm(*norm_of, BLOCK)
    with pytest.raises(AssertionError):
        KERNELS.int8_squared_norm(codes_N[:256], np.ones(16, dtype=np.float32), 16)
