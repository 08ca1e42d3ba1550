"""Codecs that draw lots draw them from the vector itself, if nobody gives them others."""

import numpy as np
import pytest
from blake3 import blake3

from training.compression.seeded import _FOLD, SEED_BYTES, RandomShiftCodec, _seed_of


def vector(seed: int, numel: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


def test_seed_of_a_vector_is_a_hash_of_what_its_bits_add_up_to(seed: int) -> None:
    x_N = vector(seed, 3 * _FOLD + 7)
    words = [int(word) for word in x_N.view("<u4")]
    sums = [sum(words[place : 3 * _FOLD : _FOLD]) % 2**32 for place in range(_FOLD)]
    hashed = np.array([*sums, *words[3 * _FOLD :]], dtype="<u4").tobytes()
    assert _seed_of(x_N, None) == blake3(hashed).digest(length=SEED_BYTES)
    assert _seed_of(x_N[: _FOLD - 1], None) == blake3(x_N[: _FOLD - 1].tobytes()).digest(length=8)
    assert _seed_of(x_N, 5) == bytes([5, 0, 0, 0, 0, 0, 0, 0])
    assert _seed_of(x_N.astype(">f4"), None) == _seed_of(x_N, None)
    assert _seed_of(np.repeat(x_N, 2)[::2], None) == _seed_of(x_N, None)


@pytest.mark.parametrize("change", ["next", "sign"])
def test_vector_of_which_one_element_is_another_draws_other_lots(change: str, seed: int) -> None:
    x_N = vector(seed, 2 * _FOLD + 5)
    found = {_seed_of(x_N, None)}
    places = [*range(0, _FOLD, 97), *range(2 * _FOLD, len(x_N))]
    for place in places:
        changed_N = x_N.copy()
        to = np.nextafter(x_N[place], np.float32(9)) if change == "next" else -x_N[place]
        changed_N[place] = to
        found.add(_seed_of(changed_N, None))
    assert len(found) == 1 + len(places)


@pytest.mark.quick(1)
@pytest.mark.parametrize("numel", [3000, _FOLD + 3000])
def test_what_is_sent_of_nearly_the_same_vector_is_right_on_average(numel: int, seed: int) -> None:
    """As of a swarm that has come to rest: from round to round signs of single elements change."""
    x_N, luck = vector(seed, numel), np.random.default_rng(seed + 1)
    codec, draws, total_N = RandomShiftCodec(bits=4), 1500, np.zeros(numel)
    for place in luck.integers(0, numel, size=draws):
        x_N[place] = -x_N[place]
        total_N += codec.decode(codec.encode(x_N), numel) - x_N
    # Seven standard deviations of the mean of so many uniform numbers, of the widest step.
    step = 2 * np.abs(x_N).max() / 14
    assert np.abs(total_N / draws).max() <= 7 * step / np.sqrt(12 * draws)


def test_result_of_a_large_cell_has_its_golden_bytes() -> None:
    """Two reducers of one cell, on any machines, must give the same."""
    raw = np.random.Philox(key=7).random_raw(3 * _FOLD + 7)
    x_N = (raw >> 40).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    payload = RandomShiftCodec().encode(x_N)
    assert blake3(payload).hexdigest()[:16] == "42cd511197dcf56d"
