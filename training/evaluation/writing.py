"""Between a user's text and a run's tokens: the run's own tokenizer, and text as it is drawn."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from protocol.errors import CorpusError
from protocol.manifest import BYTES_TOKENIZER, CorpusSpec
from training.data.store import TOKENIZER_JSON
from training.data.tokenizers import ByteTokenizer, Tokenizer, open_tokenizer

_TAIL_TOKENS = 16
"""Tokens are shown one by one, and what one shows can depend on those before it: whether a blank is
put before a word, or a character ends. No character has more bytes than 4."""


def run_tokenizer(spec: CorpusSpec, folder: Path | None) -> Tokenizer:
    """What made the tokens of a run; `folder` is that of its token store.

    Raises CorpusError where it is not there, or reads a text otherwise than the founder's.
    """
    if spec.tokenizer_digest == BYTES_TOKENIZER:
        return ByteTokenizer()
    if folder is None:
        raise CorpusError(
            f"the tokenizer of the run's text {spec.name} is not on this machine: name the folder "
            "of its token store with --corpus"
        )
    facts = (found := open_tokenizer(str(folder / TOKENIZER_JSON))).facts
    if facts.digest != spec.tokenizer_digest.hex():
        raise CorpusError(f"{folder / TOKENIZER_JSON} is another tokenizer than the run's")
    if facts.probe_digest != spec.probe_digest.hex():
        raise CorpusError(
            "this version of the tokenizers library makes other tokens of the same text than the "
            "founder's: install the founder's version"
        )
    return found


class TextWriter:
    """Text to tokens, and tokens to text as they come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._tail = tokenizer, list[int]()
        self._is_bytes = isinstance(tokenizer, ByteTokenizer)
        self._shown = ""

    def read(self, prompt: bytes) -> Sequence[int]:
        """The tokens of a prompt, which may be empty; then those that `write` gets follow it."""
        if self._is_bytes:
            return prompt
        text = prompt.decode("utf-8", "replace").replace("\0", "")
        tokens, _ = self._tokenizer.encode([text.encode()])
        # All texts have their end behind them. Where there is nothing, the model begins a document.
        found: list[int] = tokens.tolist()
        return found[:-1] or found

    def write(self, token: int) -> bytes:
        """The bytes of text that are sure now that `token` is drawn: none in mid-character."""
        if self._is_bytes:
            return bytes([token])
        self._tail.append(token)
        text = self._tokenizer.decode(np.array(self._tail, np.uint32))
        if text.endswith("\ufffd") and len(self._tail) < _TAIL_TOKENS:
            return b""
        new = text[len(self._shown) :]
        # The last token stays, so that the next is shown as what follows it.
        self._tail = self._tail[-1:]
        self._shown = self._tokenizer.decode(np.array(self._tail, np.uint32))
        return new.encode()
