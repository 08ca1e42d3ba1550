"""The states of own rounds on the disk, for those whom the beacon names to ask for them (R10).

    round-000042.trace    msgpack: what the round was trained on, and what names all cells of all
                          states, of the anchor, and of the residual that it was encoded with
    round-000042.open     msgpack: the segments of which somebody may be shown something yet; what
                          no other of them needs goes, but for the anchor
    <root>.cells          a fragment of weights, anchor or residual, or moments with the tail of
                          their state, by its root: what is the same in two rounds is there once

Of the states only those are kept that `kept_states` names; one between them is made again by
running on from the last one before it, when somebody may ask for it and does (`reopen`). Once the
beacon has drawn, only those stay with which the drawn segments begin.

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
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import overload

import msgpack
import numpy as np

from protocol import limits
from protocol.errors import CheckpointError, DecodeError
from protocol.grid import Layout, cell_root, merkle_root
from protocol.manifest import RunManifest
from protocol.segments import (
    MOMENTS,
    ROOT_BYTES,
    TRACES_KEPT,
    RunsSegments,
    SegmentPlace,
    SegmentState,
    Vector,
    WorkKind,
    begins_rightly,
    cells_of,
    cells_of_fragment,
    encoded_end,
    kept_states,
    num_cells,
    num_state_cells,
    root_of,
    state_of,
    state_sizes,
    trained_end,
)
from training.channel.exchange import TraceRoots
from training.channel.frames import Audit, Reopen
from training.compression import make_feedback
from training.files.durable import WRITING
from training.numeric.arithmetic import all_finite

SUFFIX, CELLS_SUFFIX, OPEN_SUFFIX = ".trace", ".cells", ".open"
TRACES_FOLDER = "traces"
"""In the folder of inner states."""

_VERSION = 3
_NAME = re.compile(r"round-(\d{6,12})" + re.escape(SUFFIX))
_LEASE_MAX = 1 << 12


@dataclass(frozen=True, slots=True)
class _Piece:
    """A file of cells: those of a subject from `first` on, where each begins in it."""

    path: Path
    first: int
    sizes: Sequence[int]
    starts: Sequence[int]


class StoredCells(Sequence[bytes]):
    """The cells of one subject, each read when it is asked for. Whoever reads compares the roots:
    IndexError is raised for a cell that the disk has not as it was written."""

    def __init__(
        self, folder: Path, roots: tuple[bytes, ...], sizes: Sequence[int], cuts: Sequence[int]
    ) -> None:
        """`sizes` are those of the cells; a file ends before each of the `cuts`."""
        self.roots = roots
        self._pieces: list[_Piece] = []
        first = 0
        for stop in cuts:
            path = folder / _piece_name(roots[first:stop])
            own = sizes[first:stop]
            self._pieces.append(_Piece(path, first, own, list(accumulate(own, initial=0))))
            first = stop

    @property
    def names(self) -> list[str]:
        """Of the files that it is in."""
        return [piece.path.name for piece in self._pieces]

    @property
    def is_kept(self) -> bool:
        """Whether all its files are there; what is in them nobody has looked at."""
        return all(piece.path.is_file() for piece in self._pieces)

    def are_kept(self, cells: Sequence[int]) -> bool:
        """Whether the files are there that these cells are in; of no such cell none is."""
        pieces = {self._piece_of(index).path for index in cells if 0 <= index < len(self)}
        return all(path.is_file() for path in pieces)

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
        piece = self._piece_of(index)
        place = index - piece.first
        try:
            with piece.path.open("rb") as file:
                file.seek(piece.starts[place])
                data = file.read(piece.sizes[place])
        except OSError as error:
            raise IndexError(f"cell {index} of {piece.path} is gone") from error
        if cell_root(data) != self.roots[index]:
            raise IndexError(f"cell {index} of {piece.path} is damaged")
        return data

    def _piece_of(self, index: int) -> _Piece:
        return next(one for one in reversed(self._pieces) if one.first <= index)


def _piece_name(roots: Sequence[bytes]) -> str:
    return merkle_root(roots).hex() + CELLS_SUFFIX


def _fragment_cuts(layout: Layout) -> list[int]:
    return list(accumulate(layout.fragment_cells))


def _put(
    folder: Path,
    cells: Iterable[bytes],
    roots: Sequence[bytes],
    sizes: Sequence[int],
    cuts: Sequence[int],
) -> None:
    """Write those files that are not there whole. Raises OSError on a full disk."""
    first, left = 0, iter(cells)
    for stop in cuts:
        path, own = folder / _piece_name(roots[first:stop]), islice(left, stop - first)
        num_bytes = sum(sizes[first:stop])
        first = stop
        if path.exists() and path.stat().st_size == num_bytes:
            deque(own, maxlen=0)
            continue
        writing = path.with_name(WRITING + path.name)
        with writing.open("wb") as file:
            file.writelines(own)
        os.replace(writing, path)


def _put_state(folder: Path, layout: Layout, state: SegmentState, roots: Sequence[bytes]) -> None:
    _put(folder, state.each_cell(layout), roots, state_sizes(layout), _state_cuts(layout))


def _state_cuts(layout: Layout) -> list[int]:
    return [*_fragment_cuts(layout), num_state_cells(layout)]


class TraceWriter:
    """Writes what is kept of one round, as it is trained; of one that is not closed, what is there
    goes with the next one. All raise OSError on a full disk."""

    def __init__(
        self, path: Path, manifest: RunManifest, place: SegmentPlace, anchor_N: Vector
    ) -> None:
        self._path, self._folder, self._place = path, path.parent, place
        self._run, self._layout = manifest.digest, manifest.layout(0)
        self._kept = kept_states(manifest)
        self._names: list[list[bytes]] = []
        self._before = self._after = b""
        self.left: tuple[bytes, ...] = ()
        """Of the state that the next round begins with, if this one is listed."""
        cells = cells_of(self._layout, (anchor_N,))
        self._anchor = [cell_root(cell) for cell in cells]
        sizes = list(map(len, cells))
        _put(self._folder, cells, self._anchor, sizes, _fragment_cuts(self._layout))

    def add(self, state: SegmentState) -> None:
        """The next state: the first is that which the round begins with."""
        roots = [cell_root(cell) for cell in state.each_cell(self._layout)]
        if len(self._names) in self._kept:
            _put_state(self._folder, self._layout, state, roots)
        if not self._names:
            self._before = state.inner_root(self._layout, roots)
        handed_on = state.handed_on(self._layout, roots)
        self.left, self._after = handed_on.left, handed_on.inner_root(self._layout, roots)
        self._names.append(roots)

    def close(self, residual_N: Vector | None) -> TraceRoots:
        """The round is trained and encoded: `residual_N` went into the encoding."""
        residual, place = None, self._place
        if residual_N is not None:
            fragment = self._layout.fragment_of(place.round)
            cells = cells_of_fragment(self._layout, fragment, residual_N)
            residual = [cell_root(cell) for cell in cells]
            _put(self._folder, cells, residual, list(map(len, cells)), [len(cells)])
        roots = TraceRoots(
            trace=tuple(map(merkle_root, self._names)),
            before=self._before,
            after=self._after,
        )
        told = [place.round, place.step, place.lease, roots.before, roots.after]
        body = [_VERSION, self._run, *told, self._names, self._anchor, residual]
        _replace(self._path, body)
        return roots


def _replace(path: Path, body: Sequence[object]) -> None:
    writing = path.with_name(WRITING + path.name)
    writing.write_bytes(msgpack.packb(body))
    os.replace(writing, path)


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file says of a round: `place` is its beginning, `states` in order, by their cells."""

    path: Path
    place: SegmentPlace
    roots: TraceRoots
    states: tuple[StoredCells, ...]
    anchor: StoredCells
    residual: StoredCells | None

    def find(self, root: bytes) -> StoredCells | None:
        """The cells of a state or of the residual."""
        if root in self.roots.trace:
            return self.states[self.roots.trace.index(root)]
        if self.residual is not None and merkle_root(self.residual.roots) == root:
            return self.residual
        return None

    def kept_before(self, number: int) -> int:
        """The last state up to that one whose files are there; that one where there is none."""
        found = (one for one in range(number, -1, -1) if self.states[one].is_kept)
        return next(found, number)


class TraceFolder:
    """What is kept of one run; written by one process, read by another. `TRACES_KEPT` rounds."""

    def __init__(self, folder: Path, manifest: RunManifest) -> None:
        self._folder, self._manifest = folder, manifest
        self.layout = self._layout = manifest.layout(0)
        self._read: dict[str, tuple[tuple[int, int], Trace]] = {}

    def writer(self, place: SegmentPlace, anchor_N: Vector) -> TraceWriter:
        """For the next round; what nobody asks for any more goes first. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clean(place.round)
        path = self._folder / f"round-{place.round:06d}{SUFFIX}"
        return TraceWriter(path, self._manifest, place, anchor_N)

    def _clean(self, next_round: int) -> None:
        files = self._files()
        kept = [index for index in sorted(files) if index < next_round][-TRACES_KEPT + 1 :]
        for index, path in files.items():
            if index not in kept:
                path.unlink()
                path.with_suffix(OPEN_SUFFIX).unlink(missing_ok=True)
        wanted = set()
        for trace in self._traces():
            wanted.update(trace.anchor.names)  # Others began with it, too.
            # What the newest one began with comes back where no seal lists it.
            is_newest = trace.place.round == kept[-1]
            segments = None if is_newest else self.still_open(trace.place.round)
            fragment = self._layout.fragment_of(trace.place.round)
            wanted.update(_names_needed(trace, segments, fragment))
        for path in self._folder.iterdir():
            is_left = path.suffix == CELLS_SUFFIX and path.name not in wanted
            if is_left or path.name.startswith(WRITING):
                path.unlink(missing_ok=True)

    def close(self, round_index: int, *, still_open: Collection[int]) -> None:
        """Of that round nobody may ask for more than for these segments. Raises OSError."""
        path = self._folder / f"round-{round_index:06d}{SUFFIX}"
        segments = frozenset(still_open)
        if path.exists() and self.still_open(round_index) != segments:
            _replace(path.with_suffix(OPEN_SUFFIX), sorted(segments))

    def still_open(self, round_index: int) -> frozenset[int] | None:
        """The segments that somebody may ask for; None where it may be any."""
        path = self._folder / f"round-{round_index:06d}{OPEN_SUFFIX}"
        try:
            with path.open("rb") as file:
                said = frozenset(msgpack.unpackb(file.read(limits.KIB)))
        except (OSError, ValueError, TypeError, msgpack.exceptions.UnpackException):
            return None
        # The one behind those of training is the encoding.
        return said if said <= set(range(self._manifest.audits.segments + 1)) else None

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
                    return state, replace(trace.place, segment=number), wanted
        return None

    def put(self, state: SegmentState) -> None:
        """Keep one more state of a round that is here. Raises OSError."""
        roots = [cell_root(cell) for cell in state.each_cell(self._layout)]
        _put_state(self._folder, self._layout, state, roots)

    def first(self, round_index: int) -> SegmentState | None:
        """What that round began with; None if it is not here, or not whole."""
        trace = self._of(round_index)
        return None if trace is None else self._state(trace.states[0])

    def last(self, round_index: int) -> SegmentState | None:
        """What its training ended with, likewise."""
        trace = self._of(round_index)
        return None if trace is None else self._state(trace.states[-1])

    def anchor(self, round_index: int) -> Vector | None:
        """The anchor that the own round began with."""
        trace = self._of(round_index)
        if trace is None:
            return None
        with suppress(IndexError):
            return np.frombuffer(b"".join(trace.anchor[:]), dtype="<f4").astype(np.float32)
        return None

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


def _names_needed(trace: Trace, segments: frozenset[int] | None, fragment: int) -> Iterator[str]:
    """The files of a round that are needed where these segments may be asked for; all for None."""
    encoding = len(trace.states) - 1
    residual = [] if trace.residual is None else trace.residual.names
    if segments is None:
        yield from (name for state in trace.states for name in state.names)
        yield from residual
        return
    for segment in segments:
        if segment == encoding:
            yield trace.states[encoding].names[fragment]
            yield from residual
        else:
            # A state that was not kept is made again from the last one before it.
            yield from trace.states[trace.kept_before(segment)].names


def read_trace_names(path: Path, manifest: RunManifest) -> Trace:
    """What a file says of a round. Raises CheckpointError for one of another run or version, or
    that is torn, and OSError."""
    layout, segments = manifest.layout(0), manifest.audits.segments
    most = (segments + 3) * num_state_cells(layout) * (ROOT_BYTES + 5)
    with path.open("rb") as file:
        data = file.read(most + _LEASE_MAX * 20 + limits.KIB)
    try:
        version, run, index, step, lease, before, after, *named = msgpack.unpackb(data)
        names, anchor, residual = named
        if (version, run, len(names)) != (_VERSION, manifest.digest, segments + 1):
            raise CheckpointError(f"{path} is of another run or version")
        cuts, sizes = _state_cuts(layout), state_sizes(layout)
        each = [(found, sizes, cuts) for found in names]
        each.append((anchor, sizes[: num_cells(layout)], cuts[:-1]))
        if residual is not None:
            of_residual = WorkKind("residual", layout.fragment_of(index)).sizes(layout)
            each.append((residual, of_residual, [len(of_residual)]))
        for found, expected, _ in each:
            if len(found) != len(expected) or any(len(root) != ROOT_BYTES for root in found):
                raise CheckpointError(f"{path} names other cells")
        parts = [StoredCells(path.parent, tuple(found), *rest) for found, *rest in each]
        ranges = tuple((first, count) for first, count in lease)
        if any(type(n) is not int or n < 0 for n in (index, step, *chain(*ranges))):
            raise CheckpointError(f"{path} has no place in the run")
        return Trace(
            path=path,
            place=SegmentPlace(round=index, step=step, segment=0, lease=ranges),
            roots=TraceRoots(trace=tuple(map(merkle_root, names)), before=before, after=after),
            states=tuple(parts[: segments + 1]),
            anchor=parts[segments + 1],
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
"""Roots of inner state and residual that the round may have begun with, where anybody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """What a COMMIT says of the round that the segment is of. The one behind those of training is
    the encoding. `since` is the last round before it that lists its sender, 0 of none."""

    place: SegmentPlace
    before: bytes
    residual_before: bytes
    inherited: Inherited
    since: int


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
        since=frame.since,
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
    *,
    moments: int = MOMENTS,
) -> bytes:
    """What names the end of the segment; empty where nobody here can tell.

    `work` is the state that it begins with; of the encoding the weights of the fragment that the
    round is about, and behind them the residual if there is one. `anchor_N` is the sealed anchor
    that the round began with, None where it is not known here.
    """
    layout, segment = manifest.layout(0), task.place.segment
    if segment in (0, manifest.audits.segments):
        if anchor_N is None or not task.inherited:
            return b""
        if (task.before, task.residual_before) not in task.inherited:
            return NO_START
    if segment == manifest.audits.segments:
        assert anchor_N is not None
        return _encoded(manifest, task, work, anchor_N)
    try:
        state = state_of(layout, work, moments)
    except ValueError:
        return NO_START  # Of the right root, and yet no state: its owner made it up.
    if not all(map(all_finite, (state.weights_N, *state.moments))):
        return NO_START
    if segment == 0 and not _is_start(layout, task, state, anchor_N):
        return NO_START
    try:
        with np.errstate(all="ignore"):
            end = runs.run(state, task.place)
    except MODEL_ERRORS as error:
        # Too little memory, or a model that does not take these numbers: no word against it.
        logger.warning("audit given up segment=%d reason=%s", segment, error)
        return b""
    root = root_of(end.cells(layout))
    if segment + 1 < manifest.audits.segments:
        return root
    return trained_end(root, end.handed_on(layout).inner_root(layout))


def _is_start(
    layout: Layout, task: AuditTask, state: SegmentState, anchor_N: Vector | None
) -> bool:
    """Whether it begins with what is sealed and what its owner had."""
    if anchor_N is None or state.inner_root(layout) != task.before:
        return False
    index = task.place.round
    return begins_rightly(layout, state, anchor_N, since=task.since, round_index=index)


def _encoded(manifest: RunManifest, task: AuditTask, work: bytes, anchor_N: Vector) -> bytes:
    layout, index = manifest.layout(0), manifest.layout(0).fragment_of(task.place.round)
    span, numel = layout.fragment_span(index), layout.fragment_numels[index]
    if len(work) not in (4 * numel, 8 * numel):
        return NO_START
    vectors = np.frombuffer(work, dtype="<f4").astype(np.float32).reshape(-1, numel)
    if not all(map(all_finite, vectors)):
        return NO_START
    feedback = make_feedback(manifest)
    feedback.restore(vectors[1] if len(vectors) > 1 else None)
    try:
        with np.errstate(all="ignore"):
            encoded = feedback.encode(anchor_N[span] - vectors[0])
    except (ValueError, DecodeError):
        return NO_START  # Not finite, or not when it is decoded: nobody can have sent that.
    return encoded_end(root_of(encoded.payloads), encoded.residual_after)
