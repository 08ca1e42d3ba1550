"""Which of a machine's own addresses others are told."""

from dht.reaching.addresses import loopback_host, told_hosts

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


def test_real_interface_of_one_family_keeps_virtual_ones_of_the_other_untold():
    both = {"eth0": ["10.0.0.1"], "docker0": ["fd00::1"]}
    assert told_hosts(both, 4, 6) == ("10.0.0.1",)
    assert told_hosts(both, 6) == ("fd00::1",)


def test_temporary_addresses_of_ip6_leave_room_for_those_of_a_home():
    many = {"eth0": [*(f"2a00::{number}" for number in range(1, 9)), "192.168.1.2"]}
    assert told_hosts(many, 4, 6) == ("2a00::1", "2a00::2", "2a00::3", "192.168.1.2")


def test_loopback_that_is_gone_is_nowhere():
    assert loopback_host(HOME, 6, 4) == "::1"
    assert loopback_host({"lo": ["::1"]}, 4, 6) == "::1"
    assert loopback_host({"eth0": ["10.0.0.1"]}, 4, 6) == ""
