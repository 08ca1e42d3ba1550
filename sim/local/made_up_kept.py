"""What a made-up trainer keeps of a round on its disk.

N elements of the fragment
"""

from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTransaction:
    """The transaction of one round, as it lies on the disk. Roots and payload follow from it.

    `before` are the residuals of all fragments, `after_N` that of its own behind the round.
    `pending` are the rounds before it that had no outcome yet, with theirs. `begun_N` is what the
    round began from, where that is not the newest anchor. `basis` is the RunClock's.
    """

    round: int
    anchor: bytes
    before: tuple[Vector | None, ...]
    after_N: Vector | None
    pending: tuple[tuple[int, Vector | None], ...] = ()
    begun_N: Vector | None = None
    basis: bytes = b""


def anchor_digest(anchor_N: Vector) -> bytes:
    """Names the anchor that a contribution is against."""
    return blake3(anchor_N.astype("<f4", copy=False).tobytes()).digest()


def packed(kept: KeptTransaction) -> bytes:
    """As it lies in its file."""
    rounds, afters = [index for index, _ in kept.pending], [after_N for _, after_N in kept.pending]
    vectors = [
        None if x_N is None else x_N.astype("<f4", copy=False).tobytes()
        for x_N in (*afters, *kept.before, kept.after_N, kept.begun_N)
    ]
    body: bytes = msgpack.packb([kept.round, kept.anchor, kept.basis, rounds, *vectors])
    return body


def kept_at(path: Path) -> KeptTransaction | None:
    """What was kept, whole as `replace_durably` leaves it; None if nothing was."""
    try:
        round_index, anchor, basis, rounds, *vectors = msgpack.unpackb(
            path.read_bytes(), max_bin_len=2**31 - 1
        )
    except FileNotFoundError:
        return None
    *before, after_N, begun_N = (
        None if data is None else np.frombuffer(data, "<f4").astype(np.float32) for data in vectors
    )
    afters, before = before[: len(rounds)], before[len(rounds) :]
    return KeptTransaction(
        round=round_index,
        anchor=anchor,
        before=tuple(before),
        after_N=after_N,
        pending=tuple(zip(rounds, afters, strict=True)),
        begun_N=begun_N,
        basis=basis,
    )
