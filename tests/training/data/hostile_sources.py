"""Hostile sources and tokenizers, drawn by a seed; run as a program it packs them all.

python -P -m tests.training.data.hostile_sources FOLDER SEED    one JSON line for each case
"""

import gzip
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from protocol.errors import CorpusError
from tests.training.data.test_documents import as_csv, as_jsonl, write_parquet, zstd
from training.data.packing import PackOptions, pack
from training.data.sources import SourceSpec
from training.data.store import TokenStore
from training.data.tokenizers import ByteTokenizer, FileTokenizer, train_tokenizer

TEXTS = [f"row {n} with ß, 四 and 🙂 " * 3 for n in range(40)]
GOOD = ("a good document", "another good document")
MIB, GIB = 1 << 20, 1 << 30
SECRET = "secret.txt"

Write = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A file of a name, and what writes it."""

    name: str
    write: Write


def mutated(rng: random.Random, content: bytes) -> bytes:
    """Cut off, with some bytes changed, with a piece twice or away, or with something behind."""
    start = rng.randrange(len(content))
    match rng.randrange(5):
        case 0:
            return content[:start]
        case 1:
            changed = bytearray(content)
            for _ in range(rng.randrange(1, 20)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            return bytes(changed)
        case 2:
            return content[:start] + content[start // 2 :]
        case 3:
            return content[:start] + content[start + rng.randrange(1, 200) :]
        case _:
            return content + rng.randbytes(rng.randrange(1, 500))


def plain(name: str, content: bytes) -> Case:
    return Case(name, lambda path: path.write_bytes(content))


def sparse(name: str) -> Case:
    """A file of a GiB of zeros that takes no room on the disk."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(GIB)

    return Case(name, write)


def bomb(name: str, unit: bytes, num_bytes: int = GIB) -> Case:
    """A compressed file of so many bytes: one line, or lines of one kind."""

    def write(path: Path) -> None:
        piece = unit * (MIB // len(unit))
        if name.endswith(".gz"):
            with gzip.open(path, "wb", compresslevel=1) as packed:
                for _ in range(num_bytes // MIB):
                    packed.write(piece)
        else:
            with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as out:
                for _ in range(num_bytes // MIB):
                    out.write(piece)

    return Case(name, write)


LINES = [
    b'{"text": "\\ud800"}',
    b'{"text": "\\udfff\\ud800 and more"}',
    b'{"text": "a\\u0000b"}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "\xc0\x80"}',
    b'{"text": "\xff\xfe"}',
    b'\xef\xbb\xbf{"text": "a BOM in the middle"}',
    b'{"text": NaN}',
    b'{"text": 1e999999}',
    b'{"text": ' + b"9" * 100_000 + b"}",
    b'{"text": "\\u12"}',
    b'{"text": "' + b'\\"' * 1_000_000,
    b'{"text": "x", "text": ["y"]}',
    b'{"text": {"text": "z"}}',
    b"[" * 10_000 + b"]" * 10_000,
    b'{"text":' * 10_000 + b'"x"' + b"}" * 10_000,
    b'[{"a":' * 5_000 + b"1" + b"}]" * 5_000,
    b'{"a": "' + b"[{" * 10_000 + b'", "text": [[[[' + b"[" * 10_000,
    b"[" * (4 * MIB),
    b'{"text": [' + b"[]," * 1_300_000 + b"[]]}",
    b'{"text": [' + b"1.5," * 1_000_000 + b"1]}",
    b'{"text": "' + b"a" * (5 * MIB) + b'"}',
    b'"' * 4_000_000,
    b"null",
    b"\r\r\r",
    b"\0" * 1000,
    b"{" * 100,
]

TABLES = [
    b'id,text\n1,"never closed\n' + b"more\n" * 10_000,
    b'id,text\n1,"a"b"c"\n',
    b"id,text\n1,a\0b\n",
    b"id,text\n",
    b"\n\n\n",
    b"text\n" + b'"' * 100_001,
    b"text\n" + b"a" * (5 * MIB) + b"\nb\n",
    b"id,text\r1,a\r2,b\r",
    b"id;text\n1;a\n",
    b"text," * 100_000 + b"\n" + b"x," * 100_000,
    b"text\n\xff\xfe\n",
    b"\xff\xfei\0d\0",
    b'text\n"' + b"line\n" * 2_000_000 + b'"\n',
]

PLAIN_TEXTS = [
    b"",
    b"\xef\xbb\xbf",
    b"\xef\xbb",
    b"\xff\xfeh\0i\0",
    b"\xfe\xff\0h\0i",
    b"\r\n" * 10_000,
    b"\r" * 10_000,
    b"\0",
    b"\xed\xa0\x80" * 10_000,
    b"\xf4\x90\x80\x80",
    b"\x80" * 100_000,
    b"\xf0\x9f\x99" + b"a" * 20_000,
    b"<|endoftext|></s>\x1b[2J\x1b]0;owned\x07",
    "\u202e\u2028\u0085\ufeff".encode(),
    b"%PDF-1.7\n" + bytes(range(256)) * 100,
]


def cases(rng: random.Random, folder: Path) -> Iterator[Case]:
    """All of them; `folder` takes what is needed to make them."""
    for number in range(40):
        whole = folder / "whole.parquet"
        write_parquet(whole, TEXTS, row_group_size=rng.choice((5, 100)))
        yield plain(f"{number}.parquet", mutated(rng, whole.read_bytes()))
    yield plain("magic.parquet", b"PAR1" * 3)
    yield plain("footer.parquet", b"PAR1" + b"\xff" * 100 + b"\xff\xff\xff\x7fPAR1")
    for suffix, press in (("gz", gzip.compress), ("zst", zstd)):
        for number in range(18):
            yield plain(f"{number}.jsonl.{suffix}", mutated(rng, press(as_jsonl(TEXTS))))
        yield plain(f"twice.txt.{suffix}", press(press(b"twice")))
        yield plain(f"empty.txt.{suffix}", b"")
        yield plain(f"other.txt.{suffix}", (zstd if suffix == "gz" else gzip.compress)(b"other"))
        yield plain(f"parquet.parquet.{suffix}", press(b"PAR1"))
        yield sparse(f"sparse.txt.{suffix}")
        yield bomb(f"bomb.txt.{suffix}", b"a")
        yield bomb(f"lines.jsonl.{suffix}", b'{"text": "%s"}\n' % (b"again " * 300), 80 * MIB)
        yield bomb(f"deep.jsonl.{suffix}", b"[")
    # A frame that asks for a window of 2 GiB.
    yield plain("window.txt.zst", b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\x00\x00" * 10)
    for number, line in enumerate(LINES):
        yield plain(
            f"line-{number}.jsonl", as_jsonl(TEXTS[:2]) + line + b"\n" + as_jsonl(TEXTS[2:4])
        )
    for number in range(15):
        yield plain(f"mutated-{number}.jsonl", mutated(rng, as_jsonl(TEXTS)))
        yield plain(f"random-{number}.jsonl", rng.randbytes(rng.randrange(1, 50_000)))
        yield plain(f"mutated-{number}.csv", mutated(rng, as_csv(TEXTS)))
    for number, table in enumerate(TABLES):
        yield plain(f"table-{number}.{rng.choice(('csv', 'tsv'))}", table)
    for number, text in enumerate(PLAIN_TEXTS):
        yield plain(f"text-{number}.md", text)
    for name in ("line.txt", "line.jsonl", "line.csv", "table.parquet"):
        yield sparse(name)
    outside = folder / SECRET
    yield Case("link.txt", lambda path: path.symlink_to(outside))
    yield Case("folder.txt", lambda path: path.symlink_to(folder))
    yield Case("loop.txt", lambda path: path.symlink_to(path))
    yield Case("fifo.txt", os.mkfifo)
    yield Case("inside.txt", lambda path: (path / "x").mkdir(parents=True))
    yield Case("\x1b[2J\u202e.txt", lambda path: path.write_bytes(b"\xff"))


def tokenizer_cases(rng: random.Random) -> Iterator[bytes]:
    """Files of tokenizers that are none, or are none any more."""
    whole = train_tokenizer((text.encode() for text in TEXTS), 300)
    body = json.loads(whole)
    for _ in range(30):
        yield mutated(rng, whole)
    for value in (None, [], {}, "x", -1, 1e300, [[1]], {"type": "Sequence"}, True, ["a"] * 3):
        key = rng.choice([name for name in body if name != "version"])
        yield json.dumps(body | {key: value}).encode()
        inner = rng.choice(list(body["model"]))
        yield json.dumps(body | {"model": body["model"] | {inner: value}}).encode()
    yield json.dumps(body | {"model": body["model"] | {"merges": ["a b"] * 1_000_000}}).encode()
    yield b"[" * 30_000_000
    yield b'"' * 30_000_000
    yield b'{"a":' * 10_000
    yield b""


class Watch:
    """What this process opens: nothing outside but what Python and its libraries need."""

    def __init__(self, root: Path) -> None:
        self.opened: list[tuple[str, bool]] = []
        self._root = str(root)
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open":
            return
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if isinstance(path, str) and (writes or path.startswith(self._root)):
            self.opened.append((path, bool(writes)))


def pack_one(case: Case, folder: Path, watch: Watch) -> dict[str, object]:
    """The outcome of a pack of one hostile file beside two good documents."""
    source, out = folder / "in", folder / "out"
    source.mkdir(parents=True)
    (source / "good.jsonl").write_bytes(as_jsonl(GOOD))
    case.write(source / case.name)
    watch.opened.clear()
    began_s = time.process_time()
    try:
        facts = pack(PackOptions(sources=(SourceSpec(str(source)),), out=out), ByteTokenizer())
        opened = TokenStore.open(out)
        text = opened.tokens(0, opened.first_held_out + facts.held_out.tokens).tobytes()
        told: dict[str, object] = {"documents": facts.training.documents + facts.held_out.documents}
        told |= {"skipped": facts.made["skipped"], "good": all(g.encode() in text for g in GOOD)}
    except CorpusError as error:
        told = {"error": str(error)}
    outside = [path for path, writes in watch.opened if writes and not path.startswith(str(out))]
    outside += [path for path, _ in watch.opened if path.endswith(SECRET)]
    return told | {"case": case.name, "cpu_s": time.process_time() - began_s, "outside": outside}


def peak_bytes() -> int:
    """The most memory that this process had."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(folder: Path, seed: int) -> None:
    (folder / SECRET).write_text("nobody may read this")
    watch, rng = Watch(folder), random.Random(seed)
    for number, case in enumerate(cases(rng, folder)):
        told = pack_one(case, folder / f"case-{number}", watch)
        print(json.dumps(told | {"peak_bytes": peak_bytes()}), flush=True)  # noqa: T201
    for number, content in enumerate(tokenizer_cases(rng)):
        began_s = time.process_time()
        try:
            FileTokenizer(content).encode([text.encode() for text in TEXTS])
            about: dict[str, object] = {"taken": True}
        except CorpusError as error:
            about = {"error": str(error)}
        about |= {"case": f"tokenizer {number}", "cpu_s": time.process_time() - began_s}
        print(json.dumps(about | {"peak_bytes": peak_bytes()}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
