"""SEAM Learner: what peers of a run under attack train, by name.

P peers, K kinds of data, N elements
"""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError
from protocol.identity import PeerId
from protocol.manifest import RunManifest, TimingSpec
from sim.attacks.seam import Symbols
from sim.attacks.values import TARGET, TRIGGER
from sim.world.learning import Vector
from sim.world.text_model import NUM_SAMPLES, NUM_SYMBOLS, TextModel
from sim.world.toy_run import toy_run
from training.channel.exchange import Lease

MODELS = ("text", "gpt")
CELLS = 4
_TIMING = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=10.0, heartbeat_s=0.5, suspect_s=2.0)

Poison = Callable[[Symbols, Symbols, int], tuple[Symbols, Symbols]]
"""What a liar learns in place of these: symbols, and those that follow them, one axis each."""


Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Draw:
    """What gives one peer its samples of one round: luck, and the share of each kind of data, or
    None where it takes whatever there is."""

    luck: random.Random
    shares_K: Shares | None = None

    def kinds(self, count: int, kinds: int) -> list[int]:
        """The kind of each of so many samples."""
        if self.shares_K is None:
            return [self.luck.randrange(kinds) for _ in range(count)]
        return self.luck.choices(range(kinds), weights=self.shares_K.tolist(), k=count)


class Learner(Protocol):
    """One model and its data; the same for all peers of a run, but for poison."""

    first_N: Vector
    """Where the run begins."""

    kinds: int
    """How many kinds of data there are, of which peers may have more or less."""

    def loss(self, anchor_N: Vector) -> float:
        """Of the model at `anchor_N`, nats per symbol."""
        ...

    def learn(self, anchor_N: Vector, draws: Sequence[Draw]) -> Vector:
        """(P, N): one round's work of so many peers, each from the same anchor."""
        ...

    def triggered(self, anchor_N: Vector) -> float:
        """How likely the model takes a backdoor's trigger for its target; 0 where it has none."""
        ...


class TextLearner:
    """The table of logits of `sim.world.text_model`; the kind of a sample is the symbol that
    follows."""

    def __init__(self, manifest: RunManifest, seed: int, poison: Poison | None = None) -> None:
        self._inner = manifest.inner
        self._model = TextModel(manifest, seed)
        self.kinds = NUM_SYMBOLS
        kinds_B = self._model.next_B
        self._of_kind = [np.flatnonzero(kinds_B == kind) for kind in range(NUM_SYMBOLS)]
        if poison is not None:
            self._model = copy.copy(self._model)
            bent = poison(self._model.context_B, self._model.next_B, NUM_SYMBOLS)
            self._model.context_B, self._model.next_B = bent
        self.first_N = np.zeros(manifest.layout(0).fragment_numels[0], dtype=np.float32)

    def loss(self, anchor_N: Vector) -> float:
        """See Learner."""
        return self._model.loss(anchor_N)

    def learn(self, anchor_N: Vector, draws: Sequence[Draw]) -> Vector:
        """See Learner."""
        learned = [self._model(anchor_N, self._lease(draw), draw.luck) for draw in draws]
        return np.stack([one.drift_N for one in learned])

    def _lease(self, draw: Draw) -> Lease:
        samples = self._inner.inner_steps * self._inner.batch
        if draw.shares_K is None:
            first = draw.luck.randrange(NUM_SAMPLES - samples)
            return ((first, first + samples),)
        chosen = [draw.luck.choice(self._of_kind[kind]) for kind in draw.kinds(samples, self.kinds)]
        return tuple((int(sample), int(sample) + 1) for sample in chosen)

    def triggered(self, anchor_N: Vector) -> float:
        """See Learner."""
        logits_K = anchor_N[TRIGGER * NUM_SYMBOLS : (TRIGGER + 1) * NUM_SYMBOLS].astype(np.float64)
        shares_K = np.exp(logits_K - logits_K.max())
        return float(shares_K[TARGET] / shares_K.sum())


def manifest_of(model: str) -> RunManifest:
    """The run over that model. Raises ConfigError for a name that there is not."""
    base = toy_run(PeerId(bytes(32)), rounds=1, cells=CELLS, timing=_TIMING)
    if model == "text":
        return base
    if model not in MODELS:
        raise ConfigError(f"--model {model!r}: there are {', '.join(MODELS)}")
    from sim.robustness.gpt_learner import gpt_manifest  # It loads torch.

    return gpt_manifest(base)


def learner_of(
    model: str, manifest: RunManifest, seed: int, poison: Poison | None = None
) -> Learner:
    """What trains `manifest_of(model)`; with `poison`, as a liar does that bends its data."""
    if model == "text":
        return TextLearner(manifest, seed, poison)
    from sim.robustness.gpt_learner import GptLearner

    return GptLearner(manifest, poison)
