"""The pinned corpus: a text that other machines have, or a token store."""

import dataclasses
import sysconfig
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import ConfigError, CorpusError
from training.data.corpus import (
    open_corpus,
    pack_in_memory,
    pin_corpus,
    pin_store,
    read_stdlib,
    shuffle_blocks,
    stdlib_files,
)
from training.data.packing import PackOptions, pack
from training.data.sampling import MemoryBlocks
from training.data.sources import SourceSpec
from training.data.store import TokenStore
from training.data.tokenizers import ByteTokenizer

CONTEXT = 64
LIBRARY = Path(sysconfig.get_path("stdlib"))


def test_the_library_is_pinned_and_opened_with_the_same_samples():
    spec = pin_corpus("stdlib", permutation_seed=5)
    first, second = open_corpus(spec), open_corpus(spec)

    assert spec == pin_corpus("stdlib", permutation_seed=5)
    assert spec.training_blocks * spec.block_bytes > 4 << 20
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


def test_held_out_documents_are_whole_files_of_about_a_tenth():
    packed = pack_in_memory(read_stdlib(LIBRARY))
    share = len(packed.held_out) / (len(packed.training) + len(packed.held_out))

    assert 0.03 < share < 0.25
    assert b"".join(packed.held_out).rstrip(b"\0").count(b"\0") + 1 == (
        packed.held_out_tokens - packed.held_out_text_bytes
    )


def packed_folder(tmp_path, texts):
    folder = tmp_path / "texts"
    folder.mkdir()
    for index, text in enumerate(texts):
        (folder / f"{index:04}.txt").write_bytes(text)
    options = PackOptions(
        sources=(SourceSpec(str(folder)),), out=tmp_path / "store", held_out_share=0.1
    )
    return pack(options, ByteTokenizer())


def random_texts(count, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(100, 12_000, count)
    return [bytes(rng.integers(97, 123, size, np.uint8)) for size in sizes]


def test_what_is_packed_in_memory_has_the_root_of_its_token_store(tmp_path):
    texts = random_texts(60)
    facts = packed_folder(tmp_path, texts)
    spec, packed = pin_store(facts, "text"), pack_in_memory(texts)

    assert len(packed.payloads) == spec.num_blocks
    assert packed.held_out_tokens == spec.held_out_tokens
    assert packed.held_out_text_bytes == spec.held_out_text_bytes
    MemoryBlocks(spec, packed.payloads)  # It raises unless they lead to the root.


def test_a_store_is_opened_as_the_corpus_that_pins_it(tmp_path):
    spec = pin_store(packed_folder(tmp_path, random_texts(40)), "text")
    dataset = open_corpus(spec, tmp_path / "store")
    windows = dataset.windows(np.arange(20), CONTEXT)

    assert windows.shape == (20, CONTEXT + 1)
    assert ((windows >= 97) & (windows < 123) | (windows == 0)).all()


def test_a_store_of_another_text_is_refused_with_both_roots(tmp_path):
    spec = pin_store(packed_folder(tmp_path, random_texts(40)), "text")
    other = dataclasses.replace(spec, digest=bytes(32))

    with pytest.raises(CorpusError, match=r"another text than the run's.*000000000000"):
        open_corpus(other, tmp_path / "store")


def test_a_text_of_somebody_elses_is_asked_for(tmp_path):
    spec = pin_store(packed_folder(tmp_path, random_texts(40)), "text")

    with pytest.raises(CorpusError, match="--corpus"):
        open_corpus(spec)


@pytest.mark.parametrize(
    ("blocks", "lease_bytes", "expected"),
    [(100, 0, 100), (256, 0, 256), (257, 0, 1), (1000, 10 * 65536, 10), (300, 10**9, 300)],
)
def test_a_small_text_is_shuffled_whole_and_a_large_one_within_its_leases(
    blocks, lease_bytes, expected
):
    assert shuffle_blocks(blocks, 65536, lease_bytes) == expected


def test_what_fills_up_the_last_training_block_is_text(tmp_path):
    facts = packed_folder(tmp_path, random_texts(20))
    with closing(TokenStore.open(tmp_path / "store")) as store:
        text = store.read_block(facts.training.blocks - 1)
        first = store.read_block(0)

    assert text[-1:] != b"\0" or text[-2:-1] != b"\0"
    behind = facts.training.tokens % facts.block_bytes
    assert text[behind:] == first[: len(text) - behind]
