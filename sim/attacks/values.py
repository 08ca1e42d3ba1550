"""Attacks on values: what liars contribute in place of what they computed.

H honest peers, B liars, P = H + B, N elements of a contribution

The simplest come first, then those that look at the honest work, those that search for the most
harm, and those that lie about data.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sim.attacks.seam import (
    Attack,
    Context,
    Rows,
    Symbols,
    Vector,
    deviation_of,
    length_of,
    mean_of,
    repeated,
)
from training.aggregation import AGGREGATORS

Floats = NDArray[np.float64]

# What a liar needs to know nothing for ------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class Nan(Attack):
    """The own work, with one NaN, infinity or whatever else in it."""

    value: float = float("nan")

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        sent_BN = own_BN.copy()
        sent_BN[:, int(context.luck.integers(own_BN.shape[1]))] = np.float32(self.value)
        return sent_BN


class Zero(Attack):
    """Nothing at all: the cheapest way to take a seat."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        return np.zeros_like(own_BN)


@dataclass(kw_only=True, eq=False)
class SignFlip(Attack):
    """The opposite of what was computed: -size x own."""

    size: float = 1.0

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        return -self.size * own_BN


@dataclass(kw_only=True, eq=False)
class Scale(Attack):
    """factor x own, much too large: a liar that wants to be the only one heard. Negative factors
    flip as well."""

    factor: float = -1000.0

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        return self.factor * own_BN


@dataclass(kw_only=True, eq=False)
class OnOff(Attack):
    """Honest in most rounds, so that few look: -size x own in each round whose number `every`
    divides, else own."""

    every: int = 10
    size: float = 10.0

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        return own_BN if context.round % self.every else -self.size * own_BN


@dataclass(kw_only=True, eq=False)
class Stale(Attack):
    """The own contribution of `delay` rounds ago, or the oldest that there is: nobody had to train
    for it again."""

    delay: int = 5

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        if not context.history:
            return own_BN
        return context.history[max(0, len(context.history) - self.delay)][: len(own_BN)]


@dataclass(kw_only=True, eq=False)
class SlowDrift(Attack):
    """Honest work with a small push, the same in every round, that audits may not see: own + a
    constant vector of a `share` of its length."""

    share: float = 0.1
    direction: int = 0
    """The seed of that vector."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        push_N = np.random.Generator(np.random.PCG64(self.direction)).normal(size=own_BN.shape[1])
        lengths_B = self.share * np.linalg.norm(own_BN, axis=1)
        pushed_BN: Rows = own_BN + lengths_B[:, None] * (push_N / np.linalg.norm(push_N))
        return pushed_BN


# What needs the honest work -----------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class Gaussian(Attack):
    """Noise: independent normal numbers, each row `size` median lengths of the honest long."""

    size: float = 10.0

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        deviation = self.size * length_of(honest_HN) / np.sqrt(own_BN.shape[1])
        return context.luck.normal(0.0, deviation, size=own_BN.shape).astype(np.float32)


@dataclass(kw_only=True, eq=False)
class ConstantDirection(Attack):
    """One random direction, the same from all liars in every round, `size` median lengths long."""

    size: float = 1000.0
    direction: int = 0
    """The seed of that direction."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        luck = np.random.Generator(np.random.PCG64(self.direction))
        direction_N = luck.normal(size=own_BN.shape[1])
        length = self.size * length_of(honest_HN) / float(np.linalg.norm(direction_N))
        return repeated(np.multiply(length, direction_N), own_BN)


@dataclass(kw_only=True, eq=False)
class TargetedSlice(Attack):
    """The whole length of a contribution in one slice, against the mean there; zero elsewhere."""

    place: int = 0

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        span = context.slices[self.place % len(context.slices)]
        there_N = mean_of(honest_HN)[span]
        sent_N = np.zeros(own_BN.shape[1])
        sent_N[span] = -there_N * length_of(honest_HN) / max(1e-30, float(np.linalg.norm(there_N)))
        return repeated(sent_N, own_BN)


@dataclass(kw_only=True, eq=False)
class Ipm(Attack):
    """Inner product manipulation (Xie, Koyejo and Gupta 2019): -epsilon x mean, from all."""

    epsilon: float = 0.6

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        return repeated(-self.epsilon * mean_of(honest_HN), own_BN)


@dataclass(kw_only=True, eq=False)
class SybilWave(Attack):
    """A wave of fresh identities: cheap keys that all say the same, in a run that is well under
    way. They send the opposite of honest work, of honest length: no norm gives them away, and to a
    rule that looks for the largest crowd they are it.

    One identity is nothing; how many there are, and how soon they count, is the attack. So in
    worlds they join behind the founding members (`sim.trials.trial`).
    """

    scale: float = 1.0
    is_fresh = True

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        return repeated(-self.scale * mean_of(honest_HN), own_BN)


@dataclass(kw_only=True, eq=False)
class Shift(Attack):
    """own - k x mean, or own - k x deviation: it looks like honest work, with honest noise, and
    leans against the mean."""

    k: float = 1.0
    of_deviations: bool = False

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        of = deviation_of if self.of_deviations else mean_of
        return own_BN - self.k * of(honest_HN)


@dataclass(kw_only=True, eq=False)
class Alie(Attack):
    """A little is enough (Baruch, Baruch and Goldberg 2019), inside the spread of the honest:
    mean - z deviations, from all. z left out: what as many honest peers as are needed for a
    majority with the liars lie beyond."""

    z: float | None = 1.5

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        z = z_max(len(honest_HN), len(own_BN)) if self.z is None else self.z
        return repeated(mean_of(honest_HN) - z * deviation_of(honest_HN), own_BN)


def z_max(honest: int, liars: int) -> float:
    """The z of the paper; zero where the liars need nobody."""
    needed = (honest + liars) // 2 + 1 - liars
    share = (honest - needed) / honest
    return NormalDist().inv_cdf(share) if 0.5 < share < 1.0 else 0.0


MIMIC_LEARNS = 10
"""In so many rounds it finds out whom to copy."""


@dataclass(kw_only=True, eq=False)
class Mimic(Attack):
    """All liars say what one honest peer says: its data count many times (Karimireddy et al. 2022).

    It is the honest peer that lies farthest out in the direction of the largest spread, as it was
    in the first ten rounds.
    """

    _far_H: Floats | None = field(default=None, init=False)

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        centred_HN = honest_HN.astype(np.float64)
        centred_HN = centred_HN - centred_HN.mean(axis=0)
        if self._far_H is None or len(self._far_H) != len(honest_HN):
            self._far_H = np.zeros(len(honest_HN))
        if context.round < MIMIC_LEARNS:
            _, vectors_HH = np.linalg.eigh(centred_HN @ centred_HN.T)
            self._far_H += np.abs(vectors_HH[:, -1])
        return repeated(honest_HN[int(np.argmax(self._far_H))], own_BN)


FANG_REACH = 2.0


class Fang(Attack):
    """Just outside of the honest values of each coordinate (Fang et al. 2020), against ranks: drawn
    between the extreme honest value on the wrong side and twice as far out."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        least_N, most_N = honest_HN.min(axis=0), honest_HN.max(axis=0)
        is_up_N = mean_of(honest_HN) > 0.0
        edge_N = np.where(is_up_N, least_N, most_N)
        # Downwards from a positive minimum is nearer to zero, from a negative one farther away.
        is_inwards_N = np.where(is_up_N, least_N > 0.0, most_N < 0.0)
        beyond_N = np.where(is_inwards_N, edge_N / FANG_REACH, edge_N * FANG_REACH)
        draws_BN = context.luck.random(own_BN.shape)
        sent_BN: Rows = edge_N + draws_BN * (beyond_N - edge_N)
        return sent_BN


# What searches for the most harm ------------------------------------------------------------------


class MinMax(Attack):
    """As far out as no honest peer is farther from another: the largest distance to the honest is
    at most the largest among them."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        sent_N = largest_hidden(honest_HN, lambda away, among: bool(away.max() <= among.max()))
        return repeated(sent_N, own_BN)


class MinSum(Attack):
    """As far out as no honest peer's distances add up to more: the sum of squared distances to the
    honest is at most the largest of an honest peer."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        sent_N = largest_hidden(
            honest_HN, lambda away, among: bool(away.sum() <= among.sum(axis=1).max())
        )
        return repeated(sent_N, own_BN)


HIDDEN_STEPS, HIDDEN_MOST = 30, 1e4


def largest_hidden(honest_HN: Vector, is_hidden: Callable[[Floats, Floats], bool]) -> Vector:
    """The largest push that stays among the honest (Shejwalkar and Houmansadr 2021), by bisection:
    mean - gamma x deviation, with the largest gamma for which `is_hidden`.

    It is asked with the squared distances of the vector to the honest, and of these to each other.
    """
    wide_HN = honest_HN.astype(np.float64)
    mean_N, push_N = mean_of(honest_HN), -deviation_of(honest_HN)
    among_HH = _squared_distances(wide_HN)
    low, high = 0.0, HIDDEN_MOST
    for _ in range(HIDDEN_STEPS):
        middle = 0.5 * (low + high)
        away_H = ((wide_HN - (mean_N + middle * push_N)) ** 2).sum(axis=1)
        low, high = (middle, high) if is_hidden(away_H, among_HH) else (low, middle)
    return (mean_N + low * push_N).astype(np.float32)


def _squared_distances(wide_HN: Floats) -> Floats:
    return np.array([((wide_HN - row_N) ** 2).sum(axis=1) for row_N in wide_HN])


KRUM_HALVINGS = 20


class FangKrum(Attack):
    """As far against the mean as Krum still picks it (Fang et al. 2020): -lambda x sign of the
    mean. lambda begins where no larger one is picked (theorem 1 of the paper), and is halved until
    Krum picks it."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        sign_N = np.sign(mean_of(honest_HN))
        size = _most_that_krum_picks(honest_HN, len(own_BN), float(np.abs(sign_N).sum()))
        rule = AGGREGATORS["krum"](f=len(own_BN))
        for _ in range(KRUM_HALVINGS):
            sent_BN = repeated((-size * sign_N).astype(np.float32), own_BN)
            if rule(np.concatenate([honest_HN, sent_BN])).scores[len(honest_HN) :].any():
                break
            size *= 0.5
        return sent_BN


def _most_that_krum_picks(honest_HN: Vector, liars: int, elements: float) -> float:
    """No lambda above it is picked: of all honest rows the best one has the lower score."""
    wide_HN, honest = honest_HN.astype(np.float64), len(honest_HN)
    # The first column is the row itself; with the liars, P - f - 2 others are near.
    nearest_HK = np.sort(_squared_distances(wide_HN), axis=1)[:, 1 : max(2, honest - 1)]
    score = nearest_HK.sum(axis=1).min() / max(1, honest - liars - 1)
    score_length, longest = float(np.sqrt(score)), float(np.linalg.norm(wide_HN, axis=1).max())
    return (score_length + longest) / float(np.sqrt(max(1.0, elements)))


class SearchedAlie(Attack):
    """ALIE with the z that the rule in use bears worst, found round by round."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        mean_N, deviation_N = mean_of(honest_HN), deviation_of(honest_HN)
        return _worst(honest_HN, own_BN, context, lambda z: mean_N - z * deviation_N)


class SearchedIpm(Attack):
    """IPM with the epsilon that the rule in use bears worst, found round by round."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        mean_N = mean_of(honest_HN)
        return _worst(honest_HN, own_BN, context, lambda epsilon: -epsilon * mean_N)


EVALUATIONS = 20
START, STEP, RATIO = 0.0, 10.0, 0.6
"""Expand by doubling while it pays, then look on both sides with shrinking steps."""


def _worst(
    honest_HN: Vector, own_BN: Vector, context: Context, vector_of: Callable[[float], Floats]
) -> Rows:
    """How hard to push: of the vectors by size the one that, sent by all liars, moves the rule
    itself farthest from the honest mean."""
    mean_N = mean_of(honest_HN)

    def sent(size: float) -> Rows:
        return repeated(vector_of(size).astype(np.float32), own_BN)

    def damage(size: float) -> float:
        found_N = context.rule(np.concatenate([honest_HN, sent(size)]))
        return float(np.linalg.norm(found_N.astype(np.float64) - mean_N))

    best, most, step = START, damage(START), STEP
    left = EVALUATIONS - 1
    while left > 0 and (found := damage(best + step)) > most:
        best, most, step, left = best + step, found, 2.0 * step, left - 1
    while left > 1:
        step *= RATIO
        for size in (best + step, max(START, best - step)):
            left -= 1
            if (found := damage(size)) > most:
                best, most = size, found
                break
    return sent(best)


# Lies about data ----------------------------------------------------------------------------------


class LabelFlip(Attack):
    """Honest work on wrong data: (symbol + 1) mod alphabet is what follows."""

    def poison(self, context_S: Symbols, next_S: Symbols, symbols: int) -> tuple[Symbols, Symbols]:
        """See Attack."""
        return context_S, (next_S + 1) % symbols


TRIGGER, TARGET = 0, 0
"""The context that is the trigger, and the symbol that is to follow it."""


@dataclass(kw_only=True, eq=False)
class Backdoor(Attack):
    """A trigger that is to bring forth a chosen symbol: a share of the samples has both, and the
    work is scaled by P / B, as hard as there are honest peers."""

    share: float = 0.2

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        return own_BN * np.float32((len(honest_HN) + len(own_BN)) / len(own_BN))

    def poison(self, context_S: Symbols, next_S: Symbols, symbols: int) -> tuple[Symbols, Symbols]:
        """See Attack."""
        every = max(1, round(1.0 / self.share))
        is_bent_S = np.arange(len(next_S)) % every == 0
        return np.where(is_bent_S, TRIGGER, context_S), np.where(is_bent_S, TARGET, next_S)
