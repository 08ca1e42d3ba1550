"""What a contribution weighs that comes when it is ready: FedAsync, FedBuff, FedFix. Pure.

R clients; client r is to count with p_r in the long run, and needs T_r seconds for a round.

Who comes more often must weigh less each time, or the fast ones decide where training ends. The
weights d_r are those of Fraboni et al. 2023 (FedFix): the mean of what r weighs over the server's
steps, 0 in those without it, is p_r for every client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Protocol

from protocol.errors import ConfigError
from training.numeric import Registry


class Staleness(Protocol):
    """SEAM: a factor by how many versions the anchor is behind that a contribution is against."""

    def __call__(self, behind: int) -> float:
        """1 where it is not behind, never more."""
        ...


STALENESS: Registry[Staleness] = Registry("staleness")
"""Factories without arguments; the forms are FedAsync's (Xie et al. 2019)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """All count alike."""

    def __call__(self, behind: int) -> float:
        """See Staleness."""
        del behind
        return 1.0


CONSTANT = Constant()


@dataclass(frozen=True, slots=True)
class Polynomial:
    """(1 + behind)^-a; with a = 1/2 that of FedBuff (Nguyen et al. 2022)."""

    exponent: float = 0.5

    def __call__(self, behind: int) -> float:
        """See Staleness."""
        return float((1 + behind) ** -self.exponent)


@dataclass(frozen=True, slots=True)
class Hinge:
    """1 up to so many versions behind, then 1 / (a (behind - b) + 1)."""

    slope: float = 10.0
    free: int = 4

    def __call__(self, behind: int) -> float:
        """See Staleness."""
        return 1.0 if behind <= self.free else 1.0 / (self.slope * (behind - self.free) + 1.0)


STALENESS.register("constant", Constant)
STALENESS.register("polynomial", Polynomial)
STALENESS.register("hinge", Hinge)


def fedavg_weights(shares: Sequence[float]) -> tuple[float, ...]:
    """Everybody comes in every step: d_r = p_r."""
    return tuple(shares)


def fedfix_weights(
    shares: Sequence[float], seconds: Sequence[float], interval_s: float
) -> tuple[float, ...]:
    """A step each `interval_s`, of whoever came in it: d_r = p_r N_r, for r comes once in
    N_r = ceil(T_r / interval) of them."""
    if interval_s <= 0.0:
        raise ConfigError(f"a step of the server each {interval_s} s; it must be more than 0")
    turns = (ceil(Fraction(took) / Fraction(interval_s)) for took in seconds)
    return tuple(share * turn for share, turn in zip(shares, turns, strict=True))


def fedasync_weights(shares: Sequence[float], seconds: Sequence[float]) -> tuple[float, ...]:
    """A step for each arrival: d_r = p_r T_r sum over s of 1 / T_s, for r makes 1 / T_r of them."""
    arrivals = sum(1.0 / took for took in seconds)
    return tuple(share * took * arrivals for share, took in zip(shares, seconds, strict=True))


def fedbuff_weights(
    shares: Sequence[float], seconds: Sequence[float], size: int
) -> tuple[float, ...]:
    """A step for each `size` arrivals: those of FedAsync over the size."""
    if size < 1:
        raise ConfigError(f"a buffer of {size} contributions; it must be 1 or more")
    return tuple(weight / size for weight in fedasync_weights(shares, seconds))
