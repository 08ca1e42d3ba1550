"""Each peer's own choice among codecs of 8, 4 and 2 bits, by what its line sends.

    payload = that of `int8`, `int4` or `ternary`; its size tells which

N elements of a cell

Who is on a slow line need not send as much as who is on a fast one, and all are decoded alike. With
error feedback nobody's residual is another's matter, so a peer may choose anew in each round.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError, DecodeError
from training.compression.blocks import Int4Codec, TernaryCodec
from training.compression.int8 import Int8Codec
from training.compression.seam import (
    CODECS,
    Codec,
    Vector,
    adder_of,
    as_float32,
    check_payload,
    decode_to_read,
    lattice_of,
)
from training.kernels.lattice import Lattice

Floats = NDArray[np.float32]

GRADES = (8, 4, 2)
"""Bits per element, the finest first."""


class GradedCodec:
    """`finest` and `coarsest` are the bits per element that a run allows, of 8, 4 and 2; `usual`
    are those of a peer that does not know its line."""

    is_biased = True

    def __init__(self, *, finest: int = 8, coarsest: int = 2, usual: int = 2) -> None:
        for name, bits in (("finest", finest), ("coarsest", coarsest), ("usual", usual)):
            if bits not in GRADES:
                nearest = min(GRADES, key=lambda grade: abs(grade - bits))
                raise ConfigError(f"{name} {bits} is none of 8, 4 and 2; take {nearest}")
        if coarsest > finest:
            raise ConfigError(f"coarsest {coarsest} is finer than finest {finest}; take {finest}")
        if not coarsest <= usual <= finest:
            nearest = coarsest if usual < coarsest else finest
            raise ConfigError(f"usual {usual} is not in {coarsest}..{finest}; take {nearest}")
        made: dict[int, Codec] = {8: Int8Codec(), 4: Int4Codec(), 2: TernaryCodec()}
        self._codecs = {bits: made[bits] for bits in GRADES if coarsest <= bits <= finest}
        self.usual = usual

    @property
    def grades(self) -> tuple[int, ...]:
        """See HasGrades."""
        return tuple(self._codecs)

    def at(self, bits: int, numel: int) -> Codec:
        """See HasGrades. Of so few elements that two have the same size it is the finer one."""
        found = self._of_size(self._codecs[bits].payload_bytes(numel), numel)
        assert found is not None
        return found

    def payload_bytes(self, numel: int) -> int:
        """That of the finest."""
        return max(codec.payload_bytes(numel) for codec in self._codecs.values())

    def admits(self, num_bytes: int, numel: int) -> bool:
        """See VariableSize."""
        return self._of_size(num_bytes, numel) is not None

    def encode(self, x_N: Vector) -> bytes:
        """See Codec; in the usual bits."""
        flat_N = as_float32(x_N)
        return self.at(self.usual, len(flat_N)).encode(flat_N)

    def decode(self, payload: bytes | memoryview, numel: int) -> Floats:
        """See Codec."""
        return self._of(payload, numel).decode(payload, numel)

    def check(self, payload: bytes | memoryview, numel: int) -> None:
        """See Checking."""
        check_payload(self._of(payload, numel), payload, numel)

    def decode_to_read(
        self,
        payload: bytes | memoryview,
        numel: int,
        *,
        is_checked: bool = False,
        out_N: Floats | None = None,
    ) -> Floats:
        """See Checking."""
        codec = self._of(payload, numel)
        return decode_to_read(codec, payload, numel, is_checked=is_checked, out_N=out_N)

    def lattice(self, payload: bytes | memoryview, numel: int) -> Lattice | None:
        """See OnLattice."""
        return lattice_of(self._of(payload, numel), payload, numel)

    def weighted_sum(
        self,
        payloads: Sequence[bytes | memoryview],
        coefficients_P: NDArray[np.float32],
        numel: int,
    ) -> Floats | None:
        """See AddsCodes; where all that count are of one grade."""
        chosen = np.flatnonzero(coefficients_P).tolist()
        codecs = {self._of(payloads[row], numel) for row in chosen}
        adder = adder_of(codecs.pop()) if len(codecs) == 1 else None
        if adder is None:
            return None
        counted = [payloads[row] for row in chosen]
        return adder.weighted_sum(counted, coefficients_P[chosen], numel)

    def squared_norm(self, payload: bytes | memoryview, numel: int) -> float | None:
        """See AddsCodes."""
        adder = adder_of(self._of(payload, numel))
        return None if adder is None else adder.squared_norm(payload, numel)

    def _of(self, payload: bytes | memoryview, numel: int) -> Codec:
        num_bytes = memoryview(payload).nbytes
        codec = self._of_size(num_bytes, numel)
        if codec is None:
            raise DecodeError(f"{num_bytes} bytes are no payload of {numel} elements")
        return codec

    def _of_size(self, num_bytes: int, numel: int) -> Codec | None:
        """The finest of that size."""
        for codec in self._codecs.values():
            if codec.payload_bytes(numel) == num_bytes:
                return codec
        return None


CODECS.register("graded", GradedCodec)
