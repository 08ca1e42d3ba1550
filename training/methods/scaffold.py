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

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from protocol.manifest import RunManifest
from training.channel.exchange import Outcome, RunClock, RunStart
from training.device.inner import learning_rate
from training.methods.method import METHODS, Method, MethodNotes, Vector
from training.models.building import tokens_per_sample

_SHARES = "variates"
_OWN, _OWN_AFTER, _COMMON, _ANCHOR = (
    f"{_SHARES}/{name}" for name in ("own_N", "own_after_N", "common_N", "anchor_N")
)
"""In the file of a round: what was sealed before it and how many had a seat in it, both variates,
the own one as it is if the round is sealed with it, and the anchor that the round began with. The
last and the first together with the next anchor give the next c. A variate of zero is left out."""


class Scaffold(Method):
    """The variates of one trainer, of a run in one fragment with one round in flight."""

    @override
    def begin_run(
        self, model: nn.Module, manifest: RunManifest, start: RunStart, shard: int
    ) -> None:
        named, spec = dict(model.named_parameters()), manifest.shards[shard]
        self._parameters = [named[spec.tensors[i].name] for i in spec.fragments[0]]
        self._manifest = manifest
        inner = manifest.inner
        self._tokens_each = inner.inner_steps * inner.batch * tokens_per_sample(manifest)
        self._own_N: Vector | None = None
        self._own_after_N: Vector | None = None
        self._common_N: Vector | None = None
        self._begin(start.anchors[0], start.clock, start.members)

    @override
    def continued(self, later: Method) -> Method:
        return self

    @property
    def own_N(self) -> Vector | None:
        """c_r; None stands for zero."""
        return self._own_N

    @property
    def common_N(self) -> Vector | None:
        """c; None stands for zero."""
        return self._common_N

    @override
    def after_step(self, rate_step: int) -> None:
        """What the step lacks."""
        with torch.no_grad():
            for parameter, offset in zip(self._parameters, self._offsets, strict=False):
                parameter.sub_(offset, alpha=learning_rate(self._manifest, rate_step))

    @override
    def record_drift(self, drift_N: Vector) -> None:
        mean_N = drift_N / self._rates()
        self._own_after_N = mean_N - _difference(self._common_N, self._own_N, mean_N)

    @override
    def notes(self) -> MethodNotes:
        found = {
            _OWN: self._own_N,
            _OWN_AFTER: self._own_after_N,
            _COMMON: self._common_N,
            _ANCHOR: self._anchor_N,
        }
        return MethodNotes(
            words={_SHARES: f"{self._clock.tokens} {self._members}"},
            vectors={name: x_N for name, x_N in found.items() if x_N is not None},
        )

    @override
    def reopen(self, notes: MethodNotes) -> None:
        self._own_after_N = notes.vectors.get(_OWN_AFTER)

    @override
    def settle(self, outcome: Outcome) -> None:
        """The round is over. What was contributed before a resync is forgotten, c with it."""
        is_next = outcome.clock.round == self._clock.round + 1
        if outcome.is_resync or not is_next:
            self._own_N = self._common_N = None
        else:
            if outcome.listed:
                self._own_N = self._own_after_N
            self._share_in(outcome.anchor_N, outcome.clock)
        self._begin(outcome.anchor_N, outcome.clock, outcome.members)

    @override
    def take_up(self, notes: MethodNotes, round_index: int, start: RunStart) -> None:
        """A file of the round in hand, or of the one before it."""
        kept = _whole(notes)
        if kept is None:
            return
        if start.clock.round - round_index not in (0, 1) or start.since > round_index:
            return
        vectors, tokens, members = kept
        self._own_N, self._common_N = vectors.get(_OWN), vectors.get(_COMMON)
        if start.clock.round == round_index:
            self._begin(start.anchors[0], start.clock, start.members)
            return
        before = RunClock(round=round_index, step=self._step_before(start), tokens=tokens)
        self._begin(vectors[_ANCHOR], before, members)
        if round_index in start.listed:
            self._own_N = vectors.get(_OWN_AFTER)
        self._share_in(start.anchors[0], start.clock)
        self._begin(start.anchors[0], start.clock, start.members)

    def _step_before(self, start: RunStart) -> int:
        return start.clock.step - self._manifest.inner.inner_steps

    def _begin(self, anchor_N: Vector, clock: RunClock, members: int) -> None:
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

    def _share_in(self, anchor_N: Vector, clock: RunClock) -> None:
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


METHODS.register("scaffold", Scaffold)


def _whole(notes: MethodNotes) -> tuple[Mapping[str, Vector], int, int] | None:
    """Vectors, tokens and members; None of a run that had no variates, or another form of them."""
    if _SHARES not in notes.words or _ANCHOR not in notes.vectors:
        return None
    try:
        tokens, members = map(int, notes.words[_SHARES].split())
    except ValueError:
        return None
    return notes.vectors, tokens, members


def _difference(minuend: Vector | None, subtrahend: Vector | None, like: Vector) -> Vector:
    if minuend is None:
        return np.zeros_like(like) if subtrahend is None else -subtrahend
    return minuend if subtrahend is None else minuend - subtrahend
