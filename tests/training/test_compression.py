"""Promises of every codec, by registry; error feedback as a transaction."""

import inspect

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protocol.errors import DecodeError
from training.compression import CODECS, bits_per_element, in_grade
from training.numeric.arithmetic import all_finite

NAMES = list(CODECS)
SIZES = [0, 1, 2, 255, 1024, 5000]

CELL = 1 << 18

BYTES_PER_ELEMENT = {
    "none": 4.0,
    "fp16": 2.0,
    "int8": 1.0,
    "int4": 0.5 + 2 / 1024,
    "e3m0": 0.5 + 2 / 1024,
    "ternary": 0.252,
    "dense2bit": 0.25,
    "topk": 64 / 4096 * (12 + 16) / 8,
    "topk_gaps": 64 / 4096 * (8 + 16) / 8,
    "sparse2bit": 64 / 4096 * (12 + 2) / 8,
    "sparse2bit_gaps": 64 / 4096 * (8 + 2) / 8,
    "lowrank": 4 / 8 * 16 * (512 + 512) / (512 * 512),
    "cosine": (32 * (8 + 9) / 8 + 4) / 4096,
    "random_shift": 1 + 8 / 1024,
    "random_mask": 2 / 16,
}
"""The formulas of the methods' papers, for a full cell."""

RELATIVE_ERROR = {
    "none": 0.0,
    "fp16": 2.0**-11,
    "int8": 0.01,
    "int4": 0.18,
    "e3m0": 0.22,
    "ternary": 0.46,
    "dense2bit": 0.43,
    "random_shift": 0.01,
}
"""Of normal numbers; a codec that is not here only loses less than all."""

NOT_IDEMPOTENT = {"cosine", "lowrank", "random_mask", "random_shift"}
"""Another seed for another vector; factors that are found by iteration; waves that are sums."""

SHAPES = {
    "normal": lambda generator, numel: generator.normal(size=numel),
    "heavy tails": lambda generator, numel: generator.standard_cauchy(size=numel),
    "mostly zero": lambda generator, numel: (
        generator.normal(size=numel) * (generator.random(numel) < 0.01)
    ),
    "all equal": lambda generator, numel: np.full(numel, generator.normal()),
    "few values": lambda generator, numel: generator.integers(-2, 3, size=numel),
    "far from zero": lambda generator, numel: 100 + generator.normal(size=numel),
    "tiny": lambda generator, numel: 1e-43 * generator.normal(size=numel),
    "huge": lambda generator, numel: 1e38 * generator.uniform(-3, 3, size=numel),
}


def vector(seed: int, numel: int, scale: float = 1e-2) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).normal(size=numel) * scale).astype(np.float32)


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("numel", SIZES)
def test_payload_has_exactly_the_announced_size(name: str, numel: int, seed: int) -> None:
    codec = CODECS[name]()
    payload = codec.encode(vector(seed, numel))
    assert len(payload) == in_grade(codec, 0, numel).payload_bytes(numel)
    assert len(codec.encode(np.zeros(numel, dtype=np.float32))) == len(payload)


@pytest.mark.parametrize("name", BYTES_PER_ELEMENT)
def test_size_of_a_cell_is_that_of_the_formula(name: str) -> None:
    """E3: within 2 %."""
    codec = CODECS[name]()
    expected = BYTES_PER_ELEMENT[name]
    assert codec.payload_bytes(CELL) == pytest.approx(CELL * expected, rel=0.02)
    assert bits_per_element(codec) == 8 * codec.payload_bytes(CELL) / CELL


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_stays_within_the_codec_s_error(name: str, seed: int) -> None:
    codec = CODECS[name]()
    x_N = vector(seed, 5000)
    decoded_N = codec.decode(codec.encode(x_N), 5000)
    assert decoded_N.dtype == np.float32
    assert decoded_N.shape == (5000,)
    error = np.linalg.norm(decoded_N - x_N) / np.linalg.norm(x_N)
    assert error <= RELATIVE_ERROR.get(name, 0.999)


@pytest.mark.parametrize("name", NAMES)
def test_codec_is_biased_where_its_errors_do_not_average_out(name: str, seed: int) -> None:
    """A founder who switches feedback off is refused what is."""
    x_N, codecs = vector(seed, 500), [CODECS[name]()]
    if "seed" in inspect.signature(CODECS[name]).parameters:
        codecs = [CODECS[name](seed=draw) for draw in range(400)]
    errors = [codec.decode(codec.encode(x_N), 500) - x_N for codec in codecs]
    on_average = np.linalg.norm(np.mean(errors, axis=0))
    assert codecs[0].is_biased == (on_average > 0.2 * np.linalg.norm(errors[0]))


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_vector_is_worse_served_than_by_nothing(name: str, shape: str, seed: int) -> None:
    """What error feedback needs of a codec: it is a contraction, whatever it is given."""
    codec = CODECS[name]()
    generator = np.random.default_rng(seed)
    for numel in (1, 2, 63, 1025, 5000):
        x_N = np.clip(SHAPES[shape](generator, numel), -3e38, 3e38).astype(np.float32)
        decoded_N = codec.decode(codec.encode(x_N), numel)
        wide_N = x_N.astype(np.float64)
        error = np.linalg.norm(decoded_N - wide_N)
        # Numbers below every scale are sent as zero; rounding may cost a last bit.
        assert error <= np.linalg.norm(wide_N) * (1 + 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_encode_is_deterministic_and_takes_torch_for_numpy(name: str, seed: int) -> None:
    codec = CODECS[name]()
    x_N = vector(seed, 5000)
    payload = codec.encode(x_N)
    assert CODECS[name]().encode(x_N.copy()) == payload
    assert codec.encode(torch.from_numpy(x_N).requires_grad_()) == payload


@pytest.mark.parametrize("name", NAMES)
def test_decoded_vector_is_a_fresh_one(name: str, seed: int) -> None:
    codec = CODECS[name]()
    payload = codec.encode(vector(seed, 64))
    first_N = codec.decode(payload, 64)
    expected = first_N.tobytes()
    first_N[:] = 0
    assert codec.decode(memoryview(payload), 64).tobytes() == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_IDEMPOTENT])
def test_encoding_what_was_decoded_changes_nothing(name: str, seed: int) -> None:
    """E3: what was decoded is what was encoded, so it is no news."""
    codec = CODECS[name]()
    payload = codec.encode(vector(seed, 5000))
    assert codec.encode(codec.decode(payload, 5000)) == payload


@pytest.mark.parametrize("name", NAMES)
def test_payload_of_another_size_is_refused(name: str, seed: int) -> None:
    codec = CODECS[name]()
    payload = codec.encode(vector(seed, 300))
    for hostile in (b"", payload[:-1], payload[:-4], payload + b"\x00", payload * 2):
        with pytest.raises(DecodeError):
            codec.decode(hostile, 300)
    with pytest.raises(DecodeError):
        codec.decode(payload, 100)


@pytest.mark.parametrize("name", NAMES)
def test_no_bytes_decode_to_something_that_is_not_finite(name: str, seed: int) -> None:
    """Random bytes, and a payload with a flipped bit or a signalling NaN, of which numpy warns: a
    DecodeError, or a finite vector."""
    codec = CODECS[name]()
    generator = np.random.default_rng(seed)
    valid = codec.encode(vector(seed, 40))
    for index in range(450):
        changed, place = bytearray(valid), int(generator.integers(len(valid)))
        match index % 3:
            case 0:
                changed[:] = generator.bytes(len(valid))
            case 1:
                changed[place] ^= 1 << generator.integers(8)
            case 2:
                changed[place:] = (b"\x01\x00\x80\x7f" + valid[place + 4 :])[: len(valid) - place]
        hostile = bytes(changed)
        try:
            x_N = codec.decode(hostile, 40)
        except DecodeError:
            continue
        assert x_N.shape == (40,)
        assert np.isfinite(x_N).all()


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_vector_that_is_not_finite_is_not_encoded(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        CODECS[name]().encode(np.array([0.0, bad], dtype=np.float32))


def near_the_largest(generator: np.random.Generator, numel: int) -> NDArray[np.float32]:
    """Of low rank, so that few numbers of a factor or a transform carry all of it."""
    rows, rank = int(numel**0.5), int(generator.integers(1, 9))
    few_RK = generator.choice([-1.0, 1.0], size=(rows, rank))
    few_KC = generator.choice([-1.0, 1.0], size=(rank, rows))
    if generator.random() < 0.5:
        few_RK = np.eye(rows, rank)
    x_RC = few_RK @ few_KC
    x_N: NDArray[np.float32] = (
        (x_RC / np.abs(x_RC).max() * 3.4028e38).astype(np.float32).reshape(-1)
    )
    return x_N


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in NAMES),
        *(
            ("lowrank", {"rank": rank, "energy": share})
            for rank in (1, 256)
            for share in (0.9, 1.0)
        ),
        *((name, {"density": 1.0}) for name in ("cosine", "topk", "random_mask")),
    ],
)
def test_nothing_that_is_encoded_is_refused(
    name: str, settings: dict[str, float], seed: int
) -> None:
    """Else who sends it would be taken for a liar, or who audits it be ended by its own decoder."""
    codec, generator = CODECS[name](**settings), np.random.default_rng(seed)
    for numel in (256, 4096):
        for _ in range(30):
            x_N = near_the_largest(generator, numel)
            assert all_finite(codec.decode(codec.encode(x_N), numel))
