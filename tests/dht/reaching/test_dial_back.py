"""Dial-back: who is dialled, what is believed of it, and both ends in memory."""

import os
from contextlib import asynccontextmanager

import pytest
import trio

from dht.reaching.dial_back import (
    DIAL_BACK_FRAMES,
    DIAL_BACK_PROTOCOL,
    FRAME_BYTES_MAX,
    KNOCK_S,
    ROUND_S,
    VOTE_S,
    VOTES_MAX,
    Answered,
    Check,
    Declined,
    DialBackClient,
    DialBackQuotas,
    DialBackServer,
    Silent,
    Votes,
    network_of,
    to_dial,
    told_addresses,
)
from protocol.errors import DecodeError, StreamClosedError
from tests.memory_transport import MemoryNetwork

HOST = "198.51.100.21"
SEEN = f"/ip4/{HOST}/tcp/50123"
HERE = f"/ip4/{HOST}/tcp/4001"
CHECKS = (Check(4001), Answered(HERE), Silent(HERE), Declined("too many of late"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: type(check).__name__)
def test_messages_come_back_as_said(check):
    assert DIAL_BACK_FRAMES.decode(DIAL_BACK_FRAMES.encode(check)) == check


def test_golden_bytes_of_the_messages():
    assert [DIAL_BACK_FRAMES.encode(one).hex() for one in CHECKS[:2]] == [
        "0191cd0fa1",
        "0291bb" + HERE.encode().hex(),
    ]


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\x05\x90", b"\x01\x91\x00", b"\x02\x91\xa0"])
def test_other_bytes_are_no_messages(frame):
    with pytest.raises(DecodeError):
        DIAL_BACK_FRAMES.decode(frame)


def test_only_the_askers_own_public_address_is_dialled():
    assert to_dial(SEEN, 4001) == HERE
    assert to_dial("/ip6/2001:db8::1/tcp/9", 443) == "/ip6/2001:db8::1/tcp/443"
    for seen in ("", "/ip4/192.168.1.2/tcp/1", "/ip4/127.0.0.1/tcp/1", "/dns/a.example/tcp/1"):
        assert to_dial(seen, 4001) == ""
    # Behind the same address there may be machines of others.
    assert [to_dial(SEEN, port) for port in (22, 25, 80)] == ["", "", ""]


def test_dial_backs_are_bounded_for_a_network_and_for_all():
    quotas = DialBackQuotas()
    assert sum(quotas.take("one", 0.0) for _ in range(100)) == quotas.PER_NETWORK
    took = sum(quotas.take(f"of {number}", 1.0) for number in range(100))
    assert took == quotas.IN_ALL - quotas.PER_NETWORK
    assert quotas.take("one", quotas.WINDOW_S)


# What is believed --------------------------------------------------------------------------------


def votes_of(*heard):
    votes = Votes()
    for network, outcome in heard:
        votes.heard(outcome, network, 4001, 0.0)
    return votes


def test_most_networks_decide_and_one_has_one_vote():
    one = votes_of(("a", Answered(HERE)), ("a", Answered(HERE)), ("b", Silent(HERE)))
    assert one.proved(0.0) == one.refuted(0.0) == ()
    one.heard(Answered(HERE), "c", 4001, 0.0)
    assert one.proved(0.0) == (HERE,)
    liar_alone = votes_of(("a", Silent(HERE)))
    assert liar_alone.refuted(0.0) == (HERE,)
    assert liar_alone.refuted(0.0, lead=2) == ()


def test_votes_grow_old_and_another_network_forgets_them():
    votes = votes_of(("a", Answered(HERE)))
    assert votes.proved(VOTE_S - 1) == (HERE,)
    assert votes.proved(VOTE_S) == ()
    votes.heard(Answered(HERE), "a", 4001, VOTE_S)
    votes.forget()
    assert votes.proved(VOTE_S) == ()


@pytest.mark.parametrize(
    "address", [f"/ip4/{HOST}/tcp/4002", "/ip4/10.0.0.1/tcp/4001", "/dns/a/tcp/4001", "x"]
)
def test_answer_about_another_place_is_refused(address):
    with pytest.raises(DecodeError):
        votes_of(("a", Answered(address)))


def test_liars_cannot_fill_the_memory():
    votes = Votes()
    for number in range(1000):
        votes.heard(Answered(f"/ip4/198.51.100.1/tcp/{number + 1}"), "a", number + 1, float(number))
    assert len(votes.proved(1000.0)) == VOTES_MAX


def test_liar_neither_names_an_address_that_is_not_ours_nor_takes_one_away():
    """Nobody else has a word for what it makes up, so those for other addresses count."""
    theirs = "/ip4/203.0.113.99/tcp/4001"
    silent = votes_of(("a", Silent(HERE)), ("b", Silent(HERE)), ("liar", Answered(theirs)))
    assert silent.proved(0.0) == ()
    silent.heard(Answered("/ip4/203.0.113.99/tcp/04001"), "liar", 4001, 0.0)
    assert silent.proved(0.0) == ()
    assert silent.refuted(0.0, lead=2) == (HERE,)
    answered = votes_of(("a", Answered(HERE)), ("b", Answered(HERE)), ("liar", Answered(theirs)))
    assert answered.proved(0.0) == (HERE,)
    assert answered.refuted(0.0) == ()
    # Another port is another question.
    answered.heard(Answered(f"/ip4/{HOST}/tcp/9999"), "a", 9999, 0.0)
    assert answered.proved(0.0) == (HERE, f"/ip4/{HOST}/tcp/9999")


def test_answer_by_another_ip_version_is_refused():
    """By IPv4 nobody sees an IPv6 address; a liar would be the only one with a word for it."""
    for network, address in (
        ("198.51.100.0/24", "/ip6/2001:db8::1/tcp/4001"),
        ("2001:db8::/48", HERE),
    ):
        with pytest.raises(DecodeError, match="IP version"):
            votes_of((network, Answered(address)))
    assert votes_of(("2001:db8::/48", Answered("/ip6/2001:db8::1/tcp/4001"))).proved(0.0)


def test_dead_addresses_are_not_told_and_mapped_ones_are():
    home, own = "/ip4/192.168.1.2/tcp/4001", "/ip4/198.51.100.9/tcp/4001"
    tell = told_addresses
    assert tell((own, home), proved=(), refuted=(), num_max=6) == (own, home)
    assert tell((own, home), proved=(), refuted=(own, home), num_max=6) == (home,)
    assert tell((home,), proved=(HERE,), refuted=(), num_max=6) == (home, HERE)
    many = tuple(f"/ip4/10.0.0.{number}/tcp/4001" for number in range(9))
    assert tell(many, proved=(HERE,), refuted=(), num_max=6) == (*many[:5], HERE)


def test_networks_are_those_of_public_addresses():
    assert network_of(SEEN) == "198.51.100.0/24"
    assert network_of("/ip4/10.1.2.3/tcp/1") == network_of("/dns/a/tcp/1") == ""


# Both ends ---------------------------------------------------------------------------------------


class Street:
    """Observers in networks of their own, and a node that they may find at home."""

    def __init__(self, network):
        self.network = network
        self.at_home = {HERE}
        self.dialled = []
        self.observers = {}

    async def knock(self, _peer, address):
        self.dialled.append(address)
        if address not in self.at_home:
            await trio.sleep_forever()  # Its packets are swallowed.
        return address in self.at_home

    @asynccontextmanager
    async def observer(self, address, *, knock=None):
        async with self.network.open(signer_seed=os.urandom(32)) as transport:
            DialBackServer(transport, seen=lambda _peer: SEEN, knock=knock or self.knock)
            self.observers[transport.peer_id] = address
            yield transport

    @asynccontextmanager
    async def node(self, *observers):
        async with (
            self.network.open(signer_seed=os.urandom(32)) as transport,
            trio.open_nursery() as nursery,
        ):
            for one in observers:
                await transport.connect(one.peer_id, one.addresses())
            client = DialBackClient(
                transport, observers=lambda: self.observers, ports=lambda: (4001,)
            )
            nursery.start_soon(client.run)
            yield transport, client
            nursery.cancel_scope.cancel()


@pytest.mark.extended
async def test_node_is_found_by_observers_of_several_networks_once_a_round(autojump_clock):
    street = Street(MemoryNetwork())
    places = [f"/ip4/203.0.{number}.1/tcp/4001" for number in (1, 1, 2, 3, 4)]
    async with (
        street.observer(places[0]) as a,
        street.observer(places[1]) as b,
        street.observer(places[2]) as c,
        street.observer(places[3]) as d,
        street.observer(places[4]) as e,
        street.node(a, b, c, d, e) as (_, client),
    ):
        await client.change.wait()
        assert client.proved() == (HERE,)
        await trio.sleep(ROUND_S / 2)
        assert street.dialled == [HERE] * 3  # Three networks, and not five peers.
        # Somebody shuts the door.
        street.at_home.clear()
        await trio.sleep(3600)
        assert client.proved() == ()
        assert client.refuted(lead=2) == (HERE,)
        assert 6 <= len(street.dialled) <= 40  # Again and again, but less and less often.


async def test_change_of_the_network_is_looked_into_at_once(autojump_clock):
    street = Street(MemoryNetwork())
    async with street.observer("/ip4/203.0.1.1/tcp/1") as one, street.node(one) as (_, client):
        await client.change.wait()
        assert client.proved() == (HERE,)
        street.at_home.clear()
        client.start_over()
        assert client.proved() == ()
        with trio.fail_after(KNOCK_S + 2):
            await client.change.wait()
        assert client.refuted() == (HERE,)


async def test_observer_that_does_not_do_it_leaves_the_place_to_another(autojump_clock):
    street = Street(MemoryNetwork())
    async with street.network.open(signer_seed=os.urandom(32)) as unwilling:
        street.observers[unwilling.peer_id] = "/ip4/203.0.1.1/tcp/1"
        async with (
            street.observer("/ip4/203.0.1.2/tcp/1") as willing,
            street.node(unwilling, willing) as (_, client),
        ):
            await trio.sleep(5)
            assert client.proved() == (HERE,)


async def test_asker_that_sends_something_else_gets_nothing_dialled(autojump_clock):
    street = Street(MemoryNetwork())
    async with (
        street.observer("/ip4/203.0.1.1/tcp/1") as one,
        street.network.open(signer_seed=os.urandom(32)) as asker,
    ):
        await asker.connect(one.peer_id, one.addresses())
        for frame in (DIAL_BACK_FRAMES.encode(Answered(HERE)), b"", os.urandom(20)):
            stream = await asker.open_stream(one.peer_id, DIAL_BACK_PROTOCOL)
            await stream.send_frame(frame)
            with pytest.raises(StreamClosedError):
                await stream.receive_frame(FRAME_BYTES_MAX)
        assert street.dialled == []
        # A service port: declined, and counted for nothing.
        stream = await asker.open_stream(one.peer_id, DIAL_BACK_PROTOCOL)
        await stream.send_frame(DIAL_BACK_FRAMES.encode(Check(25)))
        assert isinstance(
            DIAL_BACK_FRAMES.decode(await stream.receive_frame(FRAME_BYTES_MAX)), Declined
        )
        assert street.dialled == []
