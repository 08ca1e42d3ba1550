"""The loss of anchors on held-out text, measured while the trainer has nothing else to do.

B sequences, W window (context + 1 bytes)

Nobody's COMMIT waits for it: it begins behind a hand-over, goes on in short pieces while the
network process has nothing to say, and is given up when the next round is there. What it may take
is a share of the time, saved up from round to round. A measurement that was given up says over how
many windows it is, and is told of only where these are enough to say something: the windows come in
an order in which the first of them are spread over all of the text.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from protocol.grid import ShardSpec
from training.channel.exchange import Stopwatch
from training.channel.frames import Validation
from training.channel.trainer_end import ChannelExchange
from training.device.inner import MicroBatch, validation_loss
from training.models.building import (
    read_fragment,
    read_fragments,
    write_fragment,
    write_fragments,
)
from training.numeric import Tokens

VALIDATION_WINDOWS = 128
"""Held-out windows per validation: fixed, so that curves of all nodes and rounds compare."""

WINDOWS_LEAST = 16
"""A measurement over fewer windows is not told of, and not begun before there is time for them: at
3 of 128 a loss of 2.79 was told as 2.55."""

PIECE_S = 0.2
"""The longest piece, unless a single window takes longer: by so much a round may begin late."""

_BATCH = 64


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A model with the text on which its anchors are measured."""

    model: nn.Module
    shard: ShardSpec
    micro_batch: MicroBatch
    windows_BW: Tokens

    @property
    def at_once(self) -> int:
        """How many windows a pass takes at most."""
        return self.micro_batch.at_once(_BATCH)


def anchor_loss(
    model: nn.Module,
    shard: ShardSpec,
    anchors: Sequence[NDArray[np.float32]],
    held_out_BW: Tokens,
    *,
    batch_windows: int = _BATCH,
) -> float:
    """Validation loss of the anchors, nats per byte; the working weights are put back.

    In float32 on every device, so that the curves of all nodes compare.
    """
    working = read_fragments(model, shard)
    write_fragments(model, shard, anchors)
    loss = validation_loss(model, held_out_BW, batch_windows)
    write_fragments(model, shard, working)
    return loss


def spread_order(count: int) -> NDArray[np.int64]:
    """The numbers below `count` in an order in which those that come first lie far apart: by their
    bits, read backwards."""
    bits = max(1, (count - 1).bit_length())
    numbers = range(1 << bits)
    backwards = (int(f"{number:0{bits}b}"[::-1], 2) for number in numbers)
    return np.array([number for number in backwards if number < count], dtype=np.int64)


class IdleValidator:
    """SpareWork: measures the anchor that the round in hand began with, where it is asked for.

    `share` of the time that passes may be spent, in the long run; 0 measures the last anchor alone.
    Where nobody else has a seat nobody waits for this trainer: it spends what was saved though the
    next round is there. With two rounds in flight it may never wait itself: then it goes on until
    WINDOWS_LEAST are done, which takes as long as a step or two.
    """

    def __init__(
        self,
        exchange: ChannelExchange,
        held_out: HeldOut,
        watch: Stopwatch,
        *,
        share: float,
        goes_on: Callable[[], Iterable[int]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`goes_on` names the fragments whose working weights are needed behind the wait."""
        self._exchange, self._held_out, self._watch = exchange, held_out, watch
        self._share, self._goes_on, self._now_s = share, goes_on, now_s
        self._windows_BW = held_out.windows_BW[spread_order(len(held_out.windows_BW))]
        self._least = min(WINDOWS_LEAST, len(held_out.windows_BW))
        self._looked_s = now_s()
        self._earned_s = 0.0
        """By the last round."""
        self._left_s = 0.0
        """What may be spent now; below zero where a window took longer than there was."""
        self._window_s: float | None = None
        """What a window took in the last piece."""
        self._debt_s = 0.0
        """By how much more than what is left a measurement may be completed to WINDOWS_LEAST."""
        self._piece = 1
        self._round = -1
        self._working: dict[int, NDArray[np.float32]] = {}
        self._num_done, self._total = 0, 0.0

    def is_due(self) -> bool:
        """See SpareWork."""
        now_s, asked = self._now_s(), self._exchange.take_validation()
        self._earned_s, self._looked_s = self._share * (now_s - self._looked_s), now_s
        self._left_s += self._earned_s
        least_s, debt_s, count = 0.0, math.inf, len(self._windows_BW)
        if self._window_s is not None:
            # What a whole measurement does not take is not saved: a long silence is no licence.
            self._left_s = min(self._left_s, count * self._window_s)
            least_s = debt_s = self._least * self._window_s
        if asked is None or self._left_s <= 0.0 or self._left_s < least_s:
            return False
        # Windows may take twice as long as the last ones did, and of the first ones nobody knows:
        # all that they took was for nothing where they were too few.
        self._round, self._debt_s = asked, debt_s
        return True

    def begin(self) -> None:
        """See SpareWork. The anchors take the place of the working weights; those that go on are
        kept, for the others the outcome brings new ones."""
        held_out, began_s = self._held_out, self._now_s()
        model, shard = held_out.model, held_out.shard
        with self._watch.within("validate"):
            for parameter in model.parameters():
                parameter.grad = None  # Each step makes its own; the copy takes their memory.
            self._working = {one: read_fragment(model, shard, one) for one in self._goes_on()}
            write_fragments(model, shard, self._exchange.anchors)
        self._num_done, self._total, self._piece = 0, 0.0, 1
        self._left_s -= self._now_s() - began_s

    def go_on(self) -> bool:
        """See SpareWork."""
        debt_s = self._debt_s if self._num_done < self._least else 0.0
        if self._num_done == len(self._windows_BW) or self._left_s <= -debt_s:
            return False
        began_s = self._now_s()
        part_BW = self._windows_BW[self._num_done : self._num_done + self._piece]
        with self._watch.within("validate"):
            loss = validation_loss(self._held_out.model, part_BW, len(part_BW))
        self._total += loss * len(part_BW)
        self._num_done += len(part_BW)
        took_s = self._now_s() - began_s
        self._left_s -= took_s
        self._window_s = took_s / len(part_BW)
        fitting = int(min(PIECE_S, self._earned_s) / max(self._window_s, 1e-9))
        self._piece = max(1, min(fitting, 2 * len(part_BW), self._held_out.at_once))
        return True

    def end(self, *, is_alone: bool, is_ahead: bool) -> None:
        """See SpareWork. Tells what was found, over however many windows."""
        if not (is_alone or math.isfinite(self._debt_s)):
            self._debt_s = 0.0  # The next round is there, and nobody knows how long this takes.
        while (is_alone or (is_ahead and self._num_done < self._least)) and self.go_on():
            pass
        self.give_up()
        if self._num_done >= self._least:
            self._tell(self._round, self._total / self._num_done, self._num_done)

    def give_up(self) -> None:
        """See SpareWork."""
        with self._watch.within("validate"):
            for fragment, local_N in self._working.items():
                write_fragment(self._held_out.model, self._held_out.shard, fragment, local_N)
        self._working = {}

    def measure_last(self) -> None:
        """The run is over, and nobody waits: measure its last anchor over all windows, as whoever
        compares runs does."""
        asked, held_out = self._exchange.take_validation(), self._held_out
        if asked is None:
            return
        with self._watch.within("validate"):
            loss = anchor_loss(
                held_out.model,
                held_out.shard,
                self._exchange.anchors,
                held_out.windows_BW,
                batch_windows=held_out.at_once,
            )
        self._tell(asked, loss, len(held_out.windows_BW))

    def _tell(self, of_round: int, loss: float, windows: int) -> None:
        count = len(self._windows_BW)
        self._exchange.send(
            Validation(round=of_round, loss=loss, windows=windows, of_windows=count)
        )
