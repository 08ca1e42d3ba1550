"""A relay and its clients, in memory: who has no way to somebody gets one."""

import os
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from dht.reaching import relay_client, relay_server
from dht.reaching.addresses import (
    CIRCUIT_PROTOCOL,
    RELAY_FRAMES,
    RELAY_PROTOCOL,
    Granted,
    Incoming,
    Refused,
    Reserve,
    circuit_address,
)
from dht.reaching.relay_client import Places, accept_circuit, join_circuit
from dht.reaching.relay_server import RelayLimits, RelayServer, volunteer_limits
from protocol.errors import DecodeError, StreamClosedError, UnreachableError
from protocol.identity import PeerId
from tests.dht.loopback import MIB, silence
from tests.memory_transport import MemoryNetwork

NOBODY = PeerId(bytes(32))
SEEN = "/ip4/198.51.100.21/tcp/4001"


class MemoryRelay:
    """A relay in memory, with peers around it; nobody has to be a public one."""

    def __init__(self, network, relay, **limits):
        self.network = network
        self.transport = relay
        self.server = RelayServer(relay, RelayLimits(**limits), seen=lambda _peer: SEEN)

    @asynccontextmanager
    async def peer(self, handlers=None):
        async with self.network.open(signer_seed=os.urandom(32), handlers=handlers) as peer:
            await peer.connect(self.transport.peer_id, self.transport.addresses())
            yield peer

    async def reserve(self, peer):
        """A stream of `peer` that holds a place, and the first answer."""
        stream = await peer.open_stream(self.transport.peer_id, RELAY_PROTOCOL)
        return stream, await say(stream, Reserve())


@asynccontextmanager
async def memory_relay(**limits):
    network = MemoryNetwork()
    async with network.open(signer_seed=os.urandom(32)) as relay:
        yield MemoryRelay(network, relay, **limits)


async def say(stream, word):
    await stream.send_frame(RELAY_FRAMES.encode(word))
    return RELAY_FRAMES.decode(await stream.receive_frame(256))


async def agree(stream):
    """A target that echoes whoever is brought."""
    await accept_circuit(stream)
    while True:
        await stream.send_all(await stream.receive_exactly(1))


async def test_circuit_leads_to_whoever_has_a_place_in_memory(autojump_clock):
    async with (
        memory_relay() as relay,
        relay.peer() as near,
        relay.peer({CIRCUIT_PROTOCOL: agree}) as far,
    ):
        _, granted = await relay.reserve(far)
        assert granted == Granted(SEEN, RelayLimits().peer_day_bytes)
        circuit = await join_circuit(near, relay.transport.peer_id, far.peer_id)
        await circuit.send_all(b"hello")
        assert await circuit.receive_exactly(5) == b"hello"
        assert relay.server.books._num_circuits == 1
        await circuit.aclose()
        await trio.sleep(1)
        assert relay.server.books._num_circuits == 0


async def test_nobody_is_led_to_a_peer_without_a_place_or_a_silent_one(autojump_clock):
    async with (
        memory_relay() as relay,
        relay.peer() as near,
        relay.peer({CIRCUIT_PROTOCOL: silence}) as frozen,
    ):
        with pytest.raises(UnreachableError, match="it has no place here"):
            await join_circuit(near, relay.transport.peer_id, frozen.peer_id)
        stream, _ = await relay.reserve(frozen)
        with (
            trio.fail_after(relay_server.ASK_S + 1),
            pytest.raises(UnreachableError, match="answer"),
        ):
            await join_circuit(near, relay.transport.peer_id, frozen.peer_id)
        await trio.testing.wait_all_tasks_blocked()
        assert relay.server.books._num_circuits == 0
        await stream.aclose()


async def test_place_of_a_silent_peer_is_free_again(autojump_clock):
    async with memory_relay() as relay, relay.peer() as peer:
        stream, _ = await relay.reserve(peer)
        await trio.sleep(relay_server.SILENT_S - 1)
        assert isinstance(await say(stream, Reserve()), Granted)
        assert relay.server.books.has_place(peer.peer_id)
        await trio.sleep(relay_server.SILENT_S + 1)
        assert not relay.server.books.has_place(peer.peer_id)
        with pytest.raises(StreamClosedError):
            await stream.receive_exactly(1)


async def test_peer_that_is_back_takes_over_the_place_of_its_silent_stream(autojump_clock):
    async with memory_relay() as relay, relay.peer() as peer:
        old, _ = await relay.reserve(peer)
        new, granted = await relay.reserve(peer)
        assert isinstance(granted, Granted)
        with pytest.raises(StreamClosedError):
            await old.receive_exactly(1)
        assert relay.server.books.num_places == 1
        assert isinstance(await say(new, Reserve()), Granted)
        await new.aclose()
        await trio.sleep(1)
        assert relay.server.books.num_places == 0


async def test_circuit_ends_when_the_bytes_of_the_day_are_sent(autojump_clock):
    async with (
        memory_relay(peer_day_bytes=10) as relay,
        relay.peer() as near,
        relay.peer({CIRCUIT_PROTOCOL: agree}) as far,
    ):
        await relay.reserve(far)
        circuit = await join_circuit(near, relay.transport.peer_id, far.peer_id)
        await circuit.send_all(b"0123456789")
        assert await circuit.receive_exactly(10) == b"0123456789"
        await circuit.send_all(b"!")
        with pytest.raises(StreamClosedError):
            await circuit.receive_exactly(1)
        with pytest.raises(UnreachableError, match="today"):
            await join_circuit(near, relay.transport.peer_id, far.peer_id)


async def test_circuit_goes_at_the_rate_that_the_owner_sets(autojump_clock):
    async with (
        memory_relay(mbit=8.0) as relay,
        relay.peer() as near,
        relay.peer({CIRCUIT_PROTOCOL: agree_to_read}) as far,
    ):
        await relay.reserve(far)
        circuit = await join_circuit(near, relay.transport.peer_id, far.peer_id)
        began_s = trio.current_time()
        await circuit.send_all(bytes(3 * MIB))
        assert await circuit.receive_exactly(1) == b"."
        assert 1.9 < trio.current_time() - began_s < 2.6


async def agree_to_read(stream):
    await accept_circuit(stream)
    await stream.receive_exactly(3 * MIB)
    await stream.send_all(b".")


async def test_idle_circuit_ends(autojump_clock):
    async with (
        memory_relay() as relay,
        relay.peer() as near,
        relay.peer({CIRCUIT_PROTOCOL: agree}) as far,
    ):
        _, _ = await relay.reserve(far)
        circuit = await join_circuit(near, relay.transport.peer_id, far.peer_id)
        await trio.sleep(relay_server.IDLE_S + 1)
        assert relay.server.books._num_circuits == 0
        with pytest.raises(StreamClosedError):
            await circuit.receive_exactly(1)


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xff" * 200, RELAY_FRAMES.encode(Incoming(NOBODY)), RELAY_FRAMES.encode(Refused("no"))],
)
async def test_nonsense_ends_the_stream_and_takes_no_place(frame, autojump_clock):
    async with memory_relay() as relay, relay.peer() as peer:
        stream = await peer.open_stream(relay.transport.peer_id, RELAY_PROTOCOL)
        await stream.send_frame(frame)
        with pytest.raises(StreamClosedError):
            await stream.receive_exactly(1)
        assert relay.server.books.num_places == 0
        # It still serves.
        assert isinstance((await relay.reserve(peer))[1], Granted)


async def test_peer_that_opens_streams_without_end_gets_so_many(autojump_clock):
    async with memory_relay() as relay, relay.peer() as peer:
        for _ in range(relay_server.STREAMS_PER_PEER_MAX):
            await peer.open_stream(relay.transport.peer_id, RELAY_PROTOCOL)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StreamClosedError):
            await relay.reserve(peer)
        await trio.sleep(relay_server.ASK_S + 1)
        assert isinstance((await relay.reserve(peer))[1], Granted)


# The client --------------------------------------------------------------------------------------


def places_of(peer, relays):
    where = {relay.peer_id: relay.addresses()[0] for relay in relays}
    return Places(peer, listens=lambda one: where.get(one, ""), is_wanted=lambda: True)


async def test_relay_that_is_not_open_gives_no_place_and_leads_nowhere(autojump_clock):
    is_open = False
    network = MemoryNetwork()
    async with network.open(signer_seed=os.urandom(32)) as relay:
        made = MemoryRelay(network, relay)
        relay._handlers.clear()
        made.server = RelayServer(
            relay, volunteer_limits(1.0, 16.0), seen=lambda _peer: SEEN, is_open=lambda: is_open
        )
        async with made.peer({CIRCUIT_PROTOCOL: agree}) as far, made.peer() as near:
            _, refused = await made.reserve(far)
            assert isinstance(refused, Refused)
            assert "nobody has found it" in refused.reason
            is_open = True
            _, granted = await made.reserve(far)
            assert granted == Granted(SEEN, 2**28)  # A quarter of the day's GiB.
            is_open = False
            with pytest.raises(UnreachableError, match="nobody has found it"):
                await join_circuit(near, relay.peer_id, far.peer_id)


async def test_node_keeps_two_places_and_takes_another_when_a_relay_dies(autojump_clock):
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=bytes([1]) * 32) as first,
        network.open(signer_seed=bytes([2]) * 32) as second,
        network.open(signer_seed=bytes([3]) * 32) as third,
        network.open(signer_seed=bytes([4]) * 32) as peer,
        trio.open_nursery() as nursery,
    ):
        relays = {one.peer_id: one for one in (first, second, third)}
        for one in relays.values():
            RelayServer(one, RelayLimits(), seen=lambda _peer: SEEN)
            await peer.connect(one.peer_id, one.addresses())
        places = places_of(peer, relays.values())
        nursery.start_soon(places.run)
        await trio.sleep(1)
        held = [one for one in relays if places.holds(one)]
        assert len(held) == relay_client.PLACES_WANTED
        assert set(places.addresses()) == {
            circuit_address(one, relays[one].addresses()[0]) for one in held
        }
        assert places.seen() == (SEEN,)
        await peer.disconnect(held[0])
        del network.listeners[relays[held[0]].addresses()[0]]
        await trio.sleep(4 * relay_client.LOOK_S)
        (spare,) = relays.keys() - set(held)
        assert places.holds(spare)
        assert not places.holds(held[0])
        network.listeners[relays[held[0]].addresses()[0]] = relays[held[0]]
        nursery.cancel_scope.cancel()


async def test_relay_that_comes_back_elsewhere_is_told_there(autojump_clock):
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=os.urandom(32)) as relay,
        network.open(signer_seed=os.urandom(32)) as peer,
        trio.open_nursery() as nursery,
    ):
        RelayServer(relay, RelayLimits(), seen=lambda _peer: SEEN)
        (old,), new = relay.addresses(), "/memory/elsewhere"
        where = {relay.peer_id: old}
        places = Places(peer, listens=lambda one: where[one], is_wanted=lambda: True)
        nursery.start_soon(places.run)
        await peer.connect(relay.peer_id, (old,))
        await trio.sleep(1)
        assert places.addresses() == (circuit_address(relay.peer_id, old),)
        await peer.disconnect(relay.peer_id)
        network.listeners[new] = network.listeners.pop(old)
        where[relay.peer_id] = new
        await peer.connect(relay.peer_id, (new,))
        await trio.sleep(10)
        assert places.addresses() == (circuit_address(relay.peer_id, new),)
        network.listeners[old] = network.listeners.pop(new)
        nursery.cancel_scope.cancel()


async def test_peers_that_are_gone_make_room_for_a_relay(autojump_clock, monkeypatch):
    monkeypatch.setattr(relay_client, "_CANDIDATES_MAX", 4)
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:

        async def opened():
            return await stack.enter_async_context(network.open(signer_seed=os.urandom(32)))

        peer, *others = [await opened() for _ in range(7)]
        RelayServer(others[-1], RelayLimits(), seen=lambda _peer: SEEN)
        nursery = await stack.enter_async_context(trio.open_nursery())
        places = places_of(peer, others)
        nursery.start_soon(places.run)
        for other in others:
            await peer.connect(other.peer_id, other.addresses())
            await trio.sleep(1)
            if other is not others[-1]:
                await peer.disconnect(other.peer_id)
        await trio.sleep(60)
        assert places.holds(others[-1].peer_id)
        assert len(places._candidates) == 4
        nursery.cancel_scope.cancel()


async def test_peer_that_is_no_relay_is_asked_less_and_less(autojump_clock):
    asked = []

    async def refuse(stream):
        asked.append(trio.current_time())
        await stream.receive_frame(256)
        await stream.send_frame(RELAY_FRAMES.encode(Refused("no place is left")))

    network = MemoryNetwork()
    async with (
        network.open(signer_seed=os.urandom(32), handlers={RELAY_PROTOCOL: refuse}) as other,
        network.open(signer_seed=os.urandom(32)) as peer,
        trio.open_nursery() as nursery,
    ):
        await peer.connect(other.peer_id, other.addresses())
        places = places_of(peer, [other])
        nursery.start_soon(places.run)
        await trio.sleep(600)
        assert places.addresses() == ()
        assert len(asked) < 12
        nursery.cancel_scope.cancel()


async def test_one_relay_among_many_peers_that_are_none_is_found(autojump_clock):
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:

        async def opened():
            return await stack.enter_async_context(network.open(signer_seed=os.urandom(32)))

        peer, *others = [await opened() for _ in range(101)]
        for other in others:
            await peer.connect(other.peer_id, other.addresses())
        RelayServer(others[-1], RelayLimits(), seen=lambda _peer: SEEN)
        nursery = await stack.enter_async_context(trio.open_nursery())
        places = places_of(peer, others)
        nursery.start_soon(places.run)
        with trio.fail_after(60):
            while not places.holds(others[-1].peer_id):
                await places.change.wait()
        nursery.cancel_scope.cancel()


async def test_relay_that_stops_to_answer_is_no_address_any_more(autojump_clock):
    async def once(stream):
        await stream.receive_frame(256)
        await stream.send_frame(RELAY_FRAMES.encode(Granted("/dns/nowhere", 1)))
        await trio.sleep_forever()

    network = MemoryNetwork()
    async with (
        network.open(signer_seed=os.urandom(32), handlers={RELAY_PROTOCOL: once}) as other,
        network.open(signer_seed=os.urandom(32)) as peer,
        trio.open_nursery() as nursery,
    ):
        await peer.connect(other.peer_id, other.addresses())
        places = places_of(peer, [other])
        nursery.start_soon(places.run)
        await trio.sleep(1)
        assert len(places.addresses()) == 1
        await trio.sleep(relay_client.BEAT_S + relay_client.ANSWER_S - 0.5)
        assert places.addresses() == ()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [Reserve(), Granted("", 1), Incoming(NOBODY)])
async def test_relay_that_answers_something_else_is_no_circuit(answer, autojump_clock):
    async def odd(stream):
        await stream.receive_frame(256)
        await stream.send_frame(RELAY_FRAMES.encode(answer))

    network = MemoryNetwork()
    async with (
        network.open(signer_seed=os.urandom(32), handlers={RELAY_PROTOCOL: odd}) as other,
        network.open(signer_seed=os.urandom(32)) as peer,
    ):
        await peer.connect(other.peer_id, other.addresses())
        with pytest.raises(DecodeError):
            await join_circuit(peer, other.peer_id, NOBODY)
