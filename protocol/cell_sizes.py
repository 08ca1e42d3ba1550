"""How many bytes each cell of a state and of a result has. What they follow from is the edge's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CellSizes:
    """Bytes of each cell of a state, and for each fragment of each cell of a round's result."""

    state: tuple[int, ...]
    result: tuple[tuple[int, ...], ...]

    def result_of(self, round_index: int) -> tuple[int, ...]:
        """Of each cell of that round's result."""
        return self.result[round_index % len(self.result)]


NO_CELLS = CellSizes(state=(), result=((),))
"""Of a machine that never catches up."""
