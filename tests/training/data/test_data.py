"""The pinned corpus and its samples."""

import dataclasses
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from protocol.errors import ConfigError, CorpusError
from protocol.grid import merkle_root
from protocol.manifest import CorpusSpec
from training.data.corpus import (
    BlockDataset,
    lease_samples,
    open_corpus,
    permute,
    pin_corpus,
    read_stdlib,
    stdlib_files,
)

CONTEXT = 64
LIBRARY = Path(sysconfig.get_path("stdlib"))


def random_corpus(num_blocks, *, held_out_every=5, seed=3, block_bytes=1024):
    """Blocks whose bytes say where they are from: training below 128, held out from 128 on."""
    blocks = []
    for index in range(num_blocks):
        low = 128 if index % held_out_every == held_out_every - 1 else 0
        raw = blake3(f"block {index}".encode()).digest(length=block_bytes)
        blocks.append(bytes(low + byte % 128 for byte in raw))
    spec = CorpusSpec(
        name="random",
        digest=merkle_root([blake3(block).digest() for block in blocks]),
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        held_out_every=held_out_every,
        permutation_seed=seed,
    )
    return spec, blocks


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


def test_the_library_is_pinned_and_opened_with_the_same_samples():
    spec = pin_corpus("stdlib", permutation_seed=5)
    first, second = open_corpus(spec), open_corpus(spec)

    assert spec == pin_corpus("stdlib", permutation_seed=5)
    assert spec.num_blocks * spec.block_bytes > 4 << 20
    samples = np.array([0, 1, 10_000, 10**9])
    assert np.array_equal(first.windows(samples, CONTEXT), second.windows(samples, CONTEXT))


def test_the_library_text_holds_no_tests_and_nothing_installed():
    names = [path.relative_to(LIBRARY).parts for path in stdlib_files(LIBRARY)]

    assert not any({"test", "tests", "site-packages"} & set(parts) for parts in names)


def test_unknown_corpus_is_refused_with_the_known_names():
    with pytest.raises(ConfigError, match="stdlib"):
        pin_corpus("moon")


def test_a_library_of_another_python_is_refused_with_its_version():
    spec = pin_corpus("stdlib")
    other = dataclasses.replace(spec, name="stdlib-3.99.1", digest=bytes(32))

    with pytest.raises(CorpusError, match=r"start barnraise with 3\.99\.1"):
        open_corpus(other)


def test_a_changed_library_of_the_same_python_is_refused():
    changed = dataclasses.replace(pin_corpus("stdlib"), digest=bytes(32))

    with pytest.raises(CorpusError, match="changed or missing library files"):
        open_corpus(changed)


def copy_library(folder, change=lambda text: text):
    for path in stdlib_files(LIBRARY):
        copy = folder / path.relative_to(LIBRARY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(change(path.read_bytes()))
    return folder


def test_a_copy_of_the_library_is_the_same_text_until_one_byte_changes(tmp_path):
    library = copy_library(tmp_path)
    assert read_stdlib(library) == read_stdlib(LIBRARY)

    victim = library / "ast.py"
    victim.write_bytes(b"#" + victim.read_bytes()[1:])

    assert read_stdlib(library) != read_stdlib(LIBRARY)


def test_files_that_others_put_into_the_library_are_no_part_of_it(tmp_path):
    library = copy_library(tmp_path)
    for name in ("site-packages/a.py", "mine.py", "json/tests/b.py", "_sysconfigdata_x.py"):
        (library / name).parent.mkdir(exist_ok=True)
        (library / name).write_text("x = 1\n")

    assert read_stdlib(library) == read_stdlib(LIBRARY)


def test_windows_line_ends_make_the_same_corpus(tmp_path):
    library = copy_library(tmp_path, change=lambda text: text.replace(b"\n", b"\r\n"))

    assert read_stdlib(library) == read_stdlib(LIBRARY)


def test_a_python_without_library_sources_says_so(tmp_path):
    with pytest.raises(CorpusError, match="installed with its sources"):
        read_stdlib(tmp_path)


def test_training_windows_never_touch_a_held_out_byte():
    spec, blocks = random_corpus(20)
    dataset = BlockDataset(spec, blocks)

    for epoch in range(3):
        assert all_windows(dataset, epoch=epoch).max() < 128
    assert dataset.held_out_windows(1000, CONTEXT).min() >= 128


def test_an_epoch_holds_every_window_once():
    spec, blocks = random_corpus(20)
    dataset = BlockDataset(spec, blocks)
    windows = all_windows(dataset)

    assert windows.shape == (dataset.samples_per_epoch(CONTEXT), CONTEXT + 1)
    assert len({window.tobytes() for window in windows}) == len(windows)
    # Windows of one block overlap in one byte only: the last target is the next one's first input.
    assert len({window[:-1].tobytes() for window in windows}) == len(windows)


def test_samples_are_the_same_on_every_machine():
    spec, blocks = random_corpus(20)
    windows = BlockDataset(spec, blocks).windows(np.array([0, 1, 99, 10**12]), CONTEXT)

    assert blake3(windows.tobytes()).hexdigest()[:16] == "835cb66e3053f4ac"


def test_windows_are_cuts_of_the_training_text():
    spec, blocks = random_corpus(10)
    dataset = BlockDataset(spec, blocks)

    for window in all_windows(dataset)[:20]:
        assert any(window.tobytes() in block for block in blocks)


def test_epochs_differ_in_order_and_phase():
    spec, blocks = random_corpus(20)
    dataset = BlockDataset(spec, blocks)
    first = {window.tobytes() for window in all_windows(dataset)}
    second = {window.tobytes() for window in all_windows(dataset, epoch=1)}

    assert not first & second


def test_a_batch_across_the_end_of_an_epoch_is_the_two_parts():
    spec, blocks = random_corpus(20)
    dataset = BlockDataset(spec, blocks)
    size = dataset.samples_per_epoch(CONTEXT)
    across = dataset.windows(np.arange(size - 2, size + 2), CONTEXT)

    assert np.array_equal(across[:2], all_windows(dataset)[-2:])
    assert np.array_equal(across[2:], all_windows(dataset, epoch=1)[:2])


def test_another_permutation_seed_gives_another_order():
    spec, blocks = random_corpus(20)
    other, _ = random_corpus(20, seed=4)
    samples = np.arange(50)
    ours = BlockDataset(spec, blocks).windows(samples, CONTEXT)

    assert not np.array_equal(ours, BlockDataset(other, blocks).windows(samples, CONTEXT))


def test_held_out_windows_are_fixed_and_spread_over_all_held_out_blocks():
    spec, blocks = random_corpus(20)
    dataset = BlockDataset(spec, blocks)
    windows = dataset.held_out_windows(8, CONTEXT)
    held_out = [block for index, block in enumerate(blocks) if index % 5 == 4]

    assert np.array_equal(windows, dataset.held_out_windows(8, CONTEXT))
    assert all(any(w.tobytes() in block for w in windows) for block in held_out)


def test_more_held_out_windows_than_there_are_gives_all_of_them_once():
    spec, blocks = random_corpus(20)
    windows = BlockDataset(spec, blocks).held_out_windows(10**6, CONTEXT)

    assert len({window.tobytes() for window in windows}) == len(windows)
    assert len(windows) == 4 * (1024 - CONTEXT) // CONTEXT


def test_blocks_of_another_corpus_are_refused():
    spec, blocks = random_corpus(10)
    swapped = [blocks[1], blocks[0], *blocks[2:]]

    with pytest.raises(CorpusError, match="not those that the run pins"):
        BlockDataset(spec, swapped)
    with pytest.raises(CorpusError, match="blocks of 1024"):
        BlockDataset(spec, blocks[:-1])


def test_a_context_larger_than_a_block_is_refused():
    spec, blocks = random_corpus(10)

    with pytest.raises(ConfigError, match="context"):
        BlockDataset(spec, blocks).samples_per_epoch(1024)


def test_lease_samples_are_its_members_in_order():
    assert lease_samples(((2, 4), (9, 10))).tolist() == [2, 3, 9]
    assert lease_samples(()).tolist() == []
