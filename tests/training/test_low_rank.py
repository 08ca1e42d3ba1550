"""Cells of the rank that they need: how few columns are enough, and which sizes there are."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import DecodeError
from tests.training.test_compression import vector
from training.compression import admits
from training.compression.lowrank import LowRankCodec


def thin(numel: int, columns: int, seed: int) -> NDArray[np.float32]:
    """A vector that is a matrix of a few directions, each half as long as the one before."""
    generator, rows = np.random.default_rng(seed), -(-numel // columns)
    pairs = [(generator.normal(size=rows), generator.normal(size=columns)) for _ in range(8)]
    matrix_RC = sum(2.0**-k * np.outer(*pair) for k, pair in enumerate(pairs))
    assert isinstance(matrix_RC, np.ndarray)
    x_N: NDArray[np.float32] = matrix_RC.reshape(-1)[:numel].astype(np.float32)
    return x_N


@pytest.mark.parametrize("numel", [1, 5000, 16_384, 70_000])
def test_low_rank_cell_has_the_rank_that_it_needs_and_its_size_tells_it(
    numel: int, seed: int
) -> None:
    x_N = thin(numel, 128, seed)
    whole, sizes = LowRankCodec(rank=16), []
    for energy in (0.5, 0.9, 0.99, 1.0):
        codec = LowRankCodec(rank=16, energy=energy)
        payload = codec.encode(x_N)
        assert admits(codec, len(payload), numel)
        assert codec.payload_bytes(numel) == whole.payload_bytes(numel)
        lost_N = codec.decode(payload, numel) - x_N
        # Of what sixteen columns keep, which of so few directions is all; factors have 4 bits.
        assert np.linalg.norm(lost_N) <= (np.sqrt(1 - energy) + 0.27) * np.linalg.norm(x_N)
        sizes.append(len(payload))
    assert sizes == sorted(sizes)
    assert sizes[-1] == whole.payload_bytes(numel)
    if numel > 1:
        assert sizes[0] < sizes[2] < sizes[3]


def test_low_rank_of_noise_is_the_full_one_or_nearly(seed: int) -> None:
    x_N = vector(seed, 16_384)
    codec = LowRankCodec(rank=16, energy=0.9)
    assert len(codec.encode(x_N)) >= 0.8 * codec.payload_bytes(len(x_N))


def test_sizes_of_low_rank_are_those_of_its_ranks_and_no_others() -> None:
    for numel in (1, 2, 63, 1000, 4101, 16_384):
        fixed, free = LowRankCodec(rank=16), LowRankCodec(rank=16, energy=0.9)
        most = fixed.payload_bytes(numel)
        expected = {LowRankCodec(rank=rank).payload_bytes(numel) for rank in range(1, 17)}
        found = {size for size in range(most + 20) if admits(free, size, numel)}
        assert found == expected
        assert [size for size in range(most + 20) if admits(fixed, size, numel)] == [most]
        for size in {0, 1, most - 1, most + 1} - expected:
            with pytest.raises(DecodeError, match="are no payload"):
                free.decode(bytes(size), numel)
        for size in expected:
            assert not free.decode(bytes(size), numel).any()
