"""Each attack on the protocol works with its defence switched off, and not with it.

The table of them names tests that there are. Those on rounds are in worlds and in the explorer.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import dht.kademlia.routing
import dht.reaching.dials
import dht.reaching.inbound_places
import node.holdings.shard_store
import protocol.evidence
import protocol.rounds.admission
from dht.kademlia.kademlia import Kademlia
from dht.kademlia.keyspace import node_key, topic_key
from dht.kademlia.messages import FindValue, Values
from dht.kademlia.records import StoreBounds, sign_record
from dht.kademlia.routing import Contact, RoutingTable
from dht.reaching.inbound_places import Guest, InboundPlaces
from node.peers.dialling import AddressBook
from node.peers.entry_exchange import KNOWN_MAX
from protocol import limits
from protocol.entry_kinds import Accusation
from protocol.errors import ProofError
from protocol.evidence import Evidence, decode_evidence, two_messages_evidence
from protocol.identity import KeyedHashSigner
from protocol.manifest import NO_ADMISSION
from protocol.rounds.seating import weighed
from protocol.wire import encode
from tests.dht.kademlia.test_kademlia import KEY, record, store
from tests.dht.kademlia.test_kademlia import node as keeper_of
from tests.dht.network import WALL_S, peer_id
from tests.node.builders import Voice, head_of, peers_named
from tests.node.cells.test_shard_store import LIST, contribution, entry, store_of
from tests.node.peers.test_dialling import Hall
from tests.node.peers.test_dialling import peer as made_up
from tests.node.peers.test_dialling import place as aimed_at
from tests.node.script import FIRST, Script, faults, one

ROOT = Path(__file__).parent.parent
TABLE, *_ = (ROOT / "sim" / "PROTOCOL_ATTACKS.md").read_text("utf-8").partition("\n## ")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| attack")
]


def test_every_attack_names_tests_that_there_are_or_says_what_is_missing():
    assert len(ROWS) >= 17
    for attack, off, on in ROWS:
        named = re.findall(r"`(tests/[^`]+)`", f"{off} {on}")
        is_whole = "`tests/" in off and "`tests/" in on
        assert is_whole or "missing:" in off or "missing:" in on, attack
        for test in named:
            path, _, name = test.partition("::")
            assert re.search(rf"def {name}\(", (ROOT / path).read_text("utf-8")), test


# The own table and store of the DHT ---------------------------------------------------------------


def newest(keeper: Kademlia):
    reply = keeper.handle_request(peer_id(9), FindValue((), KEY, 8, b""), 0.0, WALL_S)
    assert isinstance(reply, Values)
    return reply.records


@pytest.mark.parametrize("is_checked", [False, True])
def test_forged_record_takes_the_place_of_the_true_one_where_nobody_checks(is_checked, monkeypatch):
    keeper, true = keeper_of(), record(sequence=5)
    if not is_checked:
        monkeypatch.setattr(KeyedHashSigner, "verify", lambda *_: True)
    forged = replace(true, sequence=6, value=b"poison")
    store(keeper, true)
    store(keeper, forged)
    assert newest(keeper) == ((true,) if is_checked else (forged,))


@pytest.mark.parametrize("is_bounded", [False, True])
def test_flood_of_one_courier_fills_a_store_that_counts_no_couriers(is_bounded, monkeypatch):
    keeper = keeper_of()
    if not is_bounded:
        no_bound = StoreBounds(records_per_courier_max=100_000)
        monkeypatch.setattr(keeper.store, "_bounds", no_bound)
    for number in range(100, 300):
        signer, key = KeyedHashSigner(peer_id(number)), topic_key(bytes([number % 256]))
        expires = int(WALL_S) + 60
        store(keeper, sign_record(signer, key, b"flood", sequence=1, expires_unix_s=expires))
    expected = limits.DHT_RECORDS_PER_COURIER_MAX if is_bounded else 200
    assert keeper.store.num_records == expected


@pytest.mark.parametrize("is_shared", [False, True])
def test_one_subnet_surrounds_a_table_that_does_not_look_where_peers_are(is_shared, monkeypatch):
    if not is_shared:
        monkeypatch.setattr(dht.kademlia.routing, "subnets", lambda *_: frozenset())
    table = RoutingTable(peer_id(0))
    far = [n for n in range(1, 200) if (node_key(peer_id(n))[0] ^ table.own_key[0]) & 0x80]
    for number in far[:60]:
        table.seen(Contact(peer_id(number), (f"/ip4/8.8.4.{number}/tcp/1",)), 0.0, stale_after_s=60)
    honest = Contact(peer_id(far[61]), ("/ip4/9.1.1.1/tcp/1",))
    table.seen(honest, 0.0, stale_after_s=60)
    assert (honest in table.contacts()) is is_shared


# Dials and connections ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_remembered", [False, True])
def test_made_up_records_have_a_third_party_dialled_again_and_again_by_who_remembers_peers_alone(
    is_remembered, monkeypatch
):
    if not is_remembered:
        monkeypatch.setattr(dht.reaching.dials.DialMemory, "is_due", lambda *_, **__: True)
    hall = Hall()
    for number in range(200):
        hall.book.announce(made_up(number), (aimed_at(0),))
    hall.run(55.0)
    assert (len(hall.dialled) == 1) is is_remembered


@pytest.mark.parametrize("is_mixed", [False, True])
def test_flood_of_records_keeps_an_honest_one_out_of_a_book_that_gives_way_to_whoever_comes(
    is_mixed, monkeypatch
):
    book, honest = AddressBook(), made_up(0)
    hall = Hall(book=book)
    merit = (lambda one: hall.decider.merit(one, ())) if is_mixed else (lambda _: (9, 9.0))
    for number in range(3 * KNOWN_MAX):
        newcomer = made_up(number)
        if book.make_room(newcomer, hall.decider.merit(newcomer, ()), (), merit):
            book.announce(newcomer, (aimed_at(number),))
    assert (honest in book) is is_mixed


@pytest.mark.parametrize("is_taken_in_turn", [False, True])
def test_half_open_connections_keep_everybody_out_where_nobody_has_to_go_on(
    is_taken_in_turn, monkeypatch
):
    if not is_taken_in_turn:
        monkeypatch.setattr(dht.reaching.inbound_places, "STALL_S", float("inf"))
    places = InboundPlaces(20)
    for _ in range(40):
        places.knock("127.0.0.1", 0.0)
    places.turn(0.0)
    late, admitted = places.knock("127.0.0.1", 0.1), list[Guest]()
    for second in range(1, 5):
        admitted += places.turn(float(second))[0]
    assert (late in admitted) is is_taken_in_turn


@pytest.mark.parametrize("is_kept", [False, True])
def test_strangers_with_streams_keep_a_member_out_where_no_place_is_kept(is_kept):
    members, busy = {made_up(1000)}, set[Guest]()
    places = InboundPlaces(300, has_stream=busy.__contains__)
    if is_kept:
        places.members = lambda: members
    for number in range(300):
        if (guest := places.knock(f"45.{number >> 8}.{number & 255}.7", 0.0)) is not None:
            places.turn(0.0)
            places.prove(guest, made_up(number), 0.0)
            busy.add(guest)
    guest = places.knock("46.1.1.1", 0.0)
    assert guest is not None
    places.turn(0.0)
    assert places.prove(guest, made_up(1000), 0.0)[0] is is_kept


# What is said of work, and of others --------------------------------------------------------------


@pytest.mark.parametrize("is_checked", [False, True])
def test_claim_of_a_million_samples_outweighs_everybody_where_leases_bind_nobody(
    is_checked, monkeypatch
):
    if not is_checked:
        monkeypatch.setattr(protocol.rounds.admission, "claim_breach", lambda *_, **__: "")
    script = Script()
    found = faults(script.tell(one.commit("lie", samples=10**6, tokens=10**6)))
    view = script.machine.view
    heard = [(sender, digest, body) for sender, digest, body in view.commits() if sender == FIRST]
    rows = weighed(view.roster, NO_ADMISSION, heard)
    assert bool(found) is is_checked
    assert [row[2] >= 10**6 for row in rows] == ([] if is_checked else [True])


@pytest.mark.parametrize("is_checked", [False, True])
def test_junk_convicts_the_honest_where_evidence_is_taken_at_its_word(is_checked, monkeypatch):
    """Two messages of two slots, which everybody signs every round."""
    peers = peers_named(4)
    head = head_of(peers).value
    voice = Voice(peers[1], head)
    first, second = voice.vote([], 0).message, voice.vote([], 1).message
    signer = KeyedHashSigner(peers[0])
    if not is_checked:
        monkeypatch.setattr(protocol.evidence, "_check_messages", lambda *_: None)
    proof = two_messages_evidence(first, voice.vote([voice.commit()], 0).message)
    low, high = sorted((encode(first.filled), encode(second.filled)))
    junk: Evidence = replace(proof, first=low, second=high)
    assert decode_evidence(proof.encoded, head.run, signer).accusation is Accusation.TWO_MESSAGES
    if is_checked:
        with pytest.raises(ProofError):
            decode_evidence(junk.encoded, head.run, signer)
    else:
        assert decode_evidence(junk.encoded, head.run, signer).subject == peers[1]


# Bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_checked", [False, True])
def test_another_slice_to_each_holder_sets_the_honest_against_each_other(is_checked, monkeypatch):
    """Without the check against the COMMIT's root two who sum rightly say different sums."""
    if not is_checked:
        monkeypatch.setattr(node.holdings.shard_store, "check_merkle_proof", lambda *_, **__: None)
    sender, holders = store_of(), (store_of(), store_of())
    root, _ = contribution(sender, "x")
    items = list(sender.parts(root, [0, 1, 2, 3]))
    bent = replace(items[2], payload=items[1].payload)
    sums = []
    for holder, third in zip(holders, (items[2], bent), strict=True):
        for item in (*items[:2], third, items[3]):
            if is_checked and item is bent:
                with pytest.raises(ProofError):
                    holder.put_part(root, item)
            else:
                holder.put_part(root, item)
        if len(list(holder.parts(root, [0, 1, 2, 3]))) == len(items):
            sums.append(holder.reduce(LIST, [(entry(0, 10), root)], first=0, stop=4))
    assert len(sums) == (1 if is_checked else 2)
    assert len(set(sums)) == len(sums)
