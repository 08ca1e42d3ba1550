"""Sources to a token store: read, drop duplicates, hold out, tokenise, pack.

What comes out is a function of the documents, their order and the options. It does not depend on
the number of threads, on where reads or batches end, or on interruptions: documents are taken over
in their order, what is decided about one is decided by its hash, and a pack that goes on begins
behind the last batch that was made durable.

A source of weight 2.5 is read three times: all sources once, then those of more than 1 again, and
the last time every document whose hash is in the lower half. Copies of a text so lie far apart.
"""

import json
import math
import sys
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import CorpusError
from protocol.limits import KIB, MIB
from training.data.dedupe import PackJournal
from training.data.documents import Form, ReadTally, read_documents
from training.data.sources import (
    STDIN,
    BadDocument,
    FileList,
    Kind,
    SourceFile,
    SourceSpec,
    list_files,
)
from training.data.store import (
    CORPUS_JSON,
    FORMAT,
    SMALL_BLOCK_BYTES,
    UNFINISHED,
    PartSize,
    StoreFacts,
    StoreWriter,
    Tokens,
    publish,
    read_facts,
)
from training.data.tokenizers import Tokenizer

HELD_OUT_SHARE = 0.05
THREADS_MAX = 64
DUPLICATE = "duplicate"

_JOURNAL, _STDIN = "journal.sqlite", "stdin"
_BATCH_BYTES = 256 * KIB
_BATCH_ITEMS = 4096
_WAITING_BYTES = 4 * MIB
_DETAIL_CHARACTERS = 300
_SOURCES_NOTED = 100
_SAVE_S = 5.0
_GROUP_TOKENS = 1 << 20
"""Documents are packed to fit in groups of so many tokens: more waste less, and take memory."""

Tell = Callable[[int, int], None]
"""Called with the bytes of the sources that were read, and those that there are, 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """What to pack and how. `context` packs documents to fit windows of so many tokens; 0 puts them
    behind one another. `notes` go into the store, for people."""

    sources: tuple[SourceSpec, ...]
    out: Path
    form: Form = field(default_factory=Form)
    stdin_kind: Kind = "text"
    held_out_share: float = HELD_OUT_SHARE
    context: int = 0
    threads: int = 1
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises CorpusError for options that make no store."""
        if not 0.0 < self.held_out_share < 1.0:
            raise CorpusError(f"a held-out share is between 0 and 1, not {self.held_out_share}")
        if not 1 <= self.threads <= THREADS_MAX:
            raise CorpusError(f"there are 1 to {THREADS_MAX} threads, not {self.threads}")
        is_whole = self.context and SMALL_BLOCK_BYTES // 4 % self.context == 0
        if self.context and not (is_whole and self.context >= 16):
            raise CorpusError(
                f"best-fit packing takes a context of 16, 32, ... {SMALL_BLOCK_BYTES // 4} "
                f"tokens, not {self.context}: whole contexts fill a block"
            )
        if sum(spec.where == STDIN for spec in self.sources) > 1:
            raise CorpusError("standard input is read once: name - once")


@dataclass(frozen=True, slots=True)
class _Reading:
    """One reading of one file. `share` is that of the documents that are taken."""

    file: SourceFile
    number: int
    is_first: bool
    share: float


@dataclass(slots=True, kw_only=True)
class _Mark:
    """How far a pack has come; a pack goes on from one. `lowest` and `highest` are the hashes by
    which documents are held out, of those seen so far."""

    held_out_below: int
    reading: int = 0
    items: int = 0
    lowest: int = 1 << 64
    highest: int = -1
    skipped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def copy(self) -> "_Mark":
        return _Mark(**(asdict(self)))

    def skip(self, bad: BadDocument) -> None:
        self.skipped[bad.reason] = self.skipped.get(bad.reason, 0) + 1
        # Names of files and fields are anybody's, and corpus.json has a bound.
        self.examples.setdefault(bad.reason, bad.detail[:_DETAIL_CHARACTERS])


@dataclass(slots=True)
class _Batch:
    """Texts that are tokenised together, which of them are held out, and the mark behind them."""

    texts: list[bytes] = field(default_factory=list)
    is_held_out: list[bool] = field(default_factory=list)
    num_bytes: int = 0
    mark: _Mark = field(default_factory=lambda: _Mark(held_out_below=0))


def pack(options: PackOptions, tokenizer: Tokenizer, tell: Tell | None = None) -> StoreFacts:
    """Make the store, or go on with one that was interrupted.

    Raises CorpusError saying what to do: sources that hold no document, a folder that is taken, an
    unfinished store of other sources or options.
    """
    if (options.out / CORPUS_JSON).exists():
        raise CorpusError(f"{options.out} holds a token store: name another folder, or delete it")
    making = options.out / UNFINISHED
    if options.out.exists() and any(options.out.iterdir()) and not making.is_dir():
        raise CorpusError(f"{options.out} is not empty: name a new folder")
    lists = [list_files(spec, options.stdin_kind) for spec in options.sources]
    making.mkdir(parents=True, exist_ok=True)
    readings, passed_over = _plan_readings(options.sources, lists, making)
    plan = _digest_of_plan(options, readings, tokenizer)
    with closing(PackJournal(making / _JOURNAL)) as journal:
        begun = journal.load("plan")
        if begun not in (None, plan):
            raise CorpusError(
                f"{options.out} has an unfinished store of other sources, options or file times: "
                f"give the same again to go on, or delete {making} to begin anew"
            )
        packing = _Packing(options, tokenizer, readings, journal, tell or (lambda *_: None))
        is_made = (making / CORPUS_JSON).exists()
        if not is_made:
            packing.begin(plan, passed_over)
            packing.run()
            packing.hold_out_and_train(plan, passed_over)
            packing.finish()
    # Behind the end of the journal, which lies in the folder that goes.
    publish(options.out)
    return read_facts((options.out / CORPUS_JSON).read_bytes())


def _plan_readings(
    sources: Sequence[SourceSpec], lists: Sequence[FileList], making: Path
) -> tuple[list[_Reading], list[BadDocument]]:
    passed_over = [bad for one in lists for bad in one.passed_over]
    numbered, number = list[tuple[SourceSpec, list[tuple[int, SourceFile]]]](), 0
    for spec, one in zip(sources, lists, strict=True):
        files = [_kept_stdin(making, f) if f.path == STDIN else f for f in one.files]
        numbered.append((spec, list(enumerate(files, number))))
        number += len(files)
    times = max((math.ceil(spec.weight) for spec in sources), default=0)
    readings = [
        _Reading(file, number, is_first=time == 0, share=min(1.0, spec.weight - time))
        for time in range(times)
        for spec, files in numbered
        if spec.weight > time
        for number, file in files
    ]
    return readings, passed_over


def _kept_stdin(making: Path, file: SourceFile) -> SourceFile:
    """Standard input as a file of its own: a pack may have to read it again, after an interruption
    for instance, and then knows by its hash whether it is the same."""
    path, hasher = making / _STDIN, blake3()
    with path.open("wb") as kept:
        while chunk := sys.stdin.buffer.read(MIB):
            hasher.update(chunk)
            kept.write(chunk)
        size = kept.tell()
    version = int.from_bytes(hasher.digest(length=8), "big")
    return replace(file, path=str(path), num_bytes=size, version=version)


def _digest_of_plan(options: PackOptions, readings: list[_Reading], tokenizer: Tokenizer) -> str:
    told = [
        FORMAT,
        [asdict(reading) for reading in readings],
        asdict(tokenizer.facts),
        [options.form.field, options.form.render is not None, options.notes],
        [options.held_out_share, options.context],
    ]
    return blake3(json.dumps(told, sort_keys=True).encode()).hexdigest()


class _Packing:
    """One pack at work."""

    def __init__(
        self,
        options: PackOptions,
        tokenizer: Tokenizer,
        readings: list[_Reading],
        journal: PackJournal,
        tell: Tell,
    ) -> None:
        self._options, self._tokenizer, self._readings = options, tokenizer, readings
        self._journal, self._tell = journal, tell
        sizes = [reading.file.num_bytes for reading in readings]
        self._total_bytes = sum(sizes) if all(sizes) else 0
        self._token_bytes = next(n for n in (1, 2, 4) if tokenizer.facts.vocab_size <= 256**n)

    def begin(self, plan: str, passed_over: list[BadDocument], below: int | None = None) -> None:
        """Where the journal says, or at the beginning; there with another threshold if one is
        given."""
        text = self._journal.load("mark")
        if text is not None and below is None:
            body = json.loads(text)
            self._mark = _Mark(**body["mark"])
            sizes = [PartSize(**body[name]) for name in ("training", "held_out")]
        else:
            self._journal.forget()
            if below is None:
                below = int(self._options.held_out_share * 2.0**64)
            self._mark = _Mark(held_out_below=below)
            for bad in passed_over:
                self._mark.skip(bad)
            sizes = [PartSize(), PartSize()]
        # Before the files are cut: a journal must never claim more than they hold.
        self._journal.save("plan", plan)
        self._writer = StoreWriter(self._options.out, self._token_bytes, *sizes)
        self._fitting = BestFit(self._options.context, self._tokenizer.facts.end_of_document)

    def run(self) -> None:
        """Read, tokenise and write all that is left."""
        threads, saved_s = self._options.threads, time.monotonic()
        pool = ThreadPoolExecutor(threads)
        waiting: deque[tuple[_Batch, Future[tuple[Tokens, NDArray[np.int64]]]]] = deque()
        try:
            for batch in self._batches():
                waiting.append((batch, pool.submit(self._tokenizer.encode, batch.texts)))
                # One more than there are threads: so none waits while a batch is taken over. Of
                # long documents fewer, whatever the threads: their tokens are many times as long.
                while len(waiting) > threads or (
                    len(waiting) > 1 and sum(one.num_bytes for one, _ in waiting) > _WAITING_BYTES
                ):
                    self._take(*waiting.popleft())
                if time.monotonic() - saved_s > _SAVE_S and self._fitting.is_empty:
                    self._save()
                    saved_s = time.monotonic()
            while waiting:
                self._take(*waiting.popleft())
            self._append_training(*self._fitting.flush())
            self._save()
        finally:
            pool.shutdown(cancel_futures=True)
            self._writer.close()

    def hold_out_and_train(self, plan: str, passed_over: list[BadDocument]) -> None:
        """See to it that a small text has documents of both parts: where one part has none, the
        whole is packed again with the one document in it whose hash is nearest to it."""
        training, held_out = self._writer.training.size, self._writer.held_out.size
        if training.documents and held_out.documents:
            return
        mark = self._mark
        if mark.highest <= mark.lowest:
            self._journal.forget()  # There is nothing to go on with: other sources may come.
            found = "no document" if mark.highest < 0 else "only one document"
            raise CorpusError(
                f"{found} in the sources, and a store needs two, one to train on and one to hold "
                "out" + _told_skipped(mark)
            )
        below = mark.highest if held_out.documents else mark.lowest + 1
        self.begin(plan, passed_over, below)
        self.run()
        if not (self._writer.training.size.documents and self._writer.held_out.size.documents):
            raise CorpusError(
                "the weights of the sources leave no document to train on: raise them"
            )

    def finish(self) -> None:
        """Make the store of what was written."""
        options, mark = self._options, self._mark
        made: dict[str, object] = {
            "sources": [
                [Path(spec.where).name, spec.weight] for spec in options.sources[:_SOURCES_NOTED]
            ],
            "skipped": mark.skipped,
            "examples": mark.examples,
            "field": options.form.field,
            **options.notes,
        }
        facts, content = self._tokenizer.facts, self._tokenizer.content
        self._writer.finish(facts, content, made, options.context)

    def _batches(self) -> Iterator[_Batch]:
        mark, batch, items = self._mark.copy(), _Batch(), 0
        tally = ReadTally()
        before = sum(one.file.num_bytes for one in self._readings[: mark.reading])
        for number in range(mark.reading, len(self._readings)):
            reading = self._readings[number]
            first = mark.items if number == mark.reading else 0
            mark.reading, mark.items, tally.num_bytes = number, first, 0
            found = read_documents(reading.file, self._options.form, tally)
            for item, one in enumerate(islice(found, first, None), first):
                mark.items, items = item + 1, items + 1
                self._sort(one, reading, item, mark, batch)
                if batch.num_bytes >= _BATCH_BYTES or items >= _BATCH_ITEMS:
                    batch.mark = mark.copy()
                    yield batch
                    batch, items = _Batch(), 0
                    self._tell(before + tally.num_bytes, self._total_bytes)
            before += reading.file.num_bytes
        mark.reading, mark.items = len(self._readings), 0
        batch.mark = mark
        yield batch
        self._tell(before, self._total_bytes)

    def _sort(
        self, one: bytes | BadDocument, reading: _Reading, item: int, mark: _Mark, batch: _Batch
    ) -> None:
        """Put a document into the batch, or count why not."""
        if isinstance(one, BadDocument):
            if reading.is_first:
                mark.skip(one)
            return
        digest = blake3(one).digest(length=16)
        # One decides by a half of the hash who is held out, and by the other who is taken.
        lot, chance = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
        if not self._journal.is_first(digest, reading.number << 40 | item):
            if reading.is_first:
                mark.skip(BadDocument(DUPLICATE, reading.file.name))
            return
        is_held_out = lot < mark.held_out_below
        if chance >= reading.share * 2.0**64 or (is_held_out and not reading.is_first):
            return
        mark.lowest, mark.highest = min(mark.lowest, lot), max(mark.highest, lot)
        batch.texts.append(one)
        batch.is_held_out.append(is_held_out)
        batch.num_bytes += len(one)

    def _take(self, batch: _Batch, encoded: "Future[tuple[Tokens, NDArray[np.int64]]]") -> None:
        tokens, lengths = encoded.result()
        self._mark = batch.mark
        if not batch.texts:
            return
        is_held_out = np.array(batch.is_held_out)
        is_token_held_out = np.repeat(is_held_out, lengths)
        sizes = np.array([len(text) for text in batch.texts])
        for part, chosen in (
            (self._writer.training, ~is_held_out),
            (self._writer.held_out, is_held_out),
        ):
            part.size.documents += int(chosen.sum())
            part.size.text_bytes += int(sizes[chosen].sum())
        held_out = lengths[is_held_out]
        self._writer.held_out.append(tokens[is_token_held_out], np.cumsum(held_out) - held_out)
        training, trained = tokens[~is_token_held_out], lengths[~is_held_out]
        if not self._options.context:
            self._writer.training.append(training, np.cumsum(trained) - trained)
        elif self._fitting.add(training, trained) >= _GROUP_TOKENS:
            self._append_training(*self._fitting.flush())

    def _append_training(self, tokens: Tokens | None, starts: NDArray[np.int64]) -> None:
        if tokens is not None:
            self._writer.training.append(tokens, starts)

    def _save(self) -> None:
        self._writer.sync()
        body = {
            "mark": asdict(self._mark),
            "training": asdict(self._writer.training.size),
            "held_out": asdict(self._writer.held_out.size),
        }
        self._journal.save("mark", json.dumps(body))


def _told_skipped(mark: _Mark) -> str:
    told = [
        f"{reason}: {count} ({mark.examples.get(reason, '')})"
        for reason, count in sorted(mark.skipped.items())
    ]
    return ("; skipped were " + "; ".join(told)) if told else ""


class BestFit:
    """Documents packed into windows of equal size so that few are cut (Ding et al. 2024, arXiv
    2404.10830): longest first, each where it leaves the least room."""

    def __init__(self, context: int, end_of_document: int) -> None:
        self._context, self._end = context, end_of_document
        self._pieces: list[Tokens] = []
        self._num_tokens = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be packed."""
        return not self._pieces

    def add(self, tokens: Tokens, lengths: NDArray[np.int64]) -> int:
        """Take documents, those longer than a window in pieces; how many tokens wait."""
        start = 0
        for length in lengths.tolist():
            for first in range(start, start + length, self._context):
                self._pieces.append(tokens[first : min(first + self._context, start + length)])
            start += length
        self._num_tokens += len(tokens)
        return self._num_tokens

    def flush(self) -> tuple[Tokens | None, NDArray[np.int64]]:
        """The windows of all that waits, filled up with ends, and where each piece begins."""
        windows: list[list[Tokens]] = []
        room: list[tuple[int, int]] = []
        for piece in sorted(self._pieces, key=len, reverse=True):  # Equal ones in their order.
            place = bisect_left(room, (len(piece), -1))
            if place == len(room):
                left, number = self._context, len(windows)
                windows.append([])
            else:
                left, number = room.pop(place)
            windows[number].append(piece)
            if left > len(piece):
                insort(room, (left - len(piece), number))
        starts, parts = list[int](), list[NDArray[Any]]()
        for number, window in enumerate(windows):
            at = number * self._context
            for piece in window:
                starts.append(at)
                parts.append(piece)
                at += len(piece)
            left = (number + 1) * self._context - at
            parts.append(np.full(left, self._end, window[0].dtype))
        self._pieces, self._num_tokens = [], 0
        return (np.concatenate(parts) if parts else None), np.array(starts, np.int64)
