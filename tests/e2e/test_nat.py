"""Homes behind routers: found, met and trained together without an open port."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from dht.reaching.addresses import is_circuit
from node.peers.invite import parse_invite
from tests.e2e.demo_command import environment
from tests.e2e.nat_lab import PUBLIC, NatLab, nat_lab
from tests.e2e.node_command import SMALL, WAIT_S, NodeCommand, node, wait, write_run_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="makes network namespaces"),
]

ROUNDS_AFTER = 8
ALL = r"3 of 3 listed"

DIRECT_S_MAX = 5.0
"""From meeting to a direct path, also while a transfer fills the relay."""


@contextmanager
def bootstrap(
    lab: NatLab, folder: Path, host: str, *arguments: str
) -> Iterator[tuple[NodeCommand, str]]:
    """A bootstrap node on a public host, and its address."""
    line = ("bootstrap", "--json", *arguments)
    with node(folder, host, *line, inside=lab.command(host, [])) as one:
        said = one.wait_for(r'\{[^\n]*"event": ?"listening"[^\n]*\}')
        (address,) = json.loads(said)["addresses"]
        assert PUBLIC[host] in address
        yield one, address


def founded(folder: Path, **changes: str) -> None:
    """A run whose founder waits for two joiners with its first round."""
    write_run_file(folder, **(SMALL | {"rounds": "100000"} | changes))
    (folder / "a").mkdir()
    (folder / "a" / "node.toml").write_text("start_with = 3\n")


@pytest.mark.parametrize("is_symmetric", [False, True], ids=["kept-ports", "symmetric"])
def test_three_homes_meet_by_the_link_alone_and_train_together(
    tmp_path: Path, is_symmetric: bool
) -> None:
    founded(tmp_path)
    with (
        nat_lab(is_symmetric=is_symmetric) as lab,
        bootstrap(lab, tmp_path, "pub") as (_, address),
        node(
            tmp_path,
            *("a", "run", "run.toml", "--bootstrap", address),
            inside=lab.command("homeA", []),
        ) as a,
        node(tmp_path, "b", "join", a.link(), inside=lab.command("homeB", [])) as b,
        node(tmp_path, "c", "join", a.link(), inside=lab.command("homeC", [])) as c,
    ):
        for one in (a, b, c):
            one.wait_for(ALL, 3)
        for one in (a, b, c):
            assert "Traceback" not in one.said()


def test_forwarded_port_is_found_announced_and_enough_when_the_bootstrap_node_is_dead(
    tmp_path: Path,
) -> None:
    founded(tmp_path)
    (tmp_path / "a" / "node.toml").write_text("start_with = 2\n")
    with (
        nat_lab() as lab,
        bootstrap(lab, tmp_path, "pub") as (pub, address),
        node(
            tmp_path,
            *("a", "run", "run.toml", "--bootstrap", address, "--listen", "/ip4/0.0.0.0/tcp/4001"),
            inside=lab.command("homeA", []),
        ) as a,
    ):
        wait_for_logs([a], "silent=/ip4/198.51.100.21/tcp/4001", 1)
        outer = lab.forward("A", 4001)
        # Nobody told the node: others find it, some time after the port is there.
        wait_for_logs([a], f"answered={outer}", 1)
        with node(tmp_path, "b", "join", a.link(), inside=lab.command("homeB", [])) as b:
            a.wait_for(r"2 of 2 listed", 2)
            # It has what a relay needs, and is one.
            wait_for_logs([b], "place at relay=", 2)
            pub.process.kill()
            since = len(a.said())
            link = a.link()
            assert outer in [one.address for one in parse_invite(link).addresses()]
            with node(tmp_path, "c", "join", link, inside=lab.command("homeC", [])) as c:
                for one in (a, b, c):
                    one.wait_for(ALL, 3)
                # Those who had met have gone on meanwhile.
                assert 0 not in listed_from(a.said(), since)
                for one in (a, b, c):
                    assert "Traceback" not in one.said()


def test_port_that_the_router_gives_is_announced_and_given_back(tmp_path: Path) -> None:
    founded(tmp_path)
    (tmp_path / "a" / "node.toml").write_text("start_with = 2\n")
    host = "198.51.100.21"
    line = [sys.executable, "-P", "-m", "tests.e2e.nat_pmp_gateway", host]
    with (
        nat_lab(is_symmetric=True) as lab,
        bootstrap(lab, tmp_path, "pub") as (_, address),
        subprocess.Popen(
            lab.command("gwA", line), env=environment(), stdout=subprocess.PIPE, text=True
        ) as gateway,
    ):
        try:
            assert gateway.stdout is not None
            assert gateway.stdout.readline() == "listening\n"
            arguments = ("--bootstrap", address, "--listen", "/ip4/0.0.0.0/tcp/4001")
            inside = lab.command("homeA", [])
            with node(tmp_path, "a", "run", "run.toml", *arguments, inside=inside) as a:
                assert gateway.stdout.readline() == "4001 5001 3600\n"
                outer = f"/ip4/{host}/tcp/5001"
                wait_for_logs([a], f"answered={outer}", 1)
                link = a.link()
                assert outer in [one.address for one in parse_invite(link).addresses()]
                with node(tmp_path, "b", "join", link, inside=lab.command("homeB", [])):
                    a.wait_for(r"2 of 2 listed", 2)
                a.interrupt()
            assert gateway.stdout.readline() == "4001 5001 0\n"
        finally:
            gateway.kill()


def wait_for_logs(nodes: Sequence[NodeCommand], words: str, count: int) -> None:
    """Until the logs of all of them together have so many lines with these words."""
    began_s = time.monotonic()
    while sum(log_of(one).count(words) for one in nodes) < count:
        assert time.monotonic() - began_s < WAIT_S, [log_of(one)[-2000:] for one in nodes]
        wait(0.1)


def log_of(one: NodeCommand) -> str:
    return "".join(path.read_text() for path in one.state.glob("runs/*/node.log"))


def peer_in_home(lab: NatLab, home: str, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-P", "-m", "tests.e2e.nat_peer", *arguments]
    return subprocess.Popen(
        lab.command(home, line), env=environment(), stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("is_symmetric", [False, True], ids=["kept-ports", "symmetric"])
def test_path_becomes_direct_where_routers_keep_ports_and_no_transfer_is_lost(
    tmp_path: Path, is_symmetric: bool
) -> None:
    with (
        nat_lab(is_symmetric=is_symmetric) as lab,
        bootstrap(lab, tmp_path, "pub") as (_, address),
        peer_in_home(lab, "homeA", address) as far,
    ):
        try:
            assert far.stdout is not None
            (relayed,) = json.loads(far.stdout.readline())["addresses"]
            with peer_in_home(lab, "homeB", address, relayed, "64") as near:
                assert near.stdout is not None
                _, connected, found = map(json.loads, near.stdout)
                assert near.wait() == 0
        finally:
            far.kill()
    assert not connected["is_direct"]
    assert found["relayed_mib_s"] > 1.0
    if is_symmetric:
        assert "direct_s" not in found
    else:
        assert found["direct_s"] < DIRECT_S_MAX, found


def listed_from(said: str, since: int) -> list[int]:
    """Of each round that was sealed after so many characters: how many of three were listed."""
    return [int(count) for count in re.findall(r"sealed: (\d) of \d listed", said[since:])]


@pytest.mark.parametrize("is_symmetric", [False, True], ids=["direct", "second-relay"])
def test_death_of_the_relay_in_mid_round_costs_at_most_one_round(
    tmp_path: Path, is_symmetric: bool
) -> None:
    founded(tmp_path)
    with (
        nat_lab(is_symmetric=is_symmetric) as lab,
        bootstrap(lab, tmp_path, "pub") as (pub, first),
        bootstrap(lab, tmp_path, "pub2", "--bootstrap", first) as (pub2, second),
        node(
            tmp_path,
            *("a", "run", "run.toml", "--bootstrap", first, "--bootstrap", second),
            inside=lab.command("homeA", []),
        ) as a,
        node(tmp_path, "b", "join", a.link(), inside=lab.command("homeB", [])) as b,
        node(tmp_path, "c", "join", a.link(), inside=lab.command("homeC", [])) as c,
    ):
        homes = (a, b, c)
        for one in homes:
            one.wait_for(ALL, 3)
            if is_symmetric:
                wait_for_logs([one], "place at relay=", 2)
        if not is_symmetric:
            # Each pair has a direct path: of two peers one says so.
            wait_for_logs(homes, "direct=True", 3)
        since = {one: len(one.said()) for one in homes}
        # The first relay of the link is the one that carries, where any does.
        (carrier, *_) = filter(
            is_circuit, (one.address for one in parse_invite(a.link()).addresses())
        )
        (pub if PUBLIC["pub"] + "/" in carrier else pub2).process.kill()
        began_s = time.monotonic()
        for one in homes:
            while len(listed_from(one.said(), since[one])) < ROUNDS_AFTER:
                assert one.process.poll() is None, one.said()
                assert time.monotonic() - began_s < WAIT_S, log_of(one)[-4000:]
                wait(0.1)
            listed = listed_from(one.said(), since[one])
            assert sum(count < 3 for count in listed) <= 1, (one.state, listed)
