"""Token stores: the bytes of the format, and what a reader refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from protocol.errors import CorpusError
from protocol.grid import merkle_root
from protocol.limits import KIB, MIB
from training.data import store
from training.data.store import (
    CORPUS_JSON,
    UNFINISHED,
    PartSize,
    StoreFacts,
    StoreWriter,
    TokenizerFacts,
    TokenStore,
    publish,
)

BYTES = TokenizerFacts(
    kind="bytes", vocab_size=256, end_of_document=0, digest="0" * 64, probe_digest="1" * 64
)
DOCUMENTS = [b"one\0", b"two, longer\0", b"three\0"]


def make(folder: Path, token_bytes: int = 1, repeat: int = 1) -> StoreFacts:
    """A store of three documents, the last of them held out."""
    writer = StoreWriter(folder, token_bytes, PartSize(), PartSize())
    for _ in range(repeat):
        for part, documents in ((writer.training, DOCUMENTS[:2]), (writer.held_out, DOCUMENTS[2:])):
            lengths = [len(document) for document in documents]
            starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)
            part.append(np.frombuffer(b"".join(documents), np.uint8), starts)
            part.size.documents += len(documents)
            part.size.text_bytes += sum(lengths) - len(documents)
    return writer.finish(BYTES, None, {"by": "a test"})


def test_bytes_of_a_store_are_these(tmp_path: Path) -> None:
    facts = make(tmp_path / "s", token_bytes=2)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        *("blocks.bin", "corpus.json", "documents.bin", "tokens.bin")
    ]
    block = 64 * KIB
    training = b"".join(DOCUMENTS[:2])
    parts = [
        *(bytes(v for t in text for v in (t, 0)) for text in (training, DOCUMENTS[2])),
        b"".join(n.to_bytes(8, "little") for n in (0, 4, 0)),
    ]
    blocks = [part.ljust(block, b"\0") for part in parts]
    blocks[0] = (parts[0] * block)[:block]  # Filled up with its own beginning.
    assert (tmp_path / "s" / "tokens.bin").read_bytes() == blocks[0] + blocks[1]
    assert (tmp_path / "s" / "documents.bin").read_bytes() == blocks[2]
    digests = [blake3(one).digest() for one in blocks]
    assert (tmp_path / "s" / "blocks.bin").read_bytes() == b"".join(digests)
    assert bytes.fromhex(facts.root) == merkle_root(digests)
    # The format is frozen: a store that was made once must be read by later versions.
    assert facts.root == "625f5cbad7996d4e70a0eb5a906e229ede57d1a4c05ca66d918ec7b76cb6226d"
    text = (tmp_path / "s" / CORPUS_JSON).read_bytes()
    assert (
        blake3(text).hexdigest()
        == "ae84c9602b0ab77175b5b17cb0db031a0052389b87191b3aaa7f67736ed467b7"
    )


def test_store_gives_what_was_written(tmp_path: Path) -> None:
    facts = make(tmp_path)
    opened = TokenStore.open(tmp_path)
    assert bytes(opened.tokens(4, 11)) == b"two, longer"
    assert bytes(opened.tokens(opened.first_held_out, 6)) == b"three\0"
    training, held_out = opened.offsets
    assert (training.tolist(), held_out.tolist()) == ([0, 4], [0])
    assert opened.digest_of_block(2) == blake3(opened.read_block(2)).digest()
    assert opened.tokens_of_block(1)[:5].tobytes() == b"three"
    assert opened.facts == facts
    opened.verify()
    opened.close()


def test_large_text_has_large_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SMALL_TEXT_BYTES", 100)
    assert make(tmp_path / "small", repeat=4).block_bytes == 64 * KIB
    assert make(tmp_path / "large", repeat=5).block_bytes == MIB


@pytest.mark.parametrize("name", ["tokens.bin", "documents.bin", "blocks.bin"])
def test_any_changed_byte_is_seen(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    changed = bytearray((tmp_path / name).read_bytes())
    changed[-1] ^= 1
    (tmp_path / name).write_bytes(changed)
    with pytest.raises(CorpusError):
        TokenStore.open(tmp_path).verify()


def test_changed_tokens_are_seen_when_they_are_read(tmp_path: Path) -> None:
    make(tmp_path)
    changed = bytearray((tmp_path / "tokens.bin").read_bytes())
    changed[64 * KIB] ^= 1
    (tmp_path / "tokens.bin").write_bytes(changed)
    opened = TokenStore.open(tmp_path)
    assert bytes(opened.tokens(0, 3)) == b"one"
    with pytest.raises(CorpusError, match="block 1 of"):
        opened.tokens(64 * KIB - 1, 2)


@pytest.mark.parametrize("name", ["tokens.bin", "documents.bin", "blocks.bin", CORPUS_JSON])
def test_missing_and_short_files_are_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    text = (tmp_path / name).read_bytes()
    # The last byte of corpus.json is a line end, which is no part of the object.
    for content in (text[:-2], text[: len(text) // 2], b"", None):
        (tmp_path / name).unlink(missing_ok=True)
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError):
            TokenStore.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"token_bytes": 3},
        {"block_bytes": 1},
        {"block_bytes": 2**61},
        {"root": "0" * 63},
        {"root": "0" * 64},
        {"document_blocks": 0},
        {"document_blocks": 2**40},
        {"context": True},
        {"context": -1},
        {"training": {}},
        {"training": 1},
        {"training": {"blocks": 2**50, "tokens": 1, "documents": 1, "offsets": 1, "text_bytes": 1}},
        {"training": {"blocks": 0, "tokens": 0, "documents": 0, "offsets": 0, "text_bytes": 0}},
        {"training": {"blocks": 1, "tokens": 9, "documents": 9, "offsets": 3, "text_bytes": 1}},
        {"tokenizer": {}},
        {"unknown": 1},
    ],
)
def test_corpus_json_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    make(tmp_path)
    path = tmp_path / CORPUS_JSON
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CorpusError):
        TokenStore.open(tmp_path)


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b"[" * 100_000, b"\xff", b" " * 2**20])
def test_corpus_json_of_another_kind_is_refused(tmp_path: Path, text: bytes) -> None:
    make(tmp_path)
    (tmp_path / CORPUS_JSON).write_bytes(text)
    with pytest.raises(CorpusError):
        TokenStore.open(tmp_path)


def test_writer_goes_on_behind_what_was_synced(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", repeat=2)
    begun = StoreWriter(tmp_path / "torn", 1, PartSize(), PartSize())
    first = np.frombuffer(b"".join(DOCUMENTS[:2]), np.uint8)
    begun.training.append(first, np.array([0, 4]))
    begun.sync()
    begun.training.append(first[:7], np.array([0]))  # What the crash left of later writes.
    begun.close()
    again = StoreWriter(
        tmp_path / "torn", 1, PartSize(tokens=len(first), documents=2, offsets=2), PartSize()
    )
    again.training.append(first, np.array([0, 4]))
    again.held_out.append(np.frombuffer(DOCUMENTS[2] * 2, np.uint8), np.array([0, 6]))
    assert again.finish(BYTES, None, {}).root == whole.root


def test_store_that_was_made_gets_its_names_after_a_crash(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / UNFINISHED).mkdir()
    for name in ("documents.bin", "blocks.bin", CORPUS_JSON):
        (tmp_path / name).rename(tmp_path / UNFINISHED / name)
    assert publish(tmp_path)
    TokenStore.open(tmp_path).verify()
    assert not (tmp_path / UNFINISHED).exists()
    assert not publish(tmp_path)
