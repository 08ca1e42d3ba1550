"""What joiners may ask for: sealed states, and the results of the rounds behind them (R11).

A state is served from memory while it is one of the last, and then from its checkpoint. Whoever
began to fetch one is to come to its end: a state that is asked for stays for a while, with its
checkpoint's file mapped where there is one, else in memory.

`find` and the methods of what it gives block; one at a time, from threads or inline.
"""

import json
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from node.holdings.journal import Journal
from node.holdings.shard_store import Item, ShardStore, State
from node.holdings.states import ResultCells
from node.plane.gathered import split
from protocol import limits
from protocol.errors import CheckpointError, StreamClosedError
from protocol.frames import Bulk
from protocol.grid import ShardSpec, StateTree, cell_root
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate, SealValue
from training.files.state import ANCHOR_FILE, OUTER_FILE, check_header, checkpoint_name

STATES_HELD_MAX = 2
"""States that are only there because somebody fetches them."""

HELD_S = 60.0
"""So long after somebody asked for a cell of it."""


class CellSource(Protocol):
    """SEAM: the cells of one subject."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def item(self, index: int) -> Item:
        """One of them, to be sent."""
        ...


FindCheckpoint = Callable[[SealCertificate], CellSource | None]
"""SEAM: the state of a seal from its checkpoint, if there is one and it is whole."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StateInMemory:
    """The cells of a state; nobody writes to its arrays."""

    store: ShardStore
    state: State

    @property
    def count(self) -> int:
        """See Source."""
        return self.store.num_state_cells

    def item(self, index: int) -> Item:
        """See Source."""
        return self.store.state_item(self.state, index)


@dataclass(frozen=True, slots=True)
class Result:
    """The encoded result of a round, in memory or on the disk."""

    cells: ResultCells

    @property
    def count(self) -> int:
        """See Source."""
        return len(self.cells)

    def item(self, index: int) -> Item:
        """See Source. Raises StreamClosedError if the disk has lost the cell."""
        payload = self.cells.get(index)
        if payload is None:
            # Not what it has instead: who steps on wrong cells takes their sender for a liar.
            raise StreamClosedError(f"cell {index} of a result is not on the disk any more")
        return Item(index, payload, ())


@dataclass(slots=True)
class _Held:
    source: CellSource
    asked_s: float
    is_in_memory: bool


class Served:
    """The sources of one shard on one node."""

    def __init__(
        self, store: ShardStore, journal: Journal, find_checkpoint: FindCheckpoint
    ) -> None:
        self._store = store
        self._journal = journal
        self._find_checkpoint = find_checkpoint
        self._held: dict[bytes, _Held] = {}
        self._results: dict[bytes, ResultCells] = {}
        """By LIST those that were read and found whole. They are asked for in pieces, by some
        joiners at once, and none of them is in memory for that: only the roots of its cells."""

    def find(self, bulk: Bulk, certificate: SealCertificate, *, now_s: float) -> CellSource | None:
        """The cells of a state, or of the step to it; None if they are not here."""
        self.forget_old(now_s)
        if bulk is Bulk.STEP:
            return self._find_result(certificate)
        return self._find_state(certificate, now_s)

    def forget_old(self, now_s: float) -> None:
        """Let go of what nobody has asked for of late."""
        for root in [r for r, held in self._held.items() if now_s > held.asked_s + HELD_S]:
            del self._held[root]

    def _find_state(self, certificate: SealCertificate, now_s: float) -> CellSource | None:
        root = certificate.value.root
        held, state = self._held.get(root), self._store.state_of(root)
        if held is None or (held.is_in_memory and state is None):
            found = self._find_checkpoint(certificate) if state is None else None
            if found is None and state is not None:
                found = StateInMemory(self._store, state)
            if found is not None:
                held = _Held(found, now_s, is_in_memory=state is not None)
        if held is None:
            return None
        held.asked_s = now_s
        # The one that nobody has asked for for the longest makes room.
        limits.keep_newest(self._held, root, held, STATES_HELD_MAX)
        return held.source

    def _find_result(self, certificate: SealCertificate) -> CellSource | None:
        value = certificate.value
        digest = value.list_digest
        if not value.commits:
            return None  # Its state is the one before.
        sizes = self._store.result_sizes(self._store.layout.fragment_of(value.round))
        held = self._store.result_of(digest)
        if held is not None and len(held) == len(sizes):
            return Result(held)
        held = self._results.get(digest) or self._read_result(value, sizes)
        return None if held is None else Result(held)

    def _read_result(self, value: SealValue, sizes: Sequence[int]) -> ResultCells | None:
        digest = value.list_digest
        data = self._journal.results(value.round).get(digest, b"")
        read = self._journal.find_result(value.round, digest)
        if len(data) != sum(sizes) or read is None:
            return None
        held = ResultCells(split(data, sizes))
        held.leave_to_disk(read, sizes)
        limits.keep_newest(self._results, digest, held, limits.RESULT_ROUNDS_KEPT)
        return held


logger = logging.getLogger(__name__)

# Checkpoint source --------------------------------------------------------------------------------
#
# The cells of a state from its checkpoint: mapped, so that they take no memory of ours.
#
# The file stays readable while it is mapped, also when newer checkpoints have taken its place.
# Nothing in it is believed: all of it is hashed once, and must have the root that was sealed. Each
# cell is hashed once more when it is sent.

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
        except (CheckpointError, ValueError) as damage:
            logger.warning("checkpoint not served path=%s reason=%s", path, damage)
            limits.keep_newest(self._hashed, files, None, _REMEMBERED_MAX)
            return None
        limits.keep_newest(self._hashed, files, found.hashed, _REMEMBERED_MAX)
        return found if found.hashed.root == value.root else None


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
