"""How far an address means the same machine, and so in what record it is worth a line. Pure.

An address of a home, a company or one machine means another machine, or nobody, everywhere else. In
a record that strangers read it brings them nothing and tells them how the network behind it is
laid out.
"""

from collections.abc import Iterable
from typing import Literal, get_args

from dht.reaching.circuits import first_hop, is_public
from dht.reaching.gone import host_and_port

PrivateAddresses = Literal["auto", "always", "never"]
"""Whether records for strangers hold private addresses; "auto": only of a node that has no other,
for it meets peers of its own network alone."""

PRIVATE_ADDRESSES: tuple[PrivateAddresses, ...] = get_args(PrivateAddresses)


def means_the_same_everywhere(address: str) -> bool:
    """Whether an address leads to one machine wherever it is dialled from: public ones, names, and
    relays at such."""
    hop = first_hop(address)
    return is_public(hop) or (host_and_port(hop) is None and hop.startswith("/dns"))


def told_in_records(addresses: Iterable[str], private: PrivateAddresses) -> tuple[str, ...]:
    """Of a node's own addresses those that it tells strangers, in order."""
    own = tuple(addresses)
    if private == "always":
        return own
    far = tuple(filter(means_the_same_everywhere, own))
    return far if far or private == "never" else own


def told_to_members(
    addresses: Iterable[str], trust: str, private: PrivateAddresses
) -> tuple[str, ...]:
    """The same for members of a run: friends are told all, so that those of one home meet there."""
    if trust == "friends" and private != "never":
        return tuple(addresses)
    return told_in_records(addresses, private)
