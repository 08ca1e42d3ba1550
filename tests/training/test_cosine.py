"""DeMo's compressor: the largest waves of each tile, and what they leave; its preset as a whole."""

import math
import struct

import numpy as np
import pytest

from protocol.errors import ConfigError, DecodeError
from training.compression import ErrorFeedback
from training.compression.sparse import SIDE, TILE, CosineCodec, _waves
from training.outer.optimizers import OuterInfo, Sign

ALL = 1.0


def noise(seed: int, numel: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=numel).astype(np.float32)


def test_waves_are_orthonormal_and_those_of_the_cosine_transform():
    wave_SS = _waves(SIDE) * 2.0**-20
    assert np.abs(wave_SS @ wave_SS.T - np.eye(SIDE)).max() < 1e-5
    assert wave_SS[5, 7] == pytest.approx(
        math.sqrt(2 / 64) * math.cos(math.pi * 15 * 5 / 128), abs=2e-6
    )
    for side in range(1, SIDE + 1):
        square_SS = _waves(side).astype(np.int64) @ _waves(side).T.astype(np.int64)
        assert np.abs(square_SS * 2.0**-40 - np.eye(side)).max() < 1e-5
        assert np.all(_waves(side) == np.rint(_waves(side)))


def test_one_wave_comes_back_alone():
    wave_SS = _waves(SIDE) * 2.0**-20
    tile_N = (3.5 * np.outer(wave_SS[2], wave_SS[9])).astype(np.float32).reshape(-1)
    codec = CosineCodec(density=1 / TILE)
    payload = codec.encode(tile_N)
    assert len(payload) == codec.payload_bytes(TILE)
    assert struct.unpack_from("<f", payload)[0] == pytest.approx(3.5 / 127, rel=1e-4)
    np.testing.assert_allclose(codec.decode(payload, TILE), tile_N, atol=1e-5)


@pytest.mark.parametrize("numel", [1, 100, TILE, TILE + 1, 3 * TILE - 7])
def test_all_waves_are_the_vector_to_half_a_step_of_their_codes(seed, numel):
    x_N = noise(seed, numel)
    codec = CosineCodec(density=ALL)
    decoded_N = codec.decode(codec.encode(x_N), numel)
    # Roundings of at most half a 127th of a tile's largest wave, some four deviations, in each.
    assert np.abs(decoded_N - x_N).max() < 0.12
    assert np.abs(decoded_N - x_N).mean() < 0.02


def test_decoding_is_exact_whatever_the_order_of_its_sums(seed):
    rng = np.random.default_rng(seed)
    codec = CosineCodec(density=ALL)
    x_N = rng.normal(size=2 * TILE).astype(np.float32)
    payload = codec.encode(x_N)
    scale_T = np.frombuffer(payload[:8], "<f4").astype(np.float64)
    code_TSS = np.frombuffer(payload[8 : 8 + 2 * TILE], "<i1").reshape(2, SIDE, SIDE)
    whole_SS = _waves(SIDE).astype(np.int64)
    # Whole numbers of 64 bits have no roundings to differ in.
    exact_TSS = whole_SS.T @ code_TSS.astype(np.int64) @ whole_SS
    assert np.abs(exact_TSS).max() < 2**53
    expected = (exact_TSS * (2.0**-40 * scale_T[:, None, None])).astype(np.float32)
    assert codec.decode(payload, 2 * TILE).tobytes() == expected.tobytes()
    most = np.full((SIDE, SIDE), 127, dtype=object)
    wave = np.array(_waves(SIDE).astype(int).tolist(), dtype=object)
    assert abs(np.abs(wave).T @ most @ np.abs(wave)).max() < 2**53, "no payload leaves 53 bits"


def test_what_was_sent_and_what_is_left_are_the_momentum(seed):
    feedback = ErrorFeedback(CosineCodec(), 0.999)
    momentum_N = np.zeros(TILE, dtype=np.float32)
    for step in range(20):
        gradient_N = noise(seed + step, TILE)
        total_N = np.float32(0.999) * momentum_N + gradient_N
        encoded = feedback.encode(gradient_N)
        sent_N = CosineCodec().decode(encoded.payloads[0], TILE)
        feedback.commit()
        assert feedback.residual_N is not None
        momentum_N = feedback.residual_N
        np.testing.assert_allclose(sent_N + momentum_N, total_N, atol=2e-5)
    # What is sent is the largest of it: more than its share of 1 / 128.
    assert np.square(sent_N).sum() > 4 / 128 * np.square(total_N).sum()


def test_with_all_waves_it_is_the_sign_of_the_mean_gradient(seed):
    gradients = [noise(seed + peer, TILE) for peer in range(4)]
    codec = CosineCodec(density=ALL)
    sent = [codec.decode(codec.encode(one), TILE) for one in gradients]
    mean_N, plain_N = np.mean(sent, axis=0), np.mean(gradients, axis=0)
    step = Sign(0.5).step(np.zeros(TILE, np.float32), mean_N, OuterInfo(round=1, slots={}))
    is_clear = np.abs(plain_N) > 0.1
    assert is_clear.mean() > 0.5
    np.testing.assert_array_equal(step.anchor_N[is_clear], -0.5 * np.sign(plain_N[is_clear]))


def test_element_without_a_direction_stays():
    info = OuterInfo(round=1, slots={})
    step = Sign(0.25).step(np.ones(3, np.float32), np.array([-2e-30, 0.0, 5.0], np.float32), info)
    assert step.anchor_N.tolist() == [1.25, 1.0, 0.75]
    assert step.anchor_N.dtype == np.float32
    with pytest.raises(ConfigError, match=r"momentum is 0.5, and the optimizer 'sign' has none"):
        Sign(0.1, 0.5)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 3e38])
def test_scale_that_nobody_sends_is_refused(scale):
    codec = CosineCodec(density=ALL)
    payload = bytearray(codec.encode(noise(1, TILE)))
    payload[4 : 4 + TILE] = bytes([127]) * TILE
    payload[:4] = struct.pack("<f", scale)
    with pytest.raises(DecodeError, match="nobody sends"):
        codec.decode(bytes(payload), TILE)


def test_code_that_nobody_sends_is_refused():
    codec = CosineCodec()
    payload = bytearray(codec.encode(noise(1, TILE)))
    payload[4] = 0x80
    with pytest.raises(DecodeError, match="nobody sends"):
        codec.decode(bytes(payload), TILE)


@pytest.mark.parametrize(
    ("density", "says"), [(0.0, "sends nothing"), (2.0, "take 1"), (1e-9, "take 0.000244")]
)
def test_density_out_of_range_is_refused_with_the_nearest(density, says):
    with pytest.raises(ConfigError, match=says):
        CosineCodec(density=density)


def test_large_and_small_numbers_survive():
    codec = CosineCodec(density=ALL)
    for unit in (1e-30, 1e30):
        x_N = noise(3, TILE) * np.float32(unit)
        decoded_N = codec.decode(codec.encode(x_N), TILE)
        assert np.abs(decoded_N - x_N).max() < 0.12 * unit
    assert not codec.decode(codec.encode(np.zeros(TILE, np.float32)), TILE).any()
    greatest_N = np.full(TILE, np.finfo(np.float32).max)
    assert np.isfinite(codec.decode(codec.encode(greatest_N), TILE)).all()
