"""Addresses and messages of circuits, and what a relay gives away."""

import pytest

from dht.reaching.addresses import (
    RELAY_FRAMES,
    Circuit,
    Granted,
    Incoming,
    Join,
    Joined,
    Refused,
    Reserve,
    circuit_address,
    dial_order,
    is_circuit,
    is_public,
    may_be_dialled,
    parse_circuit,
)
from dht.reaching.relay_server import DAY_S, RelayBooks, RelayLimits
from protocol.errors import ConfigError, DecodeError
from protocol.identity import Ed25519Signer, PeerId, peer_id_text

RELAY = Ed25519Signer(bytes(32)).peer_id
PLACE = "/ip4/203.0.113.1/tcp/4001"
PEERS = [PeerId(bytes([number]) * 32) for number in range(1, 8)]
A, B, C, D = PEERS[:4]

WORDS = (
    Reserve(),
    Granted(PLACE, 7),
    Join(A),
    Joined(),
    Incoming(B),
    Refused("no place is left"),
)


def test_address_of_a_circuit_names_relay_and_where_it_listens():
    address = circuit_address(RELAY, PLACE)
    assert address == f"{PLACE}/p2p/{peer_id_text(RELAY)}/p2p-circuit"
    assert parse_circuit(address) == Circuit(RELAY, PLACE)
    assert is_circuit(address)
    # As long as names of machines are, it fits an entry of the replicated state.
    assert len(address) < 192


@pytest.mark.parametrize(
    "text",
    [
        "",
        PLACE,
        f"{PLACE}/p2p-circuit",
        f"/memory/1/p2p/{peer_id_text(RELAY)}/p2p-circuit",
        # Through two relays: each would have to dial on for us.
        f"{PLACE}/p2p/{peer_id_text(RELAY)}/p2p-circuit/p2p/{peer_id_text(RELAY)}/p2p-circuit",
        f"{PLACE}/p2p/{peer_id_text(RELAY)}/p2p-circuit/tcp/1",
        f"/dns/{'a' * 250}/tcp/1/p2p/{peer_id_text(RELAY)}/p2p-circuit",
    ],
)
def test_other_addresses_lead_through_no_relay(text):
    assert parse_circuit(text) is None


def test_address_whose_relay_is_nobody_is_refused():
    with pytest.raises(DecodeError):
        parse_circuit(f"{PLACE}/p2p/12D3Koo/p2p-circuit")


def test_public_is_what_means_the_same_machine_everywhere():
    public = ("203.0.113.1", "198.51.100.10", "8.8.8.8", "100.63.0.1", "172.32.0.1")
    near = ("10.1.2.3", "172.17.0.1", "192.168.1.2", "127.0.0.1", "169.254.1.1", "100.64.0.1")
    assert all(is_public(f"/ip4/{host}/tcp/1") for host in public)
    assert not any(is_public(f"/ip4/{host}/tcp/1") for host in (*near, "0.0.0.0", "224.0.0.1"))
    assert is_public("/ip6/2001:db8::1/tcp/1")
    assert not any(is_public(f"/ip6/{host}/tcp/1") for host in ("::1", "fe80::1", "fd00::1", "::"))
    # IPv6 addresses that stand for an IPv4 one: mapped, NAT64, 6to4.
    assert all(is_public(f"/ip6/{one}/tcp/1") for one in ("::ffff:8.8.8.8", "64:ff9b::8.8.8.8"))
    inner = ("::ffff:127.0.0.1", "::ffff:192.168.1.2", "64:ff9b::10.0.0.1", "2002:c0a8:102::1")
    assert not any(is_public(f"/ip6/{host}/tcp/1") for host in inner)
    assert not any(
        map(is_public, ("", "/dns/a/tcp/1", circuit_address(RELAY, PLACE), "/ip4/x/tcp/1"))
    )


def test_relays_are_dialled_last_and_each_address_once():
    relayed = circuit_address(RELAY, PLACE)
    near = "/ip4/192.168.1.2/tcp/1"
    assert dial_order([relayed, near, PLACE, near]) == (near, PLACE, relayed)


def test_strangers_do_not_have_us_dial_our_own_machine():
    home, own = "/ip4/192.168.1.2/tcp/4001", "/ip4/127.0.0.1/tcp/4001"
    bad = (
        own,
        *("/ip4/0.0.0.0/tcp/4001", "/ip4/169.254.169.254/tcp/4001", "/ip4/224.0.0.1/tcp/4001"),
        *("/ip6/::1/tcp/4001", "/ip6/::ffff:127.0.0.1/tcp/4001", "/ip6/fe80::1/tcp/4001"),
        *("/ip6/64:ff9b::127.0.0.1/tcp/4001", "/ip6/2002:7f00:1::1/tcp/4001", "/ip4/x/tcp/4001"),
        circuit_address(RELAY, own),
    )
    good = (home, PLACE, "/dns/a.example/tcp/1", circuit_address(RELAY, PLACE))
    assert may_be_dialled((*bad, *good), (home,)) == good
    assert may_be_dialled((own, home), ("/ip4/127.0.0.1/tcp/4001",)) == (own, home)


def test_strangers_do_not_have_us_knock_at_the_services_of_our_own_networks():
    home = "/ip4/192.168.1.2/tcp/4001"
    bad = (
        *("/ip4/192.168.1.1/tcp/80", "/ip4/10.0.0.9/tcp/22", "/ip4/100.64.0.1/tcp/1023"),
        *("/ip6/fd00::1/tcp/445", "/ip6/::ffff:192.168.1.1/tcp/80"),
        circuit_address(RELAY, "/ip4/192.168.1.1/tcp/53"),
    )
    good = (
        *(home, "/ip4/10.0.0.9/tcp/1024", "/ip4/10.0.0.9/tcp/443", "/ip6/fd00::1/tcp/4001"),
        *("/ip4/203.0.113.1/tcp/80", circuit_address(RELAY, "/ip4/203.0.113.1/tcp/80")),
    )
    assert may_be_dialled((*bad, *good), (home,)) == good


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_words_come_back_as_said(word):
    assert RELAY_FRAMES.decode(RELAY_FRAMES.encode(word)) == word


@pytest.mark.parametrize(
    "frame", [b"", b"\x00", b"\x07\x90", b"\x01", RELAY_FRAMES.encode(WORDS[0]) + b"x"]
)
def test_other_bytes_are_no_words(frame):
    with pytest.raises(DecodeError):
        RELAY_FRAMES.decode(frame)


# What a relay gives ------------------------------------------------------------------------------


def books(**changes):
    return RelayBooks(RelayLimits(**changes), now_s=0.0)


def test_places_are_bounded_in_all_and_for_each_network_address():
    made = books(places_max=3, places_per_host=2)
    assert [made.take_place(peer, "/ip4/1.1.1.1") for peer in (A, B)] == ["", ""]
    assert "network address" in made.take_place(C, "/ip4/1.1.1.1")
    # Who comes back from another network takes its place along.
    assert made.take_place(A, "/ip4/2.2.2.2") == ""
    assert made.num_places == 2
    assert made.take_place(A, "/ip4/1.1.1.1") == ""
    assert made.take_place(C, "/ip4/2.2.2.2") == ""
    assert "no place" in made.take_place(D, "/ip4/3.3.3.3")
    made.leave_place(A)
    assert made.take_place(D, "/ip4/1.1.1.1") == ""
    assert not made.has_place(A)


def test_circuits_lead_to_those_who_have_a_place_and_are_bounded():
    made = books(circuits_max=3, circuits_per_peer=2)
    assert "no place" in made.open_circuit(A, B, 0.0)
    made.take_place(B, "")
    assert "that is you" in made.open_circuit(B, B, 0.0)
    assert [made.open_circuit(A, B, 0.0) for _ in range(2)] == ["", ""]
    assert "these peers" in made.open_circuit(A, B, 0.0)
    assert "these peers" in made.open_circuit(C, B, 0.0)
    made.take_place(D, "")
    assert made.open_circuit(C, D, 0.0) == ""
    assert "no circuit is left" in made.open_circuit(C, D, 0.0)
    made.close_circuit(A, B)
    assert made.open_circuit(C, B, 0.0) == ""
    assert made._num_circuits == 3


def test_sender_pays_and_a_new_day_begins_with_nothing_sent():
    made = books(day_bytes=100, peer_day_bytes=60)
    made.take_place(B, "")
    assert made.send(A, 50, 1.0) == 0.0
    assert made.send(A, 11, 1.0) is None
    assert (made.day_bytes_left(A, 1.0), made.day_bytes_left(B, 1.0)) == (10, 50)
    assert made.send(B, 50, 1.0) == 0.0
    assert made.day_bytes_left(C, 1.0) == 0
    assert "today" in made.open_circuit(C, B, 1.0)
    assert made.day_bytes_left(A, DAY_S) == 60
    assert made.open_circuit(C, B, DAY_S) == ""


def test_rate_holds_for_all_circuits_together():
    made = books(mbit=8.0)
    assert made.send(A, 1_000_000, 0.0) == 0.0
    assert made.send(B, 1_000_000, 0.0) == pytest.approx(1.0)
    assert made.send(A, 1_000_000, 0.0) == pytest.approx(2.0)


def test_made_up_senders_take_bounded_memory_and_forget_no_big_one():
    made = books()
    made.send(A, 1000, 0.0)
    for number in range(10_000):
        made.send(PeerId(number.to_bytes(32, "big")), 1, 0.0)
    assert len(made._sent) <= 8192
    assert made._sent[A] == 1000


@pytest.mark.parametrize("name", ["places_max", "circuits_max", "mbit", "day_bytes"])
def test_limits_out_of_range_are_named(name):
    with pytest.raises(ConfigError, match=name):
        RelayLimits(**{name: -1})
