"""Wrong nodes and wrong bytes: the checks of a world can fail, and of a swarm they do."""

import pytest

from node.holdings.shard_store import Item
from node.holdings.states import ResultCells
from node.plane.bulk import part_root
from protocol import events as ev
from protocol.frames import Bulk
from protocol.identity import PeerId
from sim.checks.invariants import ALL
from sim.world.nodes import Transfer
from tests.node.builders import peers_named
from tests.sim.worlds import WatchedNode, WatchedWorld, world_of


class OwnNode(WatchedNode):
    """Some nodes take their outer step on their own update instead of the aggregate."""

    world: "OwnUpdate"

    def computed(self, action, view, entries) -> None:
        if self.peer in self.world.liars and isinstance(action, ev.Apply) and view.index >= 6:
            mine = view.ballots.commits.get(self.peer)
            if mine is not None:
                items = self.store.parts(mine[1].root, range(self.store.layout.num_cells(0)))
                self.store._results[action.list_digest] = ResultCells(i.payload for i in items)
        super().computed(action, view, entries)


class OwnUpdate(WatchedWorld):
    makes_node = OwnNode
    checked = ALL - {"I2", "I4"}
    """Both look at liars as well: at their states, and whether they could seal."""
    liars: frozenset[PeerId] = frozenset()


def test_node_that_applies_its_own_update_seals_alone_and_has_to_resync(seed):
    world = world_of(5, seed=seed, rounds=10, kind=OwnUpdate)
    assert isinstance(world, OwnUpdate)
    liar = peers_named(5)[2]
    world.liars = frozenset({liar})
    world.checks.records.bend(liar)
    resyncs: list[PeerId] = []
    world.triggers.append(
        lambda _, node, action: resyncs.append(node.peer) if isinstance(action, ev.Resync) else None
    )
    world.until_round_of_most(10)
    assert set(resyncs) == {liar}
    honest = [node for node in world.living() if node.peer != liar]
    for index in range(1, 10):
        assert len({node.anchors[index] for node in honest if index in node.anchors}) == 1


@pytest.mark.extended
def test_swarm_in_which_everybody_applies_its_own_update_seals_nothing(seed):
    world = world_of(5, seed=seed, rounds=10, kind=OwnUpdate)
    assert isinstance(world, OwnUpdate)
    world.liars = frozenset(peers_named(5))
    with pytest.raises(TimeoutError):
        world.until_round(6, max_s=120.0)
    assert all(node.core.machine.head.round == 5 for node in world.living())


class FlippingNode(WatchedNode):
    """One byte of one part is wrong on its way, once."""

    world: "FlippedByte"

    def cells_came(self, transfer: Transfer, num_here: int) -> None:
        header, world = transfer.header, self.world
        is_due = header.bulk is Bulk.PART and self.core.machine.view.index == 6
        root = part_root(self.core, header.subject, header.round)
        if is_due and not world.flipped and root is not None:
            world.flipped = 1
            first, *others = transfer.items
            payload = bytes([first.payload[0] ^ 1]) + first.payload[1:]
            transfer.items = [Item(first.index, payload, first.proof), *others]
        super().cells_came(transfer, num_here)


class FlippedByte(WatchedWorld):
    makes_node = FlippingNode
    checked = ALL - {"I6"}
    """Whoever sent the part is accused, though it was flipped on its way."""
    flipped: int = 0


def test_part_with_a_flipped_byte_is_refused_and_pulled_again_and_the_round_is_exact(seed):
    world = world_of(5, seed=seed, rounds=8, kind=FlippedByte)
    assert isinstance(world, FlippedByte)
    world.until_round(8)
    assert world.flipped
    assert ["root" in reason for _, reason in world.faults] == [True]
    # Everybody is listed: the part came again, and WatchedWorld has checked the sum.
    assert len(world.listed[6]) == 5
