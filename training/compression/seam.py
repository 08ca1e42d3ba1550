"""SEAM Codec: a vector as bytes.

N elements of one cell or fragment

What is aggregated is the *decoded wire bytes*, never the sender's sharper copy. Whoever decodes
must get the same bits on every machine: decoders are single numpy operations in a fixed order.
Encoders need not agree with each other, only with themselves.
"""

from collections.abc import Sequence
from functools import cache
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from training.kernels import Lattice
from training.numeric import Registry
from training.numeric.arithmetic import all_finite

FEEDBACK_BITS = 6.0
"""Below so many bits per element a biased codec without error feedback loses what averaging gains
(Q5: ternary without feedback is worse than one node alone)."""

_NUMEL_OF_BITS = 1 << 18
"""Bits per element are those of a cell of the largest size."""


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
    knows it beforehand; a codec that sends no more than it needs says which sizes it `admits`, and
    by the size alone a receiver knows all that it must. A constructor's keywords are the codec's
    settings; all have defaults, and ConfigError with the nearest valid choice refuses the others.
    """

    @property
    def is_biased(self) -> bool:
        """Whether what is decoded differs from what was encoded on average, not by chance only."""
        ...

    def payload_bytes(self, numel: int) -> int:
        """Exact size of the payload of `numel` elements; the largest where there are several."""
        ...

    def encode(self, x_N: Vector) -> bytes:
        """The wire form of a flat vector. Raises ValueError if an element is not finite."""
        ...

    def decode(self, payload: bytes | memoryview, numel: int) -> NDArray[np.float32]:
        """A new float32 vector. Raises DecodeError for a wrong size or a malformed payload."""
        ...


CODECS: Registry[Codec] = Registry("codec")


@runtime_checkable
class DrawsLots(Protocol):
    """A Codec that chooses elements by lot, and draws the lots that it is given."""

    def encode_drawn(self, x_N: Vector, lots: bytes) -> bytes:
        """See `Codec.encode`; all who are given the same 8 bytes choose the same."""
        ...

    def drawn(self, lots: bytes, numel: int) -> NDArray[np.bool_]:
        """Of `numel` elements, those that are chosen by these lots."""
        ...


@runtime_checkable
class VariableSize(Protocol):
    """A Codec whose payloads of one number of elements have several sizes."""

    def admits(self, num_bytes: int, numel: int) -> bool:
        """Whether some payload of `numel` elements has so many bytes."""
        ...


@runtime_checkable
class HasGrades(Protocol):
    """A Codec of several: each peer takes the one that suits its line, in each round anew. They
    are called by their bits per element."""

    usual: int
    """Of a peer that knows no better."""

    @property
    def grades(self) -> tuple[int, ...]:
        """All bits per element that the run allows, the most first."""
        ...

    def at(self, bits: int, numel: int) -> Codec:
        """The one that encodes so many elements in so many bits each."""
        ...


@runtime_checkable
class Checking(Protocol):
    """A Codec that tells good payloads from others without their numbers."""

    def check(self, payload: bytes | memoryview, numel: int) -> None:
        """Raise DecodeError where `decode` would, and only there."""
        ...

    def decode_to_read(
        self,
        payload: bytes | memoryview,
        numel: int,
        *,
        is_checked: bool = False,
        out_N: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """As `decode`; may lie in the payload's memory, or be written to `out_N`. A payload that
        `is_checked` is good."""
        ...


@runtime_checkable
class OnLattice(Protocol):
    """A Codec whose numbers lie on a lattice, so that some need not decode them."""

    def lattice(self, payload: bytes | memoryview, numel: int) -> Lattice | None:
        """That of a payload which was checked, in its memory; None where codes are no bytes."""
        ...


@runtime_checkable
class AddsCodes(Protocol):
    """A Codec with sums of what payloads decode to that make no vector of it, to the bit; None
    where they are to be decoded: where nothing was compiled for so many elements."""

    def weighted_sum(
        self,
        payloads: Sequence[bytes | memoryview],
        coefficients_P: NDArray[np.float32],
        numel: int,
    ) -> NDArray[np.float32] | None:
        """See `arithmetic.weighted_sum`; the payloads were checked."""
        ...

    def squared_norm(self, payload: bytes | memoryview, numel: int) -> float | None:
        """See `arithmetic.squared_norm`. Raises DecodeError as `decode` does."""
        ...


@cache
def _adds_codes(kind: type[Codec]) -> bool:
    return issubclass(kind, AddsCodes)


def adder_of(codec: Codec) -> AddsCodes | None:
    """The codec as one that adds up payloads; None if it does not."""
    return cast("AddsCodes", codec) if _adds_codes(type(codec)) else None


@cache
def _is_on_lattice(kind: type[Codec]) -> bool:
    return issubclass(kind, OnLattice)


def lattice_of(codec: Codec, payload: bytes | memoryview, numel: int) -> Lattice | None:
    """Of a payload that was checked; None where numbers are not sent so."""
    if _is_on_lattice(type(codec)):
        return cast("OnLattice", codec).lattice(payload, numel)
    return None


@cache
def _is_checking(kind: type[Codec]) -> bool:
    return issubclass(kind, Checking)


def decode_to_read(
    codec: Codec,
    payload: bytes | memoryview,
    numel: int,
    *,
    is_checked: bool = False,
    out_N: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """As `codec.decode`, for those who do not write to it: float32 as it is needs no copy.

    `is_checked` says that this very payload was checked or decoded before. It may lie in `out_N`.
    """
    if _is_checking(type(codec)):
        checking = cast("Checking", codec)
        return checking.decode_to_read(payload, numel, is_checked=is_checked, out_N=out_N)
    return codec.decode(payload, numel)


def decode_into(codec: Codec, payload: bytes | memoryview, out_N: NDArray[np.float32]) -> None:
    """As `decode_to_read` of a payload that was checked; the numbers are written to `out_N`."""
    x_N = decode_to_read(codec, payload, len(out_N), is_checked=True, out_N=out_N)
    if x_N is not out_N:
        out_N[:] = x_N


def check_payload(codec: Codec, payload: bytes | memoryview, numel: int) -> None:
    """Raise DecodeError where `codec.decode` would."""
    if _is_checking(type(codec)):
        cast("Checking", codec).check(payload, numel)
    else:
        codec.decode(payload, numel)


@cache
def _is_variable(kind: type[Codec]) -> bool:
    return issubclass(kind, VariableSize)  # Slow: Python looks for each method by name.


def admits(codec: Codec, num_bytes: int, numel: int) -> bool:
    """Whether some payload of `numel` elements has so many bytes."""
    if _is_variable(type(codec)):
        return cast("VariableSize", codec).admits(num_bytes, numel)
    return num_bytes == codec.payload_bytes(numel)


def join_cells(
    codec: Codec, payloads: Sequence[bytes], numels: Sequence[int]
) -> NDArray[np.float32]:
    """A whole fragment of its cells' payloads. Raises DecodeError as `decode` does."""
    cells = zip(payloads, numels, strict=True)
    return np.concatenate([codec.decode(payload, numel) for payload, numel in cells])


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


def bits_per_element(codec: Codec) -> float:
    """Payload bits per element of a large cell; the most where there are several."""
    return 8.0 * codec.payload_bytes(_NUMEL_OF_BITS) / _NUMEL_OF_BITS


def with_grades(codec: Codec) -> HasGrades | None:
    """The codec as one of which each peer takes the grade that suits it; None of any other."""
    return codec if isinstance(codec, HasGrades) else None


def in_grade(codec: Codec, bits: int, numel: int) -> Codec:
    """What encodes so many elements: of a codec with grades that of so many bits, the usual one for
    none; any other itself."""
    of_grades = with_grades(codec)
    return codec if of_grades is None else of_grades.at(bits or of_grades.usual, numel)


def coarsest_of(codec: Codec) -> Codec:
    """Of a codec with grades the one that leaves most out; any other itself."""
    of_grades = with_grades(codec)
    return codec if of_grades is None else of_grades.at(of_grades.grades[-1], _NUMEL_OF_BITS)
