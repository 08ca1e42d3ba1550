"""Who asked us something is pinged, whatever others do who ask at the same time."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from dht.kademlia.kademlia import Kademlia
from dht.kademlia.messages import Ping
from dht.kademlia.routing import Contact
from dht.kademlia.searching import Pinger
from protocol import limits
from protocol.identity import KeyedHashSigner, PeerId
from tests.dht.network import WALL_S, contact, peer_id

DIAL_S = 8.0
"""That packets to nobody take until the dial is given up."""


class Edge:
    """A node whose pings are answered by connected peers, and swallowed by all others."""

    def __init__(self) -> None:
        self.connected: set[PeerId] = set()
        self.pinged: dict[PeerId, float] = {}
        self.kademlia = Kademlia(
            KeyedHashSigner(peer_id(0)), tuple, random.Random(1), connected=lambda: self.connected
        )
        self.pinger = Pinger(self.kademlia, self.ping, num_at_once=8)

    async def ping(self, one: Contact) -> None:
        self.pinged[one.peer] = trio.current_time()
        if one.peer in self.connected:
            self.kademlia.answered(one.peer, one.addresses, trio.current_time())
            return
        with trio.move_on_after(DIAL_S):
            await trio.Event().wait()
        self.kademlia.failed(one.peer, trio.current_time())

    def asked_by(self, number: int) -> None:
        now_s = trio.current_time()
        request = Ping(contact(number).addresses)
        self.kademlia.handle_request(peer_id(number), request, now_s, WALL_S)
        self.pinger.wake()


@asynccontextmanager
async def pinging() -> AsyncIterator[Edge]:
    edge = Edge()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(edge.pinger.run)
        yield edge
        nursery.cancel_scope.cancel()


async def test_newcomer_is_pinged_soon_while_others_state_addresses_of_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pinging() as edge:
        for number in range(1000, 1000 + 8 * 60):
            edge.asked_by(number)
            await trio.sleep(1 / 8)
        edge.connected.add(peer_id(5))
        asked_s = trio.current_time()
        for number in range(2000, 2000 + limits.DHT_PINGS_MAX):
            edge.asked_by(number)
        edge.asked_by(5)
        for number in range(3000, 3000 + limits.DHT_PINGS_MAX):
            edge.asked_by(number)
        await trio.sleep(DIAL_S)
        # As soon as any dial is over.
        assert edge.pinged[peer_id(5)] - asked_s <= DIAL_S
        assert edge.kademlia.table.contacts() == (contact(5),)


async def test_pings_that_fail_slowly_do_not_wait_for_each_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pinging() as edge:
        for number in range(100, 107):
            edge.asked_by(number)
        await trio.sleep(1.0)
        edge.asked_by(107)
        await trio.sleep(DIAL_S - 0.5)
        # The first seven have failed; the eighth is still being dialled.
        edge.asked_by(108)
        await trio.sleep(0.1)
        assert peer_id(108) in edge.pinged


async def test_connected_asker_is_never_dropped_for_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    edge = Edge()
    edge.connected = {peer_id(number) for number in range(limits.DHT_PINGS_MAX)}
    for number in range(1, 3 * limits.DHT_PINGS_MAX):
        edge.asked_by(number)
    taken = [one.peer for one in edge.kademlia.take_pings()]
    assert len(taken) == limits.DHT_PINGS_MAX
    assert set(taken) >= edge.connected - {peer_id(0)}
    assert taken[-1] == peer_id(3 * limits.DHT_PINGS_MAX - 1)
