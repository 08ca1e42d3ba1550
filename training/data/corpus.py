"""SEAM Corpus: the text of a run, pinned by content.

A run trains on a token store (`training.data.store`), of which the manifest has the root. Either
the founder has packed it, or it is a text that other machines have as well: the sources of Python's
library, which are made into the same blocks in memory.
"""

import platform
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3

from protocol.errors import CorpusError
from protocol.grid import merkle_root
from protocol.limits import MIB
from protocol.manifest import BYTES_TOKENIZER, CorpusSpec
from training.data.sampling import MemoryBlocks, SampledBlocks
from training.data.store import SMALL_BLOCK_BYTES, StoreFacts, TokenStore
from training.numeric import Registry

SHUFFLED_WHOLE_BYTES = 16 * MIB
"""So much text to train on is shuffled as a whole: every peer comes to hold all of it, within
minutes. Samples of a larger one stay within few blocks for the time of a lease."""

HELD_OUT_SHARE = 0.1
"""Of the documents of a text that needs no packing."""

_STDLIB_BYTES_LEAST, _STDLIB_BYTES_MAX = MIB, 8 * MIB
"""Every process of every node holds the text in memory. What we take of the library is 8 MB."""

# Packages that every installation of a version has: tkinter, idlelib, distutils and venv are
# missing from some. encodings and pydoc_data are long tables and manual pages, which teach little.
_STDLIB_PACKAGES = (
    "asyncio",
    "collections",
    "concurrent",
    "ctypes",
    "curses",
    "dbm",
    "email",
    "html",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "pathlib",
    "re",
    "sqlite3",
    "sysconfig",
    "tomllib",
    "unittest",
    "urllib",
    "wsgiref",
    "xml",
    "xmlrpc",
    "zoneinfo",
)
_TEST_FOLDERS = frozenset({"test", "tests"})


CORPORA: Registry[Iterable[bytes]] = Registry("corpus")
"""Factories `()` that read the documents of a text of this machine, as UTF-8 without NUL and in an
order that is the same everywhere. They raise CorpusError if it is not there."""


# The blocks of a text in memory -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """A text as blocks of bytes, laid out as `training.data.store` lays them out."""

    training: Sequence[bytes]
    held_out: Sequence[bytes]
    documents: Sequence[bytes]
    held_out_tokens: int
    held_out_text_bytes: int

    @property
    def payloads(self) -> list[bytes]:
        """All blocks."""
        return [*self.training, *self.held_out, *self.documents]


def pack_in_memory(documents: Iterable[bytes]) -> Packed:
    """What packing makes of small documents: their hash says who is held out, byte 0 ends each.

    Raises CorpusError unless there is a document to train on and one to hold out.
    """
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for text in documents:
        lot = int.from_bytes(blake3(text).digest(length=8), "big")
        parts[lot < int(HELD_OUT_SHARE * 2.0**64)].append(text)
    training, held_out = parts
    if not training or not held_out:
        raise CorpusError("a text of too few documents: none to train on, or none to hold out")
    ends = [np.cumsum([len(text) + 1 for text in part]) for part in parts]
    offsets = b"".join(np.append(0, one[:-1]).astype("<u8").tobytes() for one in ends)
    joined = [b"".join(text + b"\0" for text in part) for part in parts]
    return Packed(
        training=_whole_blocks(joined[0], joined[0]),
        held_out=_whole_blocks(joined[1], b"\0"),
        documents=_whole_blocks(offsets, b"\0"),
        held_out_tokens=len(joined[1]),
        held_out_text_bytes=len(joined[1]) - len(held_out),
    )


def _whole_blocks(data: bytes, filling: bytes) -> list[bytes]:
    """`data`, and what fills up its last block: `filling` as often as it takes."""
    size = SMALL_BLOCK_BYTES
    missing = -len(data) % size
    data += (filling * (missing // len(filling) + 1))[:missing]
    return [data[start : start + size] for start in range(0, len(data), size)]


# Pinning and opening ------------------------------------------------------------------------------


def pin_corpus(name: str, *, permutation_seed: int = 0, lease_bytes: int = 0) -> CorpusSpec:
    """The spec of the text `name` as this machine has it; the founder calls it.

    The name in the spec also says which version it is. Of `lease_bytes` see `shuffle_blocks`.
    Raises ConfigError for an unknown name, CorpusError if the text is not on this machine.
    """
    packed = pack_in_memory(CORPORA[name]())
    return CorpusSpec(
        name=f"{name}-{platform.python_version()}",
        digest=_root(packed.payloads),
        training_blocks=len(packed.training),
        held_out_blocks=len(packed.held_out),
        document_blocks=len(packed.documents),
        block_bytes=SMALL_BLOCK_BYTES,
        token_bytes=1,
        vocab_size=256,
        held_out_tokens=packed.held_out_tokens,
        held_out_text_bytes=packed.held_out_text_bytes,
        shuffle_blocks=shuffle_blocks(len(packed.training), SMALL_BLOCK_BYTES, lease_bytes),
        permutation_seed=permutation_seed,
    )


def pin_store(
    facts: StoreFacts, name: str, *, permutation_seed: int = 0, lease_bytes: int = 0
) -> CorpusSpec:
    """The spec of a token store. Of `lease_bytes` see `shuffle_blocks`."""
    tokenizer, is_bytes = facts.tokenizer, facts.tokenizer.kind == "bytes"
    return CorpusSpec(
        name=name,
        digest=bytes.fromhex(facts.root),
        training_blocks=facts.training.blocks,
        held_out_blocks=facts.held_out.blocks,
        document_blocks=facts.document_blocks,
        block_bytes=facts.block_bytes,
        token_bytes=facts.token_bytes,
        vocab_size=tokenizer.vocab_size,
        held_out_tokens=facts.held_out.tokens,
        held_out_text_bytes=facts.held_out.text_bytes,
        shuffle_blocks=shuffle_blocks(facts.training.blocks, facts.block_bytes, lease_bytes),
        permutation_seed=permutation_seed,
        tokenizer_digest=BYTES_TOKENIZER if is_bytes else bytes.fromhex(tokenizer.digest),
        probe_digest=bytes(32) if is_bytes else bytes.fromhex(tokenizer.probe_digest),
    )


def shuffle_blocks(training_blocks: int, block_bytes: int, lease_bytes: int) -> int:
    """Within how many blocks samples are shuffled: all of a small text, else as many as a lease of
    `lease_bytes` has, so that who fetches the blocks of its leases fetches at most twice them."""
    if training_blocks * block_bytes <= SHUFFLED_WHOLE_BYTES:
        return training_blocks
    return min(training_blocks, max(1, lease_bytes // block_bytes))


def open_corpus(spec: CorpusSpec, folder: Path | None = None) -> SampledBlocks:
    """The corpus that `spec` pins: the token store in `folder`, or without one a text that this
    machine has.

    Raises CorpusError if this machine has other bytes or none, saying what differs and what to do.
    """
    if folder is not None:
        store = TokenStore.open(folder)
        if pin_store(store.facts, spec.name).digest != spec.digest:
            raise CorpusError(
                f"{folder} holds another text than the run's, which is {spec.name} with root "
                f"{spec.digest.hex()[:12]}: its root is {store.facts.root[:12]}"
            )
        return SampledBlocks(spec, store)
    return SampledBlocks(spec, _local_blocks(spec))


def _local_blocks(spec: CorpusSpec) -> MemoryBlocks:
    kind = spec.name.partition("-")[0]
    if kind not in CORPORA:
        raise CorpusError(
            f"the run's text {spec.name} is not on this machine: get the founder's token store, "
            "and name its folder with --corpus"
        )
    payloads = pack_in_memory(CORPORA[kind]()).payloads
    root = _root(payloads)
    if len(payloads) == spec.num_blocks and root == spec.digest:
        return MemoryBlocks(spec, payloads)
    version, here = python_needed(spec), platform.python_version()
    found = f"{len(payloads)} blocks with root {root.hex()[:12]}"
    pinned = f"{spec.num_blocks} with root {spec.digest.hex()[:12]}"
    if version and version != here:
        cure = f"the run is of Python {version}, this is {here}: start barnraise with {version}"
    else:
        cure = (
            f"this build of Python {here} has changed or missing library files: "
            "start barnraise with the same build as the founder's"
        )
    raise CorpusError(f"the run pins the text {spec.name}, {pinned}; here are {found}; {cure}")


def python_needed(spec: CorpusSpec) -> str:
    """The release of Python, to its last number, whose library the text is; else nothing."""
    kind, _, version = spec.name.partition("-")
    return version if kind in CORPORA else ""


def _root(payloads: Sequence[bytes]) -> bytes:
    return merkle_root([blake3(payload).digest() for payload in payloads])


# The sources of Python's library ------------------------------------------------------------------


def read_stdlib(root: Path) -> list[bytes]:
    """The sources of the standard library in `root`, a document each, in the order of their
    relative names.

    Raises CorpusError if they are not there.
    """
    documents, left = list[bytes](), _STDLIB_BYTES_MAX
    for path in stdlib_files(root):
        # Windows installers bring the same files with other line ends.
        text = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\0", b"")
        if len(text) > left:
            break
        documents.append(text)
        left -= len(text)
    if _STDLIB_BYTES_MAX - left < _STDLIB_BYTES_LEAST:
        raise CorpusError(
            f"this Python's library sources are not in {root}: "
            "start barnraise with a Python that is installed with its sources"
        )
    return documents


CORPORA.register("stdlib", lambda: read_stdlib(Path(sysconfig.get_path("stdlib"))))


def stdlib_files(root: Path) -> list[Path]:
    """Which files `read_stdlib` reads, in order."""
    # Top-level modules that a distribution or a user has put there are in nobody else's library.
    files = [path for path in root.glob("*.py") if path.stem in sys.stdlib_module_names]
    for package in _STDLIB_PACKAGES:
        files += [
            path
            for path in (root / package).rglob("*.py")
            if _TEST_FOLDERS.isdisjoint(path.relative_to(root).parts)
        ]
    # Compared as text with slashes, so that the order is the same on every system.
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())
