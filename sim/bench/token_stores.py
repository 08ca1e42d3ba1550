"""`barnraise bench data`: making a token store and reading one, held against their bars.

A made-up set is of text, JSONL, Parquet of the same rows, .gz and .zst. It is packed with a
tokenizer that is trained on it, in this process and in commands of their own, whose memory the
system tells (Linux) and one of which is killed again and again.
"""

import gzip
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from blake3 import blake3

from node.processes.children import child_environment
from protocol.errors import StateError
from protocol.limits import MIB
from sim.processes.sitting import Tell, check_range, claim_folder
from sim.processes.usage import PeakMemory
from training.data.packing import PackOptions, pack
from training.data.sources import SourceSpec
from training.data.store import UNFINISHED, TokenStore
from training.data.tokenizers import FileTokenizer, train_tokenizer

SPEED_BAR, READ_BAR, P99_MS_BAR = 0.6, 20e6, 1.0
MEMORY_BAR, OPEN_S_BAR = 300e6, 2.0
FIRST_TOKENS = 10_000_000
"""The digest of so many is compared; of a smaller set of all that there are."""

_WINDOW = 1025
_READS = 40_000
_REPEAT = 3
_LOOK_S = 0.05
_THREADS = (1, 2, 4, 8)
_PACK = (sys.executable, "-P", "-m", "node.cli", "data", "pack")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataBenchOptions:
    """What is asked. `mib` are of the mixed set, which is tokenised seven times; `large_mib` of the
    one that shows what memory is taken. `folder` is where everything goes; it must be new."""

    folder: Path
    mib: int = 8
    large_mib: int = 2048
    kills: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        check_range("--mib", self.mib, 1, 4096)
        check_range("--large-mib", self.large_mib, 1, 1 << 20)
        check_range("--kills", self.kills, 0, 100)


def bench_data(options: DataBenchOptions, tell: Tell) -> dict[str, object]:
    """All figures. Raises ConfigError for a folder that is taken, StateError where a command
    fails."""
    claim_folder(options.folder)
    mixed, tokenizer_file = options.folder / "mixed", options.folder / "tokenizer.json"
    write_mixed_set(mixed, options.mib * MIB, options.seed)
    texts = list(_texts(options.mib * MIB, options.seed))
    tell("training a tokenizer of 16,000 tokens")
    content = train_tokenizer(iter(texts[: 4 * MIB // 2000]), 16_000)
    tokenizer_file.write_bytes(content)
    tokenizer = FileTokenizer(content)
    found = _speed(options, tokenizer, content, texts, tell)
    found |= _equality(options, tokenizer, tell)
    found |= _reading(options.folder / "threads-1", options.seed, tell)
    return found | _memory(options, tell)


def data_faults(found: Mapping[str, object]) -> list[str]:
    """Which bars are missed."""
    bars = {
        "share_of_encode_batch": float(str(found["share_of_encode_batch"])) >= SPEED_BAR,
        "digests": found["digests"] == 1,
        "tokens_read_per_s": float(str(found["tokens_read_per_s"])) >= READ_BAR,
        "read_p99_ms": float(str(found["read_p99_ms"])) <= P99_MS_BAR,
        "open_s": float(str(found["open_s"])) <= OPEN_S_BAR,
        "peak_bytes": float(str(found["peak_bytes"])) <= MEMORY_BAR,
    }
    return [name for name, is_held in bars.items() if not is_held]


# What is packed ----------------------------------------------------------------------------------


def _texts(num_bytes: int, seed: int) -> Iterator[bytes]:
    """Documents of some 2 kB, made of words as frequent as those of a language."""
    rng = random.Random(f"{seed}/text")
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randrange(1, 10))) for _ in range(20_000)]
    chance = [1.0 / (rank + 3) for rank in range(len(words))]
    pool = " ".join(rng.choices(words, chance, k=400_000)).encode()
    for number in range(max(2, num_bytes // 2000)):
        start = rng.randrange(len(pool) - 4000)
        yield b"%d. " % number + pool[start : start + rng.randrange(100, 3900)]


def write_mixed_set(folder: Path, num_bytes: int, seed: int) -> None:
    """A quarter each of text files, JSONL, .gz and .zst; the JSONL as a Parquet file as well."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = list(_texts(num_bytes, seed))
    quarter = len(texts) // 4
    parts = [texts[n * quarter : (n + 1) * quarter] for n in range(4)]
    (folder / "text").mkdir(parents=True)
    for number, text in enumerate(parts[0]):
        (folder / "text" / f"{number:06}.txt").write_bytes(text)
    lines = [b"".join(map(_json_line, part)) for part in parts[1:]]
    (folder / "a.jsonl").write_bytes(lines[0])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines[1], compresslevel=1, mtime=0))
    zstd = pa.Codec("zstd").compress(lines[2], asbytes=True)
    (folder / "c.jsonl.zst").write_bytes(zstd)
    pq.write_table(pa.table({"text": [t.decode() for t in parts[1]]}), folder / "d.parquet")


def _json_line(text: bytes) -> bytes:
    return json.dumps({"text": text.decode()}).encode() + b"\n"


# What is measured --------------------------------------------------------------------------------


def _speed(
    options: DataBenchOptions,
    tokenizer: FileTokenizer,
    content: bytes,
    texts: list[bytes],
    tell: Tell,
) -> dict[str, object]:
    """Packing the set beside `encode_batch` of the library on the same texts, in turn."""
    from tokenizers import Tokenizer

    library, plain = Tokenizer.from_buffer(content), [t.decode() for t in texts]
    num_bytes, library_s, pack_s = sum(map(len, texts)), list[float](), list[float]()
    for number in range(_REPEAT):
        # The variable is looked up at each call; packing has threads of its own.
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        library_s.append(_timed(partial(library.encode_batch, plain)))
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        out = options.folder / f"speed-{number}"
        pack_s.append(_timed(partial(_pack, options, out, tokenizer, os.cpu_count() or 1)))
        tell(f"encode_batch {library_s[-1]:.1f} s, packing {pack_s[-1]:.1f} s")
    rates = [num_bytes / statistics.median(times) / 1e6 for times in (library_s, pack_s)]
    return {
        "encode_batch_mb_per_s": round(rates[0], 2),
        "pack_mb_per_s": round(rates[1], 2),
        "share_of_encode_batch": round(rates[1] / rates[0], 2),
    }


def _pack(options: DataBenchOptions, out: Path, tokenizer: FileTokenizer, threads: int) -> None:
    source = SourceSpec(str(options.folder / "mixed"))
    pack(PackOptions(sources=(source,), out=out, threads=threads), tokenizer)


def _timed(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _equality(options: DataBenchOptions, tokenizer: FileTokenizer, tell: Tell) -> dict[str, object]:
    """The digests of the first tokens for some numbers of threads, and behind kills."""
    digests = set()
    for threads in _THREADS:
        out = options.folder / f"threads-{threads}"
        _pack(options, out, tokenizer, threads)
        digests.add(_first_digest(out))
    out, rng, kills = options.folder / "killed", random.Random(f"{options.seed}/kill"), 0
    words = [*_PACK, str(options.folder / "mixed"), "--out", str(out), "--tokenizer"]
    words.append(str(options.folder / "tokenizer.json"))
    while kills < options.kills:
        process = subprocess.Popen(words, env=child_environment(), stdout=subprocess.DEVNULL)
        tokens = out / UNFINISHED / "tokens.bin"
        begun = tokens.stat().st_size if tokens.exists() else 0
        # Some tokens later than where it went on, so that each gets farther than the one before.
        wanted = begun + rng.randrange(1, MIB)
        while process.poll() is None and not (tokens.exists() and tokens.stat().st_size > wanted):
            time.sleep(_LOOK_S)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        tell(f"killed the {kills}. time, at {wanted:,} bytes of tokens")
    if not (out / "corpus.json").exists():
        _run([*words])
    digests.add(_first_digest(out))
    store = TokenStore.open(out)
    count = min(FIRST_TOKENS, store.facts.training.tokens)
    store.close()
    return {"digests": len(digests), "digest": min(digests), "of_tokens": count, "kills": kills}


def _first_digest(folder: Path) -> str:
    store = TokenStore.open(folder)
    count = min(FIRST_TOKENS, store.facts.training.tokens)
    digest = blake3(store.tokens(0, count).tobytes()).hexdigest()
    store.close()
    return digest


def _reading(folder: Path, seed: int, tell: Tell) -> dict[str, object]:
    """Random windows of a store, all of whose blocks were read once before."""
    store = TokenStore.open(folder)
    store.verify()
    count = store.facts.training.tokens
    starts = np.random.default_rng(seed).integers(0, count - _WINDOW, _READS).tolist()
    batch = np.empty((32, _WINDOW), np.int64)
    times_s = []
    began_s = time.perf_counter()
    for number, start in enumerate(starts):
        before_s = time.perf_counter()
        batch[number % 32] = store.tokens(start, _WINDOW)
        times_s.append(time.perf_counter() - before_s)
    rate = _READS * _WINDOW / (time.perf_counter() - began_s)
    p99_ms = 1000.0 * sorted(times_s)[len(times_s) * 99 // 100]
    tell(f"read {rate / 1e6:.0f} million tokens a second in windows")
    store.close()
    return {"tokens_read_per_s": round(rate), "read_p99_ms": round(p99_ms, 4)}


def _memory(options: DataBenchOptions, tell: Tell) -> dict[str, object]:
    """Peak memory of a pack of the large set as bytes, and of the mixed one with its tokenizer."""
    large = options.folder / "large.jsonl"
    num_bytes, number = options.large_mib * MIB, 0
    lines = [text.decode() for text in _texts(4 * MIB, options.seed)]
    with large.open("wb") as file:
        while file.tell() < num_bytes:
            number += 1
            file.write(_json_line(f"{number} {lines[number % len(lines)]}".encode()))
    tokenizer = str(options.folder / "tokenizer.json")
    peaks, seconds = [], []
    for source, kind in ((large, "bytes"), (options.folder / "mixed", tokenizer)):
        out = options.folder / f"memory-{source.name}"
        words = [*_PACK, str(source), "--out", str(out), "--tokenizer", kind, "--threads", "8"]
        began_s = time.perf_counter()
        peaks.append(_run(words))
        seconds.append(time.perf_counter() - began_s)
        tell(f"packed {source.name} in {seconds[-1]:.0f} s with {peaks[-1] / 1e6:.0f} MB")
    # As when a node starts again: the store is there, and nothing of it was read.
    store = options.folder / f"memory-{large.name}"
    open_s = _timed(lambda: TokenStore.open(store).close())
    return {
        "large_bytes": large.stat().st_size,
        "peak_bytes": max(peaks),
        "peak_bytes_large": peaks[0],
        "peak_bytes_tokenizer": peaks[1],
        "large_mb_per_s": round(large.stat().st_size / seconds[0] / 1e6, 1),
        "open_s": round(open_s, 3),
    }


def _run(words: list[str]) -> int:
    """The most memory that a command took. Raises StateError if it failed."""
    process = subprocess.Popen(words, env=child_environment(), stdout=subprocess.DEVNULL)
    peak = PeakMemory()
    while process.poll() is None:
        peak.look(process.pid)
        time.sleep(_LOOK_S)
    if process.returncode:
        raise StateError(f"`{' '.join(words[3:])}` ended with status {process.returncode}")
    return peak.high
