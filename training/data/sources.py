"""Which files the sources of a user are: a file, a folder, a glob, standard input, a data set.

The order of the documents is part of what a token store is, so it must be the same everywhere: the
sources as they were given, the files of each by their relative name with slashes. A walk stays
inside its folder: a link that leads out of it is passed over and counted, and so is a file of a
kind that nobody can read as text. Hidden files and folders are no part of a source.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from protocol.errors import CorpusError

Kind = Literal["text", "jsonl", "csv", "tsv", "parquet", "hub"]
Compression = Literal["", "gz", "zst"]

STDIN = "-"
HUB = "hf://"
FILES_MAX = 1_000_000
"""Files of one source; each takes some 400 bytes of memory."""

WEIGHT_MAX = 100.0

_KINDS: dict[str, Kind] = {
    **dict.fromkeys((".txt", ".text", ".md", ".markdown", ".rst"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gz", ".zst": "zst"}
_LINKED_OUT = "link that leads out of its folder"
_LINKED_FOLDER = "link to a folder"
_NO_FILE = "neither a file nor a folder"
_UNKNOWN_KIND = "file of an unknown kind"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source as the user named it; `weight` is how often its training documents are taken."""

    where: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file to read. `name` is how it is called in messages, `num_bytes` its size on the disk
    (0 where nobody knows it before it was read). `version` changes when the file does."""

    path: str
    name: str
    kind: Kind
    compression: Compression = ""
    num_bytes: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class BadDocument:
    """What could not be taken: why, in words that are counted, and where it was."""

    reason: str
    detail: str = ""


@dataclass(slots=True)
class FileList:
    """The files of one source in their order, and what was passed over while they were listed."""

    files: list[SourceFile] = field(default_factory=list)
    passed_over: list[BadDocument] = field(default_factory=list)


def parse_source(text: str) -> SourceSpec:
    """`WHERE` or `WHERE:WEIGHT`. Raises CorpusError for a weight that is none."""
    where, colon, weight = text.rpartition(":")
    if not colon or not re.fullmatch(r"\d{1,3}(\.\d{1,6})?", weight) or Path(text).exists():
        return SourceSpec(text)
    if not 0.0 < float(weight) <= WEIGHT_MAX:
        raise CorpusError(f"{text}: a weight is above 0 and at most {WEIGHT_MAX:g}")
    return SourceSpec(where, float(weight))


def list_files(spec: SourceSpec, stdin_kind: Kind = "text") -> FileList:
    """The files of a source. Raises CorpusError if there is nothing of that name."""
    where = spec.where
    if where == STDIN:
        return FileList([SourceFile(path=STDIN, name="standard input", kind=stdin_kind)])
    if where.startswith(HUB):
        if not re.fullmatch(r"hf://[\w.-]+/[\w.-]+(@[\w./-]+)?", where):
            raise CorpusError(f"{where}: a data set of the hub is called hf://ORG/NAME@REVISION")
        return FileList([SourceFile(path=where, name=where, kind="hub")])
    path = Path(where).expanduser()
    if where and path.is_dir():
        return _list_folder(path, pattern=None)
    if where and path.exists():
        return FileList([_source_file(path, path.name)])
    if any(sign in where for sign in "*?["):
        found = _list_glob(path)
        if found.files:
            return found
    raise CorpusError(
        f"there is no file, folder or pattern {where}: name one that is there, - for standard "
        "input, or hf://ORG/NAME@REVISION for a data set of the hub"
    )


def _list_glob(pattern: Path) -> FileList:
    parts = pattern.parts
    plain = next(n for n, part in enumerate(parts) if any(sign in part for sign in "*?["))
    folder = Path(*parts[:plain])
    return _list_folder(folder, parts[plain:]) if folder.is_dir() else FileList()


def _list_folder(folder: Path, pattern: Sequence[str] | None) -> FileList:
    """The files below a folder; by a pattern of any kind, else those that are known to be text."""
    found = FileList()
    root = Path(os.path.realpath(folder))
    # Compared as text with slashes, so that the order is the same on every system.
    for name in sorted(_walk(folder, pattern, found)):
        if pattern is not None and not _matches(name.split("/"), pattern):
            continue
        path = folder / name
        # Not Path.resolve: links in a ring are an error to some releases, and none to others.
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            found.passed_over.append(BadDocument(_LINKED_OUT, name))
        elif path.is_symlink() and path.is_dir():
            found.passed_over.append(BadDocument(_LINKED_FOLDER, name))
        elif not path.is_file():
            # A named pipe would never end, and a device is no text.
            found.passed_over.append(BadDocument(_NO_FILE, name))
        elif pattern is None and _kind_of(path.name)[0] is None:
            found.passed_over.append(BadDocument(_UNKNOWN_KIND, name))
        else:
            found.files.append(_source_file(path, name))
    return found


def _walk(folder: Path, pattern: Sequence[str] | None, found: FileList) -> Iterator[str]:
    """Relative names of all files, and of links to folders, as deep as the pattern goes."""
    is_deep = pattern is None or "**" in pattern
    depth_max = None if is_deep or pattern is None else len(pattern) - 1
    count = 0
    for place, folders, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = [name for name in folders if (Path(place) / name).is_symlink()]
        if depth_max is not None and len(inside.parts) >= depth_max:
            folders.clear()
        for name in (*files, *linked):
            if not name.startswith("."):
                count += 1
                if count > FILES_MAX:
                    raise CorpusError(
                        f"{folder} holds more than {FILES_MAX:,} files: pack it in parts, or join "
                        "its files into JSONL"
                    )
                yield (inside / name).as_posix()


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    is_first = bool(parts) and fnmatchcase(parts[0], pattern[0])
    return is_first and _matches(parts[1:], pattern[1:])


def _kind_of(name: str) -> tuple[Kind | None, Compression]:
    stem, suffix = os.path.splitext(name.lower())
    compression = _COMPRESSIONS.get(suffix, "")
    return _KINDS.get(os.path.splitext(stem)[1] if compression else suffix), compression


def _source_file(path: Path, name: str) -> SourceFile:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise CorpusError(f"{path} is neither a file nor a folder: use - for standard input")
    kind, compression = _kind_of(path.name)
    return SourceFile(
        path=str(path),
        name=name,
        # What is named by its own name is taken for text, whatever it is called.
        kind=kind or "text",
        compression=compression,
        num_bytes=about.st_size,
        version=about.st_mtime_ns,
    )
