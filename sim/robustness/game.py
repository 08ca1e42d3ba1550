"""A run of a small model in which some peers lie: what is learned, then rounds without a network,
all in memory.

P peers (the honest first), H honest ones, B liars, N elements
"""

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError
from protocol.identity import PeerId
from protocol.leases import Lease
from protocol.manifest import RunManifest, TimingSpec
from sim.attacks import Attack, Context
from sim.attacks.seam import Symbols
from sim.attacks.values import TARGET, TRIGGER
from sim.world.toy_run import toy_run
from sim.world.trainer import NUM_SAMPLES, NUM_SYMBOLS, TextModel
from training.aggregation import AGGREGATORS, tolerated
from training.numeric.arithmetic import Vector, all_finite
from training.outer.optimizers import OuterInfo, make_outer

# Models that learn --------------------------------------------------------------------------------

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
    """The table of logits of `sim.world.trainer`; the kind of a sample is the symbol that
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


# Rounds in which some lie -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LyingStage:
    """Whom, how long, and from which round on the liars lie."""

    peers: int = 16
    liars: int = 4
    rounds: int = 30
    attacked_from: int = 4
    model: str = "text"
    skew: float | None = None
    """Of the Dirichlet distribution that each peer's share of each kind of data is drawn from; the
    smaller, the more peers' data differ. None: all peers have the same data."""

    @property
    def faults(self) -> int:
        """f of the default rule: how many lies it counts on, however many lie."""
        return tolerated(None, self.peers)


@dataclass(frozen=True, slots=True)
class Course:
    """What came of a run: the loss behind every round, infinite from where it was none."""

    losses: tuple[float, ...]
    kept_direction: float
    """Share of the attacked rounds whose aggregate points the way of the honest mean."""

    triggered: float
    """How likely the last model takes a backdoor's trigger for its target."""

    @property
    def loss_last(self) -> float:
        """At the end."""
        return self.losses[-1]


Rule = Callable[[Vector], Vector]


def rule_named(name: str) -> Rule:
    """A registered rule as nodes make it, over whole vectors, cell by cell where it clips cells.

    Rows that are not finite never reach a rule: the decoder refuses them, so their senders are
    absent. The bare mean of `undefended` has not even that.
    """
    manifest = manifest_of("text")
    rule = AGGREGATORS[name](cell_elements=manifest.cell_elements)

    def aggregated(rows_PN: Vector) -> Vector:
        kept = [row_N for row_N in rows_PN if all_finite(row_N)]
        return rule(np.stack(kept)).value

    return aggregated


def undefended(rows_PN: Vector) -> Vector:
    """The mean of whatever comes."""
    with np.errstate(all="ignore"):
        mean_N: Vector = rows_PN.mean(axis=0, dtype=np.float32)
    return mean_N


def play(stage: LyingStage, attack: Attack, rule: Rule, seed: int) -> Course:
    """One run. All that is left to chance comes from the seed; the attack changes no other luck."""
    manifest = manifest_of(stage.model)
    model = learner_of(stage.model, manifest, seed)
    is_poisoned = type(attack).poison is not Attack.poison
    bent = learner_of(stage.model, manifest, seed, attack.poison) if is_poisoned else model
    run = _Run(stage, attack, rule, manifest, seed)
    run.anchor_N = model.first_N
    losses: list[float] = []
    for index in range(stage.rounds):
        with np.errstate(all="ignore"):  # Where the model diverges, so do its learners.
            rows_PN = run.trained(model, bent, index)
        if not run.step(rows_PN, index):
            losses += [math.inf] * (stage.rounds - index)
            break
        with np.errstate(all="ignore"):
            loss = model.loss(run.anchor_N)
        losses.append(loss if math.isfinite(loss) else math.inf)
    kept = sum(run.directions) / max(1, len(run.directions))
    return Course(tuple(losses), kept, model.triggered(run.anchor_N))


class _Run:
    """Anchor, outer state and the liars' memory of one run."""

    def __init__(
        self, stage: LyingStage, attack: Attack, rule: Rule, manifest: RunManifest, seed: int
    ) -> None:
        self._stage, self._attack, self._rule = stage, attack, rule
        self._seed = seed
        self._outer = make_outer(manifest.outer)
        layout = manifest.layout(0)
        self._slices = tuple(
            slice(*layout.cell_range(0, cell)) for cell in range(layout.num_cells(0))
        )
        self.anchor_N = np.zeros(layout.fragment_numels[0], dtype=np.float32)
        self._slots = {name: np.zeros_like(self.anchor_N) for name in self._outer.slots}
        self._liars_luck = np.random.Generator(np.random.PCG64([seed, 1]))
        self._history: list[Vector] = []
        self._shares: Shares | None = None
        self.directions: list[bool] = []

    def trained(self, model: Learner, bent: Learner, index: int) -> Vector:
        """(P, N): everybody's own work; the liars', which are last, on poisoned data once they
        attack."""
        stage = self._stage
        if self._shares is None and stage.skew is not None:
            drawn = np.random.Generator(np.random.PCG64([self._seed, 2]))
            self._shares = drawn.dirichlet([stage.skew] * model.kinds, size=stage.peers)
        draws = [
            Draw(
                random.Random(f"{self._seed}/robustness/{index}/{peer}"),
                None if self._shares is None else self._shares[peer],
            )
            for peer in range(stage.peers)
        ]
        if bent is model or index < stage.attacked_from:
            return model.learn(self.anchor_N, draws)
        honest = stage.peers - stage.liars
        parts = (
            model.learn(self.anchor_N, draws[:honest]),
            bent.learn(self.anchor_N, draws[honest:]),
        )
        return np.concatenate(parts)

    def step(self, rows_PN: Vector, index: int) -> bool:
        """Attack, aggregate, move the anchor. Whether a finite model is left."""
        stage = self._stage
        honest_HN, own_BN = np.split(rows_PN, [stage.peers - stage.liars])
        if index >= stage.attacked_from and stage.liars:
            context = Context(
                round=index - stage.attacked_from,
                luck=self._liars_luck,
                rule=self._rule,
                slices=self._slices,
                history=self._history,
            )
            sent_BN = self._attack.send(honest_HN, own_BN, context)
            rows_PN = np.concatenate([honest_HN, sent_BN])
        aggregate_N = self._rule(rows_PN)
        if index >= stage.attacked_from:
            with np.errstate(all="ignore"):
                self.directions.append(bool(aggregate_N @ honest_HN.mean(axis=0) > 0.0))
        self._history.append(own_BN)
        if not all_finite(aggregate_N):
            return False
        with np.errstate(all="ignore"):
            info = OuterInfo(round=index, slots=self._slots)
            found = self._outer.step(self.anchor_N, aggregate_N, info)
        self.anchor_N, self._slots = found.anchor_N, dict(found.slots)
        return all_finite(self.anchor_N)
