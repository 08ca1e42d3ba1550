"""DADAO: the exact optimum of unequal strongly convex losses by gossip without rounds (Nabli and
Oyallon 2022, arXiv 2208.00779). A reference to measure others by; nothing here trains a network.

R replicas, N elements. L is the smoothness of each loss, mu its strong convexity, v = mu / 2.
Two Poisson processes: of gradients, one per replica and unit of time, and of meetings, by edge.

    time           dx = e (x' - x)   dx' = e (x - x')   dy = a (y' - y)   dz = a (z' - z)
                   dy' = -t (v x' + y + z)              dz' = b (z - z')
    gradient at i  q = grad_i(x) - v x - y':  x -= q / 4L;  x' -= q / 4 sqrt(L v);
                   y' += (a + 1) q
    i and j meet   p = ((y + z)_i - (y + z)_j) / 2:  z_i -= p / 2;  z'_i -= 2 chi_1 sqrt(L / v) p;
                   the opposite at j
    with           a = sqrt(v / L) / 4,  b = e = a / 2,  t = sqrt(L / v) / 2

All replicas come to the one best point, at a rate of sqrt(mu / L) per gradient: plain gossip with
steps that stay as long ends in a place of its own for each replica.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import ConfigError
from sim.methods.gossip import Edge, chis_of

Rows = NDArray[np.float64]
Gradient = Callable[[int, Rows], Rows]
"""Of a replica's loss at a point (N,)."""

PRODUCT_MAX = 0.5
"""Of chi_1 and chi_2. Measured on rings of 4, 8 and 16: at 1 that of 16 departs after 400 units, at
1.5 that of 8 does at once."""

_X, _X2, _Y, _Y2, _Z, _Z2 = range(6)
"""The six vectors of a replica; a 2 stands for the prime."""


@dataclass(slots=True)
class Dadao:
    """All replicas; `rates` says how often each edge meets per unit of time, on average.

    Raises ConfigError where they meet too seldom for it to come to an end.
    """

    start_RN: Rows
    gradient: Gradient
    rates: Mapping[Edge, float]
    smoothness: float
    convexity: float
    seed: int = 0
    now: float = 0.0
    num_gradients: int = 0
    num_meetings: int = 0
    _vectors_R6N: Rows = field(init=False)
    _last_R: Rows = field(init=False)
    _drift_66: Rows = field(init=False)
    _chi_1: float = field(init=False)
    _lot: random.Random = field(init=False)

    def __post_init__(self) -> None:
        replicas, numel = self.start_RN.shape
        self._vectors_R6N = np.zeros((replicas, 6, numel))
        self._vectors_R6N[:, _X] = self._vectors_R6N[:, _X2] = self.start_RN
        self._last_R = np.zeros(replicas)
        self._chi_1, chi_2 = chis_of(replicas, self.rates)
        product = self._chi_1 * chi_2
        if product > PRODUCT_MAX:
            times = float(np.sqrt(product / PRODUCT_MAX))
            raise ConfigError(f"replicas meet too seldom; they must {times:.2f} times as often")
        self._lot = random.Random(self.seed)
        a, v = self._a, self.convexity / 2.0
        b = e = a / 2.0
        t = 0.5 * float(np.sqrt(self.smoothness / v))
        drift_66 = np.zeros((6, 6))
        drift_66[_X, [_X, _X2]] = -e, e
        drift_66[_X2, [_X, _X2]] = e, -e
        drift_66[_Y, [_Y, _Y2]] = -a, a
        drift_66[_Y2, [_X2, _Y, _Z]] = -t * v, -t, -t
        drift_66[_Z, [_Z, _Z2]] = -a, a
        drift_66[_Z2, [_Z, _Z2]] = b, -b
        self._drift_66 = drift_66

    @property
    def x_RN(self) -> Rows:
        """Where each replica is."""
        return self._vectors_R6N[:, _X]

    @property
    def _a(self) -> float:
        return 0.25 * float(np.sqrt(self.convexity / 2.0 / self.smoothness))

    def run(self, units: float) -> None:
        """Let so many units of time pass."""
        replicas, edges = len(self._vectors_R6N), list(self.rates)
        weights = [self.rates[edge] for edge in edges]
        total = replicas + sum(weights)
        end = self.now + units
        while (now := self.now + self._lot.expovariate(total)) < end:
            self.now = now
            if self._lot.random() * total < replicas:
                self._step(self._lot.randrange(replicas))
            else:
                self._meet(self._lot.choices(edges, weights)[0])
        self.now = end  # Processes without memory may begin anew at any time.

    def _step(self, replica: int) -> None:
        self._drift(replica)
        own_6N, v = self._vectors_R6N[replica], self.convexity / 2.0
        x_N = own_6N[_X].copy()
        q_N = self.gradient(replica, x_N) - v * x_N - own_6N[_Y2]
        own_6N[_X] -= q_N / (4.0 * self.smoothness)
        own_6N[_X2] -= q_N / (4.0 * np.sqrt(self.smoothness * v))
        own_6N[_Y2] += (self._a + 1.0) * q_N
        self.num_gradients += 1

    def _meet(self, edge: Edge) -> None:
        for replica in edge:
            self._drift(replica)
        i, j = (self._vectors_R6N[replica] for replica in edge)
        p_N = 0.5 * (i[_Y] + i[_Z] - j[_Y] - j[_Z])
        far = 2.0 * self._chi_1 * np.sqrt(self.smoothness / (self.convexity / 2.0))
        for own_6N, sign in ((i, 1.0), (j, -1.0)):
            own_6N[_Z] -= sign * 0.5 * p_N
            own_6N[_Z2] -= sign * far * p_N
        self.num_meetings += 1

    def _drift(self, replica: int) -> None:
        elapsed = self.now - self._last_R[replica]
        self._last_R[replica] = self.now
        through_66 = torch.linalg.matrix_exp(torch.from_numpy(elapsed * self._drift_66)).numpy()
        self._vectors_R6N[replica] = through_66 @ self._vectors_R6N[replica]
