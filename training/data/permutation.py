"""A keyed bijection of 0..n-1 that needs no memory: a Feistel network with cycle walking.

B numbers

Integer arithmetic on 64 bits only, so that every machine computes the same order. It mixes well
and keeps no secret.
"""

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

_ROUNDS = 6


def permute(numbers_B: NDArray[np.int64], domain: int, key: str) -> NDArray[np.int64]:
    """Where the permutation of 0..domain-1 that `key` names takes each of the numbers.

    The network permutes the next power of four; a result beyond the domain goes through it again,
    which stays a bijection (Black and Rogaway 2002, cycle walking) and takes four passes at most
    on average.
    """
    assert 0 < domain < 2**62
    assert len(numbers_B) == 0 or (numbers_B.min() >= 0 and numbers_B.max() < domain)
    half_bits = np.uint64(max(1, ((domain - 1).bit_length() + 1) // 2))
    raw = blake3(key.encode()).digest(length=8 * _ROUNDS)
    keys = np.frombuffer(raw, dtype="<u8").astype(np.uint64)
    result_B = numbers_B.astype(np.uint64)
    outside = np.ones(len(result_B), dtype=np.bool_)
    while outside.any():
        result_B[outside] = _feistel(result_B[outside], half_bits, keys)
        outside = result_B >= np.uint64(domain)
    return result_B.astype(np.int64)


def _feistel(
    values_B: NDArray[np.uint64], half_bits: np.uint64, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left_B, right_B = values_B >> half_bits, values_B & mask
    for key in keys:
        left_B, right_B = right_B, left_B ^ (_mix(right_B ^ key) & mask)
    return (left_B << half_bits) | right_B


def _mix(values_B: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014); products wrap at 2^64."""
    values_B = (values_B ^ (values_B >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values_B = (values_B ^ (values_B >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values_B ^ (values_B >> np.uint64(31))
