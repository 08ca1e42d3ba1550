"""What follows from seals alone, and may be worked out once for all nodes of a simulated world."""

from collections.abc import Callable
from typing import Protocol

from protocol.identity import PeerId
from protocol.leases import Lease
from protocol.messages import Roster, SealValue
from protocol.rounds.reducers import Slice


class Derived(Protocol):
    """SEAM: what follows from seals and from results that they name. Each as the rule of its name:
    in `chain`, `reducers` and `roster`."""

    @property
    def seal_value(self) -> Callable[..., SealValue | None]:
        """What the seal of a LIST says."""
        ...

    def slices(
        self, roster: Roster, basis: bytes, num_cells: int, *, trust: str
    ) -> tuple[Slice, ...]:
        """Who sums what."""
        ...

    def leased_for(
        self, round_index: int, basis: SealValue, samples_each: int
    ) -> dict[PeerId, Lease]:
        """Who may use which samples."""
        ...
