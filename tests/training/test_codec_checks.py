"""A payload passes its check if it decodes, and only then; what passed decodes to the same bits."""

import random

import numpy as np
import pytest

from protocol.errors import DecodeError
from tests.training.payloads import assert_reads_alike, passes
from training.compression import CODECS, Codec, decode_to_read
from training.compression.blocks import BLOCK, pack_codes
from training.compression.seeded import RandomShiftCodec

NUMELS = (1, 7, BLOCK, 2 * BLOCK + 5)


def decodes(codec: Codec, payload: bytes, numel: int) -> bool:
    try:
        x_N = codec.decode(payload, numel)
    except DecodeError:
        return False
    assert_reads_alike(codec, payload, x_N)
    return True


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("numel", NUMELS)
@pytest.mark.parametrize("name", list(CODECS))
def test_bytes_pass_exactly_where_they_decode(name: str, numel: int, seed: int) -> None:
    luck, codec = random.Random(f"{seed}/{name}/{numel}"), CODECS[name]()
    x_N = np.random.default_rng(seed).normal(size=numel).astype(np.float32)
    whole, found = codec.encode(x_N), set()
    for _ in range(60):
        payload = bytearray(whole)
        for _ in range(luck.randrange(3)):
            payload[luck.randrange(len(payload))] = luck.randrange(256)
        if not luck.randrange(8):
            payload = payload[: luck.randrange(len(payload))]
        is_good = decodes(codec, bytes(payload), numel)
        assert passes(codec, bytes(payload), numel) is is_good
        found.add(is_good)
    assert True in found


@pytest.mark.parametrize(
    ("scale", "code", "is_good"),
    [
        (1.0, 127, True),
        (1.0, -128, False),
        (0.0, -128, False),
        (-0.0, 5, True),
        (-1.0, 0, False),
        (-1e-30, 3, False),
        (np.nan, 0, False),
        (np.inf, 1, False),
        (2.0**120, 127, True),
        (2.0**121, 127, True),
        (2.0**121, -127, True),
        (2.0**127, 1, True),
        (2.0**127, 2, False),
        (2.0**122, 127, False),
        (2.0**122, 63, True),
    ],
)
def test_int8_is_refused_for_one_scale_or_code_that_nobody_sends(
    scale: float, code: int, is_good: bool
) -> None:
    """In the last block, the others being good."""
    codec, numel = CODECS["int8"](), 2 * BLOCK + 5
    heads = np.array([0.5, 0.25, scale], dtype="<f4")
    codes = np.ones(numel, dtype=np.int8)
    codes[-1] = code
    payload = heads.tobytes() + codes.tobytes()
    assert decodes(codec, payload, numel) is is_good
    assert passes(codec, payload, numel) is is_good


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("least", "step", "code", "is_good"),
    [
        (0.0, 1.0, 15, True),
        (-1.0, 0.0, 15, True),
        (0.0, -0.0, 15, True),
        (0.0, -1.0, 0, False),
        (np.nan, 0.0, 0, False),
        (np.inf, 1.0, 0, False),
        (0.0, np.nan, 0, False),
        (0.0, np.inf, 0, False),
        (0.0, 2.0**125, 2, True),
        (0.0, 2.0**125, 15, False),
        (-(2.0**127), 2.0**125, 7, True),
        (2.0**127, 2.0**125, 2, True),
        (2.0**127, 2.0**125, 7, False),
    ],
)
def test_random_shift_is_refused_for_one_level_that_is_no_number(
    bits: int, least: float, step: float, code: int, is_good: bool
) -> None:
    """In the last block, the others being good; a level that no element is at harms nobody."""
    codec, numel = RandomShiftCodec(bits=bits), 2 * BLOCK + 6
    heads = np.array([0.5, 0.25, -1.0, 2.0, least, step], dtype="<f4")
    codes = np.ones(numel, dtype=np.uint8)
    codes[-1] = code
    payload = bytes(8) + heads.tobytes() + pack_codes(codes, bits).tobytes()
    assert decodes(codec, payload, numel) is is_good
    assert passes(codec, payload, numel) is is_good
    if not is_good:
        with pytest.raises(DecodeError):
            decode_to_read(codec, payload, numel)
