"""What a node fetches of the text and from whom, what it keeps, and what it says of it."""

import random
from collections.abc import Iterable
from typing import Any

import pytest

from protocol import limits
from protocol.entry_kinds import HoldsText
from protocol.identity import PeerId
from protocol.serving_text import block_events as ev
from protocol.serving_text import block_keeper as keeping
from protocol.serving_text.block_giving import HOT_GIVES, HOT_S
from protocol.serving_text.block_keeper import BlockKeeper, KeeperSettings
from protocol.serving_text.givers import PATIENCE_S, REST_S, WRONG_REST_S
from protocol.serving_text.placement import Placement, place_blocks
from protocol.serving_text.text_shape import MIRROR, TextShape, announcement, mask_of

SIZE = 24
SHAPE = TextShape(bytes(range(32)), SIZE, 1 << 20)
ME, A, B, C, FOUNDER = (PeerId(bytes([n]) * 32) for n in range(1, 6))
ALL = range(SIZE)


def says(blocks: Iterable[int], *, room: int = SIZE, hot: tuple[int, ...] = ()) -> HoldsText:
    return announcement(mask_of(blocks, SIZE), room=room, hot=hot)


def keeper(held: Iterable[int] = (), **changes: Any) -> BlockKeeper:
    settings: dict[str, Any] = {"quota_blocks": SIZE, "origin": FOUNDER} | changes
    return BlockKeeper(ME, SHAPE, KeeperSettings(**settings), held)


def of(kind, actions):
    return [action for action in actions if isinstance(action, kind)]


def asked(actions) -> dict[PeerId, tuple[int, ...]]:
    found: dict[PeerId, tuple[int, ...]] = {}
    for action in of(ev.AskForBlocks, actions):
        found[action.peer] = found.get(action.peer, ()) + action.blocks
    return found


class Scene:
    """A keeper and the time; ticks as its owner does."""

    def __init__(self, made: BlockKeeper) -> None:
        self.keeper = made
        self.now_s = 0.0
        self.done: list[ev.TextAction] = []

    def tell(self, *events: ev.TextEvent) -> list[ev.TextAction]:
        found = [action for event in events for action in self.keeper.handle(event, self.now_s)]
        self.done += found
        return found

    def wait(self, seconds: float) -> list[ev.TextAction]:
        found = []
        for _ in range(round(seconds / keeping.TICK_S)):
            self.now_s += keeping.TICK_S
            found += self.tell(ev.TextTick())
        return found

    def place(self, **rooms: int) -> Placement:
        placement = place_blocks(SHAPE.root, SIZE, {globals()[n]: r for n, r in rooms.items()})
        self.tell(ev.PlacementMade(placement))
        return placement


def test_own_lease_is_asked_for_first_then_the_next_then_what_is_placed_here():
    scene = Scene(keeper(has_mirrors=False))
    scene.tell(ev.MemberSeen(A, says(ALL)))
    began = asked(scene.tell(ev.LeaseTaken((9, 3), (7, 5))))
    order = list(began[A])
    while len(order) < 8:
        block = order[scene.keeper.num_held]
        scene.now_s += 0.1
        scene.place(ME=SIZE, A=SIZE)
        order += asked(scene.tell(ev.BlockCame(A, block))).get(A, ())
    assert set(order[:2]) <= {9, 3}
    assert set(order[2:4]) <= {7, 5}
    assert not {9, 3, 7, 5} & set(order[4:])


def test_founder_is_asked_where_no_member_holds_a_block_and_mirrors_where_nobody_does():
    scene = Scene(keeper(has_mirrors=True))
    scene.tell(ev.MemberSeen(A, says([1])), ev.MemberSeen(FOUNDER, says([1, 2], room=0)))
    assert asked(scene.tell(ev.LeaseTaken((1, 2, 3)))) == {A: (1,), FOUNDER: (2,), MIRROR: (3,)}


def test_nobody_is_asked_for_more_than_its_window_and_who_is_fast_gets_a_wider_one():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)))
    owed = list(asked(scene.tell(ev.LeaseTaken(tuple(ALL))))[A])
    assert len(owed) == 1
    most = 0
    while owed:
        scene.now_s += 0.05
        owed += asked(scene.tell(ev.BlockCame(A, owed.pop(0)))).get(A, ())
        most = max(most, len(owed))
    assert scene.keeper.num_held == SIZE
    assert most == 4


def test_slow_giver_owes_one_block_at_a_time_and_nothing_is_named_while_it_gives():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)))
    owed = list(asked(scene.tell(ev.LeaseTaken(tuple(range(8)))))[A])
    while owed:
        for _ in range(5):  # 7.5 s for each block.
            scene.tell(ev.BlockMoves(A, owed[0]))
            scene.wait(1.5)
        owed += asked(scene.tell(ev.BlockCame(A, owed.pop(0)))).get(A, ())
        assert len(owed) <= 1
    assert scene.keeper.num_held == 8
    assert not of(ev.BlockNamed, scene.done)


def test_giver_from_which_nothing_comes_is_given_up_and_another_is_asked_now():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)))
    assert asked(scene.tell(ev.LeaseTaken((4,)))) == {A: (4,)}
    scene.tell(ev.MemberSeen(B, says(ALL)))
    late = scene.wait(PATIENCE_S)
    assert of(ev.StopAsking, late) == [ev.StopAsking(A)]
    assert asked(late) == {B: (4,)}
    # It rests for a while, and is asked again.
    assert asked(scene.tell(ev.BlockCame(B, 4), ev.LeaseTaken((5,)))) == {B: (5,)}
    scene.now_s += REST_S
    scene.tell(ev.BlockCame(B, 5), ev.MemberGone(B))
    assert asked(scene.tell(ev.LeaseTaken((6,)))) == {A: (6,)}


def test_giver_rests_twice_as_long_each_time_until_it_gives_also_if_it_went_meanwhile():
    scene = Scene(keeper(origin=None))
    scene.tell(ev.MemberSeen(A, says(ALL)), ev.LeaseTaken((4,)))
    gaps = []
    for _ in range(4):
        scene.tell(ev.BlocksNotGiven(A, (4,), is_lacking=False))
        scene.tell(ev.MemberGone(A), ev.MemberSeen(A, says(ALL)))
        began_s = scene.now_s
        while not asked(scene.wait(keeping.TICK_S)):
            pass
        gaps.append(scene.now_s - began_s)
    assert gaps == [2.0, 4.0, 8.0, 16.0]
    scene.tell(ev.BlockCame(A, 4), ev.LeaseTaken((5,)), ev.BlocksNotGiven(A, (5,), False))
    assert asked(scene.wait(REST_S)) == {A: (5,)}


def test_what_a_peer_lacks_is_asked_of_another_at_once_and_the_rest_of_it_as_before():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)))
    scene.tell(ev.LeaseTaken((4,)))
    scene.tell(ev.MemberSeen(B, says(ALL)))
    assert asked(scene.tell(ev.BlocksNotGiven(A, (4,), is_lacking=True))) == {B: (4,)}
    scene.tell(ev.MemberGone(B))
    assert asked(scene.tell(ev.LeaseTaken((5,)))) == {A: (5,)}


def test_giver_of_a_wrong_block_is_set_back_and_its_block_is_not_held():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)), ev.LeaseTaken((4,)))
    scene.tell(ev.MemberSeen(B, says(ALL)))
    done = scene.tell(ev.BlockWrong(A, 4))
    assert [action.peer for action in of(ev.GiverSetBack, done)] == [A]
    assert asked(done) == {B: (4,)}
    assert not scene.keeper.held[4]
    scene.tell(ev.BlockCame(B, 4), ev.MemberGone(B), ev.LeaseTaken((5,)))
    assert not asked(scene.wait(WRONG_REST_S - 2.0))
    assert asked(scene.wait(3.0)) == {A: (5,)}
    # Twice as long the second time, whatever it gave in between.
    scene.tell(ev.BlockCame(A, 5), ev.LeaseTaken((6,)), ev.BlockWrong(A, 6))
    assert not asked(scene.wait(2 * WRONG_REST_S - 1.0))
    assert asked(scene.wait(2.0)) == {A: (6,)}


def test_wrong_word_of_who_was_not_asked_is_nobodys_fault():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)), ev.MemberSeen(B, says([])), ev.LeaseTaken((4,)))
    assert not of(ev.GiverSetBack, scene.tell(ev.BlockWrong(B, 4), ev.BlockWrong(C, 4)))
    scene.tell(ev.BlocksNotGiven(B, (4,), False), ev.BlockMoves(C, 4))
    assert not asked(scene.wait(1.0)), "A still owes it"


def test_block_that_nobody_gives_is_named_once_within_ten_seconds_and_asked_of_all_there_are():
    scene = Scene(keeper(has_mirrors=True))
    for peer in (A, B, C):
        scene.tell(ev.MemberSeen(peer, says(ALL)))
    scene.tell(ev.MemberSeen(FOUNDER, says(ALL, room=0)), ev.LeaseTaken((4,), (5,)))
    done = scene.wait(10.0)
    named = of(ev.BlockNamed, done)
    assert [(action.block, action.sought_s <= 10.0) for action in named] == [(4, True)]
    assert {FOUNDER, MIRROR} <= {action.peer for action in of(ev.AskForBlocks, done)}
    assert scene.keeper.named == {4}
    assert not of(ev.BlockNamed, scene.wait(20.0))
    assert of(ev.BlockArrived, scene.tell(ev.BlockCame(MIRROR, 4))) == [ev.BlockArrived(4)]
    assert not scene.keeper.named


def test_block_for_which_there_is_nobody_at_all_is_named_and_asked_of_who_comes():
    scene = Scene(keeper())
    scene.tell(ev.LeaseTaken((4,)))
    assert [action.block for action in of(ev.BlockNamed, scene.wait(10.0))] == [4]
    assert asked(scene.tell(ev.MemberSeen(B, says([4])))) == {B: (4,)}


def test_giver_that_moves_for_ever_delays_the_name_only_so_long():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)), ev.LeaseTaken((4,)))
    for _ in range(30):
        scene.tell(ev.BlockMoves(A, 4))
        scene.wait(1.0)
    assert [action.block for action in of(ev.BlockNamed, scene.done)] == [4]
    assert scene.now_s == keeping.NAMED_AT_LAST_S


def test_lease_given_back_or_used_is_sought_no_more():
    scene = Scene(keeper())
    scene.tell(ev.LeaseTaken((4, 5)))
    scene.wait(5.0)
    scene.tell(ev.LeaseTaken(()), ev.BlockUsed(5))
    assert not of(ev.BlockNamed, scene.wait(30.0))


def test_lease_that_is_here_arrives_at_once():
    scene = Scene(keeper(held=[4, 5]))
    done = scene.tell(ev.LeaseTaken((4, 6), (5,)))
    assert of(ev.BlockArrived, done) == [ev.BlockArrived(4), ev.BlockArrived(5)]


def test_members_that_come_and_go_are_placed_together_and_not_at_once():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)), ev.MemberSeen(B, says(ALL)))
    assert not of(ev.PlaceBlocks, scene.wait(keeping.START_S - 1.0))
    assert of(ev.PlaceBlocks, scene.wait(1.0)) == [ev.PlaceBlocks({A: SIZE, B: SIZE, ME: SIZE})]
    scene.tell(ev.MemberGone(A), ev.MemberSeen(C, says(ALL, room=5)))
    assert of(ev.PlaceBlocks, scene.wait(3.0)) == [ev.PlaceBlocks({B: SIZE, C: 5, ME: SIZE})]
    scene.tell(ev.MemberSeen(C, says([1], room=5)), ev.MemberGone(FOUNDER))
    assert not of(ev.PlaceBlocks, scene.wait(9.0)), "who has the same room changes nothing"


def test_copies_of_what_few_hold_come_first_and_wait_for_members_rather_than_the_founder():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)), ev.MemberSeen(B, says(set(ALL) - {6})))
    scene.tell(ev.MemberSeen(FOUNDER, says(ALL, room=0)))
    scene.place(ME=SIZE)
    done = asked(scene.wait(1.0)) | asked(scene.done)
    assert set(done) <= {A, B}
    first = next(action for action in of(ev.AskForBlocks, scene.done) if action.peer == A)
    assert 6 in first.blocks


def test_what_a_leaver_kept_is_copied_by_the_next_in_order_from_who_is_left():
    rooms = dict.fromkeys((ME, A, B, C), SIZE)
    before = place_blocks(SHAPE.root, SIZE, rooms)
    mine = before.kept_by(ME).tolist()
    scene = Scene(keeper(held=mine, origin=None))
    for peer in (A, B, C):
        scene.tell(ev.MemberSeen(peer, says(before.kept_by(peer).tolist())))
    scene.tell(ev.PlacementMade(before))
    assert not asked(scene.wait(20.0))
    assert scene.keeper.is_settled
    scene.tell(ev.MemberGone(B))
    done = scene.wait(3.0)
    (place,) = of(ev.PlaceBlocks, done)
    done = scene.tell(ev.PlacementMade(place_blocks(SHAPE.root, SIZE, place.rooms)))
    while owed := asked(done):
        scene.now_s += 0.1
        done = [a for p, some in owed.items() for b in some for a in scene.tell(ev.BlockCame(p, b))]
    assert set(ALL) == set(scene.keeper.held.nonzero()[0].tolist()), "three members are left"


def test_more_than_the_quota_is_dropped_least_used_first_own_leases_last():
    scene = Scene(keeper(held=ALL, quota_blocks=SIZE))
    scene.place(ME=4, A=SIZE, B=SIZE, C=SIZE)
    placed = place_blocks(SHAPE.root, SIZE, {ME: 4, A: SIZE, B: SIZE, C: SIZE}).kept_by(ME).tolist()
    rest = [block for block in ALL if block not in placed]
    scene.tell(ev.LeaseTaken((rest[0],), (rest[1],)))
    scene.now_s = 1.0
    scene.tell(ev.BlocksWanted(A, (rest[2],)))
    order = []
    for quota in range(SIZE - 1, -1, -1):
        scene.keeper.settings = KeeperSettings(quota_blocks=quota)
        order += [action.block for action in of(ev.DropBlock, scene.tell(ev.TextTick()))]
    assert len(order) == SIZE
    assert order[-2:] == [rest[1], rest[0]]
    assert set(order[-2 - len(placed) : -2]) == set(placed)
    assert order[-3 - len(placed)] == rest[2], "used last"


def test_what_few_others_hold_is_dropped_behind_what_many_hold():
    scene = Scene(keeper(held=ALL))
    for peer in (A, B, C):
        scene.tell(ev.MemberSeen(peer, says(set(ALL) - {0, 7})))
    scene.keeper.settings = KeeperSettings(quota_blocks=2)
    assert {action.block for action in of(ev.DropBlock, scene.tell(ev.TextTick()))} == set(ALL) - {
        0,
        7,
    }


def test_copies_for_others_stop_at_the_quota_and_leases_have_their_part_of_it():
    scene = Scene(keeper(quota_blocks=6, lease_blocks=2, origin=None))
    scene.tell(ev.MemberSeen(A, says(ALL)))
    (said,) = [action.said for action in of(ev.AnnounceText, scene.done)]
    assert said.room == 4
    scene.place(ME=4, A=SIZE)
    scene.tell(ev.LeaseTaken((20, 21)))
    while owed := asked(scene.done):
        scene.done.clear()
        for peer, some in owed.items():
            for block in some:
                scene.now_s += 0.1
                scene.tell(ev.BlockCame(peer, block))
    assert scene.keeper.num_held <= 6
    assert scene.keeper.held[[20, 21]].all()


def test_text_that_a_peer_cannot_hold_is_its_fault():
    scene = Scene(keeper())
    said = announcement(mask_of(range(SIZE + 1), SIZE + 1), room=1)
    (fault,) = of(ev.GiverSetBack, scene.tell(ev.MemberSeen(A, said)))
    assert fault.peer == A
    assert not asked(scene.tell(ev.LeaseTaken((1,))))


def test_lost_block_is_not_given_and_is_copied_again():
    scene = Scene(keeper(held=[3], origin=None))
    scene.place(ME=SIZE)
    scene.tell(ev.MemberSeen(A, says([3])))
    assert asked(scene.tell(ev.BlockLost(3), ev.BlockLost(99))) == {A: (3,)}
    (give,) = of(ev.GiveBlocks, scene.tell(ev.BlocksWanted(A, (3,))))
    assert (give.blocks, give.lacking) == ((), (3,))


def test_who_asks_gets_what_is_here_and_is_told_what_is_not():
    scene = Scene(keeper(held=[3, 5]))
    (give,) = of(ev.GiveBlocks, scene.tell(ev.BlocksWanted(A, (3, 4, 5, 2**19))))
    assert give == ev.GiveBlocks(A, (3, 5), (4, 2**19), 0.0)


def test_who_asks_on_and_on_waits_for_its_share_and_is_told_of_and_nobody_else_waits():
    scene = Scene(keeper(held=ALL))
    waits, faults = [], []
    for _ in range(400):
        scene.now_s += 0.001
        done = scene.tell(ev.BlocksWanted(A, tuple(range(4))))
        waits.append(of(ev.GiveBlocks, done)[0].wait_s)
        faults += of(ev.GiverSetBack, done)
    assert waits[0] == 0.0
    assert waits[-1] > 10.0
    assert {fault.peer for fault in faults} == {A}
    (give,) = of(ev.GiveBlocks, scene.tell(ev.BlocksWanted(B, (1,))))
    assert give.wait_s == 0.0


def test_block_that_is_asked_for_much_is_hot_and_the_next_in_order_copies_it():
    rooms = dict.fromkeys((ME, A, B, C), SIZE)
    placement = place_blocks(SHAPE.root, SIZE, rooms)
    hot = next(block for block in ALL if placement.order_of(block)[3] == ME)
    teller = placement.members_of(hot)[0]
    scene = Scene(keeper(held=placement.kept_by(ME).tolist(), origin=None))
    scene.tell(ev.PlacementMade(placement))
    assert not asked(scene.tell(ev.MemberSeen(teller, says(ALL))))
    assert asked(scene.tell(ev.MemberSeen(teller, says(ALL, hot=(hot,))))) == {teller: (hot,)}
    # Nobody who does not keep a block says of it that it is hot.
    other = next(block for block in ALL if placement.order_of(block)[3] == teller)
    assert not asked(scene.tell(ev.MemberSeen(teller, says(ALL, hot=(other,)))))


def test_hot_blocks_are_counted_and_said():
    scene = Scene(keeper(held=ALL))
    scene.wait(1.0)
    for _ in range(HOT_GIVES):
        scene.tell(ev.BlocksWanted(A, (2, 9)))
    scene.tell(ev.BlocksWanted(B, (3,)))
    said = of(ev.AnnounceText, scene.wait(HOT_S + keeping.ANNOUNCE_EVERY_S))[-1].said
    assert said.hot == (2, 9)
    said = of(ev.AnnounceText, scene.wait(HOT_S + keeping.ANNOUNCE_EVERY_S))[-1].said
    assert said.hot == ()


def test_announcements_are_few_and_tell_at_once_that_all_is_here():
    scene = Scene(keeper(origin=None))
    scene.tell(ev.MemberSeen(A, says(ALL)))
    placement = scene.place(ME=SIZE, A=SIZE)
    owed = list(asked(scene.done)[A])
    while owed:
        scene.now_s += 0.25
        owed = [*owed[1:], *asked(scene.tell(ev.BlockCame(A, owed[0]))).get(A, ())]
    said = [action.said for action in of(ev.AnnounceText, scene.done)]
    assert len(said) == 2
    assert (said[-1].is_settled, said[-1].count) == (True, len(placement.kept_by(ME)))


def test_blocks_that_nobody_has_keep_nobody_from_copying_the_others():
    shape = TextShape(bytes(32), 1000, 1 << 16)
    made = BlockKeeper(ME, shape, KeeperSettings(quota_blocks=1000))
    made.handle(ev.MemberSeen(A, announcement(mask_of(range(990, 1000), 1000), room=5)), 0.0)
    placement = place_blocks(shape.root, 1000, {ME: 1000})
    done, now_s = made.handle(ev.PlacementMade(placement), 0.0), 0.0
    while owed := asked(done):
        done = []
        for peer, blocks in owed.items():
            for block in blocks:
                now_s += 0.1
                done += made.handle(ev.BlockCame(peer, block), now_s)
        for _ in range(10):
            now_s += keeping.TICK_S
            done += made.handle(ev.TextTick(), now_s)
    assert made.held.nonzero()[0].tolist() == list(range(990, 1000))


def test_named_block_is_not_asked_of_everybody_at_once():
    scene = Scene(keeper(has_mirrors=True))
    for n in range(20, 40):
        scene.tell(ev.MemberSeen(PeerId(bytes([n]) * 32), says(ALL)))
    scene.tell(ev.MemberSeen(FOUNDER, says(ALL, room=0)), ev.LeaseTaken((4,)))
    for _ in range(60):
        scene.wait(keeping.TICK_S)
        assert len(scene.keeper._givers.asked.get(4, ())) <= keeping.ASKED_AT_ONCE_MAX
    assert scene.keeper.named == {4}
    at = next(n for n, action in enumerate(scene.done) if isinstance(action, ev.BlockNamed))
    assert next(iter(asked(scene.done[at:]))) == FOUNDER, "the members had their time"


def test_giver_that_lacks_what_it_said_keeps_nobody_from_copying_the_others():
    shape = TextShape(bytes(32), 400, 1 << 16)
    made = BlockKeeper(ME, shape, KeeperSettings(quota_blocks=400))
    made.handle(ev.MemberSeen(A, announcement(mask_of(range(400), 400), room=5)), 0.0)
    made.handle(ev.MemberSeen(B, announcement(mask_of(range(390, 400), 400), room=5)), 0.0)
    done = made.handle(ev.PlacementMade(place_blocks(shape.root, 400, {ME: 400})), 0.0)
    for step in range(100):
        owed, done = asked(done), []
        for peer, blocks in owed.items():
            if peer == A:
                done += made.handle(ev.BlocksNotGiven(A, blocks, is_lacking=True), step / 10)
            else:
                done += [a for b in blocks for a in made.handle(ev.BlockCame(B, b), step / 10)]
        done += made.handle(ev.TextTick(), step / 10)
    assert made.held.nonzero()[0].tolist() == list(range(390, 400))


def test_giver_that_becomes_slow_is_asked_for_less_at_a_time():
    scene = Scene(keeper())
    scene.tell(ev.MemberSeen(A, says(ALL)))
    owed = list(asked(scene.tell(ev.LeaseTaken(tuple(ALL))))[A])
    counts = []
    while owed:
        is_fast = scene.keeper.num_held < 8
        for _ in range(1 if is_fast else 5):
            scene.tell(ev.BlockMoves(A, owed[0]))
            scene.wait(0.5 if is_fast else 1.5)
        owed += asked(scene.tell(ev.BlockCame(A, owed.pop(0)))).get(A, ())
        counts.append(len(owed))
    assert max(counts[:8]) >= 3
    assert max(counts[14:]) == 1


@pytest.mark.parametrize("has_mirrors", [False, True])
def test_members_beyond_the_bound_are_left_out_and_all_can_be_placed(has_mirrors):
    scene = Scene(keeper(has_mirrors=has_mirrors))
    for n in range(400):
        scene.tell(ev.MemberSeen(PeerId(n.to_bytes(4, "big") * 8), says([1])))
    (place,) = of(ev.PlaceBlocks, scene.wait(keeping.START_S))
    assert len(place.rooms) == limits.TEXT_MEMBERS_MAX - has_mirrors
    place_blocks(SHAPE.root, SIZE, place.rooms)


def test_what_is_under_way_is_bounded_however_many_give():
    shape = TextShape(bytes(32), 4000, 1 << 16)
    made = BlockKeeper(ME, shape, KeeperSettings(quota_blocks=4000))
    everything = announcement(mask_of(range(4000), 4000), room=10)
    owed = []
    for n in range(100):
        peer = PeerId(bytes([n, 9]) * 16)
        owed += of(ev.AskForBlocks, made.handle(ev.MemberSeen(peer, everything), 0.0))
    owed += of(ev.AskForBlocks, made.handle(ev.LeaseTaken(tuple(range(4000))), 0.0))
    assert sum(len(ask.blocks) for ask in owed) == 256
    assert max(len(ask.blocks) for ask in owed) <= shape.asked_together


@pytest.mark.parametrize("case", range(4))
def test_no_order_of_events_breaks_the_keeper_or_its_bounds(seed, case):
    rng = random.Random(f"{seed} {case}")
    made = keeper(quota_blocks=10, lease_blocks=3, has_mirrors=True)
    peers = [A, B, C, FOUNDER, MIRROR, ME]
    now_s = 0.0
    for _ in range(600):
        now_s += rng.random()
        peer, blocks = rng.choice(peers), tuple(rng.sample(range(-2, SIZE + 3), 3))
        shown = [block for block in blocks if 0 <= block < SIZE]
        events: list[ev.TextEvent] = [
            ev.LeaseTaken(blocks, blocks[1:]),
            ev.BlockUsed(blocks[0]),
            ev.MemberSeen(peer, says(shown, hot=tuple(sorted(shown)))),
            ev.MemberSeen(peer, None),
            ev.MemberGone(peer),
            ev.PlacementMade(place_blocks(SHAPE.root, SIZE, {ME: 7, A: rng.randrange(9)})),
            ev.BlockMoves(peer, blocks[0]),
            ev.BlockCame(peer, blocks[0]),
            ev.BlocksNotGiven(peer, blocks, rng.random() < 0.5),
            ev.BlockWrong(peer, blocks[0]),
            ev.BlockLost(blocks[0]),
            ev.BlocksWanted(peer, tuple(sorted(max(0, block) for block in blocks))),
            ev.TextTick(),
        ]
        made.handle(rng.choice(events), now_s)
        assert made.num_held == made.held.sum() <= 10
        givers = made._givers
        owed = {(b, p) for b, some in givers.asked.items() for p in some}
        assert owed == {(b, g.peer) for g in givers.peers.values() for b in g.asked}
        assert len(made.named) <= SIZE
