"""Every element in one float: `none` (32 bits) and `fp16`."""

import sys

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DecodeError
from training.compression.seam import CODECS, Codec, Vector, as_float32
from training.numeric.arithmetic import all_finite


class DenseCodec:
    """Every element in one little-endian float of a fixed width."""

    is_biased = True

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._most = np.float32(np.finfo(self._dtype).max)

    def payload_bytes(self, numel: int) -> int:
        """A fixed number of bytes per element."""
        return numel * self._dtype.itemsize

    def encode(self, x_N: Vector) -> bytes:
        """Rounded to nearest, ties to even; clamped to the largest finite value."""
        flat_N = as_float32(x_N)
        # Rounding up past the largest value would give an infinity, which nobody accepts.
        if max(flat_N.max(initial=0.0), -flat_N.min(initial=0.0)) > self._most:
            flat_N = np.clip(flat_N, -self._most, self._most)
        return flat_N.astype(self._dtype, copy=False).tobytes()

    def decode(self, payload: bytes | memoryview, numel: int) -> NDArray[np.float32]:
        """Exact: every value of the format is a float32."""
        x_N = self.decode_to_read(payload, numel)
        return x_N.copy() if x_N.base is not None else x_N

    def check(self, payload: bytes | memoryview, numel: int) -> None:
        """See Checking."""
        self.decode_to_read(payload, numel)

    def decode_to_read(
        self,
        payload: bytes | memoryview,
        numel: int,
        *,
        is_checked: bool = False,
        out_N: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """See Checking."""
        del out_N  # One pass in any case: here, or where it is read.
        size = memoryview(payload).nbytes
        if size != self.payload_bytes(numel):
            raise DecodeError(f"{size} bytes for {numel} elements of {self._dtype.itemsize}")
        x_N = np.frombuffer(payload, dtype=self._dtype).astype(np.float32, copy=False)
        if not (is_checked or all_finite(x_N)):
            raise DecodeError("a payload holds a non-finite element")
        return x_N


class Float32Codec(DenseCodec):
    """Float32 as it is: 4 bytes per element, no loss."""

    is_biased = False

    def __init__(self) -> None:
        super().__init__("<f4")


CODECS.register("none", Float32Codec)


class Float16Codec(DenseCodec):
    """IEEE half precision: 2 bytes per element, clamped to +-65504."""

    def __init__(self) -> None:
        super().__init__("<f2")


CODECS.register("fp16", Float16Codec)


def encode_to_read(codec: Codec, x_N: Vector) -> bytes:
    """As `codec.encode`, for those who only read it, before `x_N` changes: float32 as it is needs
    no copy, and what looks like bytes there is a view of it. Raises ValueError as that does."""
    if isinstance(codec, Float32Codec) and sys.byteorder == "little":
        return as_float32(x_N).data.cast("B")  # type: ignore[return-value]  # read like bytes
    return codec.encode(x_N)
