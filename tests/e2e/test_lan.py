"""Two machines of one network, and nobody else: what mDNS is for."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from node.peers.invite import invite_link, parse_invite
from tests.e2e.nat_lab import PUBLIC, nat_lab
from tests.e2e.node_command import SMALL, node, write_run_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="makes network namespaces"),
]

STALE = "/ip4/198.51.100.99/tcp/4001"
"""Where nobody is any more."""


def stale(link: str) -> str:
    """The link as somebody kept it whose router has given out other addresses since."""
    invite = parse_invite(link)
    (peer,) = invite.peers
    return invite_link(replace(invite, peers=(replace(peer, addresses=(STALE,)),)))


def founded(folder: Path) -> None:
    write_run_file(folder, **(SMALL | {"rounds": "100000"}))
    (folder / "a").mkdir()
    (folder / "a" / "node.toml").write_text("start_with = 2\n")


def test_two_machines_of_one_network_meet_without_an_address_that_leads_anywhere(
    tmp_path: Path,
) -> None:
    founded(tmp_path)
    with (
        nat_lab() as lab,
        node(tmp_path, "a", "run", "run.toml", inside=lab.command("pub", [])) as a,
        node(tmp_path, "b", "join", stale(a.link()), inside=lab.command("pub2", [])) as b,
    ):
        for one in (a, b):
            one.wait_for(r"2 of 2 listed", 2)
        logs = "".join(path.read_text() for path in b.state.glob("runs/*/node.log"))
        assert "on this network peer=" in logs
        assert PUBLIC["pub"] in logs


@pytest.mark.parametrize("who", ["a", "b"])
def test_owner_who_switches_it_off_is_not_found_and_finds_nobody(tmp_path: Path, who: str) -> None:
    founded(tmp_path)
    (tmp_path / who).mkdir(exist_ok=True)
    with (tmp_path / who / "node.toml").open("a") as file:
        file.write("has_mdns = false\n")
    with (
        nat_lab() as lab,
        node(tmp_path, "a", "run", "run.toml", inside=lab.command("pub", [])) as a,
        node(tmp_path, "b", "join", stale(a.link()), inside=lab.command("pub2", [])) as b,
    ):
        b.wait_for("tries again in")
        assert "no peer answered" in b.said()
        assert STALE in b.said()
