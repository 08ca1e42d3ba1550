"""Real nodes tell each other what they are, through kills and departures."""

from pathlib import Path
from typing import Any

import pytest

from node.status.client import ask_plain, find_api
from protocol.entries import Entry, decode_entry
from protocol.entry_kinds import EntryKind
from protocol.errors import ConfigError, NetworkError
from protocol.evidence import is_evidence
from protocol.shared_state.store import Store
from tests.e2e.swarm import NodeUnderTest, Swarm, swarm_of

INNER_STEPS = 80
"""Rounds of a second or so: a joiner of shorter ones may not get its seat for a long time."""

pytestmark = [pytest.mark.slow, pytest.mark.net]


def told_by(node: NodeUnderTest) -> dict[str, dict[str, Any]]:
    """What its `barnraise peers --json` shows of those who told what they are."""
    try:
        body = ask_plain(find_api(node.state, None), "/v1/peers")
    except (ConfigError, NetworkError):
        return {}
    assert isinstance(body, dict)
    return {peer["peer"]: peer for peer in body["peers"] if peer["software"]}


def all_know(swarm: Swarm, peers: set[str]) -> bool:
    return all(set(told_by(node)) >= peers - {peer_of(node)} for node in swarm.nodes)


def peer_of(node: NodeUnderTest) -> str:
    return next(str(e["peer"]) for e in node.events if e["event"] == "listening")


def told_s_ago(node: NodeUnderTest, other: NodeUnderTest) -> float:
    return float(told_by(node).get(peer_of(other), {}).get("told_s_ago", float("inf")))


def entries_of(swarm: Swarm, node: NodeUnderTest) -> list[Entry]:
    """What an ended node's disk holds, none of it proof of a lie."""
    store = Store(swarm.folder(node), swarm.manifest.digest)
    assert not store.must_ask
    encoded = [data for _, data in store.take_rows()]
    store.close()
    assert not [data for data in encoded if is_evidence(data)]
    return [decode_entry(data, swarm.manifest.digest) for data in encoded]


def test_all_know_of_all_and_of_who_was_killed_came_again_and_left(tmp_path: Path) -> None:
    with swarm_of(tmp_path, 3, status=True, inner_steps=INNER_STEPS) as swarm:
        first, second, last = swarm.nodes
        swarm.until_round(3)
        peers = {peer_of(node) for node in swarm.nodes}
        swarm.wait("all have a seat", lambda: all(p["is_member"] for p in told_by(first).values()))
        swarm.wait("all know of all", lambda: all_know(swarm, peers))
        said = told_by(first)[peer_of(last)]
        assert said["device"].startswith("cpu ")
        assert said["addresses"]
        swarm.pause(2.0)

        last.kill()
        last.start()
        swarm.wait("it is back", lambda: last.sealed() > 0)
        # Told after its restart: so it is younger than that, and it kept what it knew.
        swarm.wait("it has told again", lambda: told_s_ago(first, last) < 2.0)
        swarm.wait("all know of all", lambda: all_know(swarm, peers))

        assert last.leave() == 0
        swarm.wait("who left is known of no more", lambda: peer_of(last) not in told_by(second))
        assert [node.leave() for node in (first, second)] == [0, 0]
        faults = [e for node in swarm.nodes for e in node.events if e["event"] == "fault"]
        assert faults == []
        held = {node.name: entries_of(swarm, node) for node in swarm.nodes}
        of_last = [e for e in held["n1"] if e.kind is EntryKind.LEAVE]
        assert {e.writer for e in of_last} <= {e.writer for e in held["n2"]}
        assert len(of_last) >= 1
        kinds = {entry.kind for entry in held["n0"]}
        assert {EntryKind.IDENTITY, EntryKind.PRESENCE, EntryKind.CHECKPOINT} <= kinds
        assert {EntryKind.METRICS, EntryKind.LEAVE} <= kinds
        presence = {e.writer for e in held["n0"] if e.kind is EntryKind.PRESENCE}
        assert len(presence) == 3
