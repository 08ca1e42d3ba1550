"""SEAM Tokenizer: texts to tokens and back; bytes, or a file of the tokenizers library.

A tokenizer.json may be a stranger's. It is data, but a library parses it, so its size, its depth
and its numbers are bounded first. What a text holds is never a special token: a document that
spells the end-of-document token does not end there. Only a chat template writes special tokens.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import CorpusError
from protocol.limits import KIB, MIB
from training.data.documents import cut_text, json_depth, needed_library
from training.data.store import TokenizerFacts, Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

FILE_BYTES_MAX = 40 * MIB
"""The largest tokenizer.json in use, of 262,144 tokens, has 33 MB."""

VOCAB_MAX = MERGES_MAX = 1 << 19
"""Of the same one: 514,906 merges."""

_ADDED_MAX = 1 << 16
_VALUES_MAX = 1 << 22
_DEPTH_MAX = 32
_PIECE_BYTES = 64 * KIB
"""A longer document is tokenised piece by piece: the library takes a hundred bytes a token."""

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
"""Special tokens that end a document in well-known vocabularies; the first that is there counts."""

END_OF_DOCUMENT = _ENDS[0]

PROBE = (
    "The quick brown fox (1234.5, -67) can't jump\tover 3 lazy dogs...\n\n"
    "    def f(x): return x**2\n"
    "Zwölf Boxkämpfer, garçon, naïve; кириллица, ελληνικά, 漢字かな交じり文, 한국어,\n"
    "العربية, हिन्दी 🙂\U0001f469\u200d\U0001f467  \u00a0e\u0301\u200b\r\n"
    "<|endoftext|></s> ﬁ ½ ² Ⅷ \x07 \ufffd"
)


class Tokenizer(Protocol):
    """SEAM: called by packing from several threads, and by whoever shows text."""

    facts: TokenizerFacts
    content: bytes | None
    """The tokenizer.json; None where there is none."""

    def encode(self, texts: Sequence[bytes]) -> tuple[Tokens, NDArray[np.int64]]:
        """The tokens of all texts behind one another, each with its end-of-document token, and how
        many each has. New memory; a text is UTF-8 without NUL."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of tokens; what is cut within a character is shown as U+FFFD."""
        ...


class ByteTokenizer:
    """The bytes of UTF-8; byte 0, which no document has, ends a document."""

    content: bytes | None = None

    def __init__(self) -> None:
        digest = blake3(b"barnraise/tokenizer/bytes/1").hexdigest()
        self.facts = TokenizerFacts(
            kind="bytes",
            vocab_size=256,
            end_of_document=0,
            digest=digest,
            probe_digest=_digest_of_ids(np.frombuffer(PROBE.encode() + b"\0", np.uint8)),
        )

    def encode(self, texts: Sequence[bytes]) -> tuple[Tokens, NDArray[np.int64]]:
        """See Tokenizer."""
        joined = b"".join(part for text in texts for part in (text, b"\0"))
        return np.frombuffer(joined, np.uint8), np.array([len(t) + 1 for t in texts], np.int64)

    def decode(self, tokens: Tokens) -> str:
        """See Tokenizer."""
        return tokens.astype(np.uint8).tobytes().decode("utf-8", "replace")


class FileTokenizer:
    """A tokenizer.json in the tokenizers library."""

    def __init__(self, content: bytes, end: str | None = None, *, is_chat: bool = False) -> None:
        """`end` names the special token that ends a document. Raises CorpusError unless `content`
        is a tokenizer that can be taken."""
        check_tokenizer_json(content)
        self.content: bytes | None = content
        self._library = library = _open_library(content)
        vocab = library.get_vocab(with_added_tokens=True)
        vocab_size = max(vocab.values(), default=-1) + 1
        if not 0 < vocab_size <= VOCAB_MAX:
            raise CorpusError(f"tokenizer.json has ids up to {vocab_size - 1}, not to {VOCAB_MAX}")
        end = end or next((name for name in _ENDS if name in vocab), None)
        if end is None or end not in vocab:
            raise CorpusError(
                f"tokenizer.json has no token {end or ' or '.join(_ENDS)}: name the one that ends "
                "a document with --end-of-document"
            )
        self._end, self._is_short = vocab[end], vocab_size <= 1 << 16
        library.no_padding()
        library.no_truncation()
        library.encode_special_tokens = True
        ids = self.encode([PROBE.encode()])[0]
        library.encode_special_tokens = not is_chat
        self.facts = TokenizerFacts(
            kind="tokenizer.json",
            vocab_size=vocab_size,
            end_of_document=self._end,
            digest=blake3(content).hexdigest(),
            probe_digest=_digest_of_ids(ids),
        )

    def encode(self, texts: Sequence[bytes]) -> tuple[Tokens, NDArray[np.int64]]:
        """See Tokenizer."""
        pieces, counts = list[str](), list[int]()
        for text in texts:
            found = [text] if len(text) <= _PIECE_BYTES else cut_text(iter([text]), _PIECE_BYTES)
            before = len(pieces)
            pieces += [piece.decode() for piece in found]
            counts.append(len(pieces) - before)
        with _LibraryErrors("the tokenizer fails on a text"):
            encoded = iter(self._library.encode_batch_fast(pieces, add_special_tokens=False))
        ids, lengths = list[int](), list[int]()
        for count in counts:
            before = len(ids)
            for _ in range(count):
                ids += next(encoded).ids
            ids.append(self._end)
            lengths.append(len(ids) - before)
        tokens: Tokens = np.array(ids, np.uint16) if self._is_short else np.array(ids, np.uint32)
        return tokens, np.array(lengths, np.int64)

    def decode(self, tokens: Tokens) -> str:
        """See Tokenizer."""
        with _LibraryErrors("the tokenizer fails on tokens"):
            return self._library.decode(tokens.tolist(), skip_special_tokens=False)


def open_tokenizer(where: str, end: str | None = None, *, is_chat: bool = False) -> Tokenizer:
    """`bytes`, or the path of a tokenizer.json. Raises CorpusError saying what to do."""
    if where == "bytes":
        return ByteTokenizer()
    try:
        with Path(where).expanduser().open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CorpusError(
            f"cannot read the tokenizer {where}: {error.strerror}; name a tokenizer.json, one made "
            "by `barnraise data train-tokenizer` for instance, or bytes"
        ) from None
    return FileTokenizer(content, end, is_chat=is_chat)


def check_tokenizer_json(content: bytes) -> None:
    """Raise CorpusError unless it is within all bounds; nothing is parsed before it is measured."""
    if len(content) > FILE_BYTES_MAX:
        raise CorpusError(f"tokenizer.json has more than {FILE_BYTES_MAX // MIB} MiB")
    if content.count(b",") > _VALUES_MAX:
        raise CorpusError(f"tokenizer.json has more than {_VALUES_MAX:,} values")
    if json_depth(content) > _DEPTH_MAX:
        raise CorpusError(f"tokenizer.json is nested deeper than {_DEPTH_MAX}")
    try:
        body = json.loads(content)
        model = body["model"]
        counts = {
            "tokens": (len(model["vocab"]), VOCAB_MAX),
            "merges": (len(model.get("merges") or ()), MERGES_MAX),
            "added tokens": (len(body.get("added_tokens") or ()), _ADDED_MAX),
        }
        dropout = model.get("dropout")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorpusError(
            "tokenizer.json is no JSON object with a model and its vocabulary"
        ) from None
    for name, (count, count_max) in counts.items():
        if count > count_max:
            raise CorpusError(f"tokenizer.json has {count:,} {name}, more than {count_max:,}")
    if dropout:
        raise CorpusError("tokenizer.json leaves out merges at random: set its dropout to null")


def train_tokenizer(texts: Iterable[bytes], vocab_size: int) -> bytes:
    """A tokenizer.json learnt from texts: byte-level BPE, as GPT-2 has it. The same texts give the
    same bytes.

    Raises CorpusError where the library is missing or the texts are too few for a vocabulary.
    """
    library = _import_library()
    from tokenizers import decoders, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if not len(alphabet) < vocab_size <= VOCAB_MAX:
        raise CorpusError(f"a vocabulary has {len(alphabet) + 1} to {VOCAB_MAX:,} tokens")
    made = library(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=alphabet,
        show_progress=False,
    )

    def pieces() -> Iterator[str]:
        for text in texts:
            yield from (piece.decode() for piece in cut_text(iter([text]), _PIECE_BYTES))

    with _LibraryErrors("no tokenizer can be trained"):
        made.train_from_iterator(pieces(), trainer)
    return made.to_str(pretty=True).encode()


def _import_library() -> "type[LibraryTokenizer]":
    # Packing has threads of its own, which take whole batches; the library's would be idle while
    # the results of one batch are taken over. The variable is looked up at each call.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise needed_library("tokenizers", "a tokenizer.json") from None
    return Tokenizer


def _open_library(content: bytes) -> "LibraryTokenizer":
    with _LibraryErrors("tokenizer.json is not taken by the tokenizers library"):
        return _import_library().from_buffer(content)


class _LibraryErrors:
    """The library raises a bare Exception for most things, and for a bug of its own an exception
    that is none; nothing narrower can be caught. Errors of other types pass."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing is taken."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            return
        if kind in (Exception, ValueError, TypeError) or kind.__name__ == "PanicException":
            raise CorpusError(f"{self._what}: {str(error)[:200]}") from error


def _digest_of_ids(ids: NDArray[Any]) -> str:
    return blake3(ids.astype("<u4").tobytes()).hexdigest()
