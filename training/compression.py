"""SEAM Codec: a vector as bytes, and error feedback around it.

N elements of one cell or fragment

What is aggregated is the *decoded wire bytes*, never the sender's sharper copy; the sender keeps
the difference and adds it to its next contribution (error feedback).
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DecodeError
from protocol.grid import EMPTY_ROOT, cell_root, merkle_root
from training.arithmetic import all_finite
from training.registry import Registry


class DeviceTensor(Protocol):
    """What `encode` asks of a torch tensor: this module must load no torch."""

    def detach(self) -> "DeviceTensor":
        """Without gradient."""
        ...

    def cpu(self) -> "DeviceTensor":
        """In host memory."""
        ...

    def float(self) -> "DeviceTensor":
        """As float32."""
        ...

    def numpy(self) -> NDArray[np.float32]:
        """As an array over the same memory."""
        ...


Vector = NDArray[np.float32] | DeviceTensor


class Codec(Protocol):
    """SEAM: called by the trainer (encode) and by everybody else (decode), cell by cell.

    Deterministic. A payload's size depends on the number of elements only, so that a receiver
    knows it beforehand.
    """

    def payload_bytes(self, numel: int) -> int:
        """Exact size of the payload of `numel` elements."""
        ...

    def encode(self, x_N: Vector) -> bytes:
        """The wire form of a flat vector. Raises ValueError if an element is not finite."""
        ...

    def decode(self, payload: bytes | memoryview, numel: int) -> NDArray[np.float32]:
        """A new float32 vector. Raises DecodeError for a wrong size or a non-finite element."""
        ...


CODECS: Registry[Codec] = Registry("codec")


def as_float32(x_N: Vector) -> NDArray[np.float32]:
    """A flat float32 numpy vector of a numpy or torch one; may share its memory.

    Raises ValueError if an element is not finite: such a vector has no wire form.
    """
    if isinstance(x_N, np.ndarray):
        flat_N = np.asarray(x_N, dtype=np.float32).reshape(-1)
    else:
        flat_N = x_N.detach().cpu().float().numpy().reshape(-1)
    if not all_finite(flat_N):
        raise ValueError("a vector to encode is not finite")
    return flat_N


class _Dense:
    """Every element in one little-endian float of a fixed width."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._most = np.float32(np.finfo(self._dtype).max)

    def payload_bytes(self, numel: int) -> int:
        """A fixed number of bytes per element."""
        return numel * self._dtype.itemsize

    def encode(self, x_N: Vector) -> bytes:
        """Rounded to nearest, ties to even; clamped to the largest finite value."""
        # Rounding up past the largest value would give an infinity, which nobody accepts.
        bounded_N = np.clip(as_float32(x_N), -self._most, self._most)
        return bounded_N.astype(self._dtype).tobytes()

    def decode(self, payload: bytes | memoryview, numel: int) -> NDArray[np.float32]:
        """Exact: every value of the format is a float32."""
        size = memoryview(payload).nbytes
        if size != self.payload_bytes(numel):
            raise DecodeError(f"{size} bytes for {numel} elements of {self._dtype.itemsize}")
        x_N = np.frombuffer(payload, dtype=self._dtype).astype(np.float32)
        if not all_finite(x_N):
            raise DecodeError("a payload holds a non-finite element")
        return x_N


class Float32Codec(_Dense):
    """Float32 as it is: 4 bytes per element, no loss."""

    def __init__(self) -> None:
        super().__init__("<f4")


CODECS.register("none", Float32Codec)


class Float16Codec(_Dense):
    """IEEE half precision: 2 bytes per element, clamped to +-65504."""

    def __init__(self) -> None:
        super().__init__("<f2")


CODECS.register("fp16", Float16Codec)


class Encoded(NamedTuple):
    """A contribution's payloads, cell by cell, and the roots of the residual around it (R6)."""

    payloads: tuple[bytes, ...]
    residual_before: bytes
    residual_after: bytes


class ErrorFeedback:
    """Keeps what the codec lost and adds `beta` of it to the next contribution (1-bit SGD; EF-SGD).

        s = x + beta e;   payload = encode(s);   e' = s - decode(payload)

    A transaction (R6): `encode` leaves the residual as it was until `commit` (sealed with me: take
    e') or `abort` (sealed without me: e stays). One object serves one fragment; without
    `cell_elements` the fragment is one cell. beta = 0 switches feedback off: then there is no
    residual, and its root is EMPTY_ROOT, as of a fresh one.
    """

    def __init__(self, codec: Codec, beta: float, *, cell_elements: int | None = None) -> None:
        self._codec = codec
        self._beta = np.float32(beta)
        self._cell_elements = cell_elements
        self._residual_N: NDArray[np.float32] | None = None
        self._is_open = False
        self._after_N: NDArray[np.float32] | None = None

    @property
    def residual_N(self) -> NDArray[np.float32] | None:
        """The residual of the last commit, for a checkpoint; None stands for zero. Not a copy."""
        return self._residual_N

    @property
    def residual_after_N(self) -> NDArray[np.float32] | None:
        """What `commit` would make the residual; asked only between `encode` and the outcome."""
        assert self._is_open, "nothing is under way"
        return self._after_N

    @property
    def root(self) -> bytes:
        """Merkle root over the residual's cells as little-endian float32."""
        return residual_root(self._residual_N, self._cell_elements)

    def encode(self, x_N: NDArray[np.float32]) -> Encoded:
        """Encode a whole fragment, cell by cell, and keep the outcome open; `x_N` is only read.

        Raises ValueError if a sum with the residual is not finite. Nothing is then open.
        """
        assert not self._is_open, "the contribution before is neither committed nor aborted"
        total_N = x_N
        if self._residual_N is not None:
            total_N = x_N + self._beta * self._residual_N
        payloads = []
        after_N = np.zeros_like(total_N) if self._beta else None
        for cell in _cells(len(total_N), self._cell_elements):
            cell_N = total_N[cell]
            payloads.append(self._codec.encode(cell_N))
            if after_N is not None:
                decoded_N = self._codec.decode(payloads[-1], len(cell_N))
                np.subtract(cell_N, decoded_N, out=after_N[cell])
        root_after = residual_root(after_N, self._cell_elements)
        encoded = Encoded(tuple(payloads), self.root, root_after)
        self._is_open, self._after_N = True, after_N
        return encoded

    def commit(self) -> None:
        """The contribution was sealed: the residual is what it left over."""
        assert self._is_open, "nothing to commit"
        self._residual_N = self._after_N
        self._close()

    def abort(self) -> None:
        """The contribution was not sealed: the residual stays what it was before."""
        assert self._is_open, "nothing to abort"
        self._close()

    def restore(self, residual_N: NDArray[np.float32] | None) -> None:
        """Take a checkpoint's residual; None (zero) after a resync. Drops what is open."""
        self._close()
        self._residual_N = None if residual_N is None else residual_N.astype(np.float32)

    def reopen(
        self, before_N: NDArray[np.float32] | None, after_N: NDArray[np.float32] | None
    ) -> None:
        """Open the transaction of a process before us again: its contribution is under way still.

        `commit` or `abort` ends it, as if this object had encoded it.
        """
        self.restore(before_N)
        self._is_open = True
        self._after_N = None if after_N is None else after_N.astype(np.float32)

    def _close(self) -> None:
        self._is_open, self._after_N = False, None


def residual_root(
    residual_N: NDArray[np.float32] | None, cell_elements: int | None = None
) -> bytes:
    """Merkle root of a residual over the fragment's grid; EMPTY_ROOT of None."""
    if residual_N is None:
        return EMPTY_ROOT
    wire_N = residual_N.astype("<f4")
    cells = _cells(len(wire_N), cell_elements)
    return merkle_root([cell_root(wire_N[cell].tobytes()) for cell in cells])


def _cells(numel: int, cell_elements: int | None) -> list[slice]:
    width = cell_elements or max(1, numel)
    return [slice(start, start + width) for start in range(0, numel, width)]
