"""Whom of one's own network a node meets, and when it says anything there."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dht.reaching.lan import LanPeer, run_tag
from node.peers.neighbours import Neighbourhood, Neighbours, says_so
from node.state.config import NodeConfig, PeerAddress
from protocol.identity import Ed25519Signer
from tests.dht.nodes import open_node
from tests.memory_transport import MemoryNetwork

RUN, OTHER = b"r" * 32, b"o" * 32


def test_node_says_so_unless_its_owner_or_its_network_forbids(tmp_path: Path) -> None:
    config = NodeConfig(state=tmp_path, manifest=Path())
    assert says_so(config)
    assert not says_so(replace(config, has_mdns=False))
    assert not says_so(replace(config, psk=tmp_path / "swarm.key"))
    assert not says_so(replace(config, listen="/ip4/127.0.0.1/tcp/0"))
    assert not says_so(replace(config, listen="/ip6/::1/tcp/0"))


@pytest.mark.parametrize(
    ("tag", "is_known", "is_met"),
    [(run_tag(RUN), True, True), ("", False, True), (run_tag(OTHER), False, False)],
    ids=["same-run", "bootstrap", "another-run"],
)
async def test_neighbour_is_a_peer_of_its_run_or_a_way_in_or_nobody(
    autojump_clock: trio.abc.Clock, tag: str, is_known: bool, is_met: bool
) -> None:
    network, known = MemoryNetwork(), list[PeerAddress]()
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(open_node(network, 1))
        here = await stack.enter_async_context(open_node(network, 2))
        around = Neighbourhood(
            me=here.transport.peer_id, run=RUN, addresses=tuple, know=known.append
        )
        neighbours = Neighbours(around, here.directory)
        address = there.transport.addresses()[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbours.run)
            neighbours._note(LanPeer(there.transport.peer_id, (address,), tag))
            assert await neighbours.met(5.0) is is_met
            nursery.cancel_scope.cancel()
        assert here.knows(there) is is_met
        wanted = [PeerAddress(there.transport.peer_id, address)] if is_known else []
        assert known == wanted


async def test_neighbours_without_end_are_dropped_and_not_waited_for(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with open_node(MemoryNetwork(), 2) as here:
        around = Neighbourhood(me=here.transport.peer_id, run=RUN, addresses=tuple)
        neighbours = Neighbours(around, here.directory)
        for number in range(500):
            peer = Ed25519Signer(number.to_bytes(32, "big")).peer_id
            neighbours._note(LanPeer(peer, ("/memory/none",), run_tag(RUN)))
        assert neighbours._found.statistics().current_buffer_used == 64
