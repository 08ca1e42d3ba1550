"""A codec of one's own: `python -m examples.own_codec` measures it beside fp16.

N elements of a cell or fragment
"""

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DecodeError
from training.compression.seam import CODECS, Vector, as_float32, bits_per_element
from training.numeric.arithmetic import all_finite

LARGEST = np.uint32(0x7F7F0000).view(np.float32)
"""The largest finite bfloat16. Rounding up past it would give an infinity, which nobody accepts."""


class BFloat16Codec:
    """The upper half of a float32: 2 bytes per element, its range, and 8 bits of mantissa."""

    is_biased = True

    def payload_bytes(self, numel: int) -> int:
        """Two bytes per element, so that a receiver knows the size beforehand."""
        return 2 * numel

    def encode(self, x_N: Vector) -> bytes:
        """Rounded to nearest, ties to even."""
        bits_N = np.clip(as_float32(x_N), -LARGEST, LARGEST).view(np.uint32)
        rounded_N = bits_N + np.uint32(0x7FFF) + ((bits_N >> np.uint32(16)) & np.uint32(1))
        return (rounded_N >> np.uint32(16)).astype("<u2").tobytes()

    def decode(self, payload: bytes | memoryview, numel: int) -> NDArray[np.float32]:
        """Exact. A peer may send anything: wrong sizes, infinities and NaN are refused."""
        if memoryview(payload).nbytes != self.payload_bytes(numel):
            raise DecodeError(f"{memoryview(payload).nbytes} bytes for {numel} bfloat16 elements")
        x_N = (np.frombuffer(payload, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        if not all_finite(x_N):
            raise DecodeError("a payload holds a non-finite element")
        return x_N


CODECS.register("bf16", BFloat16Codec)

if __name__ == "__main__":
    x_N = np.random.default_rng(0).normal(size=1 << 18).astype(np.float32)
    for name in ("fp16", "bf16"):
        codec = CODECS[name]()
        lost_N = codec.decode(codec.encode(x_N), len(x_N)) - x_N
        error = float(np.linalg.norm(lost_N) / np.linalg.norm(x_N))
        print(
            f"{name:6}{bits_per_element(codec):5.1f} bits per element, relative error {error:.6f}"
        )
