"""SEAM Attack: what liars send instead of what they computed.

H honest peers, B liars, N elements of a contribution, S samples
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from node.plane.hooks import NodeHooks
from protocol.identity import PeerId
from training.numeric import Registry

Vector = NDArray[np.float32]
Rows = NDArray[np.floating]
Symbols = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What liars know of the round besides vectors. `luck` is theirs alone."""

    round: int
    """Counted from the first attacked one."""

    luck: np.random.Generator
    rule: Callable[[Vector], Vector]
    """(P, N) to (N,): the very rule that the swarm runs."""

    slices: tuple[slice, ...]
    history: Sequence[Vector]
    """The liars' own (B, N) of earlier rounds, the newest last."""


@dataclass(kw_only=True, eq=False)
class Attack:
    """Bends nothing. The liars work together: each knows what all of them know.

    `blind` liars see no honest vector, and take their own honest work for it.
    """

    blind: bool = False

    is_fresh: ClassVar[bool] = False
    """Whether the liars' identities come when the run is under way, and may be most of all."""

    seed: int = field(default=0, init=False)
    """Of the world that it is made for: what its hooks draw follows from it."""
    liars: frozenset[PeerId] = field(default=frozenset(), init=False)
    """All liars of that world, where they are known."""

    def send(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Vector:
        """(B, N): what the liars send, from what their own work gave on data that `poison` has been
        at. The inputs are only read."""
        seen_HN = own_BN if self.blind else honest_HN
        # What overflows is meant to: receivers must live with it.
        with np.errstate(all="ignore"):
            return self.craft(seen_HN, own_BN, context).astype(np.float32)

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """What each attack is: `send` with the vectors that are seen."""
        del honest_HN, context
        return own_BN

    def hooks(self) -> NodeHooks | None:
        """What bends a node that attacks the protocol; None where the vectors are the attack."""
        return None

    def poison(self, context_S: Symbols, next_S: Symbols, symbols: int) -> tuple[Symbols, Symbols]:
        """The samples that liars train on: contexts, and what follows them."""
        del symbols
        return context_S, next_S


@dataclass(kw_only=True, eq=False)
class HookedAttack(Attack):
    """The vectors are honest; what a liar's node says of them, asks for or shows is not."""

    make_hooks: Callable[[], NodeHooks]

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return self.make_hooks()


ATTACKS: Registry[Attack] = Registry("attack")
"""Factories `(*, blind, ...)`; each attack has numbers of its own, with defaults."""


def repeated(vector_N: Rows, own_BN: Vector) -> Rows:
    """The same vector from every liar."""
    return np.broadcast_to(vector_N, own_BN.shape)


def mean_of(rows_HN: Vector) -> NDArray[np.float64]:
    """Mean over rows, in float64."""
    mean_N: NDArray[np.float64] = rows_HN.astype(np.float64).mean(axis=0)
    return mean_N


def deviation_of(rows_HN: Vector) -> NDArray[np.float64]:
    """Standard deviation of each element over rows; zero where there is one row."""
    wide_HN = rows_HN.astype(np.float64)
    return wide_HN.std(axis=0, ddof=1) if len(wide_HN) > 1 else np.zeros(wide_HN.shape[1])


def length_of(rows_HN: Vector) -> float:
    """The median length of the rows."""
    return float(np.median(np.linalg.norm(rows_HN.astype(np.float64), axis=1)))
