"""What is told on one's own network, and what of the answers there is believed."""

import ipaddress
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.reaching.lan import LanPeer, heard, networks_of, properties_of, run_tag
from protocol import limits
from protocol.identity import Ed25519Signer

PEER = Ed25519Signer(bytes(32)).peer_id
TAG = run_tag(b"r" * 32)
HOME = networks_of([("192.168.1.7", "255.255.255.0"), ("2001:db8:1::7", None), ("10.0.0.1", None)])
GOOD = {name.encode(): text.encode() for name, text in properties_of(PEER, TAG).items()}


def test_networks_are_those_of_own_addresses_with_a_mask() -> None:
    assert list(map(str, HOME)) == ["192.168.1.0/24", "2001:db8:1::/64"]
    assert networks_of([("rubbish", "255.0.0.0"), ("::", None)]) == (ipaddress.ip_network("::/64"),)


def test_node_of_the_same_network_is_heard_at_its_addresses_there() -> None:
    hosts = ["192.168.1.9", "8.8.8.8", "192.168.2.9", "127.0.0.1", "169.254.1.1", "fe80::1"]
    hosts += ["2001:db8:1::9", "2001:db8:2::9", "0.0.0.0", "224.0.0.251", "::1", "x", "192.168.1.9"]
    assert heard(GOOD, hosts, 4001, networks=HOME) == LanPeer(
        PEER, ("/ip4/192.168.1.9/tcp/4001", "/ip6/2001:db8:1::9/tcp/4001"), TAG
    )


def test_node_that_names_no_address_of_this_network_is_not_heard() -> None:
    assert heard(GOOD, ["8.8.8.8", "192.168.2.9"], 4001, networks=HOME) is None


def test_addresses_of_one_answer_are_bounded() -> None:
    found = heard(GOOD, [f"192.168.1.{n}" for n in range(200)], 4001, networks=HOME)
    assert found is not None
    assert len(found.addresses) == limits.DHT_ADDRESSES_PER_CONTACT_MAX


@pytest.mark.parametrize(
    ("changes", "port"),
    [
        ({b"peer": b""}, 4001),
        ({b"peer": None}, 4001),
        ({b"peer": b"12D3KooWrubbish"}, 4001),
        ({b"peer": b"\xff\xfe"}, 4001),
        ({b"peer": b"1" * 5000}, 4001),
        ({b"run": b"short"}, 4001),
        ({b"run": b"ab"}, 4001),
        ({b"run": b"\xff" * 32}, 4001),
        ({}, 0),
        ({}, 70_000),
        ({}, None),
    ],
)
def test_answer_that_is_none_of_ours_is_ignored(
    changes: dict[bytes, bytes | None], port: int | None
) -> None:
    assert heard(GOOD, ["192.168.1.9"], 4001, networks=HOME) is not None
    assert heard(GOOD | changes, ["192.168.1.9"], port, networks=HOME) is None


@given(
    st.dictionaries(st.sampled_from([b"peer", b"run", b"x"]), st.none() | st.binary(max_size=200)),
    st.lists(st.text(max_size=40)),
    st.none() | st.integers(),
)
def test_no_answer_raises(properties, hosts, port) -> None:
    heard(properties, hosts, port, networks=HOME)


def test_tag_tells_the_run_to_those_who_know_it_only() -> None:
    run = os.urandom(32)
    assert run_tag(run) == run_tag(run) != run_tag(run[:-1] + bytes([run[-1] ^ 1]))
    assert run.hex()[:8] not in run_tag(run)
    assert set(properties_of(PEER, run_tag(run))) == {"peer", "run"}
