"""What the core wants of the trainer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node import events as ev


@dataclass(frozen=True, slots=True)
class Wanted:
    """The newest Train action, and the anchor of the shard that goes with it."""

    action: ev.Train
    anchor_N: NDArray[np.float32]

    @property
    def round(self) -> int:
        """The round to train for."""
        return self.action.round

    @property
    def sealed(self) -> int:
        """The last round whose seal is in the anchor."""
        return self.action.certificate.value.round

    @property
    def basis(self) -> bytes:
        """What names that round."""
        return self.action.basis

    @property
    def num_members(self) -> int:
        """How many have a seat by that seal."""
        return len(self.action.certificate.value.roster.members)
