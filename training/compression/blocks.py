"""Block codecs: some floats per block of elements, and a code of 2, 4 or 8 bits per element.

    payload = the floats of all blocks, <f4 | codes, those of the first element in the lowest bits

N elements, B blocks of K elements (the last may be shorter), L levels, P payloads

Scales are float32 of 11 significant bits, rounded up: their product with a level of up to 13 bits
is exact, so every decoder has the same bits and encoding a decoded vector changes nothing. A code
that no encoder makes decodes to NaN, and a payload with one non-finite element is refused.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError, DecodeError
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
from training.kernels import Lattice, kernels_for
from training.numeric.arithmetic import all_finite, is_folded

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

BLOCK = 1024
_WORK = 1 << 18
"""Elements that are worked on at once: the largest cell. What lies between two steps stays in the
cache, where it is float32."""

_SCALE_LEAST = np.float32(2.0**-100)
"""A block of smaller numbers is sent as zeros: the reciprocal of its scale would not be finite."""

NOBODY_SENDS = "a payload holds a code or a scale that nobody sends"

_FINITE_MOST = np.float32(np.finfo(np.float32).max)


def pack_codes(codes_N: Codes, bits: int) -> Codes:
    """Codes of 2 or 4 bits, several to a byte, the first lowest; the last byte is padded with 0."""
    if bits == 8:
        return codes_N
    per_byte = 8 // bits
    if len(codes_N) % per_byte:
        codes_N = np.pad(codes_N, (0, -len(codes_N) % per_byte))
    # The codes of a byte as one little-endian word: shifted copies meet in its lowest byte.
    word_M = np.ascontiguousarray(codes_N).view(f"<u{per_byte}")
    packed_M = word_M.copy()
    for place in range(1, per_byte):
        packed_M |= word_M >> word_M.dtype.type((8 - bits) * place)
    return packed_M.astype(np.uint8)


def unpack_codes(packed: Codes, bits: int, numel: int) -> Codes:
    """What `pack_codes` packed. Raises DecodeError if the padding is not 0."""
    check_padding(packed, bits, numel)
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    mask = np.uint8((1 << bits) - 1)
    return ((packed[:, None] >> shifts) & mask).reshape(-1)[:numel]


def check_padding(packed: Codes, bits: int, numel: int) -> None:
    """Raise DecodeError if bits behind the last code are not 0."""
    used = numel * bits % 8
    if used and packed[-1] >> used:
        raise DecodeError("a payload's padding is not zero")


def packed_bytes(numel: int, bits: int) -> int:
    """Bytes that so many codes take."""
    return (numel * bits + 7) // 8


class BlockCodec:
    """What block codecs share. `bits` is that of a code, `floats` are per block; `work` elements
    are worked on at once."""

    is_biased = True
    bits: ClassVar[int]
    block: ClassVar[int] = BLOCK
    floats: ClassVar[int] = 1
    work: ClassVar[int] = _WORK

    def payload_bytes(self, numel: int) -> int:
        """4 bytes per float of a block, and the packed codes."""
        return 4 * self.floats * -(-numel // self.block) + packed_bytes(numel, self.bits)

    def encode(self, x_N: Vector) -> bytes:
        """Block by block; the smallest error of each element on its own, if not said otherwise."""
        flat_N = as_float32(x_N)
        heads, codes = [], []
        for start, stop, width in spans(len(flat_N), self.block, self.work):
            x_BK = flat_N[start:stop].reshape(-1, width)
            # Of absurd numbers a mean may be infinite: then none of the block is sent.
            with np.errstate(over="ignore"):
                head_BF, codes_BK = self._quantize(x_BK)
            heads.append(head_BF.astype("<f4").tobytes())
            codes.append(pack_codes(codes_BK.reshape(-1), self.bits).tobytes())
        return b"".join((*heads, *codes))

    def decode(self, payload: bytes | memoryview, numel: int) -> Floats:
        """See Codec."""
        head_BF, packed = self.cut(payload, numel)
        x_N = np.empty(numel, dtype=np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            for of_blocks, codes, span, width in self.runs(packed, numel):
                self._restore(codes, head_BF[of_blocks], x_N[span].reshape(-1, width))
                if not all_finite(x_N[span]):
                    raise DecodeError(NOBODY_SENDS)
        return x_N

    def cut(self, payload: bytes | memoryview, numel: int) -> tuple[Floats, Codes]:
        """The floats of each block, and the packed codes of all; the codes are not looked at."""
        view = memoryview(payload).cast("B")
        if view.nbytes != self.payload_bytes(numel):
            raise DecodeError(f"{view.nbytes} bytes are no payload of {numel} elements")
        num_blocks = -(-numel // self.block)
        head_bytes = 4 * self.floats * num_blocks
        head_BF = np.frombuffer(view[:head_bytes], "<f4").astype(np.float32, copy=False)
        head_BF = head_BF.reshape(num_blocks, self.floats)
        if not all_finite(head_BF):
            raise DecodeError("a scale is not finite")
        packed = np.frombuffer(view[head_bytes:], np.uint8)
        check_padding(packed, self.bits, numel)
        return head_BF, packed

    def runs(self, packed: Codes, numel: int) -> Iterator[tuple[slice, Codes, slice, int]]:
        """What is worked on at once: which blocks, their codes, their elements, how many each."""
        for start, stop, width in spans(numel, self.block, self.work):
            codes = packed[start * self.bits // 8 : packed_bytes(stop, self.bits)]
            of_blocks = slice(start // self.block, -(-stop // self.block))
            yield of_blocks, codes, slice(start, stop), width

    def _quantize(self, x_BK: Floats) -> tuple[Floats, Codes]:
        """The floats of each block, shape [B, F], and the codes, shape [B, K]."""
        raise NotImplementedError

    def _restore(self, packed: Codes, head_BF: Floats, out_BK: Floats) -> None:
        """Write the elements of some blocks; NaN for codes and floats that no encoder makes."""
        raise NotImplementedError


def spans(numel: int, block: int, work: int = _WORK) -> list[tuple[int, int, int]]:
    """(first, behind the last, elements per block) of runs of whole blocks, and of the rest; each
    is worked on at once."""
    whole = numel - numel % block
    runs = [(start, min(start + work, whole), block) for start in range(0, whole, work)]
    return [*runs, (whole, numel, numel - whole)] if numel > whole else runs


def largest(x_BK: Floats) -> Floats:
    """The largest magnitude of each block, shape [B, 1]."""
    if kernels := kernels_for(x_BK):
        return kernels.peaks(x_BK)[:, None]
    most_B1: Floats = np.maximum(x_BK.max(axis=1), -x_BK.min(axis=1))[:, None]
    return most_B1


def rounded_up(scale_B1: Floats, largest_level: int) -> Floats:
    """Scales of 11 significant bits; 0 for blocks too small to have one."""
    bits_B1 = scale_B1.astype(np.float32).view(np.uint32)
    up_B1 = ((bits_B1 + np.uint32(0x1FFF)) & np.uint32(0xFFFFE000)).view(np.float32)
    up_B1[scale_B1 < _SCALE_LEAST] = 0.0
    most = (np.float32(_FINITE_MOST / largest_level).view(np.uint32) & 0xFFFFE000).view(np.float32)
    return np.minimum(up_B1, most)


def reciprocal(scale_B1: Floats) -> Floats:
    """1 / scale, and 0 for a scale of 0."""
    return np.divide(1.0, scale_B1, out=np.zeros_like(scale_B1), where=scale_B1 > 0)


def checked_scale(head_BF: Floats) -> Floats:
    """The scale of each block; NaN for a negative one."""
    return np.where(head_BF >= 0, head_BF, np.float32(np.nan))


class TableCodec(BlockCodec):
    """A block codec whose codes stand for fixed levels, which the block's scale multiplies."""

    levels: ClassVar[tuple[float, ...]]
    """Of each code; NaN for one that nobody sends."""

    def __init__(self) -> None:
        self._levels_L = np.array(self.levels, dtype=np.float32)
        codes = unpack_codes(np.arange(256, dtype=np.uint8), self.bits, 256 * (8 // self.bits))
        self._of_byte = self._levels_L[codes].reshape(256, -1)
        """The elements that a byte stands for, side by side: one look-up brings them all."""

    def quantize(self, x_BK: Floats) -> tuple[Floats, Codes]:
        """The scale of each row, shape [B, 1], and the codes, shape [B, K]."""
        return self._quantize(x_BK)

    def restore(self, codes_BK: Codes, scale_B1: Floats) -> Floats:
        """What `quantize` took; not finite for codes and scales that no encoder makes."""
        return self._levels_L[codes_BK] * checked_scale(scale_B1)

    def _restore(self, packed: Codes, head_BF: Floats, out_BK: Floats) -> None:
        # Codes of 0 are padding, checked before: no level of 0 is a NaN where there may be some.
        level_M = self._of_byte.take(packed, axis=0).reshape(-1)[: out_BK.size]
        np.multiply(level_M.reshape(out_BK.shape), checked_scale(head_BF), out=out_BK)


class Int4Codec(TableCodec):
    """15 levels, -7 to 7 times the block's largest magnitude / 7: 1/2 + 4/1024 bytes.

    A code is the level in two's complement.
    """

    bits = 4
    levels = (*map(float, range(8)), float("nan"), *map(float, range(-7, 0)))

    def _quantize(self, x_BK: Floats) -> tuple[Floats, Codes]:
        scale_B1 = rounded_up(largest(x_BK) / np.float32(7), 7)
        level_BK = x_BK * reciprocal(scale_B1)
        np.rint(level_BK, out=level_BK)
        return scale_B1, level_BK.astype(np.int8).view(np.uint8) & np.uint8(15)


CODECS.register("int4", Int4Codec)


class E3M0Codec(TableCodec):
    """Sign and three bits of exponent (Streaming DiLoCo, Douillard et al. 2025): +-2^-k times the
    block's largest magnitude, k = 0..6, and zero: 1/2 + 4/1024 bytes.

    Code 0 is zero, 1 to 7 are 2^-6 to 1, the eighth bit is the sign. From three quarters of a
    level on it is taken, so it is the nearest one; below 3/4 of the least, zero is.
    """

    bits = 4
    _magnitudes = tuple(2.0 ** (code - 7) for code in range(1, 8))
    levels = (0.0, *_magnitudes, float("nan"), *(-level for level in _magnitudes))

    def _quantize(self, x_BK: Floats) -> tuple[Floats, Codes]:
        scale_B1 = rounded_up(largest(x_BK), 1)
        # The exponent of 4/3 y grows by one where y passes three quarters of a power of two.
        y_BK = x_BK * (reciprocal(scale_B1) * np.float32(4 / 3))
        head_BK = (y_BK.view(np.uint32) >> np.uint32(23)).astype(np.uint16)
        exponent_BK = (head_BK & np.uint16(0xFF)).astype(np.uint8)
        magnitude_BK = np.maximum(exponent_BK, np.uint8(120)) - np.uint8(120)
        sign_BK = (head_BK >> np.uint16(5)).astype(np.uint8) & np.uint8(8)
        return scale_B1, magnitude_BK | (sign_BK * (magnitude_BK > 0))


CODECS.register("e3m0", E3M0Codec)


class TernaryCodec(TableCodec):
    """-s, 0 or s (ternary weight networks, Li et al. 2016): 2 bits + 4/1024 bytes.

    Zero is below 0.7 of the block's mean magnitude, s the mean magnitude of the others.
    """

    bits = 2
    levels = (0.0, 1.0, float("nan"), -1.0)

    def _quantize(self, x_BK: Floats) -> tuple[Floats, Codes]:
        magnitude_BK = np.abs(x_BK)
        bound_B1 = magnitude_BK.mean(axis=1, keepdims=True) * np.float32(0.7)
        is_sent_BK = magnitude_BK > np.maximum(bound_B1, _SCALE_LEAST)
        sent_BK = is_sent_BK.astype(np.float32)
        total_B = np.einsum("bk,bk->b", magnitude_BK, sent_BK)
        count_B = sent_BK @ np.ones(x_BK.shape[1], dtype=np.float32)
        scale_B1 = rounded_up((total_B / np.maximum(count_B, 1))[:, None], 1)
        codes_BK = np.signbit(x_BK).view(np.uint8)
        codes_BK += codes_BK
        codes_BK += 1
        codes_BK *= is_sent_BK.view(np.uint8)
        return scale_B1, codes_BK


CODECS.register("ternary", TernaryCodec)


class Dense2BitCodec(BlockCodec):
    """Four levels of the block's own: the 2-bit quantizer of SparseLoCo (Sarfi et al. 2025).

    The bins are 1.5 standard deviations wide, two on either side of the mean; a level is the mean
    of its bin's members. Blocks of 4096: 1/4 + 16/4096 bytes.
    """

    bits = 2
    block = 4096
    floats = 4
    work = 1 << 17  # With float64 in between.

    def _quantize(self, x_BK: Floats) -> tuple[Floats, Codes]:
        wide_BK = x_BK.astype(np.float64)
        mean_B1 = wide_BK.mean(axis=1, keepdims=True)
        edge_B1 = 1.5 * wide_BK.std(axis=1, keepdims=True)
        codes_BK = (x_BK >= (mean_B1 - edge_B1).astype(np.float32)).astype(np.uint8)
        codes_BK += x_BK >= mean_B1.astype(np.float32)
        codes_BK += x_BK >= (mean_B1 + edge_B1).astype(np.float32)
        level_B4 = np.zeros((len(x_BK), 4), dtype=np.float32)
        for code in range(4):
            is_in_BK = codes_BK == code
            count_B = np.maximum(np.count_nonzero(is_in_BK, axis=1), 1)
            level_B4[:, code] = (wide_BK * is_in_BK).sum(axis=1) / count_B
        return level_B4, codes_BK

    def _restore(self, packed: Codes, head_BF: Floats, out_BK: Floats) -> None:
        codes_M = unpack_codes(packed, self.bits, out_BK.size)
        place_BK = codes_M.reshape(out_BK.shape).astype(np.intp)
        place_BK += 4 * np.arange(len(out_BK))[:, None]
        np.take(head_BF.reshape(-1), place_BK, out=out_BK)


CODECS.register("dense2bit", Dense2BitCodec)


# Eight bits, and sums over their payloads that make no vector of the numbers ---------------------

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
        self, payloads: Sequence[bytes | memoryview], coefficients_P: Floats, numel: int
    ) -> Floats | None:
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


# Each peer's own choice among 8, 4 and 2 bits, by what its line sends ----------------------------
#
#   payload = that of `int8`, `int4` or `ternary`; its size tells which
#
# Who is on a slow line need not send as much as who is on a fast one, and all are decoded alike.
# With error feedback nobody's residual is another's matter, so a peer may choose anew in each
# round.

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
