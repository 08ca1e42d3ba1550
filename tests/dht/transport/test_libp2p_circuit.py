"""Connections through a relay, over libp2p on loopback."""

import os
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from libp2p.exceptions import BaseLibp2pError
from multiaddr import Multiaddr

from dht.reaching.addresses import (
    CIRCUIT_PROTOCOL,
    RELAY_FRAMES,
    RELAY_PROTOCOL,
    Incoming,
    Joined,
    circuit_address,
)
from dht.reaching.relay_client import join_circuit
from dht.reaching.relay_server import RelayLimits, RelayServer
from dht.transport.libp2p_dialing import CircuitConnection
from protocol.errors import StreamClosedError, UnreachableError
from protocol.identity import PeerId
from tests.dht.loopback import DEADLINE_S, ECHO, MIB, ask, echo, open_loopback, until

NOBODY = PeerId(bytes(32))


class Lab:
    """A relay on loopback, and peers that treat it as a public one."""

    def __init__(self, relay, **limits):
        self.relay = relay
        self.server = RelayServer(relay, RelayLimits(**limits), seen=relay.seen)

    @asynccontextmanager
    async def home(self, handlers=None, **config):
        """A peer that has a place at the relay."""
        async with open_loopback(handlers, **config) as peer, trio.open_nursery() as nursery:
            await peer.connect(self.relay.peer_id, self.relay.addresses())
            # Loopback is nowhere public.
            peer.reach.places._listens = lambda one: (
                self.relay.addresses()[0] if one == self.relay.peer_id else ""
            )
            nursery.start_soon(peer.reach.places.run)
            await until(lambda: peer.reach.places.holds(self.relay.peer_id))
            yield peer
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def lab(*, limits=None, **config):
    with trio.fail_after(DEADLINE_S):
        async with open_loopback(**config) as relay:
            yield Lab(relay, **(limits or {}))


def relayed(peer):
    """Its addresses through relays alone."""
    return peer.reach.places.addresses()


@pytest.mark.net
async def test_peers_that_know_only_a_relay_speak_with_each_other_over_one_circuit():
    bulk = frozenset({ECHO})
    async with (
        lab() as made,
        made.home({ECHO: echo}) as far,
        open_loopback(bulk_protocols=bulk) as near,
    ):
        (address,) = relayed(far)
        assert address in far.addresses()
        await near.connect(far.peer_id, (address,))
        stream = await near.open_stream(far.peer_id, ECHO)
        frame = os.urandom(3 * MIB)
        assert await ask(stream, frame) == frame
        assert far.connected() == tuple(sorted((made.relay.peer_id, near.peer_id)))
        assert made.server.books._num_circuits == 1
        await near.disconnect(far.peer_id)
        await until(lambda: not made.server.books._num_circuits)
        await until(lambda: near.peer_id not in far.connected())


@pytest.mark.net
async def test_bytes_through_a_relay_are_counted_once_and_for_the_peer_behind_it():
    async with lab() as made, made.home({ECHO: echo}) as far, open_loopback() as near:
        await near.connect(far.peer_id, relayed(far))
        before = near.traffic()
        with_relay = near.traffic_with(made.relay.peer_id)
        frame = os.urandom(MIB)
        await ask(await near.open_stream(far.peer_id, ECHO), frame)
        moved = len(frame) + 4
        assert near.traffic_with(far.peer_id) == (moved, moved)
        assert near.traffic() == (before[0] + moved, before[1] + moved)
        assert near.traffic_with(made.relay.peer_id) == with_relay


@pytest.mark.net
async def test_relay_cannot_put_itself_in_the_place_of_the_target():
    """The handshake goes through to the end: whoever answers has to be the target."""
    async with lab() as made, open_loopback() as near, made.home() as far:

        async def impostor(stream):
            await stream.receive_frame(256)
            await stream.send_frame(RELAY_FRAMES.encode(Joined()))
            # It answers like a peer, as itself.
            await upgrade(made.relay, stream)

        made.relay._inbound._handlers[RELAY_PROTOCOL] = impostor
        address = circuit_address(made.relay.peer_id, made.relay.addresses()[0])
        with pytest.raises(UnreachableError):
            await near.connect(far.peer_id, (address,))
        assert far.peer_id not in near.connected()


async def upgrade(transport, stream):
    raw = CircuitConnection(stream, is_initiator=False)
    with suppress(BaseLibp2pError):
        await transport.host.get_network().upgrade_inbound_raw_conn(raw, Multiaddr("/p2p-circuit"))
        await trio.sleep_forever()


@pytest.mark.net
async def test_circuit_from_a_peer_that_is_no_relay_of_ours_is_refused():
    async with lab(), open_loopback() as peer, open_loopback() as stranger:
        await stranger.connect(peer.peer_id, peer.addresses())
        stream = await stranger.open_stream(peer.peer_id, CIRCUIT_PROTOCOL)
        await stream.send_frame(RELAY_FRAMES.encode(Incoming(NOBODY)))
        with pytest.raises(StreamClosedError):
            await stream.receive_exactly(1)


@pytest.mark.net
@pytest.mark.parametrize("garbage", [b"\xff" * 4096, b""])
async def test_garbage_over_a_circuit_harms_nobody(garbage):
    async with lab() as made, made.home({ECHO: echo}) as far, open_loopback() as near:
        await near.connect(made.relay.peer_id, made.relay.addresses())
        circuit = await join_circuit(near, made.relay.peer_id, far.peer_id)
        await circuit.send_all(garbage)
        await circuit.aclose()
        await until(lambda: not made.server.books._num_circuits)
        await near.connect(far.peer_id, relayed(far))
        assert await ask(await near.open_stream(far.peer_id, ECHO), b"still") == b"still"


@pytest.mark.net
async def test_death_of_the_relay_is_known_at_once_at_both_ends():
    async with lab() as made, made.home() as far, open_loopback() as near:
        await near.connect(far.peer_id, relayed(far))
        for link in made.relay._links.everything():
            link.lose("unplugged")
        await until(lambda: not near.connected() and not far.connected())
        await until(lambda: not relayed(far))
