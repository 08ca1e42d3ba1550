"""Which of a machine's own addresses others are told. Pure."""

import ipaddress
from collections.abc import Iterable, Mapping

VIRTUAL = (
    *("docker", "br-", "veth", "virbr", "podman", "cni", "flannel", "cali", "lxc", "lxd"),
    *("vmnet", "vboxnet", "vEthernet", "bridge1"),
)
"""What names of interfaces begin with that lead to containers and machines inside this one. Each
such host has the same addresses there, so whoever dials one meets itself, or nobody."""


def told_hosts(interfaces: Mapping[str, Iterable[str]], version: int) -> tuple[str, ...]:
    """Of the addresses of each interface those of an IP version that others may dial, in order;
    public ones first. With nothing but virtual interfaces, a container's for instance, theirs."""
    real = {name: hosts for name, hosts in interfaces.items() if not name.startswith(VIRTUAL)}
    return _usable(real, version) or _usable(interfaces, version)


def _usable(interfaces: Mapping[str, Iterable[str]], version: int) -> tuple[str, ...]:
    found = set()
    for host in (host for hosts in interfaces.values() for host in hosts):
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            continue  # A hardware address.
        if address.version == version and not (address.is_loopback or address.is_link_local):
            found.add(address)
    return tuple(str(one) for one in sorted(found, key=lambda one: (one.is_private, int(one))))
