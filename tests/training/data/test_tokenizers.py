"""Tokenizers: bytes, files, training, and what is refused before a library parses it."""

import json
import sys
import time

import pytest

from protocol.errors import CorpusError
from training.data import tokenizers
from training.data.tokenizers import (
    MERGES_MAX,
    PROBE,
    ByteTokenizer,
    FileTokenizer,
    Tokenizer,
    check_tokenizer_json,
    open_tokenizer,
    train_tokenizer,
)

TEXTS = [f"text {n} of a few words, ".encode() * 20 for n in range(50)]


@pytest.fixture(scope="module")
def content() -> bytes:
    return train_tokenizer(iter(TEXTS), 500)


@pytest.fixture(scope="module", params=["bytes", "file"])
def tokenizer(request: pytest.FixtureRequest, content: bytes) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else FileTokenizer(content)


def changed(content: bytes, **changes: object) -> bytes:
    return json.dumps(json.loads(content) | changes).encode()


def with_model(content: bytes, **changes: object) -> bytes:
    return changed(content, model=json.loads(content)["model"] | changes)


def test_tokens_of_several_texts_are_those_of_each(tokenizer: Tokenizer) -> None:
    texts = [b"one", "zwölf 🙂\n".encode(), b"<|endoftext|> text", b"x" * 70_000, b"a\r\n\tb "]
    tokens, lengths = tokenizer.encode(texts)
    assert lengths.sum() == len(tokens)
    start = 0
    for text, length in zip(texts, lengths.tolist(), strict=True):
        own = tokens[start : start + length]
        assert own.tolist() == tokenizer.encode([text])[0].tolist()
        assert tokenizer.decode(own[:-1]).encode() == text
        # It ends with the token that ends a document, and nothing in a text is that token.
        assert (own == tokenizer.facts.end_of_document).nonzero()[0].tolist() == [length - 1]
        start += length
    assert max(tokens) < tokenizer.facts.vocab_size


def test_probe_of_bytes_is_fixed() -> None:
    assert "\0" not in PROBE
    assert (
        ByteTokenizer().facts.probe_digest
        == "483529263ca41fc4df49335f95f5dba8d4570134da1ccfb2e9cf5f07137e5daf"
    )


def test_probe_tells_tokenizers_apart_that_read_one_file_differently(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = FileTokenizer(content).facts
    assert FileTokenizer(content).facts == facts
    other = FileTokenizer(with_model(content, merges=json.loads(content)["model"]["merges"][:9]))
    assert other.facts.probe_digest != facts.probe_digest
    assert FileTokenizer(content, is_chat=True).facts == facts


def test_training_twice_gives_the_same_bytes(content: bytes) -> None:
    assert train_tokenizer(iter(TEXTS), 500) == content
    assert train_tokenizer(iter(TEXTS), 300) != content
    assert FileTokenizer(content).facts.vocab_size <= 500


def test_special_tokens_count_in_chats_alone(content: bytes) -> None:
    text = [b"<|endoftext|>"]
    assert len(FileTokenizer(content).encode(text)[0]) > 2
    assert FileTokenizer(content, is_chat=True).encode(text)[0].tolist() == [0, 0]


def test_padding_and_truncation_of_the_file_are_left_out(content: bytes) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    odd = FileTokenizer(changed(content, truncation=truncation, padding=padding))
    plain = FileTokenizer(content)
    assert odd.encode(TEXTS[:2])[0].tolist() == plain.encode(TEXTS[:2])[0].tolist()


def test_hostile_tokenizers_are_refused_quickly(content: bytes) -> None:
    vocab = json.loads(content)["model"]["vocab"]
    hostile = {
        "merges": with_model(content, merges=["a b"] * 1_000_000),
        "merges, more than": with_model(content, merges=[["a", "b"]] * (MERGES_MAX + 1)),
        "values": b'{"model": [' + b"1," * 5_000_000 + b"1]}",
        "more than 40 MiB": b" " * (41 << 20),
        "nested deeper": b'{"model": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        "nested": b"[" * 1_000_000,
        "with a model": b"[]",
        "with a model and": b"\xff\xfe",
        "and its vocabulary": b'{"model": {"vocab": 1}}',
        "no JSON": b'{"model": {"vocab": {}}',
        "at random": with_model(content, dropout=0.1),
        "ids up to": with_model(content, vocab=vocab | {"huge": 4_000_000_000}),
        "not taken by": with_model(content, merges=["no such"]),
        "is not taken by": with_model(content, type="Unknown"),
        "has no token": changed(content, added_tokens=[]).replace(b"<|endoftext|>", b"<other>"),
    }
    began_s = time.process_time()
    for told, bad in hostile.items():
        with pytest.raises(CorpusError, match=told):
            FileTokenizer(bad)
    assert time.process_time() - began_s < 30.0


def test_end_of_document_may_be_named(content: bytes) -> None:
    other = content.replace(b"<|endoftext|>", b"<stop>")
    with pytest.raises(CorpusError, match="--end-of-document"):
        FileTokenizer(other)
    assert FileTokenizer(other, "<stop>").facts.end_of_document == 0
    with pytest.raises(CorpusError, match="no token <none>"):
        FileTokenizer(content, "<none>")


def test_vocabulary_has_all_bytes_and_an_end() -> None:
    for size in (0, 256, 1 << 20):
        with pytest.raises(CorpusError, match="257 to"):
            train_tokenizer(iter(TEXTS), size)


def test_missing_file_and_missing_library_are_told(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    with pytest.raises(CorpusError, match="barnraise data train-tokenizer"):
        open_tokenizer("no/such/tokenizer.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(CorpusError, match=r'pip install "barnraise\[corpora\]"'):
        FileTokenizer(content)
    assert open_tokenizer("bytes").facts.kind == "bytes"


def test_vocabulary_of_more_than_two_bytes_a_token(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab = json.loads(content)["model"]["vocab"]
    wide = FileTokenizer(with_model(content, vocab=vocab | {"rare": 70_000}))
    assert wide.facts.vocab_size == 70_001
    assert wide.encode(TEXTS[:1])[0].itemsize == 4
    monkeypatch.setattr(tokenizers, "VOCAB_MAX", 70_000)
    with pytest.raises(CorpusError):
        check_tokenizer_json(with_model(content, vocab={str(n): n for n in range(70_001)}))
