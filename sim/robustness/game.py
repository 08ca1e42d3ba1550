"""A run of the small text model in which some peers lie: rounds without a network, all in memory.

P peers (the honest first), H honest ones, B liars, N elements
"""

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protocol.identity import PeerId
from protocol.manifest import RunManifest, TimingSpec
from sim.attacks import Attack, Context
from sim.attacks.backdoor import TARGET, TRIGGER
from sim.text_model import NUM_SAMPLES, NUM_SYMBOLS, TextModel
from sim.toy_run import toy_run
from training.aggregation import AGGREGATORS
from training.arithmetic import Vector, all_finite
from training.outer import OuterInfo, make_outer

CELLS = 4
_TIMING = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=10.0, heartbeat_s=0.5, suspect_s=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Whom, how long, and from which round on the liars lie."""

    peers: int = 16
    liars: int = 4
    rounds: int = 30
    attacked_from: int = 4


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


def rule_named(name: str, *, liars: int | None = None) -> Rule:
    """A registered rule over whole vectors, cell by cell where it clips cells.

    Rows that are not finite never reach a rule: the decoder refuses them, so their senders are
    absent. The bare mean of `undefended` has not even that.
    """
    manifest = _manifest()
    rule = AGGREGATORS[name](f=liars, cell_elements=manifest.cell_elements)

    def aggregated(rows_PN: Vector) -> Vector:
        kept = [row_N for row_N in rows_PN if all_finite(row_N)]
        return rule(np.stack(kept)).value

    return aggregated


def undefended(rows_PN: Vector) -> Vector:
    """The mean of whatever comes."""
    with np.errstate(all="ignore"):
        mean_N: Vector = rows_PN.mean(axis=0, dtype=np.float32)
    return mean_N


def play(stage: Stage, attack: Attack, rule: Rule, seed: int) -> Course:
    """One run. All that is left to chance comes from the seed; the attack changes no other luck."""
    manifest = _manifest()
    model = TextModel(manifest, seed)
    bent = copy.copy(model)
    bent.context_B, bent.next_B = attack.poison(model.context_B, model.next_B, NUM_SYMBOLS)
    run = _Run(stage, attack, rule, manifest, seed)
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
    return Course(tuple(losses), kept, _triggered(run.anchor_N))


class _Run:
    """Anchor, outer state and the liars' memory of one run."""

    def __init__(
        self, stage: Stage, attack: Attack, rule: Rule, manifest: RunManifest, seed: int
    ) -> None:
        self._stage, self._attack, self._rule = stage, attack, rule
        self._seed, self._manifest = seed, manifest
        self._outer = make_outer(manifest.outer)
        layout = manifest.layout(0)
        self._slices = tuple(
            slice(*layout.cell_range(0, cell)) for cell in range(layout.num_cells(0))
        )
        self.anchor_N = np.zeros(layout.fragment_numels[0], dtype=np.float32)
        self._slots = {name: np.zeros_like(self.anchor_N) for name in self._outer.slots}
        self._liars_luck = np.random.Generator(np.random.PCG64([seed, 1]))
        self._history: list[Vector] = []
        self.directions: list[bool] = []

    def trained(self, model: TextModel, bent: TextModel, index: int) -> Vector:
        """(P, N): everybody's own work; the liars', which are last, on poisoned data once they
        attack."""
        stage, inner = self._stage, self._manifest.inner
        samples = inner.inner_steps * inner.batch
        rows = []
        for peer in range(stage.peers):
            luck = random.Random(f"{self._seed}/robustness/{index}/{peer}")
            first = luck.randrange(NUM_SAMPLES - samples)
            is_bent = peer >= stage.peers - stage.liars and index >= stage.attacked_from
            learner = bent if is_bent else model
            rows.append(learner(self.anchor_N, ((first, first + samples),), luck).drift_N)
        return np.stack(rows)

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


def _triggered(anchor_N: Vector) -> float:
    logits_K = anchor_N[TRIGGER * NUM_SYMBOLS : (TRIGGER + 1) * NUM_SYMBOLS].astype(np.float64)
    shares_K = np.exp(logits_K - logits_K.max())
    return float(shares_K[TARGET] / shares_K.sum())


def _manifest() -> RunManifest:
    return toy_run(PeerId(bytes(32)), rounds=1, cells=CELLS, timing=_TIMING)
