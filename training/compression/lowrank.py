"""Local low rank: a cell as a matrix, and that as a product of two thin ones of 4 bits.

    payload = scales of P's columns, of Q's, <f4 | codes of P column by column, then of Q

N elements, R rows, C columns, K rank: M[R, C] is near P[R, K] Q[C, K]^T

PowerSGD's compressor (Vogels et al. 2019) with DiLoCoX's 4-bit factors (Qi et al. 2025), each peer
on its own: one exchange and no common state, where the factors of a sum would take two. Q is the
least-squares answer to the *rounded* P, so the rounding of P costs little.

With `energy` below 1 each cell has the rank that it needs: as few columns as keep that share of
what `rank` columns would. The size of a payload tells its rank, so nobody need know it beforehand.
"""

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError, DecodeError
from training.compression.blocks import (
    Int4Codec,
    pack_codes,
    packed_bytes,
    unpack_codes,
)
from training.compression.seam import CODECS, Vector, as_float32
from training.numeric.arithmetic import all_finite

Matrix = NDArray[np.float32]

RANK_MAX = 256
ENERGY_MIN = 0.5
_POWER_STEPS = 2
_SEED = 1
_BITS = 4
_MOST = 2.0**127
"""Of an element, so that everybody's sum of the products is a number."""
_WORK_ROWS = 32
"""Rows that are worked on at once, so that they stay in the cache."""


class LowRankCodec:
    """Matrices of a power of two columns, at most as many as rows; `rank` is that of a full cell:
    K (R + C) / 2 bytes of N, with 2^18 elements and rank 16 1/32 byte per element."""

    is_biased = True

    def __init__(self, *, rank: int = 16, energy: float = 1.0) -> None:
        if not ENERGY_MIN <= energy <= 1.0:
            nearest = 1.0 if energy > 1.0 else ENERGY_MIN
            raise ConfigError(f"energy {energy} is not in {ENERGY_MIN}..1; take {nearest}")
        if not 1 <= rank <= RANK_MAX:
            raise ConfigError(
                f"rank {rank} is not in 1..{RANK_MAX}; take {1 if rank < 1 else RANK_MAX}"
            )
        self._rank, self._energy = rank, energy
        self._int4 = Int4Codec()

    def payload_bytes(self, numel: int) -> int:
        """A float per column of a factor, and half a byte per element of one; the most where cells
        have the rank that they need."""
        return _size(*self._shape(numel))

    def admits(self, num_bytes: int, numel: int) -> bool:
        """See Codec."""
        return self._rank_of(num_bytes, numel) is not None

    def encode(self, x_N: Vector) -> bytes:
        """See Codec. Two steps of subspace iteration from columns that are always the same."""
        flat_N = as_float32(x_N)
        if not len(flat_N):
            return b""
        rows, columns, rank = self._shape(len(flat_N))
        # Divided by a power of two near the largest, so that no product is too large or too small.
        unit = np.ldexp(np.float32(1.0), np.frexp(np.abs(flat_N).max(initial=0.0))[1] - 1)
        matrix_RC = np.zeros((rows, columns), dtype=np.float32)
        np.divide(flat_N, unit, out=matrix_RC.reshape(-1)[: len(flat_N)])
        q_CK: Matrix = np.random.default_rng(_SEED).normal(size=(columns, rank)).astype(np.float32)
        for _ in range(_POWER_STEPS):
            p_RK = np.linalg.qr(matrix_RC @ q_CK)[0]
            q_CK = matrix_RC.T @ p_RK
        if self._energy < 1.0:
            p_RK = p_RK @ _leading(q_CK, self._energy)
        p_scale_K1, p_codes_KR = self._int4.quantize(np.ascontiguousarray(p_RK.T))
        p_KR = self._int4.restore(p_codes_KR, p_scale_K1)
        q_KC = np.linalg.pinv(p_KR @ p_KR.T, hermitian=True) @ (p_KR @ matrix_RC)
        with np.errstate(over="ignore"):
            # P's columns have length 1, so an element is at most Q's, times the columns.
            most = np.float32(_MOST / len(q_KC))
            q_KC = np.clip(q_KC * unit, -most, most)
        q_scale_K1, q_codes_KC = self._int4.quantize(q_KC)
        return b"".join(
            (
                p_scale_K1.astype("<f4").tobytes(),
                q_scale_K1.astype("<f4").tobytes(),
                pack_codes(p_codes_KR.reshape(-1), _BITS).tobytes(),
                pack_codes(q_codes_KC.reshape(-1), _BITS).tobytes(),
            )
        )

    def decode(self, payload: bytes | memoryview, numel: int) -> NDArray[np.float32]:
        """See Codec. Column by column, first one first, so the bits are the same everywhere."""
        view = memoryview(payload).cast("B")
        rank, (rows, columns, _) = self._rank_of(view.nbytes, numel), self._shape(numel)
        if rank is None:
            raise DecodeError(f"{view.nbytes} bytes are no payload of {numel} elements")
        scale_2K1 = np.frombuffer(view[: 8 * rank], "<f4").astype(np.float32).reshape(2, rank, 1)
        codes = np.frombuffer(view[8 * rank :], np.uint8)
        middle = packed_bytes(rank * rows, _BITS)
        p_codes_KR = unpack_codes(codes[:middle], _BITS, rank * rows).reshape(rank, rows)
        q_codes_KC = unpack_codes(codes[middle:], _BITS, rank * columns).reshape(rank, columns)
        x_RC = np.zeros((rows, columns), dtype=np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            p_KR = self._int4.restore(p_codes_KR, scale_2K1[0])
            q_KC = self._int4.restore(q_codes_KC, scale_2K1[1])
            for start in range(0, rows, _WORK_ROWS):
                of_work = slice(start, start + _WORK_ROWS)
                _add_products(x_RC[of_work], p_KR[:, of_work], q_KC)
        if not all_finite(x_RC):
            raise DecodeError("a payload holds a code or a scale that nobody sends")
        return x_RC.reshape(-1)[:numel]

    def _rank_of(self, num_bytes: int, numel: int) -> int | None:
        """The rank of a payload of that size; None where there is no such payload."""
        rows, columns, most = self._shape(numel)
        # Each column takes the same, but for halves of bytes, which are less than a column.
        rank = 2 * num_bytes // (16 + rows + columns)
        is_free = self._energy < 1.0 and 1 <= rank <= most
        is_one = (rank == most or is_free) and num_bytes == _size(rows, columns, rank)
        return rank if is_one else None

    def _shape(self, numel: int) -> tuple[int, int, int]:
        columns = 1 << (max(numel, 1).bit_length() - 1) // 2
        rows = -(-numel // columns)
        return rows, columns, min(self._rank, rows, columns)


def _size(rows: int, columns: int, rank: int) -> int:
    return 8 * rank + packed_bytes(rank * rows, _BITS) + packed_bytes(rank * columns, _BITS)


def _leading(q_CK: Matrix, energy: float) -> Matrix:
    """What turns P into as few orthonormal columns as keep that share of what all of them keep."""
    # The energy that a direction within P keeps is a form of this matrix; ascending.
    kept_K, turn_KK = np.linalg.eigh(q_CK.T.astype(np.float64) @ q_CK)
    share_K = np.cumsum(kept_K[::-1].clip(min=0.0))
    rank = 1 + int(np.searchsorted(share_K, energy * share_K[-1]))
    leading: Matrix = turn_KK[:, ::-1][:, : min(rank, len(kept_K))].astype(np.float32)
    return leading


def _add_products(x_RC: Matrix, p_KR: Matrix, q_KC: Matrix) -> None:
    """Add P Q^T to `x_RC`, one column of the factors after the other."""
    term_RC = np.empty_like(x_RC)
    for p_R, q_C in zip(p_KR, q_KC, strict=True):
        np.multiply(p_R[:, None], q_C, out=term_RC)
        x_RC += term_RC


CODECS.register("lowrank", LowRankCodec)
