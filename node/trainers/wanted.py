"""What the core wants of the trainer, and the anchor that goes with it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol import events as ev

_NOTHING = np.empty(0, dtype=np.float32)


@dataclass(slots=True, eq=False)
class Wanted:
    """The newest Train action, and the anchor of the shard that goes with it."""

    action: ev.Train
    anchor_N: NDArray[np.float32]
    """Nothing once the trainer has it, with one round in flight: from then on that is what keeps
    the anchor as it is."""

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

    def moved(self, moved: tuple[NDArray[np.float32], NDArray[np.float32]] | None) -> None:
        """If the anchor is the first of these, it lies in the second now."""
        if moved is not None and self.anchor_N is moved[0]:
            self.anchor_N = moved[1]

    def let_go(self, *, lag: int) -> None:
        """The trainer has it. With two rounds in flight it is told of it more than once."""
        if lag == 1:
            self.anchor_N = _NOTHING
