"""SEAM Merge: how a new anchor enters the working weights.

N elements of a fragment
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.numeric.registry import Registry
from training.outer.optimizers import OuterInfo, OuterOptimizer, Slots

Vector = NDArray[np.float32]


class Merge(Protocol):
    """SEAM: called by the loop when a round's outcome is known, and by a method with a delay when a
    contribution is handed over."""

    def apply(
        self, local_N: Vector, anchor_N: Vector, sent_N: Vector | None = None
    ) -> NDArray[np.float32]:
        """The new working weights; the inputs are only read. Asked where the round lists us.

        `sent_N` are the weights whose drift was handed over, None where they are not known any
        more.
        """
        ...

    def ahead(
        self, anchor_N: NDArray[np.float32], own: Callable[[], NDArray[np.float32]], members: int
    ) -> NDArray[np.float32]:
        """The weights that the next round begins from while this one is in flight.

        `anchor_N` is the newest anchor, `own` gives what everybody decodes of the contribution that
        is handed over, `members` is how many have a seat in its round. All is only read.
        """
        ...


MERGES: Registry[Merge] = Registry("merge")


class Replace:
    """DiLoCo: training goes on from the anchor; what drifted since is in the contribution."""

    def apply(
        self, local_N: Vector, anchor_N: Vector, sent_N: Vector | None = None
    ) -> NDArray[np.float32]:
        """The anchor itself."""
        del local_N, sent_N
        return anchor_N

    def ahead(
        self, anchor_N: NDArray[np.float32], own: Callable[[], NDArray[np.float32]], members: int
    ) -> NDArray[np.float32]:
        """The anchor: the own contribution comes back one round later, in the mean."""
        del own, members
        return anchor_N


MERGES.register("replace", Replace)


class Blend:
    """Streaming DiLoCo: of the weights that went on for tau steps a share stays (Douillard et al.
    2025). Nothing of it is lost to the run: the next drift is anchor minus these weights.
    """

    def __init__(self, share: float = 0.5) -> None:
        """`share` of the local weights, 0 to 1; 0 is `Replace` to the bit."""
        self._share = np.float32(share)

    def apply(
        self, local_N: Vector, anchor_N: Vector, sent_N: Vector | None = None
    ) -> NDArray[np.float32]:
        """The blend."""
        del sent_N
        if not self._share:
            return anchor_N
        blend_N: NDArray[np.float32] = anchor_N + self._share * (local_N - anchor_N)
        return blend_N

    def ahead(
        self, anchor_N: NDArray[np.float32], own: Callable[[], NDArray[np.float32]], members: int
    ) -> NDArray[np.float32]:
        """As `Replace`: nothing has drifted on the new anchor yet."""
        del own, members
        return anchor_N


MERGES.register("blend", Blend)


class Carry(Replace):
    """What was trained while the fragment was in flight stays, whole, on the new anchor.

        theta_r <- theta + (theta_r - what was sent)

    The round has nothing of it, and the next one has it: nothing is lost or counted twice. A blend
    keeps a share of it, and the same share of what the outer step made of the drift before.
    """

    def apply(
        self, local_N: Vector, anchor_N: Vector, sent_N: Vector | None = None
    ) -> NDArray[np.float32]:
        """The anchor, as far from it as training went since; after a restart the anchor itself."""
        if sent_N is None:
            return anchor_N
        carried_N: NDArray[np.float32] = anchor_N + (local_N - sent_N)
        return carried_N


MERGES.register("carry", Carry)


class Eager:
    """Eager updates: the own share of a mean is applied at once, that of the others one round late
    (Kale et al. 2025).

    Replica r steps with (own of round t + others of round t - 1) / R. The outer optimizers are
    linear in what they are given, so this is the common anchor, which has all up to round t - 1,
    and behind it the own steps ahead of the mean, with a momentum of their own:

        u <- mu u + own / R;   theta_r <- theta - lr (own / R + mu u)

    What runs ahead is forgotten with the next anchor, which has it. So a restart, which begins with
    u = 0, takes nothing from the run. Alone (R = 1) this is the step that the swarm will take.
    """

    def __init__(self, outer: OuterOptimizer) -> None:
        self._outer = outer
        self._slots: Slots = {}
        self._slots_after: Slots = {}

    def apply(
        self, local_N: Vector, anchor_N: Vector, sent_N: Vector | None = None
    ) -> NDArray[np.float32]:
        """The anchor: it has what ran ahead, which is from now on part of the momentum."""
        del local_N, sent_N
        self._slots = self._slots_after
        return anchor_N

    def ahead(
        self, anchor_N: NDArray[np.float32], own: Callable[[], NDArray[np.float32]], members: int
    ) -> NDArray[np.float32]:
        """The anchor with the own step on it."""
        share_N = own() * np.float32(1.0 / max(1, members))
        step = self._outer.step(anchor_N, share_N, OuterInfo(round=0, slots=self._slots))
        self._slots_after = step.slots
        return step.anchor_N


MERGES.register("eager", Eager)
