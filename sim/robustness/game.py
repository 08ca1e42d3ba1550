"""A run of a small model in which some peers lie: rounds without a network, all in memory.

P peers (the honest first), H honest ones, B liars, N elements
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protocol.manifest import RunManifest
from sim.attacks import Attack, Context
from sim.robustness.learners import Draw, Learner, Shares, learner_of, manifest_of
from training.aggregation import AGGREGATORS, tolerated
from training.numeric.arithmetic import Vector, all_finite
from training.outer.optimizers import OuterInfo, make_outer


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
