"""DiLoCo: H inner steps, then a round with the swarm (Douillard et al. 2023, algorithm 1).

N elements of a fragment

The pseudo-gradient is anchor minus local weights. It goes out through error feedback and codec as
a transaction (R6); what comes back is the new anchor, already stepped by the outer optimizer. With
two rounds in flight (R5) training goes on while a fragment is on its way (Streaming DiLoCo,
Douillard et al. 2025), and its outcome is taken over within the next round; with a delay of a whole
round (PCCL, DiLoCoX) where that ends, and drift counts from the weights that the round began with.
"""

import logging
from collections.abc import Mapping, Sequence
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
    HearsOfValues,
    Outcome,
    Pending,
    RunClock,
    RunStart,
    Session,
    grade_of,
)
from training.compression import join_cells, make_codec, make_feedback
from training.device.inner import apply_gradient, optimizer_tensors
from training.loop.device_encoding import encoder_on
from training.loop.inner_state import (
    InnerState,
    InnerStore,
    KeepsInnerState,
    anchor_digest,
    take_moments,
)
from training.loop.method import Method, steps_of
from training.loop.own_weights import OwnWeights
from training.loop.recall import Recalled, over, recall
from training.loop.scaffold import NoVariates, Variates
from training.loop.schedule import Due
from training.loop.stages import make_stages
from training.loop.traced_inner import RoundTracer
from training.models.building import read_fragment, tokens_per_sample, write_fragment
from training.models.model_checks import check_optimizer, check_parameters, unwrapped
from training.numeric.arithmetic import all_finite

logger = logging.getLogger(__name__)


class DiLoCo:
    """The loop object: call `step()` after each backward pass, with a fresh batch of the lease.

    H, codec, schedule and learning rate come from the manifest, and the weights of `model` are
    overwritten with the start's anchors. Absent peers never raise; `step` raises StateError when
    the own weights are no longer finite, and what the exchange raises when it is gone. A model that
    is not the run's raises ConfigError here.

    With an `inner_store` each round is kept before it leaves, and a process that begins anew takes
    up what the one before it left there: moments, residual, and a contribution that is under way.
    In a run with audits the `tracer` keeps what others may run again; whoever computes gradients
    calls `begin_step` before each.
    """

    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        *,
        exchange: Session,
        shard: int = 0,
        inner_store: InnerStore | None = None,
        tracer: RoundTracer | None = None,
    ) -> None:
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
        self._overlap = spec.overlap
        self._stages = make_stages(spec, manifest.inner.inner_steps, len(fragments))
        self._codec = make_codec(spec)
        self._members = start.members
        # Audits run a round again in numpy, and compare bytes.
        encode = None if tracer else encoder_on(next(model.parameters()).device, self._codec)
        self._feedback = [make_feedback(manifest, encode) for _ in fragments]
        self._anchors = list(start.anchors)
        self._begin_with_anchors()
        self._ahead: dict[int, NDArray[np.float32]] = {}
        """By fragment the weights that the round in hand began with, where the anchor is not."""
        self._pending: dict[int, Pending] = {}
        """By fragment, oldest first."""
        self._clock = start.clock
        self._lease = start.lease
        if inner_store is None and isinstance(exchange, KeepsInnerState):
            inner_store = exchange.inner_store
        self._inner_store = inner_store
        self._tracer = tracer
        self._left: dict[int, InnerState] = {}
        """By round what the process before us may have handed over, the rounds not being over."""
        self._begin_round()
        self._own = OwnWeights(manifest, shard) if self._method.has_own_weights else None
        has_variates = self._method.has_variates
        self._variates = Variates(model, manifest, start, shard) if has_variates else NoVariates()
        if inner_store is not None:
            # What is kept is of the round before, which may have been another method's.
            is_delayed = self._stages.at(self._clock.round - 1).is_delayed
            recalled = recall(
                inner_store, start, overlap=self._overlap, is_delayed=is_delayed, own=self._own
            )
            if recalled is not None:
                self._take_up(recalled, start)

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
        return self._stages.at(self._clock.round)

    @property
    def _global_step(self) -> int:
        """Where the learning rate is at: of sealed facts and the local step alone (R9).

        Where rounds have fewer steps than H, the rate goes by rounds: it is to end with the run.
        """
        if not self._method.is_paced:
            return self._clock.step + self._local_step
        inner_steps = self._manifest.inner.inner_steps
        return self._clock.round * inner_steps + self._local_step * inner_steps // self.steps

    @property
    def finished(self) -> bool:
        """Whether the run has ended: there is nothing to train any more."""
        return not self._lease

    def begin_step(self) -> None:
        """Before the gradient of each step, in a run with audits."""
        if self._tracer is not None:
            self._tracer.before_gradient(self._clock, self._lease, self._local_step)

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
        apply_gradient(self._model, self._inner_optimizer, self._manifest, self._global_step)
        self._variates.correct(self._global_step)
        self._local_step += 1
        if self._tracer is not None:
            self._tracer.after_step(self._local_step)
        self._samples += self._manifest.inner.batch if samples is None else samples
        # A tensor would hold the graph of its step until the round ends.
        self._loss_total += float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        due = self._due(self._local_step)
        outcome = None
        for fragment in due.begin:
            outcome = self._begin(fragment, is_joined=fragment in due.join)
            if self._overlap > 1:
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
            is_same = state.anchor == anchor_digest(self._anchors[fragment])
            if not is_same and not self._method.is_delayed:
                break  # It was to another version of the fragment.
            self._feedback[fragment].reopen(state.residuals[fragment], state.residual_after_N)
            self._variates.reopen(state.variates)
            due = self._due(self._steps)
            self._hand_over(contribution)
            outcome = self._proceed() if self._overlap > 1 else None
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
        take_moments(self._model, self._inner_optimizer, recalled.newest)
        if recalled.residuals is not None:
            self.restore_residuals(recalled.residuals)
            self._variates.take_up(recalled.newest.variates, recalled.newest.round, start)
        if self._tracer is not None and not self._tracer.goes_on(recalled, start):
            self.restore_residuals([None] * len(self._feedback))
            return
        self._left = recalled.under_way
        for fragment, local_N in recalled.drifting.items():
            write_fragment(self._model, self._shard, fragment, local_N)
            if self._method.is_delayed:
                self._ahead[fragment] = local_N
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

    def _begin_round(self) -> None:
        self._steps = steps_of(self._manifest, self._lease)
        self._local_step = 0
        self._samples = 0
        self._loss_total = 0.0

    def _begin(self, fragment: int, *, is_joined: bool) -> Outcome | None:
        """Hand over what drifted; first, where that `is_joined`, take the round before over."""
        local_N = read_fragment(self._model, self._shard, fragment)
        drift_N = self._ahead.get(fragment, self._anchors[fragment]) - local_N
        if not all_finite(drift_N):
            raise StateError(f"training diverged in round {self._clock.round}: weights not finite")
        self._variates.contributed(drift_N)
        # The residual that this is encoded with depends on it, the drift does not.
        outcome = self._finish(fragment) if is_joined and fragment in self._pending else None
        feedback = self._feedback[fragment]
        lots = self._own.lots(self._clock.round) if self._own else None
        encoded = feedback.encode(drift_N, lots=lots, grade=grade_of(self._exchange))
        if self._method.is_delayed:
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
            traced=None if self._tracer is None else self._tracer.encoded(feedback.residual_N),
        )
        self._keep(contribution)
        self._hand_over(contribution)
        if self._overlap > 1 and not self._method.is_delayed:
            self._pending[fragment].sent_N = local_N
        return outcome

    def _run_ahead(self, fragment: int, payloads: Sequence[bytes]) -> None:
        """What the next round begins with, while this one is in flight."""
        own = partial(join_cells, self._codec, payloads, self._layout.cell_numels[fragment])
        ahead_N = self._method.merge.ahead(self._anchors[fragment], own, self._members)
        write_fragment(self._model, self._shard, fragment, ahead_N)
        self._ahead[fragment] = ahead_N

    def _hand_over(self, contribution: Contribution) -> None:
        ticket = self._exchange.begin(contribution.fragment, contribution)
        self._pending[contribution.fragment] = Pending(self._clock.round, ticket)

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
                moments=optimizer_tensors(self._model, self._inner_optimizer),
                drifting=self._drifting(fragment),
                pending=tuple(one.round for one in self._pending.values() if not one.is_void),
                variates=self._variates.kept(),
                basis=self._clock.basis,
            )
        )

    def _drifting(self, fragment: int) -> dict[int, tuple[bytes, NDArray[np.float32]]]:
        """Anchor and working weights of all fragments but this one, which gets the next anchor at
        once unless it goes on while it is in flight, or is a replica's own."""
        return {
            other: (anchor_digest(anchor_N), read_fragment(self._model, self._shard, other))
            for other, anchor_N in enumerate(self._anchors)
            if other != fragment or self._overlap > 1 or self._own
        }

    def _due(self, local_step: int) -> Due:
        # A round cut short is the end of a whole one.
        skipped = self._manifest.inner.inner_steps - self.steps
        return self._method.schedule.due(skipped + local_step, self._clock.round)

    def _take_over(self, due: Due) -> Outcome | None:
        outcome = None
        for fragment in (*due.finish, *due.take):
            pending = self._pending.get(fragment)
            if pending and (fragment in due.finish or pending.ticket.is_here()):
                outcome = self._finish(fragment)
        return outcome

    def _proceed(self) -> Outcome | None:
        """On to the next round (R5), which the seal before the last one names: its outcome is taken
        over now at the latest, for the round may be about that fragment again. So is that of a
        round which is not before the next one: its branch was left (R4)."""
        turn = self._exchange.proceed()
        outcome, next_round = None, turn.clock.round
        for fragment, pending in list(self._pending.items()):
            is_before = next_round - self._overlap < pending.round < next_round
            if not (turn.lease and is_before):
                outcome = self._finish(fragment)
        for index in over(self._left, turn, overlap=self._overlap):
            left = self._left.pop(index)
            if index in turn.listed:
                self._feedback[left.contribution.fragment].restore(left.residual_after_N)
        self._drop(turn.others)
        self._clock, self._lease, self._members = turn.clock, turn.lease, turn.members
        self._begin_round()
        return outcome

    def _finish(self, fragment: int) -> Outcome:
        pending = self._pending.pop(fragment)
        outcome = pending.ticket.result()
        self._settle(fragment, outcome, is_void=pending.is_void)
        self._variates.settled(outcome)
        merged_N = outcome.anchor_N
        if (outcome.listed or self._own) and not outcome.is_resync:
            local_N = read_fragment(self._model, self._shard, fragment)
            if self._own:
                merged_N = self._own.taken(pending.round, fragment, local_N, merged_N)
            else:
                merged_N = self._method.merge.apply(local_N, merged_N, pending.sent_N)
        write_fragment(self._model, self._shard, fragment, merged_N)
        self._anchors[fragment] = outcome.anchor_N
        self._ahead.pop(fragment, None)
        self._drop(outcome.others)
        if self._overlap == 1:
            self._clock, self._lease = outcome.clock, outcome.lease
            self._begin_round()
        return outcome

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
        if self._tracer is not None and not self._tracer.settled(outcome):
            self.restore_residuals([None] * len(self._feedback))
