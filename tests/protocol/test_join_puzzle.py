"""The join puzzle: bound to run and identity, dear to solve, cheap to check."""

import random

import pytest

from protocol import limits
from protocol.join_puzzle import is_solved, solve
from tests.node.builders import peers_named

RUN, OTHER_RUN = bytes(32), bytes([1]) * 32
ONE, OTHER = peers_named(2)
BITS = 10


def test_work_is_of_one_run_and_of_one_identity():
    work = solve(RUN, ONE, BITS)
    assert is_solved(RUN, ONE, BITS, work)
    assert not is_solved(OTHER_RUN, ONE, BITS, work)
    assert not is_solved(RUN, OTHER, BITS, work)


def test_work_is_equal_whenever_it_is_made():
    work = solve(RUN, ONE, BITS)
    solve.cache_clear()
    assert solve(RUN, ONE, BITS) == work


def test_no_piece_can_be_left_out_or_moved():
    work = solve(RUN, ONE, BITS)
    pieces = [work[start : start + 4] for start in range(0, len(work), 4)]
    assert len(pieces) == limits.PUZZLE_PIECES
    # Of an easier puzzle few pieces are good by chance.
    assert not is_solved(RUN, ONE, BITS + 6, work)
    assert not is_solved(RUN, ONE, BITS, b"".join(pieces[1:] + pieces[:1]))
    for wrong in (b"", work[:-4], work + bytes(4)):
        assert not is_solved(RUN, ONE, BITS, wrong)


def test_bytes_drawn_at_random_are_no_work(seed):
    luck = random.Random(seed)
    assert not any(
        is_solved(RUN, ONE, 12, luck.randbytes(limits.JOIN_WORK_BYTES)) for _ in range(200)
    )


def test_run_without_a_puzzle_costs_nothing():
    assert solve(RUN, ONE, 0) == b""
    assert is_solved(RUN, ONE, 0, b"")


@pytest.mark.parametrize("bits", [8, 11])
def test_pieces_take_as_many_hashes_as_the_bits_say(bits):
    peers = peers_named(24)
    nonces = [
        int.from_bytes(work[start : start + 4], "little")
        for work in (solve(RUN, peer, bits) for peer in peers)
        for start in range(0, len(work), 4)
    ]
    hashes = sum(nonces) + len(nonces)
    assert 0.7 < hashes / (len(peers) * 2**bits) < 1.4
