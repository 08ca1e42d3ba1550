"""SCAFFOLD (Karimireddy et al. 2020): control variates against the drift of unequal data.

N elements of the model

    each inner step   y <- y - eta_k (u_k - c_r + c)           u_k: the inner optimizer's direction
    contributed       c_r' = c_r - c + (x - y) / sum of eta_k  option II; kept only if sealed (R6)
    sealed            c <- c + |S| / M (g / sum of eta_k - c)  g: the sealed aggregate, M: members

With SGD inside u_k is the gradient, and this is the paper's. With another optimizer variates are in
the space of its updates, where they have the right scale; it takes away the drift within rounds,
not what its own scaling makes of unequal gradients.

No second vector travels: the mean of all x - y is the sealed aggregate, and that is the distance of
two anchors over the outer rate. So c is common to all who saw the same rounds. Whoever comes later,
or missed one, begins with both variates zero: its first round has no correction, and its c comes
near that of the others by the factor 1 - |S| / M a round, which is zero where all are listed.
|S| is counted by sealed tokens (R9): a whole contribution has a fixed number of them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.manifest import RunManifest
from training.channel.exchange import Outcome, RunClock, RunStart
from training.device.inner import learning_rate
from training.models.building import tokens_per_sample

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptVariates:
    """What a trainer must know again of a round that it contributed to; None stands for zero.

    `anchor_N` is what the round began with, `tokens` what was sealed before it, `members` how many
    had a seat in it: together with the next anchor they give the next c.
    """

    own_N: Weights | None
    own_after_N: Weights | None
    common_N: Weights | None
    anchor_N: Weights
    tokens: int
    members: int


class NoVariates:
    """Of methods that have none; what each call is for, `Variates` says."""

    def correct(self, step: int) -> None:
        """No correction."""

    def contributed(self, drift_N: Weights) -> None:
        """Nothing to learn."""

    def reopen(self, kept: KeptVariates | None) -> None:
        """Nothing was kept."""

    def kept(self) -> KeptVariates | None:
        """Nothing is kept."""
        return None

    def settled(self, outcome: Outcome) -> None:
        """Nothing to take over."""

    def take_up(self, kept: KeptVariates | None, round_index: int, start: RunStart) -> None:
        """Nothing was kept."""


class Variates(NoVariates):
    """The variates of one trainer, of a run in one fragment with one round in flight."""

    def __init__(
        self, model: nn.Module, manifest: RunManifest, start: RunStart, shard: int = 0
    ) -> None:
        named, spec = dict(model.named_parameters()), manifest.shards[shard]
        self._parameters = [named[spec.tensors[i].name] for i in spec.fragments[0]]
        self._manifest = manifest
        inner = manifest.inner
        self._tokens_each = inner.inner_steps * inner.batch * tokens_per_sample(manifest)
        self._own_N: Weights | None = None
        self._own_after_N: Weights | None = None
        self._common_N: Weights | None = None
        self._begin(start.anchors[0], start.clock, start.members)

    @property
    def own_N(self) -> Weights | None:
        """c_r; None stands for zero."""
        return self._own_N

    @property
    def common_N(self) -> Weights | None:
        """c; None stands for zero."""
        return self._common_N

    def correct(self, step: int) -> None:
        """What an inner step of that number (of the run) lacks; called behind it."""
        with torch.no_grad():
            for parameter, offset in zip(self._parameters, self._offsets, strict=False):
                parameter.sub_(offset, alpha=learning_rate(self._manifest, step))

    def contributed(self, drift_N: Weights) -> None:
        """The round's steps are done: `drift_N` is anchor minus working weights."""
        mean_N = drift_N / self._rates()
        self._own_after_N = mean_N - _difference(self._common_N, self._own_N, mean_N)

    def reopen(self, kept: KeptVariates | None) -> None:
        """The same, as the process before us kept it."""
        self._own_after_N = None if kept is None else kept.own_after_N

    def kept(self) -> KeptVariates:
        """For the disk, before the contribution leaves."""
        return KeptVariates(
            own_N=self._own_N,
            own_after_N=self._own_after_N,
            common_N=self._common_N,
            anchor_N=self._anchor_N,
            tokens=self._clock.tokens,
            members=self._members,
        )

    def settled(self, outcome: Outcome) -> None:
        """The round is over. What was contributed before a resync is forgotten, c with it."""
        is_next = outcome.clock.round == self._clock.round + 1
        if outcome.is_resync or not is_next:
            self._own_N = self._common_N = None
        else:
            if outcome.listed:
                self._own_N = self._own_after_N
            self._share_in(outcome.anchor_N, outcome.clock)
        self._begin(outcome.anchor_N, outcome.clock, outcome.members)

    def take_up(self, kept: KeptVariates | None, round_index: int, start: RunStart) -> None:
        """What the process before us kept of a round: the one in hand, or the one before it."""
        if kept is None:
            return
        if start.clock.round - round_index not in (0, 1) or start.since > round_index:
            return
        self._own_N, self._common_N = kept.own_N, kept.common_N
        if start.clock.round == round_index:
            self._begin(start.anchors[0], start.clock, start.members)
            return
        before = RunClock(round=round_index, step=self._step_before(start), tokens=kept.tokens)
        self._begin(kept.anchor_N, before, kept.members)
        if round_index in start.listed:
            self._own_N = kept.own_after_N
        self._share_in(start.anchors[0], start.clock)
        self._begin(start.anchors[0], start.clock, start.members)

    def _step_before(self, start: RunStart) -> int:
        return start.clock.step - self._manifest.inner.inner_steps

    def _begin(self, anchor_N: Weights, clock: RunClock, members: int) -> None:
        # A copy: an anchor is good until the contribution leaves, and this is asked for behind it.
        self._anchor_N, self._clock, self._members = anchor_N.copy(), clock, members
        self._own_after_N = None
        self._offsets: list[torch.Tensor] = []
        if self._common_N is None and self._own_N is None:
            return
        offset_N = _difference(self._common_N, self._own_N, anchor_N)
        start = 0
        for parameter in self._parameters:
            part = torch.from_numpy(offset_N[start : start + parameter.numel()])
            self._offsets.append(part.reshape(parameter.shape).to(parameter.device))
            start += parameter.numel()

    def _share_in(self, anchor_N: Weights, clock: RunClock) -> None:
        """c behind the round in hand, which led to `anchor_N`."""
        tokens = clock.tokens - self._clock.tokens
        share = np.float32(min(1.0, tokens / (self._tokens_each * max(1, self._members))))
        if not share:
            return  # Nobody was listed.
        mean_N = self._anchor_N - anchor_N
        mean_N /= np.float32(self._manifest.outer.learning_rate) * self._rates()
        mean_N *= share
        if self._common_N is not None:
            mean_N += (np.float32(1.0) - share) * self._common_N
        self._common_N = mean_N

    def _rates(self) -> np.float32:
        """The sum of eta_k over the round in hand: of sealed facts alone, so common to all."""
        steps = range(self._clock.step, self._clock.step + self._manifest.inner.inner_steps)
        return np.float32(sum(learning_rate(self._manifest, step) for step in steps))


def _difference(minuend: Weights | None, subtrahend: Weights | None, like: Weights) -> Weights:
    if minuend is None:
        return np.zeros_like(like) if subtrahend is None else -subtrahend
    return minuend if subtrahend is None else minuend - subtrahend
