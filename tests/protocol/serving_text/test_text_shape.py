"""Blocks under a root, and what is said of those that are held."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.entry_kinds import HoldsText, decode_runs, encode_runs
from protocol.errors import DecodeError, ProofError
from protocol.grid import MerkleTree
from protocol.serving_text.text_shape import (
    DigestTree,
    TextShape,
    announced_mask,
    announcement,
    block_digest,
    mask_of,
    runs_of,
)
from protocol.wire import decode, encode

PAYLOADS = [bytes([n]) * 64 for n in range(11)]
TREE = MerkleTree([block_digest(payload) for payload in PAYLOADS])
SHAPE = TextShape(TREE.root or b"", len(PAYLOADS), 64)


def test_every_block_leads_to_the_root_and_none_does_in_another_place():
    for number, payload in enumerate(PAYLOADS):
        SHAPE.check(number, payload, TREE.proof(number))
        for wrong in (number - 1, (number + 1) % 11, 11):
            with pytest.raises(ProofError):
                SHAPE.check(wrong, payload, TREE.proof(number))


@pytest.mark.parametrize(
    "payload", [b"", PAYLOADS[4][:-1], PAYLOADS[4] + b"x", PAYLOADS[5], b"x" + PAYLOADS[4][1:]]
)
def test_other_bytes_are_no_block(payload):
    with pytest.raises(ProofError):
        SHAPE.check(4, payload, TREE.proof(4))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 11, 100])
def test_tree_of_digests_is_the_tree_of_the_grid(count):
    digests = [block_digest(bytes([n])) for n in range(count)]
    tree, other = DigestTree(b"".join(digests)), MerkleTree(digests)
    assert tree.root == other.root
    assert [tree.proof(n) for n in range(count)] == [other.proof(n) for n in range(count)]


def test_text_of_no_size_is_none():
    for blocks, size in ((0, 64), (limits.TEXT_BLOCKS_MAX + 1, 64), (1, 0), (1, limits.MIB + 1)):
        with pytest.raises(ValueError, match="no text"):
            TextShape(bytes(32), blocks, size)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_announcement_names_what_is_held(held):
    mask = np.array(held, np.bool_)
    said = announcement(mask, room=7)
    assert decode(HoldsText, encode(said)) == said
    found = announced_mask(said, len(held))
    assert found is not None
    assert (found == mask).all()
    assert decode_runs(encode_runs(runs_of(mask))) == runs_of(mask)


def test_announcement_of_too_many_runs_says_how_many_blocks_there_are():
    said = announcement(mask_of(range(0, 5000, 2), 5000), room=9, is_settled=False)
    assert (said.count, said.runs) == (2500, b"")
    assert announced_mask(said, 5000) is None
    whole = announcement(mask_of(range(5000), 5000), room=9)
    assert len(whole.runs) == 3
    short = HoldsText(room=0, count=5000, runs=b"", hot=(), is_settled=True)
    assert announced_mask(short, 5000) is not None


def test_blocks_behind_the_last_are_refused():
    said = announcement(mask_of(range(12), 12), room=0)
    for size in (11, 1):
        with pytest.raises(ProofError):
            announced_mask(said, size)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_runs_are_refused(data):
    try:
        runs = decode_runs(data)
    except ValueError:
        return
    assert encode_runs(runs) == data
    assert all(first < stop for first, stop in runs)
    assert all(one[1] < other[0] for one, other in pairwise(runs))


@pytest.mark.parametrize(
    "runs",
    [b"\x00\x00", b"\x01", b"\x80\x00\x01", b"\xff" * 1024, b"\x00\x01\x00\x01", b"\x00\x81"],
)
def test_runs_have_one_spelling(runs):
    with pytest.raises(ValueError, match="no runs"):
        decode_runs(runs)


def test_runs_that_do_not_add_up_are_no_announcement():
    said = announcement(mask_of(range(5), 12), room=0)
    data = encode(said)
    assert data.count(b"\x05") == 2
    with pytest.raises(DecodeError):
        decode(HoldsText, data.replace(b"\x05", b"\x06", 1))
