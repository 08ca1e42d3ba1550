"""What a node chooses for itself of its next round, and what people are told of it: how many steps,
and in how many bits what they come to is encoded."""

import logging
from collections.abc import Callable

from node.status.board import EventLog
from node.trainers.flight import TrainerWatch
from node.trainers.grading import Grading, grading
from node.trainers.pace import StepsChoice, pace_of
from protocol.manifest import RunManifest
from training.compression import make_codec

logger = logging.getLogger(__name__)


class Choosing:
    """Watches one trainer's rounds. All times are of one monotonic clock, seconds."""

    def __init__(
        self,
        manifest: RunManifest,
        num_fragments: int,
        log: EventLog,
        uplink_mbit: Callable[[], float | None],
    ) -> None:
        """`uplink_mbit` is what leaves this node; None while nobody knows."""
        self._outer, self._num_fragments, self._log = manifest.outer, num_fragments, log
        self._codec = make_codec(manifest.outer)
        self._uplink_mbit = uplink_mbit
        self._pace = pace_of(manifest, num_fragments)
        self._flight = TrainerWatch()
        self._grading = Grading(0, "")

    @property
    def grade(self) -> int:
        """Bits per element of the next contribution; 0 where the codec has no grades."""
        return self._grading.bits

    def progressed(self, step: int, now_s: float) -> None:
        """The trainer tells that it is at that step of the run."""
        self._pace.progressed(step, now_s)

    def handed(self, steps: int, now_s: float) -> None:
        """The trainer's contribution of so many steps is in."""
        self._pace.handed(steps, now_s)
        self._flight.handed(now_s)

    def landed(self, now_s: float, *, last_s: float | None) -> None:
        """The outcome of the oldest contribution is here; see `Pace.landed`."""
        self._pace.landed(self._flight.landed(now_s), now_s, last_s=last_s)

    def next(self, round_index: int, now_s: float, *, usual: int) -> StepsChoice:
        """The trainer is handed its next lease now; see `Pace.next`."""
        choice = self._pace.next(now_s, usual=usual)
        self._flight.goes_on(now_s)
        fresh = grading(self._codec, self._grading.bits, self._uplink_mbit())
        if fresh.bits != self._grading.bits:
            logger.info("encoding bits=%d because=%r", fresh.bits, fresh.why)
        self._grading = fresh
        self._tell(round_index, choice)
        return choice

    def _tell(self, round_index: int, choice: StepsChoice) -> None:
        last = choice.last
        flight_s, hidden_s = self._flight.take() or (None, None)
        graded = self._grading
        self._log.emit(
            "method",
            preset=self._outer.preset_of(round_index),
            codec=self._outer.codec,
            grade=graded.bits or None,
            grade_why=graded.why or None,
            fragments=self._num_fragments,
            steps=choice.steps,
            steps_max=choice.steps_max,
            why=choice.why,
            step_s=_rounded(choice.step_s),
            exchange_s=_rounded(choice.exchange_s),
            computing=_rounded(choice.computing),
            last_steps=None if last is None else last.steps,
            training_s=None if last is None else _rounded(last.training_s),
            waiting_s=None if last is None else _rounded(last.waiting_s),
            flight_s=_rounded(flight_s),
            hidden_s=_rounded(hidden_s),
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
