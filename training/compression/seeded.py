"""Codecs that draw lots: a random shift of the levels, and a random choice of elements.

    payload = seed, 8 bytes | what follows from it

Whoever decodes draws the same from the seed. Without one given to the constructor it is made of the
vector's own bits: another one in each round and for each peer, and the same wherever the same
vector is encoded again.

N elements, B blocks of K
"""

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import ConfigError, DecodeError
from training.compression.blocks import (
    BLOCK,
    check_padding,
    pack_codes,
    packed_bytes,
    spans,
    unpack_codes,
)
from training.compression.dense import Float16Codec
from training.compression.seam import CODECS, Vector, as_float32
from training.kernels import Lattice, kernels_for
from training.numeric.arithmetic import all_finite

Floats = NDArray[np.float32]

SEED_BYTES = 8
_FOLD = 1 << 14
"""Of a longer vector the bits of every so-manieth element are added up, and the sums are hashed."""

_LARGEST = np.float32(2.0**125)
"""Beyond it the width of a block's range is no float32; larger numbers are clamped."""

_NOT_FINITE = "a payload holds a non-finite element"

_STEP_LEAST = np.float32(2.0**-120)


def _seed_of(x_N: Floats, seed: int | None) -> bytes:
    if seed is not None:
        return seed.to_bytes(SEED_BYTES, "little")
    words_N = np.ascontiguousarray(x_N, dtype="<f4").view("<u4")
    hasher, whole = blake3(), len(words_N) - len(words_N) % _FOLD
    if whole:
        # Added up first: to hash all of a large cell takes four times as long. That somebody can
        # find another vector of the same sums is no matter: it is sent with the same shifts.
        sums = np.add.reduce(words_N[:whole].reshape(-1, _FOLD), axis=0, dtype="<u4")
        hasher.update(sums.data.cast("B"))
    return hasher.update(words_N[whole:].tobytes()).digest(length=SEED_BYTES)


def _draw(seed: bytes, count: int) -> NDArray[np.uint32]:
    """Numbers of 32 bits."""
    return np.frombuffer(blake3(seed).digest(length=4 * count), "<u4").astype(np.uint32)


class RandomShiftCodec:
    """QSDP's lattice (Markov et al. 2023): per block of 1024 the least element, a step, and 256
    levels of 8 bits (16 of 4) a random fraction of a step away: 1 + 8/1024 bytes.

    Over the shifts an element is itself on average, so it needs no feedback.
    """

    is_biased = False

    def __init__(self, *, bits: int = 8, seed: int | None = None) -> None:
        if bits not in (4, 8):
            raise ConfigError(f"bits {bits} is neither 4 nor 8; take {4 if bits < 6 else 8}")
        self._bits = bits
        self._seed = seed
        # One level more than steps: a shift moves the outermost by half a step.
        self._steps = (1 << bits) - 2

    def payload_bytes(self, numel: int) -> int:
        """Two floats per block, and the codes."""
        return SEED_BYTES + 8 * -(-numel // BLOCK) + packed_bytes(numel, self._bits)

    def encode(self, x_N: Vector) -> bytes:
        """See Codec."""
        flat_N = as_float32(x_N)
        seed = _seed_of(flat_N, self._seed)
        fraction_B = _fractions(seed, -(-len(flat_N) // BLOCK))
        heads, codes = [], []
        for start, stop, width in spans(len(flat_N), BLOCK):
            x_BK = flat_N[start:stop].reshape(-1, width)
            of_span = slice(start // BLOCK, -(-stop // BLOCK))
            # What was clamped is beyond the levels: clipped to them, however far.
            with np.errstate(over="ignore"):
                head_B2, codes_BK = self._quantize(x_BK, fraction_B[of_span])
            heads.append(head_B2.astype("<f4").tobytes())
            codes.append(pack_codes(codes_BK.reshape(-1), self._bits).tobytes())
        return b"".join((seed, *heads, *codes))

    def _quantize(self, x_BK: Floats, fraction_B: Floats) -> tuple[Floats, NDArray[np.uint8]]:
        kernels = kernels_for(x_BK)
        least_B, most_B = kernels.bounds(x_BK) if kernels else (x_BK.min(axis=1), x_BK.max(axis=1))
        least_B = np.clip(least_B, -_LARGEST, _LARGEST)
        most_B = np.clip(most_B, -_LARGEST, _LARGEST)
        step_B = (most_B - least_B) / np.float32(self._steps)
        # Too narrow for a lattice: one point, which is exact where all elements are equal.
        is_point_B = step_B < _STEP_LEAST
        step_B[is_point_B] = 0.0
        least_B[is_point_B] = np.clip(0.0, least_B, most_B)[is_point_B]
        # Which of two zeros is the least, the processor decided: it is sent as a positive one.
        least_B += np.float32(0.0)
        per_step_B = np.divide(1, step_B, out=np.zeros_like(step_B), where=~is_point_B)
        first_B, head_B2 = least_B + fraction_B * step_B, np.stack((least_B, step_B), axis=1)
        if kernels:
            return head_B2, kernels.shift_codes(x_BK, first_B, per_step_B, self._steps + 1)
        level_BK = x_BK - first_B[:, None]
        level_BK *= per_step_B[:, None]
        np.rint(level_BK, out=level_BK)
        np.clip(level_BK, 0, self._steps + 1, out=level_BK)
        return head_B2, level_BK.astype(np.uint8)

    def decode(self, payload: bytes | memoryview, numel: int) -> Floats:
        """See Codec."""
        x_N = self.decode_to_read(payload, numel, is_checked=True)
        if not all_finite(x_N):
            raise DecodeError(_NOT_FINITE)
        return x_N

    def check(self, payload: bytes | memoryview, numel: int) -> None:
        """See Checking. Where the highest level of each block is finite all are, for the lowest is
        a part of that sum."""
        first_B, step_B, packed = self._cut(payload, numel)
        check_padding(packed, self._bits, numel)
        with np.errstate(invalid="ignore", over="ignore"):
            last_B = step_B * np.float32(self._steps + 1) + first_B
        if not all_finite(last_B):
            self.decode(payload, numel)

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
        first_B, step_B, packed = self._cut(payload, numel)
        codes_N = unpack_codes(packed, self._bits, numel)
        x_N = np.empty(numel, dtype=np.float32) if out_N is None else out_N
        with np.errstate(invalid="ignore", over="ignore"):
            for start, stop, width in spans(numel, BLOCK):
                x_BK = x_N[start:stop].reshape(-1, width)
                codes_BK = codes_N[start:stop].reshape(-1, width)
                of_span = slice(start // BLOCK, -(-stop // BLOCK))
                if kernels := kernels_for(x_BK):
                    kernels.shift_values(codes_BK, step_B[of_span], first_B[of_span], x_BK)
                else:
                    np.copyto(x_BK, codes_BK)
                    x_BK *= step_B[of_span, None]
                    x_BK += first_B[of_span, None]
        return x_N

    def lattice(self, payload: bytes | memoryview, numel: int) -> Lattice | None:
        """See OnLattice."""
        if self._bits != 8:
            return None
        first_B, step_B, packed = self._cut(payload, numel)
        return Lattice(packed, step_B, first_B, BLOCK)

    def _cut(
        self, payload: bytes | memoryview, numel: int
    ) -> tuple[Floats, Floats, NDArray[np.uint8]]:
        """The first level and the step of each block, and the packed codes, not looked at."""
        view = memoryview(payload).cast("B")
        if view.nbytes != self.payload_bytes(numel):
            raise DecodeError(f"{view.nbytes} bytes are no payload of {numel} elements")
        head_stop = SEED_BYTES + 8 * -(-numel // BLOCK)
        head_B2 = np.frombuffer(view[SEED_BYTES:head_stop], "<f4").astype(np.float32).reshape(-1, 2)
        least_B, step_B = head_B2.T
        if not (step_B >= 0).all():
            raise DecodeError("a step is negative or not a number")
        fraction_B = _fractions(bytes(view[:SEED_BYTES]), len(step_B))
        with np.errstate(invalid="ignore", over="ignore"):
            first_B = least_B + fraction_B * step_B
        return first_B, step_B, np.frombuffer(view[head_stop:], np.uint8)


def _fractions(seed: bytes, count: int) -> Floats:
    """Of a step, from half down to half up; of 11 bits, so that none is rounded."""
    fraction_B = (_draw(seed, count) >> np.uint32(21)).astype(np.float32)
    return fraction_B * np.float32(2.0**-11) - np.float32(0.5)


CODECS.register("random_shift", RandomShiftCodec)


def common_lots(round_index: int, cell: int) -> bytes:
    """What all peers draw in a cell of a round from. Anybody may know them beforehand: a mask hides
    nothing."""
    place = f"barnraise/lots/v1 {round_index} {cell}".encode()
    return blake3(place).digest(length=SEED_BYTES)


_DENSITY_SLACK = 0.02
"""One of every n is sent: a density between two such would be another in truth."""


class RandomMaskCodec:
    """SPARTA's subset (Beton et al. 2025): one of every `1 / density` neighbours, drawn by lot, in
    fp16: 2 `density` bytes. The others are zero.

    For one mask on all peers give all the same lots, of the round (`common_lots`).
    """

    is_biased = True

    def __init__(self, *, density: float = 1 / 16, seed: int | None = None) -> None:
        if not 1 / 4096 <= density <= 1:
            why = "sends nothing" if density == 0 else f"is not in {1 / 4096}..1"
            raise ConfigError(f"density {density} {why}; take {1.0 if density > 1 else 1 / 4096}")
        self._stride = round(1 / density)
        if abs(self._stride * density - 1) > _DENSITY_SLACK:
            nearest = round(1 / self._stride, 6)
            raise ConfigError(f"density {density} is not one in so many; take {nearest}")
        self._seed = seed
        self._values = Float16Codec()

    def payload_bytes(self, numel: int) -> int:
        """The seed, and two bytes for each run of neighbours."""
        return SEED_BYTES + self._values.payload_bytes(-(-numel // self._stride))

    def encode(self, x_N: Vector) -> bytes:
        """See Codec."""
        flat_N = as_float32(x_N)
        return self.encode_drawn(flat_N, _seed_of(flat_N, self._seed))

    def encode_drawn(self, x_N: Vector, lots: bytes) -> bytes:
        """See DrawsLots."""
        flat_N = as_float32(x_N)
        return lots + self._values.encode(flat_N[self._places(lots, len(flat_N))])

    def drawn(self, lots: bytes, numel: int) -> NDArray[np.bool_]:
        """See DrawsLots."""
        is_drawn_N = np.zeros(numel, dtype=np.bool_)
        is_drawn_N[self._places(lots, numel)] = True
        return is_drawn_N

    def decode(self, payload: bytes | memoryview, numel: int) -> Floats:
        """See Codec."""
        view = memoryview(payload).cast("B")
        if view.nbytes != self.payload_bytes(numel):
            raise DecodeError(f"{view.nbytes} bytes are no payload of {numel} elements")
        place_K = self._places(bytes(view[:SEED_BYTES]), numel)
        x_N = np.zeros(numel, dtype=np.float32)
        x_N[place_K] = self._values.decode(view[SEED_BYTES:], len(place_K))
        return x_N

    def _places(self, seed: bytes, numel: int) -> NDArray[np.int64]:
        first_K = np.arange(0, numel, self._stride)
        width_K = np.minimum(numel - first_K, self._stride)
        return first_K + _draw(seed, len(first_K)) % width_K


CODECS.register("random_mask", RandomMaskCodec)
