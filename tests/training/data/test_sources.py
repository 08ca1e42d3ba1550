"""Which files a source is: order, kinds, globs, links, and what is refused."""

import os
import sys
from pathlib import Path

import pytest

from protocol.errors import CorpusError
from training.data.sources import SourceSpec, list_files, parse_source

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"text of {name}", "utf-8")
    return root


def names(where: Path | str) -> list[str]:
    return [file.name for file in list_files(SourceSpec(str(where))).files]


def test_folder_gives_its_text_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path, "b.rst", "a/z.txt", "a-b.txt", "a.txt", "c.jsonl.gz", "d.csv", "e.parquet")
    write(tmp_path, "image.png", ".git/x.rst", ".hidden.md", "f.tsv.zst", "g.png.gz")
    found = list_files(SourceSpec(str(tmp_path)))
    kinds = {file.name: (file.kind, file.compression) for file in found.files}
    assert kinds == {
        "a-b.txt": ("text", ""),
        "a.txt": ("text", ""),
        "a/z.txt": ("text", ""),
        "b.rst": ("text", ""),
        "c.jsonl.gz": ("jsonl", "gz"),
        "d.csv": ("csv", ""),
        "e.parquet": ("parquet", ""),
        "f.tsv.zst": ("tsv", "zst"),
    }
    assert list(kinds) == sorted(kinds)
    told = [(bad.reason, bad.detail) for bad in found.passed_over]
    assert told == [("file of an unknown kind", name) for name in ("g.png.gz", "image.png")]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*.py", ["a.py"]),
        ("*/*.py", ["x/b.py"]),
        ("**/*.py", ["a.py", "x/b.py", "x/y/c.py"]),
        ("x/**/*.py", ["b.py", "y/c.py"]),
        ("x/?.py", ["b.py"]),
        ("x/[!b]*", ["note.txt"]),
    ],
)
def test_glob_gives_files_of_any_kind(tmp_path: Path, pattern: str, wanted: list[str]) -> None:
    write(tmp_path, "a.py", "x/b.py", "x/y/c.py", "x/note.txt", ".v/d.py")
    assert names(tmp_path / pattern) == wanted


def test_glob_without_stars_for_folders_walks_no_deeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.py", "x/y/c.py")
    walked = list[str]()
    walk = os.walk

    def watched(top):
        for place in walk(top):
            walked.append(Path(place[0]).name)
            yield place

    monkeypatch.setattr(os, "walk", watched)
    assert names(tmp_path / "*.py") == ["a.py"]
    assert walked == [tmp_path.name]


@needs_links
def test_links_out_of_the_folder_are_passed_over_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "secret/key.txt", "mine/a.txt", "mine/deep/b.txt")
    mine = tmp_path / "mine"
    (mine / "out.txt").symlink_to(tmp_path / "secret" / "key.txt")
    (mine / "away").symlink_to(tmp_path / "secret")
    (mine / "loop").symlink_to(mine)
    (mine / "gone.txt").symlink_to(tmp_path / "nothing")
    (mine / "ring.txt").symlink_to(mine / "ring.txt")
    (mine / "inside.txt").symlink_to(mine / "a.txt")
    for where in (mine, mine / "**" / "*"):
        found = list_files(SourceSpec(str(where)))
        assert [file.name for file in found.files] == ["a.txt", "deep/b.txt", "inside.txt"]
        reasons = sorted(bad.reason for bad in found.passed_over)
        assert reasons == [
            *["link that leads out of its folder"] * 3,
            "link to a folder",
            "neither a file nor a folder",
        ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_named_pipe_is_passed_over_and_never_opened(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    assert names(tmp_path) == ["a.txt"]
    with pytest.raises(CorpusError, match="neither a file nor a folder"):
        names(tmp_path / "pipe.txt")


def test_file_named_by_itself_is_text_whatever_it_is_called(tmp_path: Path) -> None:
    write(tmp_path, "odd.xyz")
    (file,) = list_files(SourceSpec(str(tmp_path / "odd.xyz"))).files
    assert (file.kind, file.num_bytes) == ("text", len("text of odd.xyz"))


@pytest.mark.parametrize("where", ["nothing.txt", "no/*.txt", "", "hf://name", "hf://a/b@", "a\0b"])
def test_source_that_is_not_there_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(CorpusError):
        names(where if where.startswith("hf:") or not where else tmp_path / where)


def test_weights_are_behind_the_last_colon(tmp_path: Path) -> None:
    assert parse_source("a.txt") == SourceSpec("a.txt", 1.0)
    assert parse_source("a:b.txt:0.25") == SourceSpec("a:b.txt", 0.25)
    assert parse_source("hf://a/b@main:2") == SourceSpec("hf://a/b@main", 2.0)
    assert parse_source(r"C:\texts") == SourceSpec(r"C:\texts")
    if os.name != "nt":
        write(tmp_path, "odd:3")
        assert parse_source(str(tmp_path / "odd:3")).weight == 1.0
    for text in ("a:0", "a:101", "a:0.0"):
        with pytest.raises(CorpusError, match="weight"):
            parse_source(text)
