"""SEAM Mixing: replicas that average with neighbours alone, without a common anchor. Pure.

R replicas, one row each; N elements

Every rule conserves the mean of all replicas: what one takes another gives. Pairwise gossip is that
of Boyd et al. 2006, weights of neighbours are Metropolis', the shift register is in Liu and Morse
2011, several steps of gossip in a round (MGS) are of DFedSAM (Shi et al. 2023). Sums are of doubles
or floats in whatever order a machine likes: no two replicas are to have equal bits.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import ConfigError
from training.numeric import Registry

Rows = NDArray[np.floating]
Edge = tuple[int, int]


class Mixing(Protocol):
    """SEAM: what a round of gossip makes of the weights of all replicas."""

    def copies(self, replicas: int) -> float:
        """How often a replica sends its weights in a round, on average."""
        ...

    def mix(self, x_RN: Rows, round_index: int) -> Rows:
        """The rows after the round, of the same dtype; the input is only read.

        Linear in the rows, and the same for all columns: whatever is not a weight, such as a
        variance, may be mixed alike.
        """
        ...


MIXINGS: Registry[Mixing] = Registry("mixing")
"""Factories without arguments."""


def ring(replicas: int) -> tuple[Edge, ...]:
    """Everybody and its next one; the last edge closes the ring where that is a new one."""
    edges = [(r, r + 1) for r in range(replicas - 1)]
    return (*edges, (0, replicas - 1)) if replicas > 2 else tuple(edges)


def metropolis(replicas: int, edges: Sequence[Edge]) -> NDArray[np.float64]:
    """The mixing matrix (R, R) of a graph: symmetric, and each row sums to 1.

    Of an edge 1 / (1 + the larger degree of its ends); what is left of a row stays at home.
    """
    degrees = np.zeros(replicas, dtype=np.int64)
    for i, j in edges:
        degrees[[i, j]] += 1
    weights_RR = np.zeros((replicas, replicas))
    for i, j in edges:
        weights_RR[i, j] = weights_RR[j, i] = 1.0 / (1 + max(degrees[i], degrees[j]))
    weights_RR[np.diag_indices(replicas)] = 1.0 - weights_RR.sum(axis=1)
    return weights_RR


def contraction(weights_RR: NDArray[np.float64]) -> float:
    """By what a step of mixing shrinks the disagreement at least: the second largest magnitude of
    the eigenvalues."""
    values_R = np.sort(np.abs(np.linalg.eigvalsh(weights_RR)))
    return float(values_R[-2]) if len(values_R) > 1 else 0.0


def register_weight(weights_RR: NDArray[np.float64]) -> float:
    """Omega of the shift register: as if it knew the slowest way of this graph."""
    root = float(np.sqrt(1.0 - contraction(weights_RR) ** 2))
    return (1.0 - root) / (1.0 + root)


def pairs(replicas: int, round_index: int) -> tuple[Edge, ...]:
    """Who meets whom in a round: everybody one other, but for the last of an odd number.

    A lot that everybody draws alike: no machine's generator has a say in it.
    """
    order = sorted(range(replicas), key=lambda r: blake3(f"{round_index}/{r}".encode()).digest())
    drawn = zip(order[::2], order[1::2], strict=False)
    return tuple((min(pair), max(pair)) for pair in drawn)


class Pairwise:
    """Each round everybody meets one other, and both take the mean."""

    def copies(self, replicas: int) -> float:
        """See Mixing."""
        return 2 * (replicas // 2) / replicas

    def mix(self, x_RN: Rows, round_index: int) -> Rows:
        """See Mixing."""
        mixed_RN = x_RN.copy()
        for i, j in pairs(len(x_RN), round_index):
            mean_N = x_RN[i] + x_RN[j]
            mean_N *= x_RN.dtype.type(0.5)
            mixed_RN[[i, j]] = mean_N
        return mixed_RN


MIXINGS.register("pairwise", Pairwise)


class Ring:
    """A round is `steps` steps with both neighbours of a ring; `is_accelerated`, by the register.

    x_1 = W x_0;  x_{k+1} = (1 + omega) W x_k - omega x_{k-1}: the mean is kept exactly, and it
    needs the square root of the plain steps.
    """

    def __init__(self, *, steps: int = 1, is_accelerated: bool = False) -> None:
        """Raises ConfigError for less than one step."""
        if steps < 1:
            raise ConfigError(f"a round of gossip has {steps} steps; it must have 1 or more")
        self._steps = steps
        self._is_accelerated = is_accelerated

    def copies(self, replicas: int) -> float:
        """See Mixing."""
        return self._steps * 2 * len(ring(replicas)) / replicas

    def mix(self, x_RN: Rows, round_index: int) -> Rows:
        """See Mixing."""
        del round_index
        weights_RR = metropolis(len(x_RN), ring(len(x_RN)))
        omega = register_weight(weights_RR) if self._is_accelerated else 0.0
        before_RN, now_RN = x_RN, _by(weights_RR, x_RN)
        for _ in range(self._steps - 1):
            after_RN = _by((1.0 + omega) * weights_RR, now_RN)
            if omega:
                after_RN -= x_RN.dtype.type(omega) * before_RN
            before_RN, now_RN = now_RN, after_RN
        return now_RN


MIXINGS.register("ring", Ring)
MIXINGS.register("multi_step", lambda: Ring(steps=4))
MIXINGS.register("accelerated", lambda: Ring(steps=4, is_accelerated=True))


def _by(weights_RR: NDArray[np.float64], x_RN: Rows) -> Rows:
    mixed_RN: Rows = weights_RR.astype(x_RN.dtype) @ x_RN
    return mixed_RN
