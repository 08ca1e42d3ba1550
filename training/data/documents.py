"""SEAM: documents out of files, in bounded memory, whatever the files hold.

A document is UTF-8 without NUL, with the line ends of Unix and no byte order mark: CRLF becomes LF,
a BOM at the beginning of a file is dropped, and nothing else is changed. What is not such a text
is a BadDocument: it is counted, and reading goes on. A NUL is refused and not replaced, for it is
what ends a document of bytes; so is a lone surrogate, which no UTF-8 has.

Nothing here depends on the release of Python, on tables of Unicode or on the size of a read, so
that every machine finds the same documents. JSON is measured before it is parsed, because the depth
at which Python's parser gives up differs between releases.
"""

import csv
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from blake3 import blake3

from protocol.errors import CorpusError
from protocol.limits import KIB, MIB
from training.data.sources import HUB, STDIN, BadDocument, SourceFile

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

RECORD_BYTES_MAX = 4 * MIB
"""Of a line of JSONL or a record of CSV. JSON of empty lists takes twenty times as much in memory
as it has bytes."""

TEXT_BYTES_MAX = 16 * KIB
"""Files of text are cut at the end of a paragraph into documents of at most so many bytes: a file
may not fit into memory, and one large file must have documents to train on and some to hold out."""

JSON_DEPTH_MAX = 64
EXPANSION_MAX = 100
EXPANSION_FREE_BYTES = 64 * MIB
"""A compressed file may have so many bytes of text for each of its own; the first ones are free."""

_READ_BYTES = MIB
_GZIP, _GZIP_READ_BYTES = 31, 64 * KIB
_BATCH_BYTES = 4 * MIB
_BATCH_ROWS_MAX = 1024
_FIELDS_SHOWN = 8
_BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\n\r\f\v"
Chunks = Iterator[bytes]
Render = Callable[[object], str]


@dataclass(frozen=True, slots=True)
class Form:
    """How a record becomes text: what its field holds, or what `render` makes of that."""

    field: str = "text"
    render: Render | None = None


class ReadTally:
    """Bytes that were read of the files so far, as they lie on the disk."""

    def __init__(self) -> None:
        self.num_bytes = 0


class _BadFile(Exception):
    """The rest of a file cannot be read; the message is the reason."""


def read_documents(
    file: SourceFile, form: Form, tally: ReadTally | None = None
) -> Iterator[bytes | BadDocument]:
    """The documents of a file in their order. A file that ends badly ends with a BadDocument.

    Raises CorpusError if a library that its kind needs is missing, or the hub has no such data set.
    """
    tally = tally or ReadTally()
    try:
        match file.kind:
            case "text":
                for piece in cut_text(_chunks(file, tally), TEXT_BYTES_MAX):
                    yield checked_text(piece, file.name)
            case "jsonl":
                yield from _jsonl(_chunks(file, tally), form, file.name)
            case "csv" | "tsv":
                yield from _csv(_chunks(file, tally), form, file)
            case "parquet":
                yield from _parquet(file, form, tally)
            case "hub":
                yield from _hub(file, form)
    except _BadFile as error:
        yield BadDocument(str(error), file.name)
    except (OSError, EOFError, zlib.error) as error:
        yield BadDocument("file that is torn or cannot be read", f"{file.name}: {error}"[:300])


def checked_text(text: bytes, where: str) -> bytes | BadDocument:
    """The document that `text` is, with the line ends of Unix; or why it is none."""
    if b"\r\n" in text:
        text = text.replace(b"\r\n", b"\n")
    if b"\0" in text:
        return BadDocument("text with a NUL", where)
    if not text.strip(_BLANKS):
        return BadDocument("empty text", where)
    if len(text) > RECORD_BYTES_MAX:
        return BadDocument(f"text of more than {RECORD_BYTES_MAX // MIB} MiB", where)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return BadDocument("text that is not UTF-8", where)
    return text


def json_depth(text: bytes) -> int:
    """How deep lists and objects of a JSON text are nested, by its brackets outside strings."""
    # In pieces and without a regular expression: those take time or memory by the square of hostile
    # lengths. A quote behind an escaped backslash is no escaped one.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    depth = deepest = is_in_string = 0
    for start in range(0, len(plain), _READ_BYTES):
        piece = np.frombuffer(plain[start : start + _READ_BYTES], np.uint8)
        inside = np.bitwise_xor.accumulate((piece == ord('"')).view(np.uint8)) ^ is_in_string
        signs = np.where(inside, 0, piece | 0x20)  # Both kinds of brackets become braces.
        steps = (signs == ord("{")).view(np.int8) - (signs == ord("}")).view(np.int8)
        depths = np.cumsum(steps, dtype=np.int64) + depth
        depth, deepest = int(depths[-1]), max(deepest, int(depths.max()))
        is_in_string = int(inside[-1])
    return deepest


def needed_library(name: str, why: str) -> CorpusError:
    """What to tell a user who lacks a library of the extra."""
    return CorpusError(f'{why} needs {name}: pip install "barnraise[corpora]"')


# Bytes -------------------------------------------------------------------------------------------


def _chunks(file: SourceFile, tally: ReadTally) -> Chunks:
    """The bytes of a file, decompressed, without BOM and with the line ends of Unix."""
    if file.path == STDIN:
        yield from _plain_line_ends(_decompressed(_Counted(sys.stdin.buffer, tally), ""))
        return
    with open(file.path, "rb") as opened:
        counted = _Counted(opened, tally)
        yield from _plain_line_ends(_decompressed(counted, file.compression))


class _Counted:
    """A file whose reads are counted; it cannot be sought, as standard input cannot."""

    closed = False

    def __init__(self, file: BinaryIO, tally: ReadTally) -> None:
        self._file, self._tally = file, tally
        self.num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.num_bytes += len(data)
        self._tally.num_bytes += len(data)
        return data

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Whoever opened the file closes it."""


def _decompressed(file: _Counted, compression: str) -> Chunks:
    pieces: Chunks
    if compression == "gz":
        pieces = _gunzipped(file)
    elif compression == "zst":
        try:
            import pyarrow as pa
        except ImportError:
            raise needed_library("pyarrow", "a .zst file") from None
        # It bounds what it decompresses at once and sees a torn end; the stream readers of the
        # zstandard package end there as if the file were whole.
        stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
        pieces = iter(partial(stream.read, _READ_BYTES), b"")
    else:
        pieces = iter(partial(file.read, _READ_BYTES), b"")
    total = 0
    for data in pieces:
        total += len(data)
        if compression and total > max(EXPANSION_FREE_BYTES, EXPANSION_MAX * file.num_bytes):
            raise _BadFile(f"file that grows to more than {EXPANSION_MAX} times its size")
        yield data


def _gunzipped(file: _Counted) -> Chunks:
    """The members of a .gz file. Python's own reader takes other steps from release to release, and
    how much it gives of a file that is torn or grows too far depends on them."""
    engine = zlib.decompressobj(_GZIP)
    while data := file.read(_GZIP_READ_BYTES):
        while data:
            if engine.eof:
                data = data.lstrip(b"\0")  # Some programs fill up with zeros behind a member.
                if not data:
                    break
                engine = zlib.decompressobj(_GZIP)
            piece = engine.decompress(data, _READ_BYTES)
            data = engine.unused_data if engine.eof else engine.unconsumed_tail
            if piece:
                yield piece
        while piece := b"" if engine.eof else engine.decompress(b"", _READ_BYTES):
            yield piece
    if not engine.eof:
        raise EOFError("it ends within the data")


def _plain_line_ends(chunks: Chunks) -> Chunks:
    is_first, held_back = True, b""
    for chunk in chunks:
        data = held_back + chunk
        if is_first and len(data) < len(_BOM) and _BOM.startswith(data):
            held_back = data
            continue
        if is_first:
            data, is_first = data.removeprefix(_BOM), False
        # The LF of a CRLF may be the first byte of the next chunk.
        held_back = data[-1:] if data.endswith(b"\r") else b""
        yield data[: len(data) - len(held_back)].replace(b"\r\n", b"\n")
    if held_back:
        yield held_back


def cut_text(chunks: Chunks, num_bytes_max: int) -> Iterator[bytes]:
    """Pieces of at most so many bytes that end with a paragraph, else with a line, else with a
    word, else with a character; together they are the text."""
    rest = b""
    for chunk in chunks:
        data, start = rest + chunk, 0
        # Where the chunks end must not matter: a cut needs all that the rule looks at.
        while len(data) - start > num_bytes_max:
            stop = _place_to_cut(data, start, start + num_bytes_max)
            yield data[start:stop]
            start = stop
        rest = data[start:]
    if rest:
        yield rest


def _place_to_cut(data: bytes, start: int, stop: int) -> int:
    for end in (b"\n\n", b"\n", b" "):
        found = data.rfind(end, start + (stop - start) // 4, stop)
        if found >= 0:
            return found + len(end)
    for back in range(4):
        if data[stop - back] & 0xC0 != 0x80:  # Bytes within a character begin with the bits 10.
            return stop - back
    return stop


def _lines(chunks: Chunks) -> Iterator[bytes | None]:
    """The lines of a text without their ends; None in place of one that is too long."""
    rest, is_too_long = b"", False
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield None if is_too_long or len(line) > RECORD_BYTES_MAX else line
            is_too_long = False
        if len(rest) > RECORD_BYTES_MAX:
            rest, is_too_long = b"", True
    if rest or is_too_long:
        yield None if is_too_long else rest


# Records -----------------------------------------------------------------------------------------

_TOO_LONG = f"record of more than {RECORD_BYTES_MAX // MIB} MiB"


def _jsonl(chunks: Chunks, form: Form, name: str) -> Iterator[bytes | BadDocument]:
    for number, line in enumerate(_lines(chunks), 1):
        where = f"{name}, line {number}"
        if line is None:
            yield BadDocument(_TOO_LONG, where)
        elif line.strip(_BLANKS):
            yield _json_document(line, form, where)


def _json_document(line: bytes, form: Form, where: str) -> bytes | BadDocument:
    # Most lines have fewer brackets than may be nested, and counting is quick.
    brackets = line.count(b"[") + line.count(b"{")
    if brackets > JSON_DEPTH_MAX and json_depth(line) > JSON_DEPTH_MAX:
        return BadDocument(f"JSON nested deeper than {JSON_DEPTH_MAX}", where)
    try:
        record = _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError:
        return BadDocument("text that is not UTF-8", where)
    except ValueError as error:
        return BadDocument("line that is no JSON", f"{where}: {error}"[:300])
    if not isinstance(record, dict):
        return BadDocument("JSON that is no object", where)
    return _record_text(record, form, where)


def _no_number(digits: str) -> None:
    # Numbers are no text, and long ones are refused by some releases only.
    del digits


_DECODER = json.JSONDecoder(parse_int=_no_number, parse_float=_no_number)


def _record_text(record: Mapping[str, object], form: Form, where: str) -> bytes | BadDocument:
    if form.field not in record:
        fields = ", ".join(repr(name) for name in list(record)[:_FIELDS_SHOWN])
        return BadDocument(f"record without a field {form.field!r}", f"{where}, which has {fields}")
    value = record[form.field]
    if form.render is not None:
        try:
            value = form.render(value)
        except ValueError as error:
            return BadDocument("chat that its template does not take", f"{where}: {error}"[:300])
    if not isinstance(value, str):
        return BadDocument(f"field {form.field!r} that is no text", where)
    try:
        return checked_text(value.encode("utf-8"), where)
    except UnicodeEncodeError:
        return BadDocument("text with a lone surrogate", where)


def _csv(chunks: Chunks, form: Form, file: SourceFile) -> Iterator[bytes | BadDocument]:
    delimiter = "\t" if file.kind == "tsv" else ","
    csv.field_size_limit(RECORD_BYTES_MAX)
    header: list[str] | None = None
    for number, record in enumerate(_csv_records(chunks), 1):
        where = f"{file.name}, record {number}"
        if record is None:
            yield BadDocument(_TOO_LONG, where)
            continue
        try:
            fields = next(csv.reader([record.decode("utf-8")], delimiter=delimiter), [])
        except UnicodeDecodeError:
            yield BadDocument("text that is not UTF-8", where)
            continue
        except csv.Error as error:
            yield BadDocument("record that is no CSV", f"{where}: {error}")
            continue
        if header is None:
            header = fields
        elif fields:
            yield _record_text(dict(zip(header, fields, strict=False)), form, where)


def _csv_records(chunks: Chunks) -> Iterator[bytes | None]:
    """Records with their quoted line ends; None for one that is too long.

    A record ends with a line before which the number of quotes is even. Python's reader takes lines
    as well, but gives up a file at the first field beyond its limit.
    """
    parts: list[bytes] = []
    num_bytes, is_open, is_too_long = 0, False, False
    for line in _lines(chunks):
        if line is None:
            is_too_long = True
        else:
            is_open ^= line.count(b'"') % 2 == 1
            num_bytes += len(line) + 1
            is_too_long = is_too_long or num_bytes > RECORD_BYTES_MAX
            parts.append(line)
        if is_too_long:
            parts.clear()
        if not is_open:
            yield None if is_too_long else b"\n".join(parts)
            parts, num_bytes, is_too_long = [], 0, False
    if is_open:
        yield None if is_too_long else b"\n".join(parts)


# Tables ------------------------------------------------------------------------------------------


def _parquet(file: SourceFile, form: Form, tally: ReadTally) -> Iterator[bytes | BadDocument]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise needed_library("pyarrow", "a Parquet file") from None
    if file.compression:
        raise _BadFile("compressed Parquet file, which must be unpacked first")
    try:
        # Without the buffer a whole column of a row group is read at once.
        with pq.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False) as table:
            yield from _parquet_rows(table, file, form, tally)
    except (pa.ArrowException, ValueError) as error:
        raise _BadFile("file that is no whole Parquet file") from error


def _parquet_rows(
    table: "ParquetFile", file: SourceFile, form: Form, tally: ReadTally
) -> Iterator[bytes | BadDocument]:
    names = table.schema_arrow.names
    if form.field not in names:
        yield _record_text(dict.fromkeys(names), form, file.name)
        return
    row, groups = 0, table.metadata.num_row_groups
    for group in range(groups):
        about = table.metadata.row_group(group)
        if about.total_byte_size > max(EXPANSION_FREE_BYTES, EXPANSION_MAX * file.num_bytes):
            raise _BadFile(f"file that grows to more than {EXPANSION_MAX} times its size")
        rows = _BATCH_BYTES * max(1, about.num_rows) // max(1, about.total_byte_size)
        batches = table.iter_batches(
            batch_size=min(max(1, rows), _BATCH_ROWS_MAX),
            row_groups=[group],
            columns=[form.field],
            use_threads=False,
        )
        for batch in batches:
            # A column of structures comes under its name, whatever it has inside.
            for value in batch.column(batch.schema.names.index(form.field)):
                row += 1
                found = value.as_py()
                yield _record_text({form.field: found}, form, f"{file.name}, row {row}")
        tally.num_bytes += file.num_bytes // groups


def _hub(file: SourceFile, form: Form) -> Iterator[bytes | BadDocument]:
    """The rows of a data set of the hub, streamed; the split `train`."""
    try:
        import datasets
    except ImportError:
        raise needed_library("datasets", "a data set of the hub") from None
    name, _, revision = file.path.removeprefix(HUB).partition("@")
    try:
        rows = datasets.load_dataset(
            name, revision=revision or None, split="train", streaming=True, token=False
        )
        for row, record in enumerate(rows, 1):
            yield _record_text(record, form, f"{file.name}, row {row}")
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        # Not a bad document: what the network did not bring is not to be missing from the store.
        raise CorpusError(f"{file.path} cannot be read: {error}"[:500]) from error


def sample_documents(
    files: Sequence[SourceFile], form: Form, num_bytes_max: int, tally: ReadTally
) -> Iterator[bytes]:
    """Documents of all files that have so many bytes at most, chosen by their hashes."""
    # A compressed text is some four times as long as its file.
    expected = sum(file.num_bytes * (1 if _is_plain(file) else 4) for file in files)
    share, left = num_bytes_max / max(1, expected), num_bytes_max
    for file in files:
        for one in read_documents(file, form, tally):
            if isinstance(one, BadDocument):
                continue
            if int.from_bytes(blake3(one).digest(length=8), "big") < share * 2.0**64:
                left -= len(one)
                if left < 0:
                    return
                yield one


def _is_plain(file: SourceFile) -> bool:
    return not file.compression and file.kind != "parquet"
