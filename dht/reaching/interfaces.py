"""Which of a machine's own addresses others are told. Pure."""

import ipaddress
from collections.abc import Collection, Iterable, Mapping

VIRTUAL = (
    *("docker", "br-", "veth", "virbr", "podman", "cni", "flannel", "cali", "lxc", "lxd"),
    *("vmnet", "vboxnet", "vEthernet", "bridge1"),
)
"""What names of interfaces begin with that lead to containers and machines inside this one. Each
such host has the same addresses there, so whoever dials one meets itself, or nobody."""


IP6_MAX = 3
"""A machine collects temporary addresses of IPv6, and they must not crowd out those of its home."""


def told_hosts(interfaces: Mapping[str, Iterable[str]], *versions: int) -> tuple[str, ...]:
    """Of the addresses of each interface those of some IP versions that others may dial, in order;
    public ones first. With nothing but virtual interfaces, a container's for instance, theirs."""
    real = {name: hosts for name, hosts in interfaces.items() if not name.startswith(VIRTUAL)}
    return _usable(real, versions) or _usable(interfaces, versions)


def loopback_host(interfaces: Mapping[str, Iterable[str]], *versions: int) -> str:
    """This machine's own address for itself, in the first of the versions that has one; or nothing:
    a host may have lost 127.0.0.1 together with all of IPv4."""
    here = {host for hosts in interfaces.values() for host in hosts}
    return next((LOOPBACKS[one] for one in versions if LOOPBACKS[one] in here), "")


LOOPBACKS = {4: "127.0.0.1", 6: "::1"}


def _usable(interfaces: Mapping[str, Iterable[str]], versions: Collection[int]) -> tuple[str, ...]:
    found = set()
    for host in (host for hosts in interfaces.values() for host in hosts):
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            continue  # A hardware address.
        if address.version in versions and not (address.is_loopback or address.is_link_local):
            found.add(address)
    ordered = sorted(found, key=lambda one: (one.is_private, one.version, int(one)))
    sixes = [one for one in ordered if one.version == 6][IP6_MAX:]
    return tuple(str(one) for one in ordered if one not in sixes)
