"""Asks a home's router for a port by UPnP; a process of its own, run by its path.

    python -P upnp_main.py map PORT LEASE_S      {"host": "203.0.113.7", "port": 4001}
    python -P upnp_main.py unmap OUTER_PORT      {}

The library blocks, raises Exception itself, and parses in C what any machine of the home may send.
Whatever goes wrong in it ends this process and no node. It imports nothing of ours.
"""

import json
import sys

import miniupnpc  # type: ignore[import-not-found] # it has no types

NAME = "barnraise"
"""What people read in the router's list."""

DISCOVER_MS = 2000
PORTS_TRIED = 4
"""Where another machine of the home has the outer port already."""


def _map(client: miniupnpc.UPnP, port: int, lease_s: int) -> dict[str, object]:
    last = min(port + PORTS_TRIED, 65535)
    for outer in range(port, last):
        found = client.getspecificportmapping(outer, "TCP")
        if found is None or found[:2] == (client.lanaddr, port):
            client.addportmapping(outer, "TCP", client.lanaddr, port, NAME, "", lease_s)
            return {"host": client.externalipaddress(), "port": outer}
    raise SystemExit("all outer ports are taken")


def main(what: str, port: str, lease_s: str = "0") -> None:
    """Do it, and say it on standard output; the exit status tells whether it was done."""
    client = miniupnpc.UPnP()
    client.discoverdelay = DISCOVER_MS
    client.discover()
    client.selectigd()
    if what == "map":
        said = _map(client, int(port), int(lease_s))
    else:
        client.deleteportmapping(int(port), "TCP")
        said = {}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
