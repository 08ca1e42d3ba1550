"""The token store: a folder that holds a text as tokens, pinned by one root.

    corpus.json      what the folder holds; written last, so a folder without it is none
    tokens.bin       tokens, little-endian, 1, 2 or 4 bytes each: training blocks, held-out blocks
    documents.bin    u64, little-endian: where each document begins, in tokens of its part
    blocks.bin       the BLAKE3 digest of each block: of tokens.bin, then of documents.bin
    tokenizer.json   the tokenizer, unless the tokens are bytes

Training tokens are filled up to whole blocks with those at their beginning, so that nobody trains
on nothing; held-out tokens with the end-of-document token, documents.bin with zeros. Blocks have 1
MiB, those of a small text 64 KiB: a small text, too, needs some blocks to train on and some to hold
out. The root is the Merkle root over blocks.bin.
"""

import json
import mmap
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import DTypeLike, NDArray

from protocol.errors import CorpusError
from protocol.grid import merkle_root
from protocol.limits import KIB, MIB
from training.files.durable import fsync_file, fsync_folder, replace_durably
from training.numeric import Tokens as Tokens

FORMAT = 1
BLOCK_BYTES = MIB
SMALL_BLOCK_BYTES = 64 * KIB
SMALL_TEXT_BYTES = 64 * MIB
"""Of tokens; a larger text has large blocks."""

CORPUS_JSON_BYTES_MAX = MIB
CORPUS_JSON, TOKENIZER_JSON = "corpus.json", "tokenizer.json"
UNFINISHED = "unfinished"
"""Folder within that of the store; all of a store is made there."""

_TOKENS, _DOCUMENTS, _BLOCKS = "tokens.bin", "documents.bin", "blocks.bin"
_HELD_OUT_TOKENS, _HELD_OUT_DOCUMENTS = "held_out_tokens.bin", "held_out_documents.bin"
_DIGEST_BYTES = 32
_OFFSET_BYTES = 8
_DTYPES: dict[int, DTypeLike] = {1: "<u1", 2: "<u2", 4: "<u4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What must be equal wherever the same tokens are made or read.

    `probe_digest` is of the ids of a fixed text: versions of a library read one file differently.
    """

    kind: str
    vocab_size: int
    end_of_document: int
    digest: str
    probe_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """One of the two parts of a store: what is trained on, or what is held out.

    `offsets` counts the entries in documents.bin: the documents, or what they were cut into where
    they were packed to fit. `text_bytes` are of UTF-8.
    """

    blocks: int
    tokens: int
    documents: int
    offsets: int
    text_bytes: int


_Facts = TypeVar("_Facts", "StoreFacts", PartFacts, TokenizerFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What `corpus.json` says. `context` is 0 unless documents were packed to fit windows of it;
    `made` tells people how the store came about, and nothing depends on it."""

    format: int
    root: str
    token_bytes: int
    block_bytes: int
    document_blocks: int
    context: int
    training: PartFacts
    held_out: PartFacts
    tokenizer: TokenizerFacts
    made: dict[str, object]

    @property
    def token_blocks(self) -> int:
        """Blocks of tokens.bin."""
        return self.training.blocks + self.held_out.blocks

    @property
    def num_blocks(self) -> int:
        """All blocks under the root."""
        return self.token_blocks + self.document_blocks

    def as_json(self) -> bytes:
        """The bytes of `corpus.json`."""
        return json.dumps(asdict(self), sort_keys=True, indent=1).encode() + b"\n"


def read_facts(text: bytes) -> StoreFacts:
    """What a `corpus.json` says. Raises CorpusError if it is none, or contradicts itself."""
    try:
        body = json.loads(text)
        parts = {name: _strict(PartFacts, body[name]) for name in ("training", "held_out")}
        tokenizer = _strict(TokenizerFacts, body["tokenizer"])
        facts = _strict(StoreFacts, body | parts | {"tokenizer": tokenizer})
        _check_facts(facts)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorpusError(f"{CORPUS_JSON} does not describe a token store: {error}") from None
    return facts


def _strict(kind: type[_Facts], body: dict[str, Any]) -> _Facts:
    """The dataclass, where each field is there, has its type, and no number is below 0."""
    if set(body) != {one.name for one in fields(kind)}:
        raise ValueError(f"it does not have the fields of {kind.__name__}")
    for one in fields(kind):
        value: Any = body[one.name]
        wanted = one.type if isinstance(one.type, type) else dict
        is_of_type = type(value) is wanted  # A bool is no number here.
        if not is_of_type or (isinstance(value, int) and not 0 <= value < 2**62):
            raise ValueError(f"{one.name} has no such value as {value!r:.40}")
    return kind(**body)


def _check_facts(facts: StoreFacts) -> None:
    if facts.format != FORMAT:
        raise ValueError(f"its format is {facts.format}, this version reads {FORMAT}")
    if facts.token_bytes not in _DTYPES:
        raise ValueError(f"tokens of {facts.token_bytes} bytes")
    if facts.block_bytes not in (BLOCK_BYTES, SMALL_BLOCK_BYTES):
        raise ValueError(f"blocks of {facts.block_bytes} bytes")
    if not re.fullmatch("[0-9a-f]{64}", facts.root):
        raise ValueError("its root is no digest")
    per_block = facts.block_bytes // facts.token_bytes
    for part in (facts.training, facts.held_out):
        if part.blocks != -(-part.tokens // per_block) or not part.tokens:
            raise ValueError(f"{part.blocks} blocks for {part.tokens} tokens")
        if not part.documents <= part.offsets <= part.tokens:
            raise ValueError(f"{part.documents} documents in {part.tokens} tokens")
    offset_bytes = _OFFSET_BYTES * (facts.training.offsets + facts.held_out.offsets)
    if facts.document_blocks != -(-offset_bytes // facts.block_bytes):
        raise ValueError(f"{facts.document_blocks} blocks of document offsets")
    if not 0 < facts.tokenizer.vocab_size <= 256**facts.token_bytes:
        raise ValueError(f"{facts.tokenizer.vocab_size} kinds of tokens")


class TokenStore:
    """A store that is open for reading. A block is checked against its digest when it is first
    read; the digests are checked against the root when the store is opened. Close it."""

    def __init__(self, folder: Path) -> None:
        """Raises CorpusError unless the folder holds a whole store."""
        self.facts = read_facts(_content(folder / CORPUS_JSON, CORPUS_JSON_BYTES_MAX))
        facts, self._folder = self.facts, folder
        wanted = _DIGEST_BYTES * facts.num_blocks
        self._digests = _content(folder / _BLOCKS, wanted)
        # Before the root is computed: the number of digests is a claim of corpus.json.
        if len(self._digests) != wanted or _root(self._digests).hex() != facts.root:
            raise CorpusError(f"{folder / _BLOCKS} does not lead to the root of {CORPUS_JSON}")
        self._tokens = _map(folder / _TOKENS, facts.block_bytes * facts.token_blocks)
        self._documents = _map(folder / _DOCUMENTS, facts.block_bytes * facts.document_blocks)
        self._is_checked = bytearray(facts.num_blocks)
        self._per_block = facts.block_bytes // facts.token_bytes
        self._all_tokens = np.frombuffer(self._tokens, _DTYPES[facts.token_bytes])

    @classmethod
    def open(cls, folder: Path) -> "TokenStore":
        """The store in `folder`. Raises CorpusError unless it is whole."""
        return cls(folder)

    def close(self) -> None:
        """Give the files back. Arrays that this store gave out must be gone, too."""
        del self._all_tokens
        self._tokens.close()
        self._documents.close()

    def digest_of_block(self, block: int) -> bytes:
        """BLAKE3 of a block, by which peers ask for it."""
        return self._digests[_DIGEST_BYTES * block : _DIGEST_BYTES * (block + 1)]

    def read_block(self, block: int) -> bytes:
        """The bytes of a block: of tokens, and behind those of documents. Raises CorpusError if
        they are not those of its digest."""
        self._check(block)
        return bytes(self._bytes_of(block))

    def tokens(self, first: int, count: int) -> Tokens:
        """`count` tokens from number `first` of tokens.bin on: a view, to be read only.

        Raises CorpusError if a block of theirs is not what its digest says.
        """
        assert 0 <= first <= first + count <= len(self._all_tokens)
        for block in range(first // self._per_block, -(-(first + count) // self._per_block)):
            if not self._is_checked[block]:
                self._check(block)
        return self._all_tokens[first : first + count]

    def tokens_of_block(self, block: int) -> Tokens:
        """All tokens of one block of tokens.bin: a view, to be read only."""
        return self.tokens(block * self._per_block, self._per_block)

    @property
    def first_held_out(self) -> int:
        """The number of the first held-out token in tokens.bin."""
        return self.facts.training.blocks * self._per_block

    @cached_property
    def offsets(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Where training and held-out documents begin, in tokens of their part: new memory."""
        for block in range(self.facts.token_blocks, self.facts.num_blocks):
            self._check(block)
        split, behind = self.facts.training.offsets, self.facts.held_out.offsets
        found = np.frombuffer(self._documents, "<u8", count=split + behind).copy()
        return found[:split], found[split:]

    def verify(self) -> None:
        """Check every block. Raises CorpusError at the first that is not what its digest says."""
        for block in range(self.facts.num_blocks):
            self._check(block)

    def _bytes_of(self, block: int) -> memoryview:
        size, behind = self.facts.block_bytes, block - self.facts.token_blocks
        mapped, number = (self._tokens, block) if behind < 0 else (self._documents, behind)
        return memoryview(mapped)[size * number : size * (number + 1)]

    def _check(self, block: int) -> None:
        with self._bytes_of(block) as view:
            if blake3(view).digest() != self.digest_of_block(block):
                raise CorpusError(
                    f"block {block} of {self._folder} was changed or is torn: pack the store again"
                )
        self._is_checked[block] = 1


def _content(path: Path, num_bytes_max: int) -> bytes:
    """A whole small file. Raises CorpusError if it is not there or larger."""
    try:
        with path.open("rb") as file:
            found = file.read(num_bytes_max + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise CorpusError(
            f"{path.parent} holds no whole token store, {path.name} is missing: make one with "
            "`barnraise data pack`"
        ) from None
    if len(found) > num_bytes_max:
        raise CorpusError(f"{path} is larger than the {num_bytes_max} bytes that it may have")
    return found


def _map(path: Path, num_bytes: int) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == num_bytes:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        pass
    raise CorpusError(f"{path} is missing or does not have {num_bytes} bytes: pack the store again")


def _root(digests: bytes) -> bytes:
    size = _DIGEST_BYTES
    return merkle_root([digests[at : at + size] for at in range(0, len(digests), size)])


# Writing -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartSize:
    """How much of one part was written; what a journal keeps to go on from."""

    tokens: int = 0
    documents: int = 0
    offsets: int = 0
    text_bytes: int = 0


class _PartWriter:
    """Appends the tokens and the offsets of one part to two files."""

    def __init__(self, tokens: Path, offsets: Path, dtype: DTypeLike, size: PartSize) -> None:
        self.size, self._dtype = size, np.dtype(dtype)
        self._tokens = _cut_to(tokens, size.tokens * self._dtype.itemsize)
        self._offsets = _cut_to(offsets, size.offsets * _OFFSET_BYTES)

    def append(self, tokens: Tokens, starts: NDArray[np.int64]) -> None:
        self._tokens.write(tokens.astype(self._dtype, copy=False).data)
        self._offsets.write((starts + self.size.tokens).astype("<u8").data)
        self.size.tokens += len(tokens)
        self.size.offsets += len(starts)

    def sync(self) -> None:
        for file in (self._tokens, self._offsets):
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        self._tokens.close()
        self._offsets.close()


def _cut_to(path: Path, num_bytes: int) -> BinaryIO:
    """A file that is open at its end, behind its first bytes."""
    path.touch()
    file = path.open("r+b")
    if os.fstat(file.fileno()).st_size < num_bytes:
        file.close()
        raise CorpusError(f"{path} lost what was written: delete {path.parent} and pack again")
    file.truncate(num_bytes)
    file.seek(num_bytes)
    return file


class StoreWriter:
    """Makes a store in the folder UNFINISHED of the one that gets it. Close it.

    What was synced outlives a crash: a writer that is opened with the sizes of then goes on there.
    """

    def __init__(
        self, folder: Path, token_bytes: int, training: PartSize, held_out: PartSize
    ) -> None:
        self._folder, self._making = folder, folder / UNFINISHED
        self._making.mkdir(parents=True, exist_ok=True)
        self._token_bytes, dtype = token_bytes, _DTYPES[token_bytes]
        making = self._making
        self.training = _PartWriter(making / _TOKENS, making / _DOCUMENTS, dtype, training)
        self.held_out = _PartWriter(
            making / _HELD_OUT_TOKENS, making / _HELD_OUT_DOCUMENTS, dtype, held_out
        )

    def sync(self) -> None:
        """Make what was appended durable."""
        self.training.sync()
        self.held_out.sync()

    def close(self) -> None:
        """Give the files back; syncs nothing."""
        self.training.close()
        self.held_out.close()

    def finish(
        self,
        tokenizer: TokenizerFacts,
        tokenizer_json: bytes | None,
        made: dict[str, object],
        context: int = 0,
    ) -> StoreFacts:
        """Put the parts together, and the store under its names; the writer is closed."""
        self.close()
        sizes = (self.training.size, self.held_out.size)
        small = sum(size.tokens for size in sizes) * self._token_bytes < SMALL_TEXT_BYTES
        block_bytes = SMALL_BLOCK_BYTES if small else BLOCK_BYTES
        making = self._making
        end = np.array([tokenizer.end_of_document], _DTYPES[self._token_bytes]).tobytes()
        token_bytes = [size.tokens * self._token_bytes for size in sizes]
        with _cut_to(making / _TOKENS, token_bytes[0]) as file:
            _fill(
                file, block_bytes, _first_bytes(making / _TOKENS, min(token_bytes[0], block_bytes))
            )
            _append_file(file, making / _HELD_OUT_TOKENS, token_bytes[1])
            _fill(file, block_bytes, end)
        offset_bytes = [size.offsets * _OFFSET_BYTES for size in sizes]
        with _cut_to(making / _DOCUMENTS, offset_bytes[0]) as file:
            _append_file(file, making / _HELD_OUT_DOCUMENTS, offset_bytes[1])
            _fill(file, block_bytes, b"\0")
        digests = b"".join(
            blake3(block).digest()
            for name in (_TOKENS, _DOCUMENTS)
            for block in _blocks_of(making / name, block_bytes)
        )
        (making / _BLOCKS).write_bytes(digests)
        if tokenizer_json is not None:
            (making / TOKENIZER_JSON).write_bytes(tokenizer_json)
        parts = [
            PartFacts(
                blocks=-(-size.tokens * self._token_bytes // block_bytes),
                tokens=size.tokens,
                documents=size.documents,
                offsets=size.offsets,
                text_bytes=size.text_bytes,
            )
            for size in sizes
        ]
        facts = StoreFacts(
            format=FORMAT,
            root=_root(digests).hex(),
            token_bytes=self._token_bytes,
            block_bytes=block_bytes,
            document_blocks=-(-sum(offset_bytes) // block_bytes),
            context=context,
            training=parts[0],
            held_out=parts[1],
            tokenizer=tokenizer,
            made=made,
        )
        for name in (_TOKENS, _DOCUMENTS, _BLOCKS):
            fsync_file(making / name)
        replace_durably(making / CORPUS_JSON, [facts.as_json()])
        publish(self._folder)
        return facts


def publish(folder: Path) -> bool:
    """Give a store that was made in `folder` its names; whether there was one. May be repeated."""
    making = folder / UNFINISHED
    if not (making / CORPUS_JSON).exists():
        return False
    for name in (_TOKENS, _DOCUMENTS, _BLOCKS, TOKENIZER_JSON, CORPUS_JSON):
        if (making / name).exists():
            (making / name).replace(folder / name)
            fsync_folder(folder)
    shutil.rmtree(making)
    return True


def _fill(file: BinaryIO, block_bytes: int, unit: bytes) -> None:
    """Fill a file up to a whole number of blocks."""
    missing = -file.tell() % block_bytes
    file.write((unit * (missing // len(unit) + 1))[:missing])


def _first_bytes(path: Path, num_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(num_bytes)


def _append_file(file: BinaryIO, path: Path, num_bytes: int) -> None:
    with path.open("rb") as other:
        while num_bytes:
            data = other.read(min(num_bytes, BLOCK_BYTES))
            assert data, f"{path} is shorter than what was written"
            file.write(data)
            num_bytes -= len(data)


def _blocks_of(path: Path, block_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(block_bytes):
            yield block
