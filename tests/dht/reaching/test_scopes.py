"""Addresses of a home or a company are told where they mean something."""

from itertools import permutations

import pytest

from dht.reaching.addresses import (
    PRIVATE_ADDRESSES,
    PrivateAddresses,
    circuit_address,
    means_the_same_everywhere,
    told_in_records,
    told_to_members,
)
from protocol.identity import Ed25519Signer

RELAY = Ed25519Signer(b"r" * 32).peer_id
PUBLIC = "/ip4/203.0.113.7/tcp/4001"
PUBLIC_6 = "/ip6/2001:db8::7/tcp/4001"
NAME = "/dns4/node.example.org/tcp/4001"
FAR_RELAY = circuit_address(RELAY, PUBLIC)
FAR = (PUBLIC, PUBLIC_6, NAME, FAR_RELAY)
NEAR = (
    "/ip4/10.0.0.3/tcp/4001",
    "/ip4/172.16.0.3/tcp/4001",
    "/ip4/192.168.1.17/tcp/4001",
    "/ip4/100.64.0.9/tcp/4001",
    "/ip4/127.0.0.1/tcp/4001",
    "/ip4/169.254.0.9/tcp/4001",
    "/ip6/fd00::17/tcp/4001",
    "/ip6/fe80::17/tcp/4001",
    "/ip6/::1/tcp/4001",
    "/ip6/::ffff:10.0.0.3/tcp/4001",
    circuit_address(RELAY, "/ip4/192.168.1.1/tcp/4001"),
)


@pytest.mark.parametrize("address", FAR)
def test_public_ones_names_and_relays_at_such_mean_the_same_everywhere(address: str) -> None:
    assert means_the_same_everywhere(address)


@pytest.mark.parametrize("address", [*NEAR, "", "x", "/memory/1"])
def test_those_of_a_network_or_a_machine_do_not(address: str) -> None:
    assert not means_the_same_everywhere(address)


def test_records_hold_private_ones_only_of_a_node_that_has_no_other() -> None:
    for own in permutations((NEAR[0], PUBLIC, NEAR[1], FAR_RELAY)):
        assert told_in_records(own, "auto") == tuple(one for one in own if one in FAR)
    assert told_in_records(NEAR, "auto") == NEAR
    assert told_in_records((), "auto") == ()


def test_owner_may_have_all_told_or_none() -> None:
    own = (NEAR[0], PUBLIC)
    assert told_in_records(own, "always") == own
    assert told_in_records(own, "never") == (PUBLIC,)
    assert told_in_records(NEAR, "never") == ()


@pytest.mark.parametrize("private", PRIVATE_ADDRESSES)
def test_friends_are_told_all_unless_the_owner_forbids_it(private: PrivateAddresses) -> None:
    own = (NEAR[0], PUBLIC)
    assert told_to_members(own, "friends", private) == (own if private != "never" else (PUBLIC,))
    assert told_to_members(own, "open", private) == told_in_records(own, private)
