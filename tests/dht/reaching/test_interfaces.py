"""Which of a machine's own addresses others are told."""

from dht.reaching.interfaces import told_hosts

HOME = {
    "lo": ["127.0.0.1", "::1", "00:00:00:00:00:00"],
    "eth0": ["192.168.1.2", "fe80::1%eth0", "2001:db9::7"],
    "wlan0": ["192.168.1.9", "169.254.3.4"],
    "docker0": ["172.17.0.1"],
    "br-4f2a": ["172.18.0.1"],
    "wg0": ["10.8.0.2"],
}


def test_containers_and_link_local_addresses_are_told_to_nobody():
    assert told_hosts(HOME, 4) == ("10.8.0.2", "192.168.1.2", "192.168.1.9")
    assert told_hosts(HOME, 6) == ("2001:db9::7",)


def test_public_address_comes_before_private_ones():
    assert told_hosts({"eth0": ["10.0.0.1"], "eth1": ["9.9.9.9"]}, 4) == ("9.9.9.9", "10.0.0.1")


def test_machine_with_virtual_interfaces_alone_tells_theirs():
    assert told_hosts({"lo": ["127.0.0.1"], "veth1": ["10.0.0.5"]}, 4) == ("10.0.0.5",)
    assert told_hosts({"lo": ["127.0.0.1"]}, 4) == ()


def test_each_address_is_told_once():
    assert told_hosts({"eth0": ["10.0.0.1"], "eth0:1": ["10.0.0.1"]}, 4) == ("10.0.0.1",)
