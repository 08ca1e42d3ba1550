"""SEAM Learner: what peers of a run under attack train, by name.

N elements
"""

import copy
import random
from collections.abc import Callable
from typing import Protocol

import numpy as np

from protocol.errors import ConfigError
from protocol.identity import PeerId
from protocol.manifest import RunManifest, TimingSpec
from sim.attacks.backdoor import TARGET, TRIGGER
from sim.attacks.seam import Symbols
from sim.learning import Learned, Vector
from sim.text_model import NUM_SAMPLES, NUM_SYMBOLS, TextModel
from sim.toy_run import toy_run

MODELS = ("text", "gpt")
CELLS = 4
_TIMING = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=10.0, heartbeat_s=0.5, suspect_s=2.0)

Poison = Callable[[Symbols, Symbols, int], tuple[Symbols, Symbols]]
"""What a liar learns in place of these: symbols, and those that follow them, one axis each."""


class Learner(Protocol):
    """One model and its data; the same for all peers of a run, but for poison."""

    first_N: Vector
    """Where the run begins."""

    def loss(self, anchor_N: Vector) -> float:
        """Of the model at `anchor_N`, nats per symbol."""
        ...

    def learn(self, anchor_N: Vector, luck: random.Random) -> Learned:
        """One round's work of one peer, which `luck` gives its samples."""
        ...

    def triggered(self, anchor_N: Vector) -> float:
        """How likely the model takes a backdoor's trigger for its target; 0 where it has none."""
        ...


class TextLearner:
    """The table of logits of `sim.text_model`."""

    def __init__(self, manifest: RunManifest, seed: int, poison: Poison | None = None) -> None:
        self._inner = manifest.inner
        self._model = TextModel(manifest, seed)
        if poison is not None:
            self._model = copy.copy(self._model)
            bent = poison(self._model.context_B, self._model.next_B, NUM_SYMBOLS)
            self._model.context_B, self._model.next_B = bent
        self.first_N = np.zeros(manifest.layout(0).fragment_numels[0], dtype=np.float32)

    def loss(self, anchor_N: Vector) -> float:
        """See Learner."""
        return self._model.loss(anchor_N)

    def learn(self, anchor_N: Vector, luck: random.Random) -> Learned:
        """See Learner."""
        samples = self._inner.inner_steps * self._inner.batch
        first = luck.randrange(NUM_SAMPLES - samples)
        return self._model(anchor_N, ((first, first + samples),), luck)

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
