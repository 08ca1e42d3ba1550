"""A2CiD2: gossip without rounds that a second copy of the weights speeds up (Nabli et al. 2023).

R replicas, N elements. Time is in gradients: each replica takes one per unit, on average.

    time dt passed    x <- x + c (z - x),  z <- z + c (x - z),  c = (1 - e^(-2 eta dt)) / 2
    gradient g at i   x_i -= rate g;  z_i -= rate g
    i and j meet      m = x_i - x_j;  x_i -= m / 2;  z_i -= alpha m;  the opposite at j

Mixing conserves x_i + z_i, and a meeting the sums of x and of z: so the sum of both is conserved at
all times; that of x alone is not. On a complete graph it gains nothing, on a ring much.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.methods.gossip import Edge

Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AcidPace:
    """`eta` of the drift between the copies, `alpha` of a meeting; 0 and 1/2 are plain gossip."""

    eta: float
    alpha: float


PLAIN = AcidPace(eta=0.0, alpha=0.5)


def chis_of(replicas: int, rates: Mapping[Edge, float]) -> tuple[float, float]:
    """chi_1 and chi_2 of a connected graph whose edges meet so often per unit of time: how slowly
    it mixes, and half the largest resistance between the ends of an edge."""
    laplacian_RR = np.zeros((replicas, replicas))
    for (i, j), rate in rates.items():
        laplacian_RR[[i, j], [i, j]] += rate
        laplacian_RR[[i, j], [j, i]] -= rate
    chi_1 = 1.0 / float(np.sort(np.linalg.eigvalsh(laplacian_RR))[1])
    inverse_RR = np.linalg.pinv(laplacian_RR)
    spans = [inverse_RR[i, i] + inverse_RR[j, j] - 2.0 * inverse_RR[i, j] for i, j in rates]
    return chi_1, 0.5 * float(max(spans))


def pace_of(replicas: int, rates: Mapping[Edge, float]) -> AcidPace:
    """The pace of such a graph."""
    chi_1, chi_2 = chis_of(replicas, rates)
    return AcidPace(
        eta=1.0 / (2.0 * float(np.sqrt(chi_1 * chi_2))), alpha=0.5 * float(np.sqrt(chi_1 / chi_2))
    )


@dataclass(slots=True)
class TwoCopies:
    """Both copies of all replicas, and when each was last looked at."""

    x_RN: Rows
    pace: AcidPace
    z_RN: Rows = field(init=False)
    _last_R: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.x_RN = self.x_RN.copy()
        self.z_RN = self.x_RN.copy()
        self._last_R = np.zeros(len(self.x_RN))

    def gradient(self, replica: int, step_N: NDArray[np.float64], now: float) -> None:
        """A replica steps by `step_N`, rate and sign included."""
        self._drift(replica, now)
        self.x_RN[replica] -= step_N
        self.z_RN[replica] -= step_N

    def meet(self, edge: Edge, now: float) -> None:
        """Both ends of an edge meet; neither has another meeting meanwhile."""
        for replica in edge:
            self._drift(replica, now)
        i, j = edge
        apart_N = self.x_RN[i] - self.x_RN[j]
        for replica, sign in ((i, 1.0), (j, -1.0)):
            self.x_RN[replica] -= sign * 0.5 * apart_N
            self.z_RN[replica] -= sign * self.pace.alpha * apart_N

    def _drift(self, replica: int, now: float) -> None:
        elapsed = now - self._last_R[replica]
        self._last_R[replica] = now
        share = 0.5 * (1.0 - float(np.exp(-2.0 * self.pace.eta * elapsed)))
        apart_N = share * (self.z_RN[replica] - self.x_RN[replica])
        self.x_RN[replica] += apart_N
        self.z_RN[replica] -= apart_N
