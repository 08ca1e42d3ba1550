"""What is said before a punch, and to whom packets go."""

import pytest

from dht.reaching.addresses import circuit_address
from dht.reaching.punching import (
    AGAIN_FIRST_S,
    AGAIN_MAX_S,
    PUNCH_FRAMES,
    TARGETS_MAX,
    Due,
    Go,
    Offer,
    mapped_addresses,
    targets,
)
from protocol.errors import DecodeError
from tests.dht.reaching.test_circuits import PLACE, RELAY

SIGNALS = (Offer(()), Offer((PLACE, "/ip6/2001:db8::1/tcp/9")), Go())


@pytest.mark.parametrize("signal", SIGNALS)
def test_signals_come_back_as_said(signal):
    assert PUNCH_FRAMES.decode(PUNCH_FRAMES.encode(signal)) == signal


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\x03\x90", PUNCH_FRAMES.encode(Go()) + b"x"])
def test_other_bytes_are_no_signals(frame):
    with pytest.raises(DecodeError):
        PUNCH_FRAMES.decode(frame)


def test_offer_of_many_addresses_is_refused():
    with pytest.raises(DecodeError):
        PUNCH_FRAMES.encode(Offer((PLACE,) * (TARGETS_MAX + 1)))


def test_router_that_keeps_ports_shows_the_listening_port_at_each_address_once():
    seen = ("/ip4/198.51.100.21/tcp/777", "/ip4/198.51.100.21/tcp/778", "/ip6/2001:db8::1/tcp/1")
    assert mapped_addresses(seen, 4001) == (
        "/ip4/198.51.100.21/tcp/4001",
        "/ip6/2001:db8::1/tcp/4001",
    )
    # Seen from the same home: no router was in between.
    assert mapped_addresses(("/ip4/192.168.1.2/tcp/5", "", "nonsense"), 4001) == ()


def test_packets_go_nowhere_into_homes_and_once_to_each_address():
    near = ("/ip4/192.168.1.1/tcp/80", "/ip4/127.0.0.1/tcp/22", "/ip4/169.254.169.254/tcp/80")
    assert targets(Offer((*near, PLACE))) == (PLACE,)
    assert targets(Offer((PLACE, PLACE, "/dns/router.home/tcp/80"))) == (PLACE,)
    assert targets(Offer((circuit_address(RELAY, PLACE),))) == ()


def test_peer_that_cannot_be_reached_is_tried_less_and_less():
    due = Due(0.0)
    due.postpone(0.0)
    assert due.at_s == AGAIN_FIRST_S
    for _ in range(20):
        due.postpone(due.at_s)
    before_s = due.at_s
    due.postpone(before_s)
    assert due.at_s == before_s + AGAIN_MAX_S
