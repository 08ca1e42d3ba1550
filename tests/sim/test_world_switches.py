"""Wrong nodes and wrong bytes: the checks of a world can fail, and of a swarm they do."""

import pytest

from node import events as ev
from node.bulk import can_check
from node.shard_store import Item
from protocol.frames import Bulk
from protocol.identity import PeerId
from sim.world import SimNode
from tests.node.builders import peers_named
from tests.sim.worlds import WatchedWorld, world_of


class OwnUpdate(WatchedWorld):
    """Some nodes take their outer step on their own update instead of the aggregate."""

    liars: frozenset[PeerId] = frozenset()

    def _compute(self, node: SimNode, action: ev.CoreAction) -> None:
        view = node.core.machine.view
        if node.peer in self.liars and isinstance(action, ev.Apply) and view.index >= 6:
            mine = view.ballots.commits.get(node.peer)
            if mine is not None:
                items = node.store.parts(mine[1].root, range(node.store.num_cells))
                node.store._results[action.list_digest] = {i.index: i.payload for i in items}
        super()._compute(node, action)


def test_node_that_applies_its_own_update_seals_alone_and_has_to_resync(seed):
    world = world_of(5, seed=seed, rounds=10, kind=OwnUpdate)
    assert isinstance(world, OwnUpdate)
    liar = peers_named(5)[2]
    world.liars = frozenset({liar})
    resyncs: list[PeerId] = []
    world.triggers.append(
        lambda _, node, action: resyncs.append(node.peer) if isinstance(action, ev.Resync) else None
    )
    world.until_round_of_most(10)
    assert set(resyncs) == {liar}


def test_swarm_in_which_everybody_applies_its_own_update_seals_nothing(seed):
    world = world_of(5, seed=seed, rounds=10, kind=OwnUpdate)
    assert isinstance(world, OwnUpdate)
    world.liars = frozenset(peers_named(5))
    with pytest.raises(TimeoutError):
        world.until_round(6, max_s=120.0)
    assert all(node.core.machine.head.round == 5 for node in world.living())


class FlippedByte(WatchedWorld):
    """One byte of one part is wrong on its way, once."""

    flipped: int = 0

    def _bulk_arrived(self, node, source, header, items, tries):
        is_due = header.bulk is Bulk.PART and node.core.machine.view.index == 6
        if is_due and not self.flipped and can_check(node.core, header, items[0].index):
            self.flipped = 1
            first = items[0]
            payload = bytes([first.payload[0] ^ 1]) + first.payload[1:]
            items = [Item(first.index, payload, first.proof), *items[1:]]
        super()._bulk_arrived(node, source, header, items, tries)


def test_part_with_a_flipped_byte_is_refused_and_pulled_again_and_the_round_is_exact(seed):
    world = world_of(5, seed=seed, rounds=8, kind=FlippedByte)
    assert isinstance(world, FlippedByte)
    world.until_round(8)
    assert world.flipped
    assert ["root" in reason for _, reason in world.faults] == [True]
    # Everybody is listed: the part came again, and WatchedWorld has checked the sum.
    assert len(world.listed[6]) == 5
