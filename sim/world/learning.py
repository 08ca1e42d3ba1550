"""SEAM Learner: what simulated trainers learn."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.leases import Lease

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Learned:
    """What a round of training gives: the pseudo-gradient, and the mean loss if there is one."""

    drift_N: Vector
    loss: float | None = None


Learner = Callable[[Vector, Lease, random.Random], Learned]
"""SEAM: trains from an anchor, which it must not write to, on leased samples."""
