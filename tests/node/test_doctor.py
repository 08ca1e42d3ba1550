"""Findings of `barnraise doctor`: each ailment by itself, and what is said to be done."""

from dataclasses import replace

import pytest

from node.status.doctor import findings
from node.status.records import PeerReport
from node.status.snapshot import PeerClocks
from protocol.identity import PeerId
from tests.node.status_scene import busy_snapshot

SHOT = busy_snapshot()
PUBLIC = "/ip4/45.33.7.9/tcp/4001/p2p/me"
HOME = "/ip4/192.168.1.4/tcp/4001/p2p/me"
RELAYED = "/ip4/45.33.7.1/tcp/4001/p2p/relay/p2p-circuit/p2p/me"
PEER = replace(SHOT.peers.peers[0], is_linked=True, is_member=True, path="direct", rtt_ms=20.0)


def found(peers=(PEER,), **changes):
    status = replace(SHOT.status, **{"addresses": (PUBLIC,), **changes})
    named = {one.subject: one for one in findings(status, replace(SHOT.peers, peers=peers))}
    assert all(one.level in ("ok", "unknown", "note", "problem") for one in named.values())
    assert all(one.advice for one in named.values() if one.level != "ok")
    return named


def test_node_that_is_well_has_nothing_but_ok():
    outer = "/ip4/45.33.7.9/tcp/4001"
    named = found(seen_as=(outer,), answers_at=(outer,), clock_offset_s=0.4, needs_relay=False)
    assert {one.level for one in named.values()} == {"ok"}
    assert set(named) == {
        *("peers", "reachability", "nat", "addresses", "relay", "clock", "paths", "round trips")
    }


def test_no_peer_is_a_problem_unless_one_is_alone():
    alone = replace(PEER, is_linked=False, path=None)
    assert found(peers=(alone,))["peers"].level == "problem"
    assert found(peers=())["peers"].level == "ok"
    assert alone.peer[-8:] in found(peers=(PEER, alone))["peers"].advice


@pytest.mark.parametrize(
    ("seen", "level", "word"),
    [
        ((), "unknown", "not known"),
        (("/ip4/45.33.7.9/tcp/4001",), "ok", "keeps this node's port"),
        (("/ip4/45.33.7.9/tcp/61001",), "note", "changes this node's port"),
        (("/ip4/45.33.7.9/tcp/61001", "/ip4/45.33.7.9/tcp/61002"), "problem", "symmetric"),
        (("/ip4/45.33.7.9/tcp/4001", "/ip4/45.33.8.9/tcp/4001"), "note", "several outer"),
    ],
    ids=["unknown", "kept", "changed", "symmetric", "two lines"],
)
def test_nat_is_told_by_what_others_see(seen, level, word):
    nat = found(addresses=(HOME,), seen_as=seen)["nat"]
    assert (nat.level, word in nat.said) == (level, True)


def test_reachability_by_address_relay_or_mapped_port():
    assert found()["reachability"].level == "unknown"
    assert "--announce" in found(addresses=(HOME,))["reachability"].advice
    assert "relays bring" in found(addresses=(HOME, RELAYED))["reachability"].said
    mapped = found(peers=(replace(PEER, path="mapped"),), addresses=(HOME,))
    assert mapped["reachability"].level == "ok"


def test_reachability_is_what_others_found_out():
    outer = PUBLIC.partition("/p2p/")[0]
    silent = found(silent_at=(outer,))["reachability"]
    assert (silent.level, "firewall" in silent.advice) == ("problem", True)
    for addresses in ((PUBLIC,), (HOME, PUBLIC)):
        proved = found(addresses=addresses, answers_at=(outer,))["reachability"]
        assert (proved.level, "dialled this node" in proved.said) == ("ok", True)
    # Where nobody was to be expected.
    home = found(addresses=(HOME, RELAYED), silent_at=(outer,))["reachability"]
    assert (home.level, "relays bring" in home.said) == ("note", True)


def test_relay_that_is_needed_and_missing_is_told():
    assert "--bootstrap" in found(addresses=(HOME,), needs_relay=True)["relay"].advice
    named = found(
        peers=(replace(PEER, path="relayed"),), addresses=(HOME, RELAYED), needs_relay=True
    )
    assert named["relay"].said.startswith("1 relay holds a place for this node; 1 link goes")
    assert named["relay"].level == "note"


@pytest.mark.parametrize(
    ("offset_s", "level", "word"),
    [
        (None, "unknown", "not known"),
        (-3.0, "ok", "behind"),
        (30.0, "note", "ahead"),
        (-400.0, "problem", "behind"),
    ],
)
def test_clock_that_is_off_is_told(offset_s, level, word):
    clock = found(clock_offset_s=offset_s)["clock"]
    assert (clock.level, word in clock.said) == (level, True)


def test_one_peer_and_no_need_of_a_relay_are_told_in_words_that_fit():
    named = found(peers=(replace(PEER, rtt_ms=15.2),))
    assert (named["peers"].said, named["relay"].said) == ("1 linked", "none is needed")
    assert named["round trips"].said == "15 ms"


def test_slow_peers_and_rates_are_told():
    slow = replace(PEER, rtt_ms=900.0, rate_bytes_s=2.0**21)
    named = found(peers=(PEER, slow))
    assert named["round trips"].level == "note"
    assert "2.0 to 2.0 MiB/s" in named["rates"].said


def said(at_unix_s: float) -> PeerReport:
    return PeerReport(device="", software="", addresses=(), round=None, at_unix_s=at_unix_s)


def test_clock_offset_is_the_median_of_least_ages_and_no_first_word_counts():
    clocks, peers = PeerClocks(), [PeerId(bytes([n]) * 32) for n in range(3)]
    assert clocks.look({peer: said(100.0) for peer in peers}, 1000.0) is None
    assert clocks.look({peer: said(100.0) for peer in peers}, 1001.0) is None
    told = {peer: said(1000.0 + n) for n, peer in enumerate(peers)}
    assert clocks.look(told, 1031.0) == 30.0
    told = {peer: said(1100.0) for peer in peers}
    assert clocks.look(told, 1150.0) == 30.0  # Gossip was slow: no younger than before.
    assert clocks.look(told | {peers[2]: said(1149.0)}, 1150.0) == 30.0
    assert clocks.look({}, 1150.0) is None
