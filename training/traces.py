"""The states of own rounds on the disk, for those whom the beacon names to ask for them (R10).

    round-000042.trace    states, one behind the other; the residual that the round was encoded
                          with, if there was one; msgpack of what names all cells; where that begins

The trainer writes it while it trains, the network process serves cells out of it. It is not synced:
what a power cut takes costs the seat at worst, and a sync would hold up each round. So nothing in
it is believed: each cell is served only if it is what its root says.
"""

import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import msgpack

from protocol import limits
from protocol.errors import CheckpointError
from protocol.grid import Layout, cell_root, merkle_root
from protocol.manifest import RunManifest
from training.durable import WRITING
from training.exchange import TraceRoots
from training.segments import (
    TRACES_KEPT,
    SegmentState,
    Vector,
    cells_of,
    num_state_cells,
    state_bytes,
    state_of,
    work_cell_bytes,
)

SUFFIX = ".trace"
TRACES_FOLDER = "traces"
"""In the folder of inner states."""

_VERSION = 1
_NAME = re.compile(r"round-(\d{6,12})" + re.escape(SUFFIX))
_END = struct.Struct("<Q")
_ROOT_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Content:
    """A subject of a file: where its cells begin, and what names each."""

    start: int
    roots: tuple[bytes, ...]


class StoredCells(Sequence[bytes]):
    """The cells of one subject, each read when it is asked for. Whoever reads compares the roots:
    IndexError is raised for a cell that the disk has not as it was written."""

    def __init__(self, path: Path, layout: Layout, content: _Content) -> None:
        self._path, self._layout, self._start = path, layout, content.start
        self.roots = content.roots

    def __len__(self) -> int:
        return len(self.roots)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        if isinstance(index, slice):
            return tuple(self[one] for one in range(*index.indices(len(self))))
        if not 0 <= index < len(self):
            raise IndexError(index)
        each = self._layout.num_cells(0)
        vector, cell = divmod(index, each)
        is_tail = index == num_state_cells(self._layout) - 1
        first = 0 if is_tail else self._layout.cell_range(0, cell)[0]
        start = self._start + 4 * (vector * self._layout.numel + first)
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                data = file.read(work_cell_bytes(self._layout, index))
        except OSError as error:
            raise IndexError(f"cell {index} of {self._path} is gone") from error
        if cell_root(data) != self.roots[index]:
            raise IndexError(f"cell {index} of {self._path} is damaged")
        return data


class TraceWriter:
    """Writes the file of one round, as it is trained. All raise OSError on a full disk."""

    def __init__(self, path: Path, manifest: RunManifest, round_index: int) -> None:
        self._path = path
        self._run, self._round = manifest.digest, round_index
        self._layout = manifest.layout(0)
        self._writing = path.with_name(WRITING + path.name)
        self._writing.write_bytes(b"")
        self._size = 0
        self._names: list[list[bytes]] = []
        self._before = b""

    def add(self, state: SegmentState) -> None:
        """The next state: the first is that which the round begins with."""
        if not self._names:
            self._before = state.moments_root(self._layout)
        self._names.append(self._write(state.cells(self._layout)))

    def close(self, last: SegmentState, residual_N: Vector | None) -> TraceRoots:
        """The round is trained and encoded: `last` was added last, `residual_N` went into the
        encoding."""
        residual = None
        if residual_N is not None:
            residual = self._write(cells_of(self._layout, (residual_N,)))
        roots = TraceRoots(
            trace=tuple(map(merkle_root, self._names)),
            before=self._before,
            after=last.moments_root(self._layout),
        )
        body = [_VERSION, self._run, self._round, roots.before, roots.after, self._names, residual]
        self._append([msgpack.packb(body), _END.pack(self._size)])
        os.replace(self._writing, self._path)
        return roots

    def drop(self) -> None:
        """The round is not trained to its end."""
        self._writing.unlink(missing_ok=True)

    def _write(self, cells: Sequence[bytes]) -> list[bytes]:
        self._append(cells)
        return [cell_root(cell) for cell in cells]

    def _append(self, parts: Sequence[bytes]) -> None:
        with self._writing.open("ab") as file:
            file.writelines(parts)
        self._size += sum(map(len, parts))


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file holds, by the names in it."""

    path: Path
    round: int
    roots: TraceRoots
    contents: dict[bytes, _Content]


class TraceFolder:
    """The files of one run; written by one process, read by another. `TRACES_KEPT` stay."""

    def __init__(self, folder: Path, manifest: RunManifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._layout = manifest.layout(0)
        self._read: dict[str, tuple[tuple[int, int], Trace]] = {}

    def writer(self, round_index: int) -> TraceWriter:
        """For the next round; what is too old goes first. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(WRITING + "*"):
            left.unlink()
        kept = sorted(self._files())[-TRACES_KEPT + 1 :]
        for index, path in self._files().items():
            if index not in kept or index >= round_index:
                path.unlink()
        path = self._folder / f"round-{round_index:06d}{SUFFIX}"
        return TraceWriter(path, self._manifest, round_index)

    def find(self, root: bytes) -> Sequence[bytes]:
        """The cells of a state or residual; empty of another one."""
        for trace in self._traces():
            content = trace.contents.get(root)
            if content is not None:
                return StoredCells(trace.path, self._layout, content)
        return ()

    def first(self, round_index: int) -> SegmentState | None:
        """What that round began with; None if it is not here, or not whole."""
        for trace in self._traces():
            if trace.round == round_index:
                content = trace.contents[trace.roots.trace[0]]
                cells = StoredCells(trace.path, self._layout, content)
                with suppress(IndexError, ValueError):
                    return state_of(self._layout, b"".join(cells))
        return None

    def anchor(self, round_index: int) -> Vector | None:
        """The anchor that the own round began with."""
        first = self.first(round_index)
        return None if first is None else first.weights_N

    def _files(self) -> dict[int, Path]:
        if not self._folder.is_dir():
            return {}
        matches = ((path, _NAME.fullmatch(path.name)) for path in self._folder.iterdir())
        return {int(match[1]): path for path, match in matches if match is not None}

    def _traces(self) -> Iterator[Trace]:
        """Newest first; those that cannot be read are passed over."""
        files = self._files()
        self._read = {
            name: one for name, one in self._read.items() if one[1].path in files.values()
        }
        for index in sorted(files, reverse=True):
            with suppress(OSError, CheckpointError):
                yield self._trace(files[index])

    def _trace(self, path: Path) -> Trace:
        status = path.stat()
        version = (status.st_mtime_ns, status.st_size)
        known = self._read.get(path.name)
        if known is None or known[0] != version:
            known = (version, read_trace_names(path, self._manifest))
            self._read[path.name] = known
        return known[1]


def read_trace_names(path: Path, manifest: RunManifest) -> Trace:
    """What a file says that it holds. Raises CheckpointError for one of another run or version, or
    that is torn, and OSError."""
    layout, segments = manifest.layout(0), manifest.audits.segments
    most = (segments + 2) * num_state_cells(layout) * (_ROOT_BYTES + 5) + limits.KIB
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END.size))
        end = file.read(_END.size)
        start = _END.unpack(end)[0] if len(end) == _END.size else size
        if not 0 <= size - _END.size - start <= most:
            raise CheckpointError(f"{path} is torn")
        file.seek(start)
        data = file.read(size - _END.size - start)
    try:
        version, run, index, before, after, names, residual = msgpack.unpackb(data)
        if (version, run, len(names)) != (_VERSION, manifest.digest, segments + 1):
            raise CheckpointError(f"{path} is of another run or version")
        roots = TraceRoots(trace=tuple(map(merkle_root, names)), before=before, after=after)
        trace = Trace(path, index, roots, {})
        each = [(found, num_state_cells(layout)) for found in names]
        each += [] if residual is None else [(residual, layout.num_cells(0))]
        for number, (found, count) in enumerate(each):
            if len(found) != count or any(len(root) != _ROOT_BYTES for root in found):
                raise CheckpointError(f"{path} names other cells")
            content = _Content(number * state_bytes(layout), tuple(found))
            trace.contents.setdefault(merkle_root(found), content)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CheckpointError(f"{path} is torn: {error!r}") from error
    return trace
