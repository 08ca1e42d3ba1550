"""The join puzzle: work that makes a flood of fresh identities dear, bound to run and peer.

It is cheap on purpose: it bounds how many identities one machine makes in an hour, and is no
protection against whoever has many machines. Weight is earned otherwise
(`protocol.rounds.seating`).
"""

from functools import lru_cache

from blake3 import blake3

from protocol import limits
from protocol.identity import PeerId

_DOMAIN = b"barnraise/join/1"
_NONCE_BYTES = limits.JOIN_WORK_BYTES // limits.PUZZLE_PIECES


@lru_cache(maxsize=4)
def solve(run: bytes, peer: PeerId, bits: int) -> bytes:
    """The work for `peer` in `run`: some 2^bits hashes, 0.6 microseconds each; empty for 0 bits.

    Sixteen small puzzles instead of a large one, so that the time it takes varies by a quarter and
    not by its own length. Equal arguments give equal bytes.
    """
    if not bits:
        return b""
    key, shift = _key(run, peer), 32 - _piece_bits(bits)
    found = bytearray()
    for piece in range(limits.PUZZLE_PIECES):
        mark, nonce = bytes([piece]), 0
        while True:
            said = nonce.to_bytes(_NONCE_BYTES, "little")
            answer = blake3(mark + said, key=key).digest(length=4)
            if not int.from_bytes(answer, "little") >> shift:
                break
            nonce += 1
        found += said
    return bytes(found)


def is_solved(run: bytes, peer: PeerId, bits: int, work: bytes) -> bool:
    """Whether `work` is that of `peer` in `run`: sixteen hashes. A run without a puzzle takes any.

    Nothing of it can be prepared for other runs, or handed to other identities.
    """
    if not bits:
        return True
    if len(work) != limits.JOIN_WORK_BYTES:
        return False
    key, shift = _key(run, peer), 32 - _piece_bits(bits)
    return all(
        not _answer(key, piece, work[piece * _NONCE_BYTES : (piece + 1) * _NONCE_BYTES]) >> shift
        for piece in range(limits.PUZZLE_PIECES)
    )


def _key(run: bytes, peer: PeerId) -> bytes:
    return blake3(_DOMAIN + run + peer).digest()


def _answer(key: bytes, piece: int, said: bytes) -> int:
    return int.from_bytes(blake3(bytes([piece]) + said, key=key).digest(length=4), "little")


def _piece_bits(bits: int) -> int:
    return bits - limits.PUZZLE_PIECES.bit_length() + 1
