"""Sources to a store: the same bytes whatever the threads, the kinds of files, interruptions."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import CorpusError
from tests.training.data.test_documents import as_csv, as_jsonl, write_parquet, zstd
from training.data import packing
from training.data.packing import BestFit, PackOptions, pack
from training.data.sources import SourceSpec
from training.data.store import UNFINISHED, StoreFacts, TokenStore
from training.data.tokenizers import ByteTokenizer, FileTokenizer, train_tokenizer

WORDS = ("the", "of", "and", "a", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on")


def texts_of(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [
        f"{seed}/{n} " + " ".join(rng.choices(WORDS, k=rng.randrange(3, 200))) for n in range(count)
    ]


def write_mixed(root: Path, count: int = 60) -> list[SourceSpec]:
    """A folder of texts, and rows that are twice there, in tables and in lines."""
    (root / "notes").mkdir(parents=True)
    for number, text in enumerate(texts_of(1, count)):
        (root / "notes" / f"{number:03}.md").write_bytes(text.encode())
    (root / "a.jsonl").write_bytes(as_jsonl(texts_of(2, count)))
    (root / "b.jsonl.zst").write_bytes(zstd(as_jsonl(texts_of(3, count))))
    write_parquet(root / "same.parquet", texts_of(2, count), row_group_size=7)
    (root / "d.csv").write_bytes(as_csv(texts_of(3, count)))
    (root / "bad.jsonl").write_bytes(b'{"text": 1}\n{"text": "\\u0000"}\n')
    return [SourceSpec(str(root / "notes")), SourceSpec(str(root / "*.*"))]


def pack_into(out: Path, sources: Sequence[SourceSpec], **options: Any) -> StoreFacts:
    tokenizer = options.pop("tokenizer", None) or ByteTokenizer()
    return pack(PackOptions(sources=tuple(sources), out=out, **options), tokenizer)


def documents_of(folder: Path, *, held_out: bool = False) -> list[bytes]:
    """The documents of a part of a store of bytes."""
    opened = TokenStore.open(folder)
    part = opened.facts.held_out if held_out else opened.facts.training
    first = opened.first_held_out if held_out else 0
    text = opened.tokens(first, part.tokens).tobytes()
    return text.split(b"\0")[:-1]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few documents are many batches, and each of them is made durable."""
    monkeypatch.setattr(packing, "_BATCH_BYTES", 2000)
    monkeypatch.setattr(packing, "_SAVE_S", 0.0)


@pytest.fixture(scope="module")
def tokenizer() -> FileTokenizer:
    return FileTokenizer(train_tokenizer((t.encode() for t in texts_of(9, 100)), 400))


def test_every_document_is_taken_once_and_held_out_by_its_hash(tmp_path: Path) -> None:
    facts = pack_into(tmp_path / "s", write_mixed(tmp_path / "in"), held_out_share=0.3)
    training = documents_of(tmp_path / "s")
    held_out = documents_of(tmp_path / "s", held_out=True)
    wanted = [text.encode() for seed in (1, 2, 3) for text in texts_of(seed, 60)]
    assert sorted(training + held_out) == sorted(wanted)
    assert (facts.training.documents, facts.held_out.documents) == (len(training), len(held_out))
    assert 30 <= len(held_out) <= 80
    assert facts.training.text_bytes == sum(map(len, training))
    assert facts.made["skipped"] == {
        "duplicate": 120,
        "field 'text' that is no text": 1,
        "text with a NUL": 1,
    }
    offsets = TokenStore.open(tmp_path / "s").offsets[0].tolist()
    assert offsets == [0, *np.cumsum([len(text) + 1 for text in training])[:-1].tolist()]
    # The order of the sources and their files is that of the documents.
    numbers = {text: number for number, text in enumerate(wanted)}
    assert [numbers[text] for text in training] == sorted(numbers[text] for text in training)


def test_root_of_a_mixed_set_is_the_same_under_every_release_of_python(tmp_path: Path) -> None:
    sources = write_mixed(tmp_path / "in")
    # Stored and not compressed: what a compressor makes differs between its versions.
    text, stored = as_jsonl(texts_of(4, 500)), bytes.fromhex("1f8b08000000000000ff")
    for start in range(0, len(text), 60_000):
        part = text[start : start + 60_000]
        length = len(part).to_bytes(2, "little")
        stored += b"\0" + length + bytes(255 - byte for byte in length) + part
    (tmp_path / "in" / "torn.jsonl.gz").write_bytes(stored[:150_000])
    facts = pack_into(tmp_path / "s", sources)
    skipped = facts.made["skipped"]
    assert isinstance(skipped, dict)
    assert skipped["file that is torn or cannot be read"] == 1
    assert facts.training.documents > 500
    assert facts.root == "111fb8dea77812c4eeab9abd98a9c950d4b8a9cdee14811ffb7c64ad33a4e696"


def test_split_does_not_depend_on_what_else_there_is(tmp_path: Path) -> None:
    write_mixed(tmp_path / "in")
    pack_into(tmp_path / "all", [SourceSpec(str(tmp_path / "in"))], held_out_share=0.3)
    pack_into(tmp_path / "one", [SourceSpec(str(tmp_path / "in" / "d.csv"))], held_out_share=0.3)
    held_out = set(documents_of(tmp_path / "all", held_out=True))
    assert set(documents_of(tmp_path / "one", held_out=True)) <= held_out
    assert held_out.isdisjoint(documents_of(tmp_path / "one"))


@pytest.mark.quick(1)
@pytest.mark.parametrize("context", [0, 256])
def test_threads_change_no_byte(tmp_path: Path, tokenizer: FileTokenizer, context: int) -> None:
    sources = write_mixed(tmp_path / "in")
    roots = {
        pack_into(tmp_path / str(n), sources, threads=n, tokenizer=tokenizer, context=context).root
        for n in (1, 2, 5, 8)
    }
    assert len(roots) == 1


class _Killed(Exception):
    pass


@pytest.mark.quick(1)
@pytest.mark.parametrize("context", [0, 256])
def test_pack_that_is_interrupted_again_and_again_gives_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: FileTokenizer, context: int
) -> None:
    monkeypatch.setattr(packing, "_GROUP_TOKENS", 3000)
    sources = (*write_mixed(tmp_path / "in"), SourceSpec(str(tmp_path / "in" / "a.jsonl"), 2.5))
    whole = pack_into(tmp_path / "whole", sources, tokenizer=tokenizer, context=context)
    options = PackOptions(sources=sources, out=tmp_path / "torn", context=context, threads=3)
    rng, kills, facts = random.Random(5), 0, None

    while facts is None:
        left = [rng.randrange(2, 12)]

        def tell(done: int, total: int, left: list[int] = left) -> None:
            assert 0 <= done <= total
            left[0] -= 1
            if not left[0]:
                raise _Killed

        try:
            facts = pack(options, tokenizer, tell)
        except _Killed:
            kills += 1
            assert kills < 100
    assert kills >= 5
    assert facts == whole


def test_mark_goes_on_where_writing_was_and_not_where_reading_was(tmp_path: Path) -> None:
    # With several threads texts that were read but not written are in the journal already.
    sources = tuple(write_mixed(tmp_path / "in"))
    whole = pack_into(tmp_path / "whole", sources)
    options = PackOptions(sources=sources, out=tmp_path / "torn", threads=8)
    calls = 0

    def tell(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise _Killed

    with pytest.raises(_Killed):
        pack(options, ByteTokenizer(), tell)
    assert pack(options, ByteTokenizer()) == whole


def test_other_sources_or_options_do_not_go_on_with_an_unfinished_store(tmp_path: Path) -> None:
    sources = tuple(write_mixed(tmp_path / "in"))
    options = PackOptions(sources=sources, out=tmp_path / "s")

    def tell(done: int, total: int) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        pack(options, ByteTokenizer(), tell)
    for other in (
        replace(options, held_out_share=0.5),
        replace(options, sources=sources[:1]),
        replace(options, sources=(sources[0], replace(sources[1], weight=2.0))),
        replace(options, context=64),
    ):
        with pytest.raises(CorpusError, match="unfinished store of other sources"):
            pack(other, ByteTokenizer())
    (tmp_path / "in" / "a.jsonl").write_bytes(as_jsonl(texts_of(7, 3)))
    with pytest.raises(CorpusError, match="unfinished store of other sources"):
        pack(options, ByteTokenizer())


def test_folder_that_is_taken_is_refused(tmp_path: Path) -> None:
    sources = write_mixed(tmp_path / "in")
    pack_into(tmp_path / "s", sources)
    with pytest.raises(CorpusError, match="holds a token store"):
        pack_into(tmp_path / "s", sources)
    with pytest.raises(CorpusError, match="is not empty"):
        pack_into(tmp_path / "in", sources)
    assert not (tmp_path / "in" / UNFINISHED).exists()


@pytest.mark.quick(2)
@pytest.mark.parametrize("share", [1e-12, 1 - 1e-9])
@pytest.mark.parametrize("count", [2, 3, 40])
def test_small_text_has_both_parts_whatever_the_share(
    tmp_path: Path, count: int, share: float
) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_jsonl(texts_of(1, count)))
    facts = pack_into(tmp_path / "s", [SourceSpec(str(tmp_path / "a.jsonl"))], held_out_share=share)
    rare = facts.held_out if share < 0.5 else facts.training
    assert rare.documents == 1
    assert facts.training.documents + facts.held_out.documents == count


@pytest.mark.parametrize(("content", "told"), [(b"", "no document"), (b"one", "only one document")])
def test_sources_of_less_than_two_documents_are_refused(
    tmp_path: Path, content: bytes, told: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(CorpusError, match=told) as caught:
        pack_into(tmp_path / "s", [SourceSpec(str(tmp_path / "*.txt"))])
    assert r"text that is not UTF-8: 1 (b.txt)" in str(caught.value)
    # What came to nothing is nothing to go on with.
    (tmp_path / "c.txt").write_bytes(b"two")
    (tmp_path / "d.txt").write_bytes(b"three")
    assert pack_into(tmp_path / "s", [SourceSpec(str(tmp_path / "*.txt"))]).training.documents


def test_weight_is_how_often_training_documents_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_jsonl(texts_of(1, 200)))
    (tmp_path / "b.jsonl").write_bytes(as_jsonl(texts_of(2, 200)))
    (tmp_path / "c.jsonl").write_bytes(as_jsonl(texts_of(3, 200)))
    sources = [
        SourceSpec(str(tmp_path / "a.jsonl"), 2.5),
        SourceSpec(str(tmp_path / "b.jsonl")),
        SourceSpec(str(tmp_path / "c.jsonl"), 0.25),
    ]
    pack_into(tmp_path / "s", sources, held_out_share=0.1)
    training = documents_of(tmp_path / "s")
    counts = {
        seed: [training.count(text.encode()) for text in texts_of(seed, 200)] for seed in (1, 2, 3)
    }
    trained = [count for count in counts[1] if count]
    assert set(trained) == {2, 3}
    assert 2.3 < sum(trained) / len(trained) < 2.7
    assert set(counts[2]) == {0, 1}
    assert 25 <= sum(counts[3]) <= 70
    held_out = documents_of(tmp_path / "s", held_out=True)
    assert len(held_out) == len(set(held_out))
    assert set(held_out).isdisjoint(training)
    # A second copy comes behind all first ones.
    a_first = training.index(training[0], 1)
    assert a_first > max(
        training.index(t.encode()) for t in texts_of(2, 200) if t.encode() in training
    )


@pytest.mark.parametrize(
    "options",
    [
        {"held_out_share": 0.0},
        {"held_out_share": 1.0},
        {"threads": 0},
        {"threads": 65},
        {"context": 15},
        {"context": 100},
        {"context": 1 << 20},
        {"sources": (SourceSpec("-"), SourceSpec("-"))},
    ],
)
def test_options_that_make_no_store_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(CorpusError):
        PackOptions(**{"sources": (), "out": tmp_path, **options})


@given(st.lists(st.integers(1, 70), min_size=1, max_size=60), st.sampled_from([16, 32]))
def test_best_fit_keeps_every_token_and_cuts_only_what_is_longer_than_a_window(
    lengths: list[int], context: int
) -> None:
    fitting = BestFit(context, 0)
    tokens = np.concatenate([np.full(n, k + 1, np.uint16) for k, n in enumerate(lengths)])
    assert fitting.add(tokens, np.array(lengths)) == sum(lengths)
    packed, starts = fitting.flush()
    assert packed is not None
    assert fitting.is_empty
    assert len(packed) % context == 0
    assert np.array_equal(np.sort(packed[packed > 0]), tokens)
    assert len(starts) == sum(-(-n // context) for n in lengths)
    for start in starts.tolist():
        window = packed[start // context * context :][:context]
        piece = window == packed[start]
        number = int(packed[start]) - 1
        # A piece is whole in its window: as long as a window, or what is left of the document.
        assert piece.sum() in {context, lengths[number] % context}
    # Best fit never needs more than twice the windows that the tokens would fill.
    assert len(packed) // context <= max(1, 2 * -(-sum(lengths) // context))


def test_journal_that_another_pack_has_is_told(tmp_path: Path) -> None:
    sources = tuple(write_mixed(tmp_path / "in"))
    options = PackOptions(sources=sources, out=tmp_path / "s")

    def tell(done: int, total: int) -> None:
        with pytest.raises(CorpusError, match="is another pack at work"):
            pack(options, ByteTokenizer())
        raise _Killed

    with pytest.raises(_Killed):
        pack(options, ByteTokenizer(), tell)


def test_torn_journal_is_told_with_what_to_delete(tmp_path: Path) -> None:
    (tmp_path / "s" / UNFINISHED).mkdir(parents=True)
    (tmp_path / "s" / UNFINISHED / "journal.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(CorpusError, match="delete"):
        pack_into(tmp_path / "s", write_mixed(tmp_path / "in"))


def test_long_names_in_the_sources_do_not_make_a_store_that_nobody_can_open(
    tmp_path: Path,
) -> None:
    names = json.dumps({"n" * 3_000_000: 1})
    content = as_jsonl(texts_of(1, 5)) + names.encode() + b"\n"
    (tmp_path / "a.jsonl").write_bytes(content)
    pack_into(tmp_path / "s", [SourceSpec(str(tmp_path / "a.jsonl"))])
    assert (tmp_path / "s" / "corpus.json").stat().st_size < 4000
    TokenStore.open(tmp_path / "s")


def test_facts_name_no_folder_of_this_machine(tmp_path: Path) -> None:
    facts = pack_into(tmp_path / "s", write_mixed(tmp_path / "in"))
    assert str(tmp_path) not in json.dumps(facts.made)
