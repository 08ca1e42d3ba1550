"""The cells of a state from its checkpoint: mapped, so that they take no memory of ours.

The file stays readable while it is mapped, also when newer checkpoints have taken its place.
Nothing in it is believed: all of it is hashed once, and must have the root that was sealed. Each
cell is hashed once more when it is sent.
"""

import json
import logging
import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from node.holdings.shard_store import Item, ShardStore
from node.plane.served import CellSource, FindCheckpoint
from protocol.errors import CheckpointError, StreamClosedError
from protocol.grid import ShardSpec, StateTree, cell_root
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from training.files.state import ANCHOR_FILE, OUTER_FILE, check_header, checkpoint_name

logger = logging.getLogger(__name__)

_LENGTH_BYTES = 8
_REMEMBERED_MAX = 8
"""Checkpoints whose hashes are kept, 100 bytes a cell: more than there are on the disk."""

Vector = NDArray[np.float32]


class _MappedVector:
    """The vector of a shard, or one of its slots, in a safetensors file."""

    def __init__(self, path: Path, spec: ShardSpec, prefix: str) -> None:
        num_slots = 4  # Of any outer optimizer that we have.
        check_header(path, num_slots * len(spec.tensors))
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            try:
                header = json.loads(file.read(length))
                places = {name: entry["data_offsets"] for name, entry in header.items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise CheckpointError(f"{path} has no header of ours") from error
        begin = _LENGTH_BYTES + length
        numel = (path.stat().st_size - begin) // 4
        if numel <= 0:  # Torn within the header's blanks, for instance.
            raise CheckpointError(f"{path} ends too early")
        self._data: Vector = np.memmap(path, "<f4", mode="r", offset=begin, shape=(numel,))
        self._starts, self._offsets, start = [], [], 0
        for index in (index for fragment in spec.fragments for index in fragment):
            tensor = spec.tensors[index]
            first, stop = places.get(prefix + tensor.name, (-1, -1))
            if first < 0 or first % 4 or stop - first != 4 * tensor.numel:
                raise CheckpointError(f"{path} lacks {prefix}{tensor.name}")
            if stop > 4 * len(self._data):
                raise CheckpointError(f"{path} ends too early")
            self._starts.append(start)
            self._offsets.append(first // 4)
            start += tensor.numel
        self._numel = start

    def cell_bytes(self, start: int, stop: int) -> bytes:
        """Elements [start, stop) as they travel."""
        found = []
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            bounds = (*self._starts[number + 1 : number + 2], self._numel)
            end = min(stop, bounds[0])
            first = self._offsets[number] + start - self._starts[number]
            found.append(self._data[first : first + end - start].tobytes())
            start, number = end, number + 1
        return b"".join(found)


@dataclass(slots=True)
class _Hashed:
    """What the hashes of a checkpoint's cells are; `root` is None once a cell has changed."""

    leaves: list[bytes]
    tree: StateTree
    root: bytes | None


class MappedState:
    """A Source. Raises CheckpointError or OSError for files that are not what was written."""

    def __init__(
        self, folder: Path, store: ShardStore, spec: ShardSpec, hashed: _Hashed | None = None
    ) -> None:
        """Hashes all of it, unless the same files were `hashed` before."""
        self._store = store
        self._vectors = [_MappedVector(folder / ANCHOR_FILE, spec, "")]
        for slot in store.slot_names:
            self._vectors.append(_MappedVector(folder / OUTER_FILE, spec, f"{slot}/"))
        self.hashed = hashed or self._hash()

    def _hash(self) -> _Hashed:
        leaves = [cell_root(self._cell(index)) for index in range(self.count)]
        each = iter(leaves)
        tree = StateTree([list(islice(each, count)) for count in self._store.state_counts])
        return _Hashed(leaves, tree, tree.root)

    @property
    def count(self) -> int:
        """See Source."""
        return self._store.num_state_cells

    def _cell(self, index: int) -> bytes:
        vector, span = self._store.state_place(index)
        return self._vectors[vector].cell_bytes(span.start, span.stop)

    def item(self, index: int) -> Item:
        """See Source. Raises StreamClosedError for a cell that has changed on the disk."""
        cell = self._cell(index)
        if cell_root(cell) != self.hashed.leaves[index]:
            # Who is sent a wrong cell takes its sender for a liar.
            self.hashed.root = None
            raise StreamClosedError(f"cell {index} of a checkpoint is not what it was")
        return Item(index, cell, self.hashed.tree.proof(index))


class _Finder:
    """The checkpoints of a shard, each hashed once: whoever asks for some bytes of one, and then of
    another, does not have all of both read again and again."""

    def __init__(self, folder: Path, store: ShardStore, spec: ShardSpec) -> None:
        self._folder = folder
        self._store = store
        self._spec = spec
        self._hashed: dict[tuple[int, ...], _Hashed | None] = {}
        """By the identity of their files; None of those that are no checkpoint."""

    def find(self, certificate: SealCertificate) -> CellSource | None:
        """See FindCheckpoint."""
        value = certificate.value
        path = self._folder / checkpoint_name(value.round + 1)
        if not path.is_dir():
            return None
        try:
            files = _identity(path)
            known = self._hashed.get(files)
            # Of another branch, or damaged: nobody is to be given what was not sealed.
            if files in self._hashed and (known is None or known.root != value.root):
                return None
            found = MappedState(path, self._store, self._spec, known)
        except OSError as error:
            logger.warning("checkpoint not served path=%s reason=%s", path, error)
            return None
        except (CheckpointError, ValueError) as error:
            logger.warning("checkpoint not served path=%s reason=%s", path, error)
            self._remember(files, None)
            return None
        self._remember(files, found.hashed)
        return found if found.hashed.root == value.root else None

    def _remember(self, files: tuple[int, ...], hashed: _Hashed | None) -> None:
        self._hashed.pop(files, None)
        while len(self._hashed) >= _REMEMBERED_MAX:
            del self._hashed[next(iter(self._hashed))]
        self._hashed[files] = hashed


def _identity(folder: Path) -> tuple[int, ...]:
    """Of the files of a checkpoint: others are there once it is written anew. Raises OSError."""
    found = (os.stat(folder / name) for name in (ANCHOR_FILE, OUTER_FILE))
    return tuple(n for one in found for n in (one.st_ino, one.st_size, one.st_mtime_ns))


def checkpoint_finder(folder: Path, store: ShardStore, manifest: RunManifest) -> FindCheckpoint:
    """Finds sealed states in the checkpoints of a run's shard."""
    if os.name == "nt":
        # A mapped file cannot be removed there, so old checkpoints would stay.
        return lambda _certificate: None
    return _Finder(folder, store, manifest.shards[0]).find
