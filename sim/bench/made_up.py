"""Made-up contributions that anybody can make again: functions of a trainer's name and a round.

Of the anchor they are no function, so that who checks a round need not have followed the others.

N elements
"""

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Vector = NDArray[np.float32]


BASE_ELEMENTS = 1_000_003
"""A prime: no two cells of a vector have the same numbers, though its base comes again."""


def base(name: str, numel: int) -> Vector:
    """Uniform in [-0.5, 0.5): what all contributions of one trainer are multiples of, again and
    again. A whole vector of them would be memory that no node of a run needs."""
    numel = min(numel, BASE_ELEMENTS)
    key = int.from_bytes(blake3(f"{name}/base".encode()).digest(length=16), "little")
    draw_N = np.random.Generator(np.random.Philox(key=key)).random(numel, dtype=np.float32)
    draw_N -= np.float32(0.5)
    return draw_N


def scale(name: str, round_index: int) -> np.float32:
    """In [0.5, 1.5): the bytes of another round are never those of this one."""
    draw = int.from_bytes(blake3(f"{name}/{round_index}".encode()).digest(length=4), "little")
    return np.float32(0.5 + draw / 2**32)


class Numbers:
    """The contributions of one trainer; the costly part of them is made once."""

    def __init__(self, name: str, numel: int) -> None:
        self.name = name
        self._numel = numel
        self._base_N = base(name, numel)

    def contribution(self, round_index: int, *, out: Vector | None = None) -> Vector:
        """What it hands over in a round; in the memory of `out`, if there is one."""
        drift_N = np.empty(self._numel, dtype=np.float32) if out is None else out
        factor = scale(self.name, round_index)
        for start in range(0, self._numel, BASE_ELEMENTS):
            piece_N = drift_N[start : start + BASE_ELEMENTS]
            np.multiply(self._base_N[: len(piece_N)], factor, out=piece_N)
        return drift_N
