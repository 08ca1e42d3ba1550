"""The format of each codec, against a decoder written down once more, and what it refuses."""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import ConfigError, DecodeError
from tests.training.test_compression import vector
from training.compression import CODECS, Codec, check_payload, join_cells
from training.compression.blocks import BlockCodec
from training.compression.dense import Float32Codec
from training.compression.lowrank import LowRankCodec
from training.compression.seeded import RandomMaskCodec, RandomShiftCodec
from training.compression.sparse import PlainIndices, TopKCodec, largest_indices

Values = Sequence[float]

NAN = float("nan")
E3M0_LEVELS = (0, *(2.0 ** (code - 7) for code in range(1, 8)))


@pytest.mark.parametrize(("name", "dtype"), [("none", "<f4"), ("fp16", "<f2")])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_dense_payload_with_a_bad_element_is_refused(name: str, dtype: str, bad: float) -> None:
    hostile = np.array([0.0, 1.0, bad], dtype=dtype).tobytes()
    with pytest.raises(DecodeError, match="non-finite"):
        CODECS[name]().decode(hostile, 3)


def test_fp16_clamps_what_half_precision_cannot_hold() -> None:
    x_N = np.array([1e30, -70000.0, 65519.0, 65504.0, 1.0, -0.0], dtype=np.float32)
    decoded_N = CODECS["fp16"]().decode(CODECS["fp16"]().encode(x_N), 6)
    assert decoded_N.tolist() == [65504.0, -65504.0, 65504.0, 65504.0, 1.0, 0.0]


def test_fp16_bytes_are_little_endian_half_precision() -> None:
    payload = CODECS["fp16"]().encode(np.array([1.0, -2.0, 2.0**-24], dtype=np.float32))
    assert payload.hex() == "003c00c00100"


# Block codecs -----------------------------------------------------------------------------------


def codes_of(data: bytes, bits: int) -> Iterator[int]:
    """The lowest bits of a byte first."""
    for byte in data:
        for place in range(0, 8, bits):
            yield byte >> place & (1 << bits) - 1


def read_block_codec(
    payload: bytes, numel: int, bits: int, level: Callable[[Values, int], np.float32]
) -> list[np.float32]:
    """The format of `blocks.py`, element by element; blocks of 1024 with one scale."""
    num_blocks = -(-numel // 1024)
    scales = struct.unpack_from(f"<{num_blocks}f", payload)
    codes = codes_of(payload[4 * num_blocks :], bits)
    return [level((scales[i // 1024],), code) for i, code in zip(range(numel), codes, strict=False)]


def _signed(code: int, bits: int) -> int:
    return code - (1 << bits) if code >> bits - 1 else code


REFERENCES: dict[str, tuple[int, Callable[[Values, int], np.float32]]] = {
    "int8": (8, lambda head, code: np.float32(_signed(code, 8)) * np.float32(head[0])),
    "int4": (4, lambda head, code: np.float32(_signed(code, 4)) * np.float32(head[0])),
    "ternary": (2, lambda head, code: np.float32(_signed(code, 2)) * np.float32(head[0])),
    "e3m0": (
        4,
        lambda head, code: (
            np.float32(E3M0_LEVELS[code & 7] * (-1 if code & 8 else 1)) * np.float32(head[0])
        ),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("numel", [1, 3, 1023, 1024, 3001])
def test_block_codec_decodes_bit_for_bit_as_the_reference(name: str, numel: int, seed: int) -> None:
    bits, level = REFERENCES[name]
    payload = CODECS[name]().encode(vector(seed, numel))
    expected_N = np.array(read_block_codec(payload, numel, bits, level), dtype=np.float32)
    assert CODECS[name]().decode(payload, numel).tobytes() == expected_N.tobytes()


@pytest.mark.parametrize("name", [*REFERENCES, "dense2bit"])
def test_block_is_coded_the_same_wherever_it_stands(name: str, seed: int) -> None:
    """Of a whole cell, a few blocks more, and a rest."""
    codec = CODECS[name]()
    assert isinstance(codec, BlockCodec)
    numel = (1 << 18) + 2 * codec.block + 5
    x_N = vector(seed, numel) * np.linspace(1.0, 2.0, numel, dtype=np.float32)
    alone = [
        codec.encode(block_K) for block_K in np.split(x_N, range(codec.block, numel, codec.block))
    ]
    heads, codes = (
        [one[: 4 * codec.floats] for one in alone],
        [one[4 * codec.floats :] for one in alone],
    )
    payload = codec.encode(x_N)
    assert payload == b"".join((*heads, *codes))
    numels = [codec.block] * (len(alone) - 1) + [5]
    assert codec.decode(payload, numel).tobytes() == join_cells(codec, alone, numels).tobytes()


@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("int4", 7)])
def test_uniform_codec_s_error_is_half_a_step_at_most(name: str, levels: int, seed: int) -> None:
    x_N = vector(seed, 4096)
    decoded_N = CODECS[name]().decode(CODECS[name]().encode(x_N), 4096)
    step_B = np.abs(x_N).reshape(-1, 1024).max(axis=1) / levels
    error_B = np.abs(x_N - decoded_N).reshape(-1, 1024).max(axis=1)
    # A scale is rounded up by a thousandth at most.
    assert (error_B <= step_B * 0.5006).all()


def test_e3m0_takes_the_nearest_of_its_levels() -> None:
    levels = [0.0, *E3M0_LEVELS[1:]]
    x_N = np.array([1.0, 0.76, 0.74, -0.375, -0.374, 0.0118, -0.0116, 0.0], dtype=np.float32)
    decoded_N = CODECS["e3m0"]().decode(CODECS["e3m0"]().encode(x_N), len(x_N))
    assert decoded_N.tolist() == [1.0, 1.0, 0.5, -0.5, -0.25, levels[1], 0.0, 0.0]


def test_ternary_scale_is_the_mean_of_what_is_sent() -> None:
    x_N = np.array([4.0, -2.0, 0.5, 0.0], dtype=np.float32)
    decoded_N = CODECS["ternary"]().decode(CODECS["ternary"]().encode(x_N), 4)
    assert decoded_N.tolist() == [3.0, -3.0, 0.0, 0.0]


def test_two_bit_levels_are_the_means_of_their_bins(seed: int) -> None:
    x_N = vector(seed, 5000)
    payload = CODECS["dense2bit"]().encode(x_N)
    decoded_N = CODECS["dense2bit"]().decode(payload, 5000)
    book = struct.unpack_from("<8f", payload)
    codes = list(codes_of(payload[32:], 2))[:5000]
    assert decoded_N.tolist() == [book[4 * (i // 4096) + code] for i, code in enumerate(codes)]
    for start, stop in ((0, 4096), (4096, 5000)):
        block_K = x_N[start:stop].astype(np.float64)
        edges = block_K.mean() + 1.5 * block_K.std() * np.array([-1, 0, 1])
        bins = np.digitize(block_K, edges)
        assert np.mean(bins == codes[start:stop]) > 0.999
        for level in set(bins):
            mean = block_K[bins == level].mean()
            assert decoded_N[start:stop][bins == level].mean() == pytest.approx(mean, rel=1e-3)


def test_two_bit_level_of_a_lone_element_is_that_element() -> None:
    x_N = np.zeros(64, dtype=np.float32)
    x_N[[3, 40]] = -8.0, 8.0
    assert (
        CODECS["dense2bit"]().decode(CODECS["dense2bit"]().encode(x_N), 64).tolist() == x_N.tolist()
    )


def with_scale(payload: bytes, scale: float) -> bytes:
    return struct.pack("<f", scale) + payload[4:]


@pytest.mark.parametrize("name", ["int8", "int4", "e3m0", "ternary", "dense2bit"])
@pytest.mark.parametrize("scale", [NAN, float("inf"), -float("inf"), 3.4e38, -1.0])
def test_block_codec_refuses_a_scale_that_nobody_sends(name: str, scale: float, seed: int) -> None:
    if name == "dense2bit" and np.isfinite(scale):
        return  # Any finite number is a level.
    if name in ("e3m0", "ternary") and scale > 0 and np.isfinite(scale):
        return  # No level is larger than the scale, so the product is finite.
    # A block of few different codes; one of them is the lowest bin's.
    payload = CODECS[name]().encode(np.array([-9.0, 9.0, 0.0, 0.1] * 8, dtype=np.float32))
    codec = CODECS[name]()
    codec.decode(payload, 32)
    with pytest.raises(DecodeError):
        codec.decode(with_scale(payload, scale), 32)


@pytest.mark.parametrize(
    ("name", "unused"), [("int8", 0x80), ("int4", 0x08), ("e3m0", 0x80), ("ternary", 0x08)]
)
def test_block_codec_refuses_a_code_that_nobody_sends(name: str, unused: int, seed: int) -> None:
    codec = CODECS[name]()
    payload = bytearray(codec.encode(vector(seed, 32)))
    payload[6] = unused
    with pytest.raises(DecodeError):
        codec.decode(bytes(payload), 32)


@pytest.mark.parametrize("name", ["int4", "e3m0", "ternary", "dense2bit"])
def test_block_codec_refuses_bits_behind_the_last_code(name: str, seed: int) -> None:
    codec = CODECS[name]()
    payload = bytearray(codec.encode(vector(seed, 33)))
    payload[-1] |= 0x40
    with pytest.raises(DecodeError, match="padding"):
        codec.decode(bytes(payload), 33)


@pytest.mark.parametrize(
    ("codec", "place"),
    [
        (LowRankCodec(rank=3), 24 + 57 // 2),  # Behind the codes of the first factor.
        (RandomShiftCodec(bits=4), -1),
    ],
)
def test_codec_of_half_bytes_refuses_bits_behind_the_last_code(
    codec: Codec, place: int, seed: int
) -> None:
    numel = 299
    payload = bytearray(codec.encode(vector(seed, numel)))
    payload[place] |= 0x40
    for refuse in (codec.decode, partial(check_payload, codec)):
        with pytest.raises(DecodeError, match="padding"):
            refuse(bytes(payload), numel)


# Top-k ------------------------------------------------------------------------------------------


def test_largest_indices_are_those_of_a_stable_sort(seed: int) -> None:
    generator = np.random.default_rng(seed)
    x_RC = generator.integers(-3, 4, size=(40, 256)).astype(np.float32)
    x_RC[0] = 0.0
    for kept in (1, 4, 64, 256):
        expected = np.sort(np.argsort(-np.abs(x_RC), axis=1, kind="stable")[:, :kept], axis=1)
        assert largest_indices(x_RC, kept).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["topk", "topk_gaps", "sparse2bit", "sparse2bit_gaps"])
def test_top_k_sends_the_largest_of_each_chunk_and_zeros(name: str, seed: int) -> None:
    x_N = vector(seed, 4096 * 2 + 700)
    decoded_N = CODECS[name]().decode(CODECS[name]().encode(x_N), len(x_N))
    for start, kept in ((0, 64), (4096, 64), (8192, 11)):
        chunk_C, sent_C = x_N[start : start + 4096], decoded_N[start : start + 4096]
        largest = np.sort(np.argsort(-np.abs(chunk_C), kind="stable")[:kept])
        assert np.flatnonzero(sent_C).tolist() == largest.tolist()
        if name.startswith("topk"):
            assert np.allclose(sent_C[largest], chunk_C[largest], rtol=2**-10, atol=0)


def test_top_k_of_all_loses_nothing(seed: int) -> None:
    codec = TopKCodec(Float32Codec(), PlainIndices(), density=1.0, chunk=64)
    x_N = vector(seed, 1000)
    assert codec.decode(codec.encode(x_N), 1000).tobytes() == x_N.tobytes()


# Low rank and lots ------------------------------------------------------------------------------


def test_low_rank_finds_a_matrix_of_that_rank(seed: int) -> None:
    generator = np.random.default_rng(seed)
    x_RC = generator.normal(size=(128, 4)) @ generator.normal(size=(4, 128))
    x_N = x_RC.astype(np.float32).reshape(-1)
    codec = LowRankCodec(rank=4)
    error = np.linalg.norm(codec.decode(codec.encode(x_N), len(x_N)) - x_N) / np.linalg.norm(x_N)
    assert error < 0.25
    assert codec.payload_bytes(len(x_N)) == 4 * (128 + 128) // 2 + 8 * 4


def test_low_rank_decodes_bit_for_bit_as_the_reference(seed: int) -> None:
    codec = LowRankCodec(rank=3)
    payload = codec.encode(vector(seed, 300))
    scales = np.frombuffer(payload[:24], "<f4")
    signed = [np.float32(_signed(code, 4)) for code in codes_of(payload[24:], 4)]
    # 300 elements: 16 columns, 19 rows; 3 x 19 codes are padded to a byte.
    factors = np.array(signed[:57]).reshape(3, 19), np.array(signed[58:106]).reshape(3, 16)
    expected_RC = np.zeros((19, 16), dtype=np.float32)
    for k in range(3):
        p_R, q_C = factors[0][k] * scales[k], factors[1][k] * scales[3 + k]
        expected_RC = expected_RC + np.outer(p_R, q_C).astype(np.float32)
    assert codec.decode(payload, 300).tobytes() == expected_RC.reshape(-1)[:300].tobytes()


def test_random_shift_is_right_on_average_and_half_a_step_off_at_most(seed: int) -> None:
    """QSDP (Markov et al. 2023): |Q(x) - x| <= step / 2, and over the shifts Q(x) is x."""
    x_N = vector(seed, 200)
    step = (x_N.max() - x_N.min()) / 14
    draws = 2000
    total_N = np.zeros(200)
    for draw in range(draws):
        codec = RandomShiftCodec(bits=4, seed=draw)
        decoded_N = codec.decode(codec.encode(x_N), 200)
        assert np.abs(decoded_N - x_N).max() <= step * 0.5001
        total_N += decoded_N
    # Seven standard deviations of the mean of so many uniform numbers.
    assert np.abs(total_N / draws - x_N).max() <= 7 * step / np.sqrt(12 * draws)


def test_random_shift_of_equal_elements_is_exact() -> None:
    x_N = np.full(1500, 0.1, dtype=np.float32)
    codec = CODECS["random_shift"]()
    assert codec.decode(codec.encode(x_N), 1500).tobytes() == x_N.tobytes()


@pytest.mark.parametrize("step", [NAN, -1.0, float("inf"), 3e38])
def test_random_shift_refuses_a_step_that_nobody_sends(step: float, seed: int) -> None:
    payload = CODECS["random_shift"]().encode(vector(seed, 32))
    hostile = payload[:12] + struct.pack("<f", step) + payload[16:]
    with pytest.raises(DecodeError):
        CODECS["random_shift"]().decode(hostile, 32)


def test_random_mask_sends_one_of_each_run_of_neighbours_by_lot() -> None:
    x_N = np.ones(70, dtype=np.float32)
    draws = 4000
    times_N = np.zeros(70)
    for draw in range(draws):
        codec = RandomMaskCodec(density=1 / 16, seed=draw)
        sent_N = codec.decode(codec.encode(x_N), 70)
        assert [sent_N[start : start + 16].sum() for start in range(0, 70, 16)] == [1.0] * 5
        times_N += sent_N
    expected_N = np.repeat([draws / 16, draws / 6], [64, 6])
    assert (np.abs(times_N - expected_N) <= 7 * np.sqrt(expected_N)).all()


def test_one_seed_gives_all_peers_one_mask_and_none_another_for_each(seed: int) -> None:
    vectors = [vector(seed + i, 4096) for i in range(2)]

    def masks(**settings: int) -> list[NDArray[np.bool_]]:
        codec = RandomMaskCodec(**settings)
        return [codec.decode(codec.encode(x_N), 4096) != 0 for x_N in vectors]

    first, second = masks(seed=seed)
    assert (first == second).all()
    first, second = masks()
    assert (first != second).any()


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "advice"),
    [
        ("topk", {"density": 0.0}, "density 0.0 sends nothing; take 0.000244140625"),
        ("sparse2bit_gaps", {"density": 1.5}, "take 1"),
        ("topk", {"chunk": 1000}, "take 1024"),
        ("random_mask", {"density": 0}, "density 0 sends nothing"),
        ("random_mask", {"density": NAN}, "density nan"),
        ("random_shift", {"bits": 3}, "take 4"),
        ("lowrank", {"rank": 0}, "take 1"),
        ("lowrank", {"rank": 1000}, "take 256"),
    ],
)
def test_impossible_setting_is_refused_with_the_nearest_choice(
    name: str, settings: dict[str, float], advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice):
        CODECS[name](**settings)
