"""The codec of eight bits, and sums over its payloads that make no vector of their numbers.

N elements, B blocks of K elements, P payloads
"""

from collections.abc import Sequence

import numpy as np

from protocol.errors import DecodeError
from training.compression.blocks import (
    NOBODY_SENDS,
    BlockCodec,
    Codes,
    Floats,
    largest,
    reciprocal,
    rounded_up,
)
from training.compression.seam import CODECS
from training.kernels import kernels_for
from training.numeric.arithmetic import Vector, all_finite, is_folded

_SCALE_SURE = np.float32(2.0**120)
"""Times a level of eight bits it is finite."""


class Int8Codec(BlockCodec):
    """255 levels, -127 to 127 times the block's largest magnitude / 127: 1 + 4/1024 bytes."""

    bits = 8

    def _quantize(self, x_BK: Floats) -> tuple[Floats, Codes]:
        scale_B1 = rounded_up(largest(x_BK) / np.float32(127), 127)
        reciprocal_B1 = reciprocal(scale_B1)
        if kernels := kernels_for(x_BK.reshape(-1)):
            return scale_B1, kernels.int8_codes(x_BK, reciprocal_B1)
        level_BK = x_BK * reciprocal_B1
        np.rint(level_BK, out=level_BK)
        return scale_B1, level_BK.astype(np.int8).view(np.uint8)

    def check(self, payload: bytes | memoryview, numel: int) -> None:
        """See Checking. The codes alone say it, but for scales near the largest number."""
        head_BF, packed = self.cut(payload, numel)
        self._refuse(head_BF, packed)
        if head_BF.max(initial=0.0) > _SCALE_SURE:
            self.decode(payload, numel)

    def decode(self, payload: bytes | memoryview, numel: int) -> Floats:
        """See Codec."""
        head_BF, packed = self.cut(payload, numel)
        self._refuse(head_BF, packed)
        x_N = self._restored(head_BF, packed, np.empty(numel, dtype=np.float32))
        if head_BF.max(initial=0.0) > _SCALE_SURE and not all_finite(x_N):
            raise DecodeError(NOBODY_SENDS)
        return x_N

    def decode_to_read(
        self,
        payload: bytes | memoryview,
        numel: int,
        *,
        is_checked: bool = False,
        out_N: Floats | None = None,
    ) -> Floats:
        """See Checking."""
        if not is_checked:
            return self.decode(payload, numel)
        x_N = np.empty(numel, dtype=np.float32) if out_N is None else out_N
        return self._restored(*self.cut(payload, numel), x_N)

    def weighted_sum(
        self, payloads: Sequence[bytes | memoryview], coefficients_P: Vector, numel: int
    ) -> Vector | None:
        """See AddsCodes."""
        total_N = np.empty(numel, dtype=np.float32)
        chosen = np.flatnonzero(coefficients_P)
        kernels = kernels_for(total_N)
        if kernels is None or not len(chosen) or numel % self.block:
            return None
        coded = [self.cut(payloads[row], numel) for row in chosen.tolist()]
        rows = [(packed, scale_B1) for scale_B1, packed in coded]
        kernels.int8_sum(rows, coefficients_P[chosen], self.block, total_N)
        return total_N

    def squared_norm(self, payload: bytes | memoryview, numel: int) -> float | None:
        """See AddsCodes."""
        head_BF, packed = self.cut(payload, numel)
        self._refuse(head_BF, packed)
        kernels = kernels_for()
        if kernels is None or not is_folded(numel) or head_BF.max() > _SCALE_SURE:
            return None
        return kernels.int8_squared_norm(packed, head_BF, self.block)

    def _refuse(self, head_BF: Floats, packed: Codes) -> None:
        if (head_BF < 0.0).any() or packed.view(np.int8).min(initial=0) == -128:
            raise DecodeError(NOBODY_SENDS)

    def _restored(self, head_BF: Floats, packed: Codes, x_N: Floats) -> Floats:
        with np.errstate(over="ignore"):
            for of_blocks, codes, span, width in self.runs(packed, len(x_N)):
                out_BK = x_N[span].reshape(-1, width)
                codes_BK = codes.view(np.int8).reshape(out_BK.shape)
                if kernels := kernels_for(x_N[span]):
                    kernels.int8_values(codes_BK, head_BF[of_blocks], out_BK)
                else:
                    np.copyto(out_BK, codes_BK)
                    out_BK *= head_BF[of_blocks]
        return x_N


CODECS.register("int8", Int8Codec)
