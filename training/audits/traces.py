"""The states of own rounds on the disk, for those whom the beacon names to ask for them (R10).

    round-000042.trace    msgpack: what the round was trained on, and what names all cells of all
                          states and of the residual that it was encoded with
    <root>.cells          a vector of weights, moments with their steps, or a residual, by its root:
                          what a round leaves and the next one begins with is there once
    round-000042.closed   of that round nobody may ask any more: all but its anchor goes

Of the states only those are kept that `kept_states` names; one between them is made again by
running on from the last one before it, when somebody may ask for it and does (`reopen`).

The trainer writes and deletes while it trains, the network process serves cells and closes rounds.
Nothing is synced: what a power cut takes costs the seat at worst, and a sync would hold up each
round. So nothing is believed either: each cell is served only if it is what its root says.

Of somebody else's segment, run again here, any bytes may be what a liar shows. What no honest
trainer can have begun with leads to NO_START, which is nobody's end; what nobody can tell here
leads to nothing at all.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import overload

import msgpack
import numpy as np

from protocol import limits
from protocol.errors import CheckpointError, DecodeError
from protocol.grid import Layout, cell_root, merkle_root
from protocol.manifest import RunManifest
from protocol.segments import (
    TRACES_KEPT,
    RunsSegments,
    SegmentPlace,
    SegmentState,
    Vector,
    cells_of,
    encoded_end,
    kept_states,
    num_state_cells,
    root_of,
    state_bytes,
    state_of,
    work_cell_bytes,
)
from training.channel.exchange import TraceRoots
from training.channel.frames import Audit, Reopen
from training.compression import make_feedback
from training.files.durable import WRITING
from training.numeric.arithmetic import all_finite

SUFFIX, CELLS_SUFFIX, CLOSED_SUFFIX = ".trace", ".cells", ".closed"
TRACES_FOLDER = "traces"
"""In the folder of inner states."""

_VERSION = 2
_NAME = re.compile(r"round-(\d{6,12})" + re.escape(SUFFIX))
_ROOT_BYTES = 32
_LEASE_MAX = 1 << 12


@dataclass(frozen=True, slots=True)
class _Piece:
    """A file of cells: those of a subject from `first` on."""

    path: Path
    first: int
    stop: int


class StoredCells(Sequence[bytes]):
    """The cells of one subject, each read when it is asked for. Whoever reads compares the roots:
    IndexError is raised for a cell that the disk has not as it was written."""

    def __init__(self, folder: Path, layout: Layout, roots: tuple[bytes, ...]) -> None:
        self._layout, self.roots = layout, roots
        each = layout.num_cells(0)
        cuts = (0, each, len(roots)) if len(roots) > each else (0, each)
        self._pieces = [
            _Piece(folder / _piece_name(roots[first:stop]), first, stop)
            for first, stop in pairwise(cuts)
        ]

    @property
    def names(self) -> list[str]:
        """Of the files that it is in."""
        return [piece.path.name for piece in self._pieces]

    @property
    def is_kept(self) -> bool:
        """Whether all its files are there; what is in them nobody has looked at."""
        return all(piece.path.is_file() for piece in self._pieces)

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
        piece = next(one for one in self._pieces if index < one.stop)
        vector, cell = divmod(index - piece.first, self._layout.num_cells(0))
        is_tail = index == num_state_cells(self._layout) - 1
        first = 0 if is_tail else self._layout.cell_range(0, cell)[0]
        try:
            with piece.path.open("rb") as file:
                file.seek(4 * (vector * self._layout.numel + first))
                data = file.read(work_cell_bytes(self._layout, index))
        except OSError as error:
            raise IndexError(f"cell {index} of {piece.path} is gone") from error
        if cell_root(data) != self.roots[index]:
            raise IndexError(f"cell {index} of {piece.path} is damaged")
        return data


def _piece_name(roots: Sequence[bytes]) -> str:
    return merkle_root(roots).hex() + CELLS_SUFFIX


def _put(folder: Path, cells: Sequence[bytes], roots: Sequence[bytes]) -> None:
    """Write a piece that is not there. Raises OSError on a full disk."""
    path = folder / _piece_name(roots)
    with suppress(FileNotFoundError):
        if path.stat().st_size == sum(map(len, cells)):
            return
    writing = path.with_name(WRITING + path.name)
    with writing.open("wb") as file:
        file.writelines(cells)
    os.replace(writing, path)


def _put_state(folder: Path, layout: Layout, state: SegmentState) -> None:
    cells = state.cells(layout)
    roots, each = [cell_root(cell) for cell in cells], layout.num_cells(0)
    _put(folder, cells[:each], roots[:each])
    _put(folder, cells[each:], roots[each:])


class TraceWriter:
    """Writes what is kept of one round, as it is trained. All raise OSError on a full disk."""

    def __init__(self, path: Path, manifest: RunManifest, place: SegmentPlace) -> None:
        self._path, self._folder, self._place = path, path.parent, place
        self._run, self._layout = manifest.digest, manifest.layout(0)
        self._kept = kept_states(manifest)
        self._names: list[list[bytes]] = []
        self._before = b""

    def add(self, state: SegmentState) -> None:
        """The next state: the first is that which the round begins with."""
        if not self._names:
            self._before = state.moments_root(self._layout)
        if len(self._names) in self._kept:
            _put_state(self._folder, self._layout, state)
        self._names.append([cell_root(cell) for cell in state.cells(self._layout)])

    def close(self, last: SegmentState, residual_N: Vector | None) -> TraceRoots:
        """The round is trained and encoded: `last` was added last, `residual_N` went into the
        encoding."""
        residual = None
        if residual_N is not None:
            cells = cells_of(self._layout, (residual_N,))
            residual = [cell_root(cell) for cell in cells]
            _put(self._folder, cells, residual)
        roots = TraceRoots(
            trace=tuple(map(merkle_root, self._names)),
            before=self._before,
            after=last.moments_root(self._layout),
        )
        place = self._place
        told = [place.round, place.step, place.lease, roots.before, roots.after]
        body = msgpack.packb([_VERSION, self._run, *told, self._names, residual])
        writing = self._path.with_name(WRITING + self._path.name)
        writing.write_bytes(body)
        os.replace(writing, self._path)
        return roots

    def drop(self) -> None:
        """The round is not trained to its end: what is there of it goes with the next one."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file says of a round: `place` is its beginning, `states` in order, by their cells."""

    path: Path
    place: SegmentPlace
    roots: TraceRoots
    states: tuple[StoredCells, ...]
    residual: StoredCells | None

    def find(self, root: bytes) -> StoredCells | None:
        """The cells of a state or of the residual."""
        if root in self.roots.trace:
            return self.states[self.roots.trace.index(root)]
        if self.residual is not None and merkle_root(self.residual.roots) == root:
            return self.residual
        return None


class TraceFolder:
    """What is kept of one run; written by one process, read by another. `TRACES_KEPT` rounds."""

    def __init__(self, folder: Path, manifest: RunManifest) -> None:
        self._folder, self._manifest = folder, manifest
        self.layout = self._layout = manifest.layout(0)
        self._read: dict[str, tuple[tuple[int, int], Trace]] = {}

    def writer(self, place: SegmentPlace) -> TraceWriter:
        """For the next round; what nobody asks for any more goes first. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clean(place.round)
        path = self._folder / f"round-{place.round:06d}{SUFFIX}"
        return TraceWriter(path, self._manifest, place)

    def _clean(self, next_round: int) -> None:
        files = self._files()
        kept = [index for index in sorted(files) if index < next_round][-TRACES_KEPT + 1 :]
        for index, path in files.items():
            if index not in kept:
                path.unlink()
                path.with_suffix(CLOSED_SUFFIX).unlink(missing_ok=True)
        wanted = set()
        for trace in self._traces():
            wanted.update(trace.states[0].names[:1])  # The anchor: others began with it, too.
            # What the newest one began with comes back where no seal lists it.
            if trace.place.round == kept[-1] or not self.is_closed(trace.place.round):
                parts = (*trace.states, *([] if trace.residual is None else [trace.residual]))
                wanted.update(name for part in parts for name in part.names)
        for path in self._folder.iterdir():
            is_left = path.suffix == CELLS_SUFFIX and path.name not in wanted
            if is_left or path.name.startswith(WRITING):
                path.unlink(missing_ok=True)

    def close(self, round_index: int) -> None:
        """Nobody may ask for the work of that round any more. Raises OSError."""
        path = self._folder / f"round-{round_index:06d}{SUFFIX}"
        if path.exists():
            path.with_suffix(CLOSED_SUFFIX).touch()

    def is_closed(self, round_index: int) -> bool:
        """Whether nobody may ask for its work any more."""
        return (self._folder / f"round-{round_index:06d}{CLOSED_SUFFIX}").exists()

    def find(self, root: bytes) -> Sequence[bytes]:
        """The cells of a state or residual, kept or not; empty of another one."""
        for trace in self._traces():
            found = trace.find(root)
            if found is not None:
                return found
        return ()

    def before(self, root: bytes) -> tuple[SegmentState, SegmentPlace, int] | None:
        """The last state that is kept before that one, in its round: the state, the segment that it
        begins, and the one that the wanted state begins; None where there is none."""
        for trace in self._traces():
            if root not in trace.roots.trace:
                continue
            wanted = trace.roots.trace.index(root)
            for number in range(wanted, -1, -1):
                state = self._state(trace.states[number])
                if state is not None:
                    place = trace.place
                    begins = SegmentPlace(
                        round=place.round, step=place.step, segment=number, lease=place.lease
                    )
                    return state, begins, wanted
        return None

    def put(self, state: SegmentState) -> None:
        """Keep one more state of a round that is here. Raises OSError."""
        _put_state(self._folder, self._layout, state)

    def first(self, round_index: int) -> SegmentState | None:
        """What that round began with; None if it is not here, or not whole."""
        trace = self._of(round_index)
        return None if trace is None else self._state(trace.states[0])

    def anchor(self, round_index: int) -> Vector | None:
        """The anchor that the own round began with."""
        trace = self._of(round_index)
        if trace is None:
            return None
        try:
            cells = trace.states[0][: self._layout.num_cells(0)]
        except IndexError:
            return None
        return np.frombuffer(b"".join(cells), dtype="<f4").astype(np.float32)

    def _state(self, cells: StoredCells) -> SegmentState | None:
        with suppress(IndexError, ValueError):
            return state_of(self._layout, b"".join(cells[:]))
        return None

    def _of(self, round_index: int) -> Trace | None:
        return next((one for one in self._traces() if one.place.round == round_index), None)

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
    """What a file says of a round. Raises CheckpointError for one of another run or version, or
    that is torn, and OSError."""
    layout, segments = manifest.layout(0), manifest.audits.segments
    most = (segments + 2) * num_state_cells(layout) * (_ROOT_BYTES + 5)
    with path.open("rb") as file:
        data = file.read(most + _LEASE_MAX * 20 + limits.KIB)
    try:
        version, run, index, step, lease, before, after, names, residual = msgpack.unpackb(data)
        if (version, run, len(names)) != (_VERSION, manifest.digest, segments + 1):
            raise CheckpointError(f"{path} is of another run or version")
        each = [(found, num_state_cells(layout)) for found in names]
        each += [] if residual is None else [(residual, layout.num_cells(0))]
        for found, count in each:
            if len(found) != count or any(len(root) != _ROOT_BYTES for root in found):
                raise CheckpointError(f"{path} names other cells")
        parts = [StoredCells(path.parent, layout, tuple(found)) for found, _ in each]
        ranges = tuple((int(first), int(count)) for first, count in lease)
        return Trace(
            path=path,
            place=SegmentPlace(round=index, step=step, segment=0, lease=ranges),
            roots=TraceRoots(trace=tuple(map(merkle_root, names)), before=before, after=after),
            states=tuple(parts[: segments + 1]),
            residual=None if residual is None else parts[-1],
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CheckpointError(f"{path} is torn: {error!r}") from error


logger = logging.getLogger(__name__)

# Segments that are run again, without torch ------------------------------------------------------

NO_START = bytes(32)
"""Where a segment begins with what its sender cannot have had: the end of nothing."""

MODEL_ERRORS = (RuntimeError, ValueError, ArithmeticError, AssertionError, LookupError, TypeError)
"""What a model may raise of numbers that it does not take. A run may bring its own, with checks of
its own, and a liar chooses the numbers: they must not end the trainer of everybody who is drawn."""

Inherited = tuple[tuple[bytes, bytes], ...]
"""Roots of moments and residual that the round may have begun with; nothing where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """What a COMMIT says of the round that the segment is of. The one behind those of training is
    the encoding."""

    place: SegmentPlace
    before: bytes
    residual_before: bytes
    inherited: Inherited


def run_audit(
    manifest: RunManifest, frame: Audit | Reopen, traces: TraceFolder, runs: RunsSegments
) -> bytes:
    """Answers what the network process asks; empty where the file of it is gone."""
    if isinstance(frame, Reopen):
        return reopen(frame.root, traces, runs)
    try:
        work = Path(frame.path).read_bytes()
    except OSError as error:
        logger.warning("audit given up segment=%d reason=%s", frame.segment, error)
        return b""
    place = SegmentPlace(
        round=frame.round, step=frame.step, segment=frame.segment, lease=frame.lease
    )
    task = AuditTask(
        place=place,
        before=frame.before,
        residual_before=frame.residual_before,
        inherited=frame.inherited,
    )
    return rerun(manifest, task, work, traces.anchor(frame.round), runs)


def reopen(root: bytes, traces: TraceFolder, runs: RunsSegments) -> bytes:
    """Puts a state of an own round on the disk again, by running on from the last one before it
    that is kept; answers with its root, empty where that does not lead to it."""
    found = traces.before(root)
    if found is None:
        return b""
    state, place, wanted = found
    try:
        for segment in range(place.segment, wanted):
            state = runs.run(state, replace(place, segment=segment))
        if root_of(state.cells(traces.layout)) != root:
            return b""  # As others will find it: this machine does not compute equal bits.
        traces.put(state)
    except (*MODEL_ERRORS, OSError) as error:
        logger.warning("a state cannot be made again segment=%d reason=%s", wanted, error)
        return b""
    return root


def rerun(
    manifest: RunManifest,
    task: AuditTask,
    work: bytes,
    anchor_N: Vector | None,
    runs: RunsSegments,
) -> bytes:
    """What names the end of the segment; empty where nobody here can tell.

    `work` is the state that it begins with, and behind that the residual if there is one.
    `anchor_N` is the sealed anchor that the round began with, None where it is not known here.
    """
    layout, segments = manifest.layout(0), manifest.audits.segments
    segment = task.place.segment
    try:
        state, residual_N = _taken_apart(layout, work)
    except ValueError:
        return NO_START  # Of the right root, and yet no state: its owner made it up.
    vectors = (state.weights_N, *state.moments, *([] if residual_N is None else [residual_N]))
    if not all(map(all_finite, vectors)):
        return NO_START
    if segment in (0, segments):
        if anchor_N is None or not task.inherited:
            return b""
        if (task.before, task.residual_before) not in task.inherited:
            return NO_START
    if segment == 0 and not _is_start(layout, task, state, anchor_N):
        return NO_START
    if segment < segments:
        try:
            with np.errstate(all="ignore"):
                return root_of(runs.run(state, task.place).cells(layout))
        except MODEL_ERRORS as error:
            # Too little memory, or a model that does not take these numbers: no word against it.
            logger.warning("audit given up segment=%d reason=%s", segment, error)
            return b""
    assert anchor_N is not None
    return _encoded(manifest, state, residual_N, anchor_N)


def _taken_apart(layout: Layout, work: bytes) -> tuple[SegmentState, Vector | None]:
    size = state_bytes(layout)
    state, rest = state_of(layout, memoryview(work)[:size]), work[size:]
    if not rest:
        return state, None
    if len(rest) != 4 * layout.numel:
        raise ValueError(f"a residual of {len(rest)} bytes")
    return state, np.frombuffer(rest, dtype="<f4").astype(np.float32)


def _is_start(
    layout: Layout, task: AuditTask, state: SegmentState, anchor_N: Vector | None
) -> bool:
    """Whether it begins with the sealed anchor, and with the moments that its owner had."""
    if anchor_N is None or state.moments_root(layout) != task.before:
        return False
    return state.weights_N.tobytes() == anchor_N.tobytes()


def _encoded(
    manifest: RunManifest, state: SegmentState, residual_N: Vector | None, anchor_N: Vector
) -> bytes:
    feedback = make_feedback(manifest)
    feedback.restore(residual_N)
    try:
        with np.errstate(all="ignore"):
            encoded = feedback.encode(anchor_N - state.weights_N)
    except (ValueError, DecodeError):
        return NO_START  # Not finite, or not when it is decoded: nobody can have sent that.
    after = state.moments_root(manifest.layout(0))
    return encoded_end(root_of(encoded.payloads), encoded.residual_after, after)
