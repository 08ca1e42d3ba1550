"""Who keeps which blocks: enough copies, by few moves, and the same for everybody."""

import time

import numpy as np
import pytest

from protocol import limits
from protocol.identity import PeerId
from protocol.serving_text.placement import NOBODY, place_blocks

ROOT = bytes(range(32))


def peers(count: int, first: int = 0) -> list[PeerId]:
    return [PeerId(n.to_bytes(32, "big")) for n in range(first + 1, first + count + 1)]


def wide(count: int) -> dict[PeerId, int]:
    return dict.fromkeys(peers(count), 10**6)


def copies_of(placement) -> list[int]:
    return sorted((placement.holders != NOBODY).sum(axis=1).tolist())


def test_block_is_kept_by_the_members_that_come_first_in_its_order():
    placement = place_blocks(ROOT, 500, wide(9))
    for block in range(500):
        assert placement.members_of(block) == placement.order_of(block)[:3]
    assert {block for peer in peers(9) for block in placement.kept_by(peer)} == set(range(500))


def test_every_member_comes_to_the_same_whatever_order_it_heard_of_them_in():
    rooms = {peer: 40 + 7 * n for n, peer in enumerate(peers(12))}
    backwards = dict(reversed(rooms.items()))
    one, other = (place_blocks(ROOT, 300, some) for some in (rooms, backwards))
    assert (one.holders == other.holders).all()


def test_leaver_changes_its_own_blocks_alone_and_the_next_in_order_copies():
    before, leaver = place_blocks(ROOT, 2000, wide(10)), peers(10)[3]
    after = place_blocks(ROOT, 2000, {p: r for p, r in wide(10).items() if p != leaver})
    for block in range(2000):
        order = [peer for peer in before.order_of(block) if peer != leaver]
        assert after.members_of(block) == tuple(order[:3])
    moved = sum(set(after.members_of(b)) != set(before.members_of(b)) for b in range(2000))
    assert moved == len(before.kept_by(leaver))


def test_nobody_keeps_more_than_its_room_and_all_room_is_used_before_a_copy_is_missing():
    rng = np.random.default_rng(5)
    for _ in range(60):
        num_blocks, count = int(rng.integers(1, 200)), int(rng.integers(1, 12))
        rooms = {peer: int(rng.integers(0, 2 * num_blocks)) for peer in peers(count)}
        placement = place_blocks(ROOT, num_blocks, rooms)
        for peer, room in rooms.items():
            assert len(placement.kept_by(peer)) <= room
        for row in placement.holders:
            kept = [at for at in row.tolist() if at != NOBODY]
            assert len(kept) == len(set(kept))
        total = sum(min(room, num_blocks) for room in rooms.values())
        copies = copies_of(placement)
        assert copies[0] >= min(1, total // num_blocks), "first copies come before second ones"
        # A member with room that lacks a block which has too few copies would have taken it.
        for block in np.flatnonzero((placement.holders == NOBODY).any(axis=1)).tolist():
            for peer in set(placement.members) - set(placement.members_of(block)):
                assert len(placement.kept_by(peer)) == min(rooms[peer], num_blocks)


def test_load_is_even_where_room_is():
    placement = place_blocks(ROOT, 20_000, wide(16))
    kept = [len(placement.kept_by(peer)) for peer in peers(16)]
    assert max(kept) < 1.1 * min(kept)


def test_fewer_members_than_copies_keep_all():
    placement = place_blocks(ROOT, 10, wide(2))
    assert copies_of(placement) == [2] * 10
    assert place_blocks(ROOT, 10, {}).members_of(3) == ()
    assert place_blocks(ROOT, 10, {peers(1)[0]: 0}).members_of(3) == ()


@pytest.mark.parametrize("room", [10**6, 4700, 2000])
def test_a_hundred_thousand_blocks_among_64_members_take_under_a_second(room):
    began_s = time.process_time()
    place_blocks(ROOT, 100_000, dict.fromkeys(peers(64), room))
    assert time.process_time() - began_s < 1.0


def test_more_than_there_may_be_is_refused():
    for count, members in ((0, 1), (limits.TEXT_BLOCKS_MAX + 1, 1), (1, 257)):
        with pytest.raises(ValueError, match="blocks among"):
            place_blocks(ROOT, count, wide(members))
