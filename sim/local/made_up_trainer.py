"""A trainer process without torch: made-up drifts, through the real channel, codec and feedback.

    python -P -m sim.local.made_up_trainer --seed 1 --name B --round-s 0.5 [options of the trainer]

It speaks the protocol of `training.trainer_main` and keeps its transaction as that one does (R6):
killed anywhere and started again, it hands over the same bytes. It takes 40 MB and a fifth of a
second, where torch takes 250 MB and some seconds, so that many nodes fit on a machine.

N elements of the fragment
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack
import numpy as np
from blake3 import blake3

from protocol.errors import BarnraiseError, ConfigError
from protocol.leases import Lease
from protocol.manifest import RunManifest
from protocol.segments import MOMENTS, SegmentPlace, SegmentState, luck_of, nothing_left
from training.audits.traces import TRACES_FOLDER, TraceFolder, run_audit
from training.channel.child_process import (
    exit_now,
    leave_interrupts_to_parent,
    take_control_pipe,
)
from training.channel.exchange import Contribution, Outcome, RunClock, Stopwatch, TraceRoots
from training.channel.frames import Audit, Ready, Reopen, Start, Validation
from training.channel.manifest_file import read_manifest
from training.channel.trainer_end import (
    ChannelExchange,
    ChannelFile,
    ChannelTicket,
    ControlPipe,
    channel_spec,
)
from training.compression import Encoded, ErrorFeedback, make_codec
from training.files.durable import replace_durably
from training.numeric.arithmetic import Vector, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTransaction:
    """The transaction of one round, as it lies on the disk. Roots and payload follow from it.

    `before` are the residuals of all fragments, `after_N` that of its own behind the round. `left`
    are the roots of SegmentState before and behind it, in a run with audits.
    `pending` are the rounds before it that had no outcome yet, with theirs. `begun_N` is what the
    round began from, where that is not the newest anchor. `basis` is the RunClock's.
    """

    round: int
    anchor: bytes
    before: tuple[Vector | None, ...]
    after_N: Vector | None
    pending: tuple[tuple[int, Vector | None], ...] = ()
    begun_N: Vector | None = None
    basis: bytes = b""
    left: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())


def anchor_digest(anchor_N: Vector) -> bytes:
    """Names the anchor that a contribution is against."""
    return blake3(anchor_N.astype("<f4", copy=False).tobytes()).digest()


def packed(kept: KeptTransaction) -> bytes:
    """As it lies in its file."""
    rounds, afters = [index for index, _ in kept.pending], [after_N for _, after_N in kept.pending]
    vectors = [
        None if x_N is None else x_N.astype("<f4", copy=False).tobytes()
        for x_N in (*afters, *kept.before, kept.after_N, kept.begun_N)
    ]
    told = [kept.round, kept.anchor, kept.basis, kept.left, rounds]
    body: bytes = msgpack.packb([*told, *vectors])
    return body


def kept_at(path: Path) -> KeptTransaction | None:
    """What was kept, whole as `replace_durably` leaves it; None if nothing was."""
    try:
        round_index, anchor, basis, left, rounds, *vectors = msgpack.unpackb(
            path.read_bytes(), max_bin_len=2**31 - 1
        )
    except FileNotFoundError:
        return None
    *before, after_N, begun_N = (
        None if data is None else np.frombuffer(data, "<f4").astype(np.float32) for data in vectors
    )
    afters, before = before[: len(rounds)], before[len(rounds) :]
    return KeptTransaction(
        round=round_index,
        anchor=anchor,
        before=tuple(before),
        after_N=after_N,
        pending=tuple(zip(rounds, afters, strict=True)),
        begun_N=begun_N,
        basis=basis,
        left=(tuple(left[0]), tuple(left[1])),
    )


Encode = Callable[[ErrorFeedback, Vector, str, int, ChannelExchange], Encoded]
"""What a trainer contributes, of an anchor, its own name and a round, as the feedback encodes it.
The payloads are read until they are handed over."""

logger = logging.getLogger(__name__)

KEPT_FILE = "made-up.msgpack"
PULL, NOISE = np.float32(0.1), np.float32(0.01)
LOSS_ELEMENTS = 1 << 20
"""Nobody decides upon a loss: it need not cost more than the drift."""

_LOOK_S = 0.05
PACE_SPREAD = 0.25
"""A round takes up to so much more or less than asked: no two trainers are equally fast."""


@dataclass(slots=True)
class _Open:
    """A contribution without an outcome; `is_void` where a resync came behind it."""

    ticket: ChannelTicket
    is_void: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPace:
    """How fast it trains. It does not begin before the file `hold` is there."""

    round_s: float
    hold: Path | None = None
    before_handing: Callable[[int], None] = lambda _: None
    """Called with the round when a contribution is ready; it is handed over when this returns."""


def made_up_drift(anchor_N: Vector, name: str, round_index: int) -> Vector:
    """A pseudo-gradient: a pull towards one, with noise that is a function of name and round."""
    path = f"{name}/{round_index}"
    key = int.from_bytes(blake3(path.encode()).digest(length=16), "little")
    noise_N = np.random.Generator(np.random.Philox(key=key)).random(
        len(anchor_N), dtype=np.float32
    ) - np.float32(0.5)
    drift_N: Vector = PULL * (anchor_N - np.float32(1.0)) + NOISE * noise_N
    return drift_N


def encoded_drift(
    feedback: ErrorFeedback,
    anchor_N: Vector,
    name: str,
    round_index: int,
    exchange: ChannelExchange,
) -> Encoded:
    """`made_up_drift`, encoded in the bits that the line of this node suits."""
    return feedback.encode(made_up_drift(anchor_N, name, round_index), grade=exchange.grade)


class MadeUpSegments:
    """RunsSegments without torch and without moments: the pull of `made_up_drift` in parts, with
    noise that follows from the place of a segment, so that everybody makes up the same."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest

    def run(self, state: SegmentState, place: SegmentPlace) -> SegmentState:
        """See RunsSegments."""
        path = luck_of(self._manifest, place.round, place.lease, place.segment)
        share = np.float32(1.0 / self._manifest.audits.segments)
        drift_N = share * made_up_drift(state.weights_N, str(path), place.round)
        return replace(state, weights_N=state.weights_N - drift_N)


def pace_s(round_s: float, path: str) -> float:
    """How long the training of one round takes, in seconds; a function of `path` alone."""
    draw = int.from_bytes(blake3(path.encode()).digest(length=4), "little") / 2**32
    return round_s * (1.0 + PACE_SPREAD * (2.0 * draw - 1.0))


class MadeUpTrainer:
    """One trainer over one channel. `train` it until its run is over."""

    def __init__(
        self,
        manifest: RunManifest,
        exchange: ChannelExchange,
        kept: Path | None,
        *,
        name: str,
        pace: TrainingPace,
        encode: Encode = encoded_drift,
    ) -> None:
        """`name` tells this trainer's drifts from those of others; `kept` is where it keeps."""
        self._encode = encode
        self._manifest = manifest
        self._exchange = exchange
        self._kept = kept
        self._name = name
        self._round_s, self._hold = pace.round_s, pace.hold
        self._before_handing = pace.before_handing
        self._layout = manifest.layout(0)
        self._feedback = [
            ErrorFeedback(
                make_codec(manifest.outer),
                manifest.outer.feedback,
                cell_elements=manifest.cell_elements,
            )
            for _ in range(self._layout.num_fragments)
        ]
        self._is_delayed = self._layout.num_fragments < manifest.outer.overlap
        self._begun_N: Vector | None = None
        """With a delay: the version that the round in hand began from (R5)."""
        self._open: dict[int, _Open] = {}
        """By round, oldest first."""
        self._watch = Stopwatch()
        """It sleeps, and the sleep stands for its steps."""
        self._traces: TraceFolder | None = None
        self._left = self._leaves = nothing_left(self._layout)
        """Of SegmentState, as the round in hand begins and behind it."""
        self._segments = MadeUpSegments(manifest)
        if manifest.audits.rate:
            if kept is None:
                raise ConfigError("a run with audits needs a folder for its states")
            self._traces = TraceFolder(kept.parent / TRACES_FOLDER, manifest)
            exchange.audits = self._audited

    def train(self) -> None:
        """Until an outcome brings no lease. Raises TrainerError, OSError as the real one does."""
        exchange = self._exchange
        numel = self._layout.numel
        exchange.send(
            Ready(
                threads=1,
                parameters=numel,
                device="made up",
                precision="float32",
                micro_batch=1,
                device_class="made up",
            )
        )
        start = exchange.opening()
        self._watch.take()
        self._validate_if_asked()
        self._take_up(start)
        clock, lease = start.clock, start.lease
        if self._is_delayed and self._begun_N is None:
            self._begun_N = exchange.anchors[0]
        while self._hold is not None and not self._hold.exists():
            time.sleep(_LOOK_S)
        while lease:
            time.sleep(pace_s(self._round_s, f"{self._name}/pace/{clock.round}"))
            with self._watch.within("encode"):
                self._hand_over(clock, lease)
            clock, lease = self._go_on(clock.round)
            self._validate_if_asked()

    def _go_on(self, contributed: int) -> tuple[RunClock, Lease]:
        """What became of the contributions so far, and for which round to go on."""
        if self._manifest.outer.overlap == 1:
            outcome = self._settle(contributed)
            return outcome.clock, outcome.lease
        with self._watch.within("wait"):
            turn = self._exchange.proceed()
        if self._is_delayed:
            # What is in flight is about the same fragment: its outcome is asked for when the next
            # round is handed over.
            self._begun_N = turn.others.get(0, self._begun_N)
            return turn.clock, turn.lease
        for index in [index for index, one in self._open.items() if one.ticket.is_here()]:
            self._settle(index)
        return turn.clock, turn.lease

    def _audited(self, frame: Audit | Reopen) -> bytes:
        assert self._traces is not None
        with self._watch.within("audit"):
            return run_audit(self._manifest, frame, self._traces, self._segments)

    def _encoded(
        self, clock: RunClock, lease: Lease, feedback: ErrorFeedback, anchor_N: Vector
    ) -> tuple[Encoded, TraceRoots | None]:
        """What drifted in a round; in a run with audits in segments, which others make up again."""
        if self._traces is None:
            encode, exchange = self._encode, self._exchange
            return encode(feedback, anchor_N, self._name, clock.round, exchange), None
        begins = SegmentPlace(round=clock.round, step=clock.step, segment=0, lease=lease)
        whole_N = joined(self._exchange.anchors)
        writer = self._traces.writer(begins, whole_N)
        zeros_N = np.zeros_like(whole_N)
        state = SegmentState(whole_N, (zeros_N,) * MOMENTS, 0, self._left)
        writer.add(state)
        for segment in range(self._manifest.audits.segments):
            state = self._segments.run(state, replace(begins, segment=segment))
            writer.add(state)
        traced = writer.close(feedback.residual_N)
        self._leaves = writer.left
        span = self._layout.fragment_span(self._fragment(clock.round))
        return feedback.encode(anchor_N - state.weights_N[span]), traced

    def _hand_over(self, clock: RunClock, lease: Lease) -> None:
        fragment = self._layout.fragment_of(clock.round)
        begun_N = self._begun_N
        if self._is_delayed:
            for index in list(self._open):
                self._settle(index)
        anchor_N, feedback = self._exchange.anchors[fragment], self._feedback[fragment]
        before = tuple(one.residual_N for one in self._feedback)
        started_N = anchor_N if begun_N is None else begun_N
        encoded, traced = self._encoded(clock, lease, feedback, started_N)
        if self._kept is not None:
            # Before anybody hears of it: a process that begins anew must not contradict this one.
            kept = KeptTransaction(
                round=clock.round,
                anchor=anchor_digest(anchor_N),
                before=before,
                after_N=feedback.residual_after_N,
                pending=tuple(
                    (index, self._feedback[self._fragment(index)].residual_after_N)
                    for index, one in self._open.items()
                    if not one.is_void
                ),
                begun_N=begun_N,
                basis=clock.basis,
                left=(self._left, self._leaves),
            )
            with self._watch.within("save"):
                self._kept.parent.mkdir(parents=True, exist_ok=True)
                replace_durably(self._kept, [packed(kept)])
        inner = self._manifest.inner
        samples = inner.inner_steps * inner.batch
        context = self._manifest.model.setting("context")
        assert isinstance(context, int)
        contribution = Contribution(
            fragment=fragment,
            payloads=encoded.payloads,
            tokens=samples * context,
            samples=samples,
            steps=inner.inner_steps,
            residual_before=encoded.residual_before,
            residual_after=encoded.residual_after,
            loss=_distance(anchor_N),
            traced=traced,
        )
        if self._is_delayed:
            self._begun_N = anchor_N
        self._before_handing(clock.round)
        timed = replace(contribution, times=self._watch.take())
        self._open[clock.round] = _Open(self._exchange.begin(fragment, timed))

    def _settle(self, contributed: int) -> Outcome:
        one = self._open.pop(contributed)
        feedback = self._feedback[self._fragment(contributed)]
        with self._watch.within("wait"):
            outcome = one.ticket.result()
        if outcome.is_resync:
            self._restore([None] * len(self._feedback))
            self._left = nothing_left(self._layout)
            for later in self._open.values():
                later.is_void = True
        elif outcome.listed and not one.is_void:
            feedback.commit()
            self._left = self._leaves
        elif not one.is_void:
            feedback.abort()
        return outcome

    def _fragment(self, round_index: int) -> int:
        return self._layout.fragment_of(round_index)

    def _restore(self, residuals: Sequence[Vector | None]) -> None:
        for feedback, residual_N in zip(self._feedback, residuals, strict=True):
            feedback.restore(residual_N)

    def _take_up(self, start: Start) -> None:
        """Go on from what the process before us left; a drift is made up again, the same."""
        kept = None if self._kept is None else kept_at(self._kept)
        if kept is None or not start.lease:
            return
        anchor_N = self._exchange.anchors[self._fragment(kept.round)]
        is_over = start.since <= kept.round < start.clock.round
        lag = 1 if self._is_delayed else self._manifest.outer.overlap
        is_ahead = start.clock.round <= kept.round < start.clock.round + lag
        # With a delay the newest version is not the one that it is to; what names the round is.
        is_same = self._is_delayed or kept.anchor == anchor_digest(anchor_N)
        if start.bases and kept.basis not in start.bases:
            is_same = is_over = False  # Of a branch that was left (R4).
        if is_over or (is_ahead and is_same):
            self._restore(kept.before)
            self._left = kept.left[kept.round in start.listed and not is_ahead]
            if kept.round == start.clock.round:
                self._begun_N = kept.begun_N
            for index, after_N in (*kept.pending, (kept.round, kept.after_N)):
                if index >= start.clock.round:
                    continue  # It is made up again, the same.
                if index < start.since:
                    self._feedback[self._fragment(index)].restore(None)
                elif index in start.listed:
                    self._feedback[self._fragment(index)].restore(after_N)
        logger.info("taken up round=%d of=%d", start.clock.round, kept.round)

    def _validate_if_asked(self) -> None:
        asked = self._exchange.take_validation()
        if asked is not None:
            loss = _distance(self._exchange.anchors[0])
            self._exchange.send(Validation(round=asked, loss=loss, windows=1, of_windows=1))


def _distance(anchor_N: Vector) -> float:
    """What stands for a loss: the root mean square distance to where all drifts pull, of some."""
    some_N = anchor_N[:LOSS_ELEMENTS]
    return float(np.sqrt(np.mean(np.square(some_N - np.float32(1.0)), dtype=np.float64)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trainer; returns the exit status."""
    options, _ = made_up_parser().parse_known_args(arguments)
    kept = None if options.inner is None else options.inner / KEPT_FILE
    return run_trainer(options, kept, TrainingPace(round_s=options.round_s, hold=options.hold))


def run_trainer(
    options: argparse.Namespace,
    kept: Path | None,
    pace: TrainingPace,
    encode: Encode = encoded_drift,
) -> int:
    """What `main` does, as the options of `made_up_parser` say."""
    leave_interrupts_to_parent()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    read_fd, write_fd = take_control_pipe()
    try:
        manifest = read_manifest(options.manifest, bytes.fromhex(options.run))
        with ChannelFile.open(options.channel, channel_spec(manifest, 0)) as channel:
            pipe = ControlPipe(read_fd, write_fd, on_closed=exit_now)
            trainer = MadeUpTrainer(
                manifest,
                ChannelExchange(channel, pipe),
                kept,
                name=f"{options.seed}/{options.name}",
                pace=pace,
                encode=encode,
            )
            trainer.train()
    except (BarnraiseError, OSError) as error:
        logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - not a bug of ours
        return 1
    return 0


def made_up_parser() -> argparse.ArgumentParser:
    """The options of a made-up trainer; it is given others as well, of the real one."""
    parser = argparse.ArgumentParser(prog="sim.local.made_up_trainer", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--name", required=True, help="name that makes its updates differ from those of others"
    )
    parser.add_argument(
        "--round-s", type=float, required=True, help="simulated training seconds per round"
    )
    parser.add_argument("--hold", type=Path, help="do not train until this file exists")
    parser.add_argument(
        "--channel", type=Path, required=True, help="the memory-mapped file of the channel"
    )
    parser.add_argument("--manifest", type=Path, required=True, help="the signed manifest")
    parser.add_argument("--run", required=True, help="digest of the manifest, hexadecimal")
    parser.add_argument(
        "--inner", type=Path, help="folder for its inner state; without it none is kept"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
