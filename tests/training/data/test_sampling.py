"""Which window of which block a sample is."""

import dataclasses

import numpy as np
import pytest
from blake3 import blake3

from protocol.errors import ConfigError, CorpusError
from tests.training.data.random_corpus import random_blocks, random_corpus
from training.data.sampling import MemoryBlocks, SampledBlocks, lease_samples, permute

CONTEXT = 64
PER_BLOCK = (1024 - CONTEXT) // CONTEXT


def sampled(*args, **options):
    return SampledBlocks(*random_blocks(*args, **options))


def all_windows(dataset, *, epoch=0):
    size = dataset.samples_per_epoch(CONTEXT)
    return dataset.windows(np.arange(epoch * size, (epoch + 1) * size), CONTEXT)


@pytest.mark.parametrize("domain", [1, 2, 3, 4, 5, 16, 17, 1000, 4097])
def test_permutation_is_a_bijection_of_its_domain(domain):
    numbers = np.arange(domain)

    assert sorted(permute(numbers, domain, "a")) == list(range(domain))


def test_permutation_gives_the_same_order_on_every_machine():
    assert permute(np.arange(10), 1000, "golden").tolist() == [
        *(911, 8, 32, 743, 333, 38, 623, 654, 249, 27)
    ]


def test_permutation_spreads_neighbours_over_the_whole_domain():
    domain = 10_000
    order = permute(np.arange(100), domain, "spread")

    assert np.histogram(order, bins=4, range=(0, domain))[0].min() >= 10
    assert np.abs(np.diff(order)).min() > 1


def test_permutation_of_another_key_is_another_one():
    numbers = np.arange(1000)

    assert np.mean(permute(numbers, 1000, "a") == permute(numbers, 1000, "b")) < 0.01


def test_training_windows_never_touch_a_held_out_byte():
    dataset = sampled()

    for epoch in range(3):
        assert all_windows(dataset, epoch=epoch).max() < 128
    assert dataset.held_out_windows(1000, CONTEXT).min() >= 128


@pytest.mark.parametrize("shuffle", [1, 3, 16, 1000])
def test_an_epoch_holds_every_window_once(shuffle):
    dataset = sampled(shuffle=shuffle)
    windows = all_windows(dataset)

    assert windows.shape == (16 * PER_BLOCK, CONTEXT + 1)
    assert len({window.tobytes() for window in windows}) == len(windows)
    # Windows of one block overlap in one byte only: the last target is the next one's first input.
    assert len({window[:-1].tobytes() for window in windows}) == len(windows)


@pytest.mark.parametrize("shuffle", [1, 2, 4])
def test_a_lease_touches_the_blocks_of_its_size_and_at_most_one_shuffle_more(shuffle):
    dataset = sampled(64, shuffle=shuffle)
    size = 8 * PER_BLOCK
    for first in range(0, dataset.samples_per_epoch(CONTEXT) - size, 7):
        blocks = dataset.blocks_of(np.arange(first, first + size), CONTEXT)
        assert 8 <= len(blocks) <= 8 + 2 * (shuffle - 1) + 1


def test_the_blocks_of_samples_are_those_that_they_are_cut_from():
    spec, payloads = random_corpus()
    dataset = SampledBlocks(spec, MemoryBlocks(spec, payloads))
    for first in range(0, 2 * dataset.samples_per_epoch(CONTEXT), 11):
        samples = np.arange(first, first + 11)
        blocks = dataset.blocks_of(samples, CONTEXT)
        for window in dataset.windows(samples, CONTEXT):
            assert any(window.tobytes() in payloads[block] for block in blocks)


def test_samples_within_a_shuffle_come_from_all_of_its_blocks():
    dataset = sampled(64, shuffle=4)
    blocks = dataset.blocks_of(np.arange(PER_BLOCK), CONTEXT)

    assert len(blocks) == 4


def test_samples_are_the_same_on_every_machine():
    windows = sampled().windows(np.array([0, 1, 99, 10**12]), CONTEXT)

    assert blake3(windows.tobytes()).hexdigest()[:16] == "7f9d57b830f31e3c"


def test_epochs_differ_in_order_and_phase():
    dataset = sampled()
    first = {window.tobytes() for window in all_windows(dataset)}
    second = {window.tobytes() for window in all_windows(dataset, epoch=1)}

    assert not first & second


def test_a_batch_across_the_end_of_an_epoch_is_the_two_parts():
    dataset = sampled()
    size = dataset.samples_per_epoch(CONTEXT)
    across = dataset.windows(np.arange(size - 2, size + 2), CONTEXT)

    assert np.array_equal(across[:2], all_windows(dataset)[-2:])
    assert np.array_equal(across[2:], all_windows(dataset, epoch=1)[:2])


def test_another_permutation_seed_gives_another_order():
    samples = np.arange(50)
    ours, other = (sampled(seed=seed).windows(samples, CONTEXT) for seed in (3, 4))

    assert not np.array_equal(ours, other)


def test_held_out_windows_are_fixed_and_spread_over_all_held_out_blocks():
    spec, payloads = random_corpus()
    dataset = SampledBlocks(spec, MemoryBlocks(spec, payloads))
    windows = dataset.held_out_windows(8, CONTEXT)

    assert np.array_equal(windows, dataset.held_out_windows(8, CONTEXT))
    assert all(any(w.tobytes() in payload for w in windows) for payload in payloads[16:])


def test_more_held_out_windows_than_there_are_gives_all_of_them_once():
    windows = sampled().held_out_windows(10**6, CONTEXT)

    assert len({window.tobytes() for window in windows}) == len(windows) == 4 * PER_BLOCK


def test_blocks_of_another_corpus_are_refused():
    spec, payloads = random_corpus()

    with pytest.raises(CorpusError, match="not those that the run pins"):
        MemoryBlocks(spec, [payloads[1], payloads[0], *payloads[2:]])
    with pytest.raises(CorpusError, match="blocks of 1024"):
        MemoryBlocks(spec, payloads[:-1])


def test_a_context_larger_than_a_block_is_refused():
    with pytest.raises(ConfigError, match="context"):
        sampled().samples_per_epoch(1024)


def test_lease_samples_are_its_members_in_order():
    assert lease_samples(((2, 4), (9, 10))).tolist() == [2, 3, 9]
    assert lease_samples(()).tolist() == []


@pytest.mark.parametrize(("tokens", "expected"), [(1024 + 129, PER_BLOCK + 2), (65, 1), (3, 1)])
def test_held_out_windows_leave_out_what_fills_up_the_last_block(tokens, expected):
    spec, payloads = random_corpus(held_out=2)
    spec = dataclasses.replace(spec, held_out_tokens=tokens, held_out_text_bytes=tokens)
    windows = SampledBlocks(spec, MemoryBlocks(spec, payloads)).held_out_windows(1000, CONTEXT)

    assert len(windows) == expected
    assert windows[-1].tobytes() in b"".join(payloads[-2:])[: max(tokens, CONTEXT + 1)]
