"""Nodes of two wire versions on one machine: two trees, of which one has another number in it."""

import os
import re
import shutil
from pathlib import Path

import pytest

from node.state.keystore import load_or_create_identity
from protocol.identity import peer_id_text
from protocol.manifest import WIRE_VERSION
from tests.e2e.demo_command import ROOT
from tests.e2e.node_command import LOOPBACK, SMALL, NodeCommand, node, wait, write_run_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="runs a command inside of env"),
]

LATER = WIRE_VERSION + 1
PACKAGES = ("protocol", "dht", "training", "node", "sim")
HERE, THERE = "upgrade barnraise on this machine", "they must upgrade barnraise"


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What runs a command with a barnraise of the next wire version."""
    tree = tmp_path_factory.mktemp("later")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = tree / "protocol" / "manifest.py"
    text, count = re.subn(
        r"(?m)^WIRE_VERSION = \d+$", f"WIRE_VERSION = {LATER}", path.read_text("utf-8")
    )
    assert count == 1
    path.write_text(text, "utf-8")
    return ("env", f"PYTHONPATH={tree}")


def trees(later: tuple[str, ...], is_newer: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where the founder runs, and where the one who comes."""
    return ((), later) if is_newer else (later, ())


def line_of(theirs: int, ours: int) -> str:
    who = HERE if theirs > ours else THERE
    return f"the other side speaks wire version {theirs}, this node {ours}: {who}"


def versions(is_newer: bool) -> tuple[int, int]:
    """Of the founder, and of the one who comes."""
    return (WIRE_VERSION, LATER) if is_newer else (LATER, WIRE_VERSION)


def wait_for_log(one: NodeCommand, words: str) -> None:
    for _ in range(600):
        found = [path.read_text("utf-8") for path in one.state.glob("runs/*/node.log")]
        if any(words in text for text in found):
            return
        wait(0.1)
    raise AssertionError(f"{words!r} is not in {found}")


@pytest.mark.parametrize("is_newer", [True, False], ids=["newer", "older"])
def test_joiner_of_another_version_is_told_in_one_line(
    tmp_path: Path, later: tuple[str, ...], is_newer: bool
) -> None:
    write_run_file(tmp_path, **(SMALL | {"rounds": "100000"}))
    its_tree, our_tree = trees(later, is_newer)
    theirs, ours = versions(is_newer)
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK, inside=its_tree) as a:
        link = a.link()
        with node(tmp_path, "b", "join", link, *LOOPBACK, inside=our_tree) as b:
            assert b.exit_status() == 4
            assert b.said().strip() == f"barnraise: {line_of(theirs, ours)}"


@pytest.mark.parametrize("is_newer", [True, False], ids=["newer", "older"])
def test_nodes_of_two_versions_that_meet_both_say_so(
    tmp_path: Path, later: tuple[str, ...], is_newer: bool
) -> None:
    """By hello, as nodes that have their manifests already do."""
    for name in ("a", "b"):
        write_run_file(tmp_path, f"{name}.toml", **(SMALL | {"rounds": "100000"}))
    its_tree, our_tree = trees(later, is_newer)
    theirs, ours = versions(is_newer)
    with node(tmp_path, "a", "run", "a.toml", *LOOPBACK, inside=its_tree) as a:
        address = f"/ip4/127.0.0.1/tcp/{port_of(a)}/p2p/{peer_of(a)}"
        named = ("--bootstrap", address)
        with node(tmp_path, "b", "run", "b.toml", *LOOPBACK, *named, inside=our_tree) as b:
            assert b.exit_status() == 4
            assert b.said().splitlines()[-1] == f"barnraise: {line_of(theirs, ours)}"
        wait_for_log(a, line_of(ours, theirs))
        assert a.process.poll() is None


def port_of(one: NodeCommand) -> int:
    one.link()
    return int((one.state / "port").read_text())


def peer_of(one: NodeCommand) -> str:
    return peer_id_text(load_or_create_identity(one.state).peer_id)
