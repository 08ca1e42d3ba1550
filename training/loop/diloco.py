"""DiLoCo: H inner steps, then a round with the swarm (Douillard et al. 2023, algorithm 1).

N elements of a fragment

The pseudo-gradient is anchor minus local weights. It goes out through error feedback and codec as
a transaction (R6); what comes back is the new anchor, already stepped by the outer optimizer. What
a run's preset does in another way, its `Method` says at each place: how long a round is, what goes
out and when, with which weights training goes on meanwhile, what becomes of an outcome.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import SupportsFloat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.errors import StateError
from protocol.leases import Lease
from training.channel.exchange import (
    Contribution,
    HasDraft,
    HearsOfValues,
    Outcome,
    Pending,
    RunClock,
    RunStart,
    Session,
    Stopwatch,
    TraceRoots,
    Turn,
    grade_of,
)
from training.compression import (
    Codec,
    Encodes,
    join_cells,
    make_codec,
    make_feedback,
)
from training.device.inner import apply_gradient, optimizer_tensors
from training.loop.device_encoding import Drafting, encoder_on
from training.loop.inner_state import (
    InnerState,
    InnerStore,
    KeepsInnerState,
    Recalled,
    recall,
    take_moments,
)
from training.methods.method import Due, Method, anchor_digest, law_of_steps
from training.methods.stages import make_stages
from training.models.building import (
    check_optimizer,
    check_parameters,
    read_fragment,
    tokens_per_sample,
    unwrapped,
    write_fragment,
)
from training.numeric.arithmetic import all_finite
from training.numeric.memory import give_back_free_memory

logger = logging.getLogger(__name__)

_FREE_BYTES_KEPT = 4 << 20
"""Gradients and activations make way for the drift, whose memory is none of the heap's."""


class RoundWatcher:
    """What else looks on at each round and keeps of it what it needs; this one looks at nothing.

    `training.loop.traced_inner.RoundTracer` is the one of runs with audits.
    """

    def encoder(self, device: torch.device, codec: Codec) -> Encodes | None:
        """What encodes a contribution; None for numpy's encoder."""
        return encoder_on(device, codec)

    keeps_states = False
    """Whether it keeps moments and working weights across a restart; else an InnerStore does."""

    def before_gradient(
        self,
        clock: RunClock,
        lease: Lease,
        local_step: int,
        anchors: Sequence[NDArray[np.float32]],
    ) -> None:
        """Before the gradient of each step of a round, which is trained on that lease; `anchors`
        are the sealed ones of all fragments."""

    def after_step(self, local_step: int) -> None:
        """Behind each step; the first one is number 1."""

    def encoded(self, residual_N: NDArray[np.float32] | None) -> TraceRoots | None:
        """The round is trained and encoded, with that residual: what its COMMIT says of it."""
        del residual_N
        return None

    def settled(self, outcome: Outcome) -> bool:
        """What became of the round; False where all residuals and weights are to begin anew."""
        del outcome
        return True

    def goes_on(self, recalled: Recalled, start: RunStart) -> bool:
        """Whether a process that begins anew goes on from what was kept; else it begins without
        residuals and hands nothing over again."""
        del recalled, start
        return True


class DiLoCo:
    """The loop object: call `step()` after each backward pass, with a fresh batch of the lease.

    H, codec, schedule and learning rate come from the manifest, and the weights of `model` are
    overwritten with the start's anchors. Absent peers never raise; `step` raises StateError when
    the own weights are no longer finite, and what the exchange raises when it is gone. A model that
    is not the run's raises ConfigError here.

    With an `inner_store` each round is kept before it leaves, and a process that begins anew takes
    up what the one before it left there: moments, residual, and a contribution that is under way.
    The `watcher` looks on at each round; whoever computes gradients calls `begin_step` before each.
    `watch` takes the time of each phase; what passes between two calls counts as training.
    """

    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        *,
        exchange: Session,
        shard: int = 0,
        inner_store: InnerStore | None = None,
        watcher: RoundWatcher | None = None,
    ) -> None:
        self.watch = Stopwatch()
        manifest, spec = exchange.manifest, exchange.manifest.outer
        model = unwrapped(model)
        # Before there is a seat, for which peers would wait.
        check_parameters(model, manifest, shard)
        check_optimizer(model, inner_optimizer, manifest, shard)
        start = exchange.start
        self._model = model
        self._inner_optimizer = inner_optimizer
        self._exchange = exchange
        self._manifest = manifest
        self._shard, self._layout = manifest.shards[shard], manifest.layout(shard)
        fragments = range(len(self._shard.fragments))
        self._methods = make_stages(spec, law_of_steps(manifest), len(fragments))
        self._codec = make_codec(spec)
        self._watcher = watcher or RoundWatcher()
        encode = self._watcher.encoder(next(model.parameters()).device, self._codec)
        self._drafting = Drafting(encode, exchange) if isinstance(exchange, HasDraft) else None
        encode = self._drafting or encode
        self._feedback = [make_feedback(manifest, encode) for _ in fragments]
        self._anchors = list(start.anchors)
        self._begin_with_anchors()
        self._ahead: dict[int, NDArray[np.float32]] = {}
        """By fragment the weights that the round in hand began with, where the anchor is not."""
        self._pending: dict[int, Pending] = {}
        """By fragment, oldest first."""
        self._contributed = 0
        """The fragment that was handed over last."""
        if inner_store is None and isinstance(exchange, KeepsInnerState):
            inner_store = exchange.inner_store
        self._inner_store = inner_store
        self._left: dict[int, InnerState] = {}
        """By round what the process before us may have handed over, the rounds not being over."""
        self._begin_round(Turn(clock=start.clock, lease=start.lease, members=start.members))
        self._methods.begin_run(model, manifest, start, shard)
        if inner_store is not None:
            # What is kept is of the round before, which may have been another method's.
            recalled = recall(inner_store, start, self._methods.at(self._clock.round - 1))
            if recalled is not None:
                self._take_up(recalled, start)
        self.watch.count_as("take")

    @property
    def clock(self) -> RunClock:
        """The sealed clock before the round in hand."""
        return self._clock

    @property
    def lease(self) -> Lease:
        """The samples of the round in hand; empty when the run is finished."""
        return self._lease

    @property
    def local_step(self) -> int:
        """Inner steps done in the round in hand, 0..H-1."""
        return self._local_step

    @property
    def steps(self) -> int:
        """Inner steps of the round in hand: H, or where peers choose what the lease is for."""
        return self._steps

    @property
    def _method(self) -> Method:
        return self._methods.at(self._clock.round)

    @property
    def _rate_step(self) -> int:
        return self._method.pace.rate_step(self._clock, self._local_step, self._steps)

    @property
    def finished(self) -> bool:
        """Whether the run has ended: there is nothing to train any more."""
        return not self._lease

    @property
    def going_on(self) -> tuple[int, ...]:
        """The fragments whose working weights are needed behind the wait for the contribution that
        was handed over last: of the others, its outcome brings new ones."""
        return self._going_on(self._contributed)

    def _going_on(self, contributed: int) -> tuple[int, ...]:
        keeps = self._method.keeps_weights
        return tuple(f for f in range(len(self._anchors)) if keeps(f, contributed))

    def begin_step(self) -> None:
        """Before the gradient of each step, in a run with audits."""
        step = self._local_step
        self._watcher.before_gradient(self._clock, self._lease, step, self._anchors)

    def step(self, loss: SupportsFloat = 0.0, *, samples: int | None = None) -> Outcome | None:
        """One inner step with the gradients at hand; after the H-th also a round.

        `loss` (nats per byte) is only shown to people. `samples` is how many sequences the
        gradient is of, by default the manifest's batch; a round's are never more than its lease
        has, or no peer takes the contribution. Blocks in a round until it is sealed, and with two
        in flight until the one before is. Returns an outcome that it took over, else None. Where
        `resume` is due it does that and nothing else: the gradients at hand are of samples that
        were contributed before.
        """
        if self._clock.round in self._left:
            return self.resume()
        rate_step = self._rate_step
        with self._updating():
            apply_gradient(self._model, self._inner_optimizer, self._manifest, rate_step)
        self._method.after_step(rate_step)
        self._local_step += 1
        self._watcher.after_step(self._local_step)
        self._samples += self._manifest.inner.batch if samples is None else samples
        # A tensor would hold the graph of its step until the round ends.
        self._loss_total += float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        due = self._due(self._local_step)
        outcome = None
        if due.begin:
            # Of no more use: the drift needs as much memory, and the next step makes new ones.
            self._inner_optimizer.zero_grad(set_to_none=True)
            give_back_free_memory(_FREE_BYTES_KEPT)
        for fragment in due.begin:
            with self.watch.within("encode"):
                outcome = self._begin(fragment, is_joined=fragment in due.join)
            outcome = self._proceed() or outcome
        return self._take_over(due) or outcome

    def resume(self) -> Outcome | None:
        """Hand over again what was under way when the process before us died, byte for byte.

        Blocks until the round is sealed and returns its outcome; None, at once, if nothing was
        under way. Call it before the first batch: training for this round is done. With two rounds
        in flight it blocks as `step` does, and there may be two that were under way.
        """
        outcome = None
        while (state := self._left.pop(self._clock.round, None)) is not None:
            contribution = state.contribution
            fragment = contribution.fragment
            if not self._method.is_same_version(state.anchor, self._anchors[fragment]):
                break  # It was to another version of the fragment.
            self._feedback[fragment].reopen(state.residuals[fragment], state.residual_after_N)
            self._method.reopen(state.notes)
            due = self._due(self._steps)
            with self.watch.within("encode"):
                self._hand_over(contribution)
            outcome = self._proceed()
            outcome = self._take_over(due) or outcome
        return outcome

    def residuals(self) -> tuple[NDArray[np.float32] | None, ...]:
        """Per fragment the error feedback's residual, for a checkpoint; None stands for zero."""
        return tuple(feedback.residual_N for feedback in self._feedback)

    def restore_residuals(self, residuals: Sequence[NDArray[np.float32] | None]) -> None:
        """Take a checkpoint's residuals; only right if its anchor is the one we start from."""
        for feedback, residual_N in zip(self._feedback, residuals, strict=True):
            feedback.restore(residual_N)

    def _take_up(self, recalled: Recalled, start: RunStart) -> None:
        if not self._watcher.keeps_states:
            take_moments(self._model, self._inner_optimizer, recalled.newest)
        if recalled.residuals is not None:
            self.restore_residuals(recalled.residuals)
            self._method.take_up(recalled.newest.notes, recalled.newest.round, start)
        if not self._watcher.goes_on(recalled, start):
            self.restore_residuals([None] * len(self._feedback))
            return
        self._left = recalled.under_way
        for fragment, local_N in recalled.drifting.items():
            write_fragment(self._model, self._shard, fragment, local_N)
            began_N = self._method.began_with(local_N)
            if began_N is not None:
                self._ahead[fragment] = began_N
        logger.info(
            "inner state taken up round=%d of=%d under_way=%s",
            self._clock.round,
            recalled.newest.round,
            sorted(self._left),
        )

    def _begin_with_anchors(self) -> None:
        """The run's values take the place of the model's; a program whose they were hears of it."""
        heard = self._exchange if isinstance(self._exchange, HearsOfValues) else None
        replaced: list[str] = []
        for fragment, anchor_N in enumerate(self._anchors):
            if heard and not np.array_equal(
                read_fragment(self._model, self._shard, fragment), anchor_N
            ):
                replaced += (self._shard.tensors[i].name for i in self._shard.fragments[fragment])
            write_fragment(self._model, self._shard, fragment, anchor_N)
        if heard and replaced:
            heard.values_replaced(replaced)

    def _begin_round(self, turn: Turn) -> None:
        self._clock, self._lease, self._members = turn.clock, turn.lease, turn.members
        self._steps = self._method.pace.steps(turn.lease)
        self._local_step = 0
        self._samples = 0
        self._loss_total = 0.0

    def _begin(self, fragment: int, *, is_joined: bool) -> Outcome | None:
        """Hand over what drifted; first, where that `is_joined`, take the round before over."""
        local_N = read_fragment(self._model, self._shard, fragment)
        sent_N = self._method.sent_weights(local_N)
        drift_N = np.subtract(
            self._ahead.get(fragment, self._anchors[fragment]),
            local_N,
            out=local_N if sent_N is None else None,
        )
        del local_N
        if not all_finite(drift_N):
            raise StateError(f"training diverged in round {self._clock.round}: weights not finite")
        self._method.record_drift(drift_N)
        # The residual that this is encoded with depends on it, the drift does not.
        outcome = self._finish(fragment) if is_joined and fragment in self._pending else None
        feedback = self._feedback[fragment]
        lots = self._method.lots(self._clock.round)
        if self._drafting is not None:
            self._drafting.begin()
        hear = None if self._inner_store is None else self._inner_store.sums(self._clock.round)
        grade = grade_of(self._exchange)
        encoded = feedback.encode(drift_N, lots=lots, grade=grade, hear=hear, overwrites=True)
        del drift_N  # The residual has its memory.
        self._run_ahead(fragment, encoded.payloads)
        contribution = Contribution(
            fragment=fragment,
            payloads=encoded.payloads,
            tokens=self._samples * tokens_per_sample(self._manifest),
            samples=self._samples,
            steps=self._local_step,
            residual_before=encoded.residual_before,
            residual_after=encoded.residual_after,
            loss=self._loss_total / self._local_step,
            traced=self._watcher.encoded(feedback.residual_N),
        )
        with self.watch.within("save"):
            self._keep(contribution)
        self._hand_over(contribution)
        self._pending[fragment].sent_N = sent_N
        return outcome

    def _run_ahead(self, fragment: int, payloads: Sequence[bytes]) -> None:
        """What the next round begins with, while this one is in flight."""
        own = partial(join_cells, self._codec, payloads, self._layout.cell_numels[fragment])
        ahead_N = self._method.weights_ahead(self._anchors[fragment], own, self._members)
        if ahead_N is not None:
            write_fragment(self._model, self._shard, fragment, ahead_N)
            self._ahead[fragment] = ahead_N

    def _hand_over(self, contribution: Contribution) -> None:
        self._contributed = contribution.fragment
        timed = replace(contribution, times=self.watch.take())
        ticket = self._exchange.begin(contribution.fragment, timed)
        self._pending[contribution.fragment] = Pending(self._clock.round, ticket)

    def _updating(self) -> AbstractContextManager[None]:
        return nullcontext() if self._inner_store is None else self._inner_store.updating()

    def _keep(self, contribution: Contribution) -> None:
        # Before anybody hears of it: a process that begins anew must not contradict this one (R6).
        if self._inner_store is None:
            return
        fragment = contribution.fragment
        self._inner_store.save(
            InnerState(
                round=self._clock.round,
                anchor=anchor_digest(self._anchors[fragment]),
                contribution=contribution,
                residuals=self.residuals(),
                residual_after_N=self._feedback[fragment].residual_after_N,
                optimizer=type(self._inner_optimizer).__name__,
                moments=self._moments(),
                drifting=self._drifting(fragment),
                pending=tuple(one.round for one in self._pending.values() if not one.is_void),
                notes=self._method.notes(),
                basis=self._clock.basis,
                roots=tuple(feedback.root for feedback in self._feedback),
            )
        )

    def _moments(self) -> Mapping[str, torch.Tensor]:
        if self._watcher.keeps_states:
            return {}
        return optimizer_tensors(self._model, self._inner_optimizer)

    def _drifting(self, contributed: int) -> dict[int, tuple[bytes, NDArray[np.float32]]]:
        """Anchor and working weights of all fragments whose weights go on."""
        if self._watcher.keeps_states:
            return {}
        return {
            f: (anchor_digest(self._anchors[f]), read_fragment(self._model, self._shard, f))
            for f in self._going_on(contributed)
        }

    def _due(self, local_step: int) -> Due:
        # A round cut short is the end of a whole one.
        skipped = self._manifest.inner.inner_steps - self.steps
        return self._method.due(skipped + local_step, self._clock.round)

    def _take_over(self, due: Due) -> Outcome | None:
        outcome = None
        for fragment in (*due.finish, *due.take):
            pending = self._pending.get(fragment)
            if pending and (fragment in due.finish or pending.ticket.is_here()):
                outcome = self._finish(fragment)
        return outcome

    def _proceed(self) -> Outcome | None:
        """On to the next round, where a turn names it before the outcome is here (R5). The outcome
        is taken over now at the latest where the round may be about that fragment again. So is that
        of a round which is not before the next one: its branch was left (R4)."""
        with self.watch.within("wait"):
            turn = self._method.next_turn(self._exchange)
        if turn is None:
            return None
        with self.watch.within("take"):
            return self._go_on_for(turn)

    def _go_on_for(self, turn: Turn) -> Outcome | None:
        outcome, method = None, self._method
        for fragment, pending in list(self._pending.items()):
            if not method.is_awaited(pending.round, turn):
                outcome = self._finish(fragment)
        for index in [one for one in sorted(self._left) if method.is_over(one, turn)]:
            left = self._left.pop(index)
            if index in turn.listed:
                self._feedback[left.contribution.fragment].restore(left.residual_after_N)
        self._drop(turn.others)
        self._begin_round(turn)
        return outcome

    def _finish(self, fragment: int) -> Outcome:
        pending = self._pending.pop(fragment)
        with self.watch.within("wait"):
            outcome = pending.ticket.result()
        with self.watch.within("take"):
            self._take_in(fragment, pending, outcome)
        return outcome

    def _take_in(self, fragment: int, pending: Pending, outcome: Outcome) -> None:
        self._settle(fragment, outcome, is_void=pending.is_void)
        self._method.settle(outcome)
        merged_N = outcome.anchor_N
        if not outcome.is_resync:
            local = partial(read_fragment, self._model, self._shard, fragment)
            merged_N = self._method.take_in(pending.round, outcome, local, pending.sent_N)
        write_fragment(self._model, self._shard, fragment, merged_N)
        self._anchors[fragment] = outcome.anchor_N
        self._ahead.pop(fragment, None)
        self._drop(outcome.others)
        turn = self._method.next_round(outcome)
        if turn is not None:
            self._begin_round(turn)

    def _drop(self, anchors: Mapping[int, NDArray[np.float32]]) -> None:
        """Sealed without us: what drifted since is dropped (R6)."""
        for fragment, anchor_N in anchors.items():
            write_fragment(self._model, self._shard, fragment, anchor_N)
            self._anchors[fragment] = anchor_N
            self._ahead.pop(fragment, None)

    def _settle(self, fragment: int, outcome: Outcome, *, is_void: bool) -> None:
        feedback = self._feedback[fragment]
        if outcome.is_resync:
            # Seals were missed: residuals belong to weights long gone (R6).
            self.restore_residuals([None] * len(self._feedback))
            self._left.clear()
            for later in self._pending.values():
                later.is_void = True
        elif outcome.listed and not is_void:
            feedback.commit()
        elif not is_void:
            feedback.abort()
        if not self._watcher.settled(outcome):
            self.restore_residuals([None] * len(self._feedback))
            self._drop(dict(enumerate(self._anchors)))
