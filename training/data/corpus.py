"""SEAM Dataset: corpora pinned by content, and samples from a keyed permutation.

B samples, W window (context + 1 bytes)

A corpus is a text cut into blocks of equal size; the Merkle root over the blocks' digests pins it.
Every `held_out_every`-th block is for validation alone. A training sample is a window inside one
other block, so that no sample ever touches a held-out byte. Which window sample number i is, is a
function of the CorpusSpec: all machines agree on it without a word.
"""

import platform
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import ConfigError, CorpusError
from protocol.grid import merkle_root
from protocol.leases import Lease
from protocol.limits import KIB, MIB
from protocol.manifest import CorpusSpec
from training.numeric import Registry

# A keyed bijection of 0..n-1 that needs no memory: a Feistel network with cycle walking ----------
#
# Integer arithmetic on 64 bits only, so that every machine computes the same order. It mixes well
# and keeps no secret.

_ROUNDS = 6


def permute(numbers_B: NDArray[np.int64], domain: int, key: str) -> NDArray[np.int64]:
    """Where the permutation of 0..domain-1 that `key` names takes each of the numbers.

    The network permutes the next power of four; a result beyond the domain goes through it again,
    which stays a bijection (Black and Rogaway 2002, cycle walking) and takes four passes at most
    on average.
    """
    assert 0 < domain < 2**62
    assert len(numbers_B) == 0 or (numbers_B.min() >= 0 and numbers_B.max() < domain)
    half_bits = np.uint64(max(1, ((domain - 1).bit_length() + 1) // 2))
    raw = blake3(key.encode()).digest(length=8 * _ROUNDS)
    keys = np.frombuffer(raw, dtype="<u8").astype(np.uint64)
    result_B = numbers_B.astype(np.uint64)
    outside = np.ones(len(result_B), dtype=np.bool_)
    while outside.any():
        result_B[outside] = _feistel(result_B[outside], half_bits, keys)
        outside = result_B >= np.uint64(domain)
    return result_B.astype(np.int64)


def _feistel(
    values_B: NDArray[np.uint64], half_bits: np.uint64, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left_B, right_B = values_B >> half_bits, values_B & mask
    for key in keys:
        left_B, right_B = right_B, left_B ^ (_mix(right_B ^ key) & mask)
    return (left_B << half_bits) | right_B


def _mix(values_B: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014); products wrap at 2^64."""
    values_B = (values_B ^ (values_B >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values_B = (values_B ^ (values_B >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values_B ^ (values_B >> np.uint64(31))


_BLOCK_BYTES = 64 * KIB
_HELD_OUT_EVERY = 10

_STDLIB_BYTES_MAX = 8 * MIB
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


class Dataset(Protocol):
    """SEAM: called by the trainer for each batch, and for validation. Pure after opening."""

    def samples_per_epoch(self, context: int) -> int:
        """Number of samples in one pass over the training blocks."""
        ...

    def windows(self, samples_B: NDArray[np.int64], context: int) -> NDArray[np.uint8]:
        """The windows (B, context + 1) of these sample numbers, new memory."""
        ...

    def held_out_windows(self, num_windows: int, context: int) -> NDArray[np.uint8]:
        """At most `num_windows` windows (B, context + 1) of held-out text, always the same ones."""
        ...


CORPORA: Registry[bytes] = Registry("corpus")
"""Factories `()` that read a text of this machine. Raise CorpusError if it is not there."""


def pin_corpus(name: str, *, permutation_seed: int = 0) -> CorpusSpec:
    """The spec of the corpus `name` as this machine has it; the founder calls it.

    The name in the spec also says which version it is. Raises ConfigError for an unknown name,
    CorpusError if the text is not on this machine.
    """
    blocks = _blocks(CORPORA[name](), _BLOCK_BYTES)
    return CorpusSpec(
        name=f"{name}-{platform.python_version()}",
        digest=_root(blocks),
        num_blocks=len(blocks),
        block_bytes=_BLOCK_BYTES,
        held_out_every=_HELD_OUT_EVERY,
        permutation_seed=permutation_seed,
    )


def open_corpus(spec: CorpusSpec) -> "BlockDataset":
    """The corpus that `spec` pins, checked to the last byte.

    Raises CorpusError if this machine has other bytes, saying what differs and what to do.
    """
    kind, version = spec.name.partition("-")[0], python_needed(spec)
    here = platform.python_version()
    blocks = _blocks(CORPORA[kind](), spec.block_bytes)
    root = _root(blocks)
    if len(blocks) == spec.num_blocks and root == spec.digest:
        return BlockDataset(spec, blocks)
    found = f"{len(blocks)} blocks with root {root.hex()[:12]}"
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
    return spec.name.partition("-")[2]


def lease_samples(lease: Lease) -> NDArray[np.int64]:
    """All sample numbers of a lease, ascending."""
    ranges = [np.arange(first, stop, dtype=np.int64) for first, stop in lease]
    return np.concatenate([np.empty(0, np.int64), *ranges])


class BlockDataset:
    """Dataset over a corpus in memory."""

    def __init__(self, spec: CorpusSpec, blocks: Sequence[bytes]) -> None:
        """`blocks` may come from anywhere. Raises CorpusError unless they are those of `spec`."""
        if [len(block) for block in blocks] != [spec.block_bytes] * spec.num_blocks:
            raise CorpusError(f"{spec.name}: not {spec.num_blocks} blocks of {spec.block_bytes}")
        if _root(blocks) != spec.digest:
            raise CorpusError(f"{spec.name}: the blocks are not those that the run pins")
        text = np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, spec.block_bytes)
        numbers = np.arange(spec.num_blocks)
        held_out = numbers % spec.held_out_every == spec.held_out_every - 1
        if not held_out.any():
            raise CorpusError(f"{spec.name}: {spec.num_blocks} blocks, none of them held out")
        self._spec = spec
        self._training, self._held_out = text[~held_out], text[held_out]

    def samples_per_epoch(self, context: int) -> int:
        """See Dataset."""
        return len(self._training) * self._windows_per_block(context)

    def windows(self, samples_B: NDArray[np.int64], context: int) -> NDArray[np.uint8]:
        """See Dataset."""
        epochs_B, numbers_B = np.divmod(samples_B, self.samples_per_epoch(context))
        windows_BW = np.empty((len(samples_B), context + 1), np.uint8)
        for epoch in np.unique(epochs_B):
            rows = epochs_B == epoch
            windows_BW[rows] = self._epoch_windows(int(epoch), numbers_B[rows], context)
        return windows_BW

    def held_out_windows(self, num_windows: int, context: int) -> NDArray[np.uint8]:
        """See Dataset. They are spread evenly over all held-out blocks."""
        available = len(self._held_out) * self._windows_per_block(context)
        num_windows = min(num_windows, available)
        numbers_B = np.arange(num_windows, dtype=np.int64) * available // max(1, num_windows)
        return self._cut(self._held_out, numbers_B, context, shift=0)

    def _windows_per_block(self, context: int) -> int:
        # One window fewer than would fit leaves room for any shift below `context`.
        count = (self._spec.block_bytes - context) // context
        if count < 1:
            raise ConfigError(f"a context of {context} bytes does not fit the corpus's blocks")
        return count

    def _epoch_windows(
        self, epoch: int, numbers_B: NDArray[np.int64], context: int
    ) -> NDArray[np.uint8]:
        key = f"{self._spec.permutation_seed}/epoch/{epoch}"
        order_B = permute(numbers_B, self.samples_per_epoch(context), key)
        # Windows do not overlap within an epoch. The next one cuts them at another phase, so that
        # a byte is not always predicted from the same bytes before it.
        phase = blake3(f"{key}/phase".encode()).digest(length=8)
        shift = int.from_bytes(phase, "little") % context
        return self._cut(self._training, order_B, context, shift=shift)

    def _cut(
        self, text: NDArray[np.uint8], numbers_B: NDArray[np.int64], context: int, *, shift: int
    ) -> NDArray[np.uint8]:
        rows_B, columns_B = np.divmod(numbers_B, self._windows_per_block(context))
        columns_BW = (shift + columns_B * context)[:, None] + np.arange(context + 1)
        return text[rows_B[:, None], columns_BW]


def read_stdlib(root: Path) -> bytes:
    """The sources of the standard library in `root`, in the order of their relative names.

    Raises CorpusError if they are not there.
    """
    text = bytearray()
    for path in stdlib_files(root):
        # Windows installers bring the same files with other line ends.
        text += path.read_bytes().replace(b"\r\n", b"\n")
        if len(text) >= _STDLIB_BYTES_MAX:
            break
    if len(text) < _HELD_OUT_EVERY * _BLOCK_BYTES:
        raise CorpusError(
            f"this Python's library sources are not in {root}: "
            "start barnraise with a Python that is installed with its sources"
        )
    return bytes(text[:_STDLIB_BYTES_MAX])


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


def _blocks(text: bytes, block_bytes: int) -> list[bytes]:
    # The rest behind the last whole block is left out: windows are cut from equal blocks.
    starts = range(0, len(text) - block_bytes + 1, block_bytes)
    return [text[start : start + block_bytes] for start in starts]


def _root(blocks: Sequence[bytes]) -> bytes:
    return merkle_root([blake3(block).digest() for block in blocks])
