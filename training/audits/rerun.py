"""Somebody's segment, run again: the end that it comes to (R10). Without torch.

N elements of the shard

Any bytes may be what a liar shows. What no honest trainer can have begun with leads to NO_START,
which is nobody's end; what nobody can tell here leads to nothing at all.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from protocol.errors import DecodeError
from protocol.grid import Layout
from protocol.manifest import RunManifest
from protocol.segments import (
    RunsSegments,
    SegmentPlace,
    SegmentState,
    Vector,
    encoded_end,
    root_of,
    state_bytes,
    state_of,
)
from training.audits.traces import TraceFolder
from training.channel.frames import Audit, Reopen
from training.compression import make_feedback
from training.numeric.arithmetic import all_finite

logger = logging.getLogger(__name__)

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
