"""Documents out of files of every kind; the hostile ones are in test_hostile_sources.py."""

import csv
import gzip
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import CorpusError
from protocol.limits import KIB
from training.data import documents
from training.data.documents import TEXT_BYTES_MAX, Form, ReadTally, json_depth, read_documents
from training.data.sources import BadDocument, SourceSpec, list_files

TEXTS = ["one", 'two\nlines, and a "quote"', "drei ß", "四 🙂", " kept as it is \n"]


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def read(path: Path, form: Form | None = None) -> list[bytes | BadDocument]:
    (file,) = list_files(SourceSpec(str(path))).files
    return list(read_documents(file, form or Form()))


def reasons(found: Sequence[bytes | BadDocument]) -> list[str]:
    return [one.reason for one in found if isinstance(one, BadDocument)]


def as_jsonl(texts: Sequence[str]) -> bytes:
    return "".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(texts)).encode()


def as_csv(texts: Sequence[str], delimiter: str = ",", line_end: str = "\r\n") -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=line_end)
    writer.writerows([["id", "text"], *([n, t] for n, t in enumerate(texts))])
    return out.getvalue().encode()


def write_parquet(path: Path, texts: Sequence[str | None], row_group_size: int = 1000) -> None:
    table = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=row_group_size)


def test_every_kind_gives_the_same_documents(tmp_path: Path) -> None:
    wanted = [text.encode() for text in TEXTS]
    contents = {
        "a.jsonl": as_jsonl(TEXTS),
        "a.csv": as_csv(TEXTS),
        "b.csv": as_csv(TEXTS, line_end="\n"),
        "a.tsv": as_csv(TEXTS, "\t"),
        "bom.csv": b"\xef\xbb\xbf" + as_csv(TEXTS),
        "crlf.jsonl": as_jsonl(TEXTS).replace(b"\n", b"\r\n"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        half = len(content) // 2
        (tmp_path / f"{name}.zst").write_bytes(zstd(content))
        members = gzip.compress(content[:half]) + gzip.compress(content[half:]) + bytes(8)
        (tmp_path / f"two.{name}.gz").write_bytes(members)
        frames = zstd(content[:half]) + zstd(content[half:])
        (tmp_path / f"two.{name}.zst").write_bytes(frames)
    for size in (1, 2, 1000):
        write_parquet(tmp_path / f"{size}.parquet", TEXTS, size)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 6 * 5 + 3
    for path in paths:
        assert read(path) == wanted, path.name


def test_text_file_is_one_document_with_plain_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n")
    assert read(tmp_path / "a.txt") == [b"one\ntwo\rthree\n"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_large_text_is_cut_at_the_ends_of_paragraphs(tmp_path: Path, line_end: bytes) -> None:
    paragraphs = [b"%d " % n * (n % 700 + 1) for n in range(2000)]
    text = b"\n\n".join(paragraphs)
    (tmp_path / "a.txt").write_bytes(text.replace(b"\n", line_end))
    found = [one for one in read(tmp_path / "a.txt") if isinstance(one, bytes)]
    assert b"".join(found) == text
    assert max(map(len, found)) <= TEXT_BYTES_MAX
    assert all(one.endswith(b"\n\n") for one in found[:-1])


@pytest.mark.parametrize("unit", ["wort ", "zeile\n", "ß", "四", "🙂", "x"])
def test_text_without_paragraphs_is_cut_into_whole_characters(tmp_path: Path, unit: str) -> None:
    text = ("a" + unit * 40_000).encode()
    (tmp_path / "a.txt").write_bytes(text)
    found = read(tmp_path / "a.txt")
    assert not reasons(found)
    assert b"".join(one for one in found if isinstance(one, bytes)) == text


def test_size_of_a_read_changes_no_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"\r\n".join(b"%d \r word" % n * (n % 90) for n in range(500))
    contents = {"a.txt": b"\xef\xbb\xbf" + text, "a.csv": as_csv(TEXTS * 50)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        found = []
        for size in (1, 2, 3, 1000, 64 * KIB, len(content)):
            monkeypatch.setattr(documents, "_READ_BYTES", size)
            found.append(read(tmp_path / name))
        assert all(one == found[0] for one in found), name


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a\\u0000b"}', "text with a NUL"),
        (b'{"text": "\\ud800"}', "text with a lone surrogate"),
        (b'{"text": "\xff"}', "text that is not UTF-8"),
        (b'{"text": " \\n"}', "empty text"),
        (b'{"text": 7}', "field 'text' that is no text"),
        (b'{"text": null}', "field 'text' that is no text"),
        (b'{"body": "a"}', "record without a field 'text'"),
        (b'["text"]', "JSON that is no object"),
        (b'{"text": "a"', "line that is no JSON"),
        (b"[" * 10_000, "JSON nested deeper than 64"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "JSON nested deeper than 64"),
        (b'{"text": "%s"}' % (b"a" * 2**22), "record of more than 4 MiB"),
    ],
)
def test_bad_line_is_counted_and_the_next_one_read(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n' + line + b'\n\n{"text": "y"}')
    found = read(tmp_path / "a.jsonl")
    assert [one for one in found if isinstance(one, bytes)] == [b"x", b"y"]
    assert reasons(found) == [reason]


def test_numbers_of_any_length_are_no_reason_to_give_up_a_line(tmp_path: Path) -> None:
    # Python refuses to convert long ones, by a limit that can be set from outside.
    (tmp_path / "a.jsonl").write_bytes(b'{"n": %s, "text": "x"}' % (b"9" * 10_000))
    assert read(tmp_path / "a.jsonl") == [b"x"]


def test_missing_field_is_told_with_the_fields_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"body": "x", "id": 1}')
    (bad,) = read(tmp_path / "a.jsonl")
    assert isinstance(bad, BadDocument)
    assert bad.detail == "a.jsonl, line 1, which has 'body', 'id'"
    assert read(tmp_path / "a.jsonl", Form("body")) == [b"x"]


def test_record_of_csv_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    long = '"' + "line\n" * 900_000 + '"'
    (tmp_path / "a.csv").write_text(f"text\none\n{long}\ntwo\n", "utf-8")
    found = read(tmp_path / "a.csv")
    assert [one for one in found if isinstance(one, bytes)] == [b"one", b"two"]
    assert reasons(found) == ["record of more than 4 MiB"]


def test_parquet_without_the_field_or_with_nothing_in_it_is_counted(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["x", None, "y"])
    assert reasons(read(tmp_path / "a.parquet")) == ["field 'text' that is no text"]
    assert reasons(read(tmp_path / "a.parquet", Form("b"))) == ["record without a field 'b'"]
    assert reasons(read(tmp_path / "a.parquet", Form("id"))) == ["field 'id' that is no text"] * 3


def test_depth_of_json_counts_no_brackets_in_strings() -> None:
    assert json_depth(b'{"a": "[[[[\\"[[", "b": [1, {"c": []}]}') == 4
    assert json_depth(b"1") == 0
    assert json_depth(b"]]]][") == 0


def test_tally_counts_the_bytes_of_the_files(tmp_path: Path) -> None:
    tally = ReadTally()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(as_jsonl(TEXTS)))
    write_parquet(tmp_path / "b.parquet", TEXTS)
    files = list_files(SourceSpec(str(tmp_path))).files
    for file in files:
        list(read_documents(file, Form(), tally))
    assert tally.num_bytes == sum(file.num_bytes for file in files)


def test_library_that_is_missing_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt.zst").write_bytes(zstd(b"x"))
    write_parquet(tmp_path / "a.parquet", TEXTS)
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("a.txt.zst", "a.parquet"):
        with pytest.raises(CorpusError, match=r'pip install "barnraise\[corpora\]"'):
            read(tmp_path / name)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(
    st.recursive(
        st.none() | st.text('[]{}"\\a'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text('[]{}"\\a'), inner),
    )
)
def test_depth_of_json_is_that_of_what_it_holds(value: object) -> None:
    assert json_depth(json.dumps(value).encode()) == depth_of(value)
