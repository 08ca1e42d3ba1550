"""Replicas that average with neighbours alone, without a common anchor: how they mix, and how they
train behind the one loop.

R replicas, one row each, L of them too narrow; N elements, T tensors

Every rule of mixing (SEAM Mixing) but `Corrected` conserves the mean of all replicas: what one
takes another gives. Pairwise gossip is that of Boyd et al. 2006, weights of neighbours are
Metropolis', the shift register is in Liu and Morse 2011, several steps of gossip in a round (MGS)
are of DFedSAM (Shi et al. 2023). Sums are of doubles or floats in whatever order a machine likes:
no two replicas are to have equal bits.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import ConfigError
from protocol.grid import TensorSpec
from training.channel.exchange import Outcome, RunClock, RunStart
from training.loop.replicas import MemorySession, Swarm, Weights
from training.numeric import Registry
from training.numeric.arithmetic import joined

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


# Means that keep their spread ---------------------------------------------------------------------

THRESHOLD = 0.7


class Corrected:
    """A Mixing whose tensors keep their variance (Tian et al. 2024, arXiv 2404.04616).

    Of K weights that have nothing to do with each other the mean has 1 / K of their variance, less
    than a network needs to begin with, and learning stalls. Per matrix, not for vectors:

        w' = mean(w) + (w - mean(w)) sqrt(s2 / Var(w)),   w the mixed tensor, s2 the mixed variances

    It is a safety net where all begin with one seed: off unless Var(w) / s2 is below THRESHOLD.
    """

    def __init__(
        self, mixing: Mixing, tensors: Sequence[TensorSpec], *, threshold: float = THRESHOLD
    ) -> None:
        """`tensors` are those of a row, in the order in which they lie in it."""
        self._mixing = mixing
        self._threshold = threshold
        self._spans: list[slice] = []
        start = 0
        for tensor in tensors:
            if len(tensor.shape) > 1:
                self._spans.append(slice(start, start + tensor.numel))
            start += tensor.numel

    def copies(self, replicas: int) -> float:
        """See Mixing; a variance per matrix is nothing beside it."""
        return self._mixing.copies(replicas)

    def mix(self, x_RN: Rows, round_index: int) -> Rows:
        """See Mixing, but that it is not linear: the mean of all replicas is not conserved."""
        mixed_RN = self._mixing.mix(x_RN, round_index)
        if not self._spans:
            return mixed_RN
        spread_RT = np.stack([x_RN[:, span].var(axis=1) for span in self._spans], axis=1)
        wanted_RT = self._mixing.mix(spread_RT, round_index)
        for number, span in enumerate(self._spans):
            tensor_RN = mixed_RN[:, span]
            found_R, wanted_R = tensor_RN.var(axis=1), wanted_RT[:, number]
            low = np.flatnonzero((found_R > 0.0) & (found_R < self._threshold * wanted_R))
            center_L1 = tensor_RN[low].mean(axis=1, keepdims=True)
            factor_L1 = np.sqrt(wanted_R[low] / found_R[low])[:, np.newaxis]
            mixed_RN[low, span] = center_L1 + (tensor_RN[low] - center_L1) * factor_L1
        return mixed_RN


# Two copies that meet without rounds --------------------------------------------------------------

WideRows = NDArray[np.float64]


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
    """A2CiD2 (Nabli et al. 2023): gossip without rounds, which a second copy of the weights speeds
    up. Both copies of all replicas, and when each was last looked at.

    Time is in gradients: each replica takes one per unit, on average.

        time dt passed    x <- x + c (z - x),  z <- z + c (x - z),  c = (1 - e^(-2 eta dt)) / 2
        gradient g at i   x_i -= rate g;  z_i -= rate g
        i and j meet      m = x_i - x_j;  x_i -= m / 2;  z_i -= alpha m;  the opposite at j

    Mixing conserves x_i + z_i, and a meeting the sums of x and of z: so the sum of both is
    conserved at all times; that of x alone is not. On a complete graph it gains nothing, on a ring
    much.
    """

    x_RN: WideRows
    pace: AcidPace
    z_RN: WideRows = field(init=False)
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


# Swarms behind the one loop -----------------------------------------------------------------------


@dataclass
class GossipSwarm(Swarm):
    """Each replica goes on from weights of its own, in place of a common anchor.

    A round ends as in `training.loop.replicas`, but what comes home to a replica is what its
    neighbours and it made of their weights. So the loop, its schedule and its transaction are
    DiLoCo's; there is no seal, no outer step, and nothing that two replicas could compare.

    Mixes when all `replicas` have contributed; who is `absent` neither gives nor takes.

    The codec must lose nothing: weights travel whole, for no neighbour knows what they drifted
    from. `payload_bytes` counts every copy that is sent.
    """

    mixing: Mixing = field(default_factory=Pairwise)
    own: list[Weights] = field(init=False)
    """The weights that each replica goes on from, of the whole shard."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.own = [joined(self.anchors).copy() for _ in range(self.replicas)]

    @property
    def anchor(self) -> Weights:
        """The mean of all: nobody has it, it is what they differ from."""
        mean_N: Weights = np.stack(self.own).mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean_N

    @property
    def disagreement(self) -> float:
        """Root mean square distance of a weight from the mean of its replicas."""
        return float(np.std(self.own, axis=0, dtype=np.float64).mean())

    def finals(self) -> list[list[Weights]]:
        """Of each replica its own: the mean of their losses is the run's."""
        return [[own_N] for own_N in self.own]

    def sessions(self) -> list[MemorySession]:
        """One of each replica."""
        return [OwnSession(self, replica) for replica in range(self.replicas)]

    def outcome(self, replica: int) -> Outcome:
        """See Swarm: with the replica's own weights in place of the anchor."""
        return replace(super().outcome(replica), anchor_N=self.own[replica])

    def _seal(self) -> None:
        index, numels = self.clock.round, self.manifest.layout(0).cell_numels[0]
        here = [r for r in range(self.replicas) if (index, r) not in self.absent]
        drifts = {}
        for replica in here:
            payloads = self.contributions.pop((index, replica)).payloads
            cells = zip(payloads, numels, strict=True)
            drifts[replica] = np.concatenate([self._codec.decode(*one) for one in cells])
        self.payload_bytes += round(4 * sum(numels) * self.mixed(drifts, index))
        inner = self.manifest.inner
        self.clock = RunClock(
            round=index + 1,
            step=self.clock.step + inner.inner_steps,
            tokens=self.clock.tokens + inner.inner_steps * inner.batch * len(here),
        )

    def mixed(self, drifts: Mapping[int, Weights], round_index: int) -> float:
        """Take the drift of each replica, and mix; returns how many copies of weights were sent."""
        rows_RN = np.stack([self.own[replica] - drift_N for replica, drift_N in drifts.items()])
        mixed_RN: Weights = self.mixing.mix(rows_RN, round_index).astype(np.float32)
        for row, replica in enumerate(drifts):
            self.own[replica] = mixed_RN[row]
        return self.mixing.copies(len(drifts)) * len(drifts)


@dataclass
class NoLoCoSwarm(GossipSwarm):
    """NoLoCo: the outer step of each replica with one other, drawn anew for each round
    (Kolehmainen et al. 2025, arXiv 2506.10911).

    v <- mu v + rate mean(g) + pull (x - mean(x)),  x <- x - v; means over the pair, g what both
    drifted. The pull stands in for the anchor that nobody has: with 1 and without momentum it is
    averaging.
    """

    rate: float = 0.7
    momentum: float = 0.5
    pull: float = 1.0
    velocity: list[Weights] = field(init=False)
    """By replica, (N,) float32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.velocity = [np.zeros_like(own_N) for own_N in self.own]

    def mixed(self, drifts: Mapping[int, Weights], round_index: int) -> float:
        """See GossipSwarm: of both what it drifted, and where it began. Who is the last of an odd
        number is its own mean."""
        here = list(drifts)
        drawn = pairs(len(here), round_index)
        alone = set(range(len(here))) - {number for pair in drawn for number in pair}
        for group in (*drawn, *((number,) for number in alone)):
            members = [here[number] for number in group]
            drift_N = np.mean([drifts[one] for one in members], axis=0)
            begin_N = np.mean([self.own[one] for one in members], axis=0)
            for one in members:
                velocity_N = np.float32(self.momentum) * self.velocity[one]
                velocity_N += np.float32(self.rate) * drift_N
                velocity_N += np.float32(self.pull) * (self.own[one] - begin_N)
                self.velocity[one] = velocity_N
                self.own[one] = self.own[one] - velocity_N
        return 4.0 * len(drawn)


@dataclass
class AcidSwarm(GossipSwarm):
    """A2CiD2: two copies of each replica's weights, which meet on a ring without rounds.

    A round is the unit of time: its drifts come at its begin, then everybody meets a neighbour once
    on average, at moments that are drawn. The weights to train and to judge are the first copy's.
    `pace` of None is that of the graph; PLAIN is gossip with one copy.
    """

    pace: AcidPace | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        edges = ring(self.replicas)
        degree = 1 if self.replicas == 2 else 2
        self._rates: dict[Edge, float] = dict.fromkeys(edges, 1.0 / degree)
        pace = self.pace or (pace_of(self.replicas, self._rates) if edges else PLAIN)
        self._copies = TwoCopies(np.stack(self.own).astype(np.float64), pace)

    def mixed(self, drifts: Mapping[int, Weights], round_index: int) -> float:
        """See GossipSwarm."""
        for replica, drift_N in drifts.items():
            self._copies.gradient(replica, drift_N.astype(np.float64), float(round_index))
        meetings = [one for one in self._meetings(round_index) if drifts.keys() >= set(one[1])]
        for at, edge in meetings:
            self._copies.meet(edge, at)
        for replica in drifts:
            self.own[replica] = self._copies.x_RN[replica].astype(np.float32)
        return 2.0 * len(meetings)

    def _meetings(self, round_index: int) -> list[tuple[float, Edge]]:
        """Who meets whom in a round, and when: a Poisson process for each edge."""
        lot = random.Random(f"{self.manifest.model.seed}/{round_index}")
        found = []
        for edge, rate in self._rates.items():
            at = 0.0
            while (at := at - math.log(1.0 - lot.random()) / rate) < 1.0:
                found.append((round_index + at, edge))
        return sorted(found)


@dataclass
class OwnSession(MemorySession):
    """Begins with the replica's own weights."""

    swarm: GossipSwarm

    @property
    def start(self) -> RunStart:
        """See Session."""
        return replace(super().start, anchors=(self.swarm.own[self.replica],))
