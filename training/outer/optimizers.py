"""SEAM OuterOptimizer: the aggregate of a round becomes a step of the anchor.

N elements of a fragment

The pseudo-gradient is anchor minus local weights: it points uphill, like a gradient, and every
rule here subtracts. All is element-wise float32, one operation at a time, equal on every machine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from protocol.errors import ConfigError
from protocol.manifest import OuterSpec
from training.kernels import Lattice, kernels_for
from training.numeric import Registry
from training.numeric.arithmetic import Vector

Slots = Mapping[str, Vector]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterInfo:
    """What a step may depend on besides the vectors: sealed facts only (R9).

    `slots` are the vectors that the step before left, by name; a missing one is zero, as at
    genesis.
    """

    round: int
    slots: Slots


@dataclass(frozen=True, slots=True)
class OuterStep:
    """The new anchor and the new slot vectors; all are new arrays, or those to write to."""

    anchor_N: Vector
    slots: Slots


class OuterOptimizer(Protocol):
    """SEAM: called by every peer's network process, once per sealed fragment, in a worker thread.

    Purely functional: the old anchor stays whole until the round is final (R7). May be called
    cell by cell, since every rule is element-wise.
    """

    slots: tuple[str, ...]
    """Names of the vectors that a step leaves for the next; part of what a joiner downloads."""

    def step(
        self, anchor_N: Vector, aggregate_N: Vector, info: OuterInfo, out: OuterStep | None = None
    ) -> OuterStep:
        """The anchor after this round; the inputs are only read.

        With `out` the step is written there, and that returned. A vector of it may be the one that
        it takes the place of, and overlaps with no other input.
        """
        ...


class StepsOnLattice(Protocol):
    """An OuterOptimizer that decodes and steps at once, where something was compiled for it."""

    def step_on_lattice(
        self, anchor_N: Vector, lattice: Lattice, info: OuterInfo, out: OuterStep
    ) -> bool:
        """As `step` on the numbers of `lattice`, to the bit; False, and nothing is done, where that
        one is to be asked."""
        ...


OUTER_OPTIMIZERS: Registry[OuterOptimizer] = Registry("outer optimizer")
"""Factories `(learning_rate, momentum)`."""


def make_outer(spec: OuterSpec) -> OuterOptimizer:
    """The manifest's outer optimizer. Raises ConfigError for an unknown name or a bad number."""
    rule = OUTER_OPTIMIZERS[spec.optimizer](spec.learning_rate, spec.momentum)
    for then in spec.then:
        later = OUTER_OPTIMIZERS[then.optimizer](then.learning_rate, then.momentum)
        rule = Staged(rule, later, then.from_round)
    return rule


def steps_on_lattice(kind: type[OuterOptimizer]) -> bool:
    """Whether rules of this kind are StepsOnLattice."""
    return hasattr(kind, "step_on_lattice")


class Staged:
    """One rule up to a round, another one from there on. Slots are those of both, for a state has
    the same vectors in every round: what a rule does not use is zero behind its step, and momentum
    is carried over between rules that have some."""

    def __init__(self, first: OuterOptimizer, later: OuterOptimizer, from_round: int) -> None:
        self._first, self._later, self._from_round = first, later, from_round
        self.slots: tuple[str, ...] = tuple(dict.fromkeys((*first.slots, *later.slots)))

    def step(
        self, anchor_N: Vector, aggregate_N: Vector, info: OuterInfo, out: OuterStep | None = None
    ) -> OuterStep:
        """See OuterOptimizer."""
        rule = self._first if info.round < self._from_round else self._later
        out = out or blank_step(anchor_N, self.slots)
        step = rule.step(anchor_N, aggregate_N, info, out)
        for name in self.slots:
            if name not in rule.slots:
                step.slots[name][...] = 0.0
        return step


def blank_step(anchor_N: Vector, slots: Iterable[str]) -> OuterStep:
    """Vectors of any content for a step to be written to."""
    return OuterStep(np.empty_like(anchor_N), {name: np.empty_like(anchor_N) for name in slots})


def _momentum(factor: np.float32, aggregate_N: Vector, info: OuterInfo, out: OuterStep) -> Vector:
    """mu v + g, with v = 0 before the first step."""
    momentum_N, before_N = out.slots["momentum"], info.slots.get("momentum")
    if before_N is None:
        before_N = np.zeros_like(aggregate_N)
    np.multiply(before_N, factor, out=momentum_N)
    momentum_N += aggregate_N
    return momentum_N


class Nesterov:
    """Nesterov momentum in the form of torch.optim.SGD (DiLoCo, algorithm 1).

        v <- mu v + g;   theta <- theta - lr (g + mu v)

    The textbook form with a look-ahead point has other slots: never mix them in a checkpoint.
    """

    slots: tuple[str, ...] = ("momentum",)

    def __init__(self, learning_rate: float, momentum: float = 0.0) -> None:
        self._learning_rate = np.float32(learning_rate)
        self._momentum = np.float32(momentum)

    def step(
        self, anchor_N: Vector, aggregate_N: Vector, info: OuterInfo, out: OuterStep | None = None
    ) -> OuterStep:
        """See OuterOptimizer."""
        out = out or blank_step(anchor_N, self.slots)
        before_N = info.slots.get("momentum")
        written = (out.anchor_N, out.slots["momentum"])
        kernels = (
            None if before_N is None else kernels_for(anchor_N, aggregate_N, before_N, *written)
        )
        if before_N is not None and kernels:
            numbers = (float(self._learning_rate), float(self._momentum))
            kernels.nesterov((anchor_N, aggregate_N, before_N), numbers, written)
            return out
        momentum_N = _momentum(self._momentum, aggregate_N, info, out)
        update_N = self._momentum * momentum_N
        update_N += aggregate_N
        update_N *= self._learning_rate
        np.subtract(anchor_N, update_N, out=out.anchor_N)
        return out

    def step_on_lattice(
        self, anchor_N: Vector, lattice: Lattice, info: OuterInfo, out: OuterStep
    ) -> bool:
        """See StepsOnLattice."""
        before_N, written = info.slots.get("momentum"), (out.anchor_N, out.slots["momentum"])
        if before_N is None or not (kernels := kernels_for(anchor_N, before_N, *written)):
            return False
        numbers = (float(self._learning_rate), float(self._momentum))
        kernels.shift_nesterov(lattice, (anchor_N, before_N), numbers, written)
        return True


OUTER_OPTIMIZERS.register("nesterov", Nesterov)


def _refuse_momentum(name: str, momentum: float) -> None:
    if momentum != 0.0:
        raise ConfigError(
            f"momentum is {momentum:g}, and the optimizer {name!r} has none; set it to 0.0, or "
            "optimizer to 'nesterov'"
        )


class Sgd:
    """theta <- theta - lr g. With lr = 1 it is FedAvg: the anchor becomes the mean of the peers."""

    slots: tuple[str, ...] = ()

    def __init__(self, learning_rate: float, momentum: float = 0.0) -> None:
        _refuse_momentum("sgd", momentum)
        self._learning_rate = np.float32(learning_rate)

    def step(
        self, anchor_N: Vector, aggregate_N: Vector, info: OuterInfo, out: OuterStep | None = None
    ) -> OuterStep:
        """See OuterOptimizer."""
        del info
        out = out or blank_step(anchor_N, self.slots)
        if kernels := kernels_for(anchor_N, aggregate_N, out.anchor_N):
            kernels.sgd(anchor_N, aggregate_N, float(self._learning_rate), out.anchor_N)
        else:
            np.subtract(anchor_N, self._learning_rate * aggregate_N, out=out.anchor_N)
        return out

    def step_on_lattice(
        self, anchor_N: Vector, lattice: Lattice, info: OuterInfo, out: OuterStep
    ) -> bool:
        """See StepsOnLattice."""
        del info
        if not (kernels := kernels_for(anchor_N, out.anchor_N)):
            return False
        kernels.shift_sgd(anchor_N, lattice, float(self._learning_rate), out.anchor_N)
        return True


OUTER_OPTIMIZERS.register("sgd", Sgd)


class HeavyBall:
    """Momentum as in torch.optim.SGD without Nesterov: FedAvgM (Hsu et al. 2019) with lr = 1.

    v <- mu v + g;   theta <- theta - lr v
    """

    slots: tuple[str, ...] = ("momentum",)

    def __init__(self, learning_rate: float, momentum: float = 0.0) -> None:
        self._learning_rate = np.float32(learning_rate)
        self._momentum = np.float32(momentum)

    def step(
        self, anchor_N: Vector, aggregate_N: Vector, info: OuterInfo, out: OuterStep | None = None
    ) -> OuterStep:
        """See OuterOptimizer."""
        out = out or blank_step(anchor_N, self.slots)
        momentum_N = _momentum(self._momentum, aggregate_N, info, out)
        np.subtract(anchor_N, self._learning_rate * momentum_N, out=out.anchor_N)
        return out


OUTER_OPTIMIZERS.register("heavy_ball", HeavyBall)


class Sign:
    """theta <- theta - lr sign(g): every element moves as far, and one of no direction stays
    (signSGD, Bernstein et al. 2018). Not linear: nobody can tell its own share of a step."""

    slots: tuple[str, ...] = ()

    def __init__(self, learning_rate: float, momentum: float = 0.0) -> None:
        _refuse_momentum("sign", momentum)
        self._sgd = Sgd(learning_rate)

    def step(
        self, anchor_N: Vector, aggregate_N: Vector, info: OuterInfo, out: OuterStep | None = None
    ) -> OuterStep:
        """See OuterOptimizer."""
        sign_N: Vector = np.sign(aggregate_N)
        return self._sgd.step(anchor_N, sign_N, info, out)


OUTER_OPTIMIZERS.register("sign", Sign)
