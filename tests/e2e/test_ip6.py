"""Homes that have IPv6 and nothing else: they meet by the link alone and train together."""

import json
import os
import time
from pathlib import Path

import pytest

from dht.reaching.addresses import is_circuit
from node.peers.invite import parse_invite
from tests.e2e.nat_lab import PUBLIC_6, nat_lab
from tests.e2e.node_command import SMALL, WAIT_S, NodeCommand, node, wait, write_run_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="makes network namespaces"),
]

ANY = ("--listen", "/ip6/::/tcp/4001")


def test_two_homes_of_ip6_alone_meet_by_the_link_and_train_together(tmp_path: Path) -> None:
    write_run_file(tmp_path, **(SMALL | {"rounds": "100000"}))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "node.toml").write_text("start_with = 2\n")
    with (
        nat_lab(is_six=True) as lab,
        node(tmp_path, "pub", "bootstrap", "--json", *ANY, inside=lab.command("pub", [])) as pub,
    ):
        said = pub.wait_for(r'\{[^\n]*"event": ?"listening"[^\n]*\}')
        (address,) = json.loads(said)["addresses"]
        assert f"/ip6/{PUBLIC_6['pub']}/tcp/4001/" in address
        line = ("run", "run.toml", "--bootstrap", address, *ANY)
        with node(tmp_path, "a", *line, inside=lab.command("homeA", [])) as a:
            # Its address is public, and its router lets nobody come to it: others find that out.
            link = link_through_a_relay(a)
            with node(tmp_path, "b", "join", link, *ANY, inside=lab.command("homeB", [])) as b:
                for one in (a, b):
                    one.wait_for(r"2 of 2 listed", 3)
                    assert "Traceback" not in one.said()


def link_through_a_relay(one: NodeCommand) -> str:
    """The link that a node prints once a relay leads to it."""
    began_s = time.monotonic()
    while True:
        link = one.link()
        told = [address.address for address in parse_invite(link).addresses()]
        assert all(address.startswith("/ip6/2001:db8:") for address in told)
        if any(map(is_circuit, told)):
            return link
        assert time.monotonic() - began_s < WAIT_S, one.said()[-4000:]
        wait(0.1)
