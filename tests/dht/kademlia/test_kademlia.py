"""One node's decisions: what it stores, whom it tells about, whom it leaves alone."""

import random
from dataclasses import replace

import pytest

from dht.kademlia.kademlia import Kademlia, KademliaConfig
from dht.kademlia.keyspace import topic_key
from dht.kademlia.messages import FindNode, FindValue, Nodes, Ping, Pong, Store, Stored, Values
from dht.kademlia.records import StoreVerdict, Verdict, sign_record
from dht.kademlia.routing import Contact
from protocol import limits
from protocol.identity import KeyedHashSigner
from tests.dht.network import WALL_S, contact, peer_id

KEY = topic_key(b"a run")
OWN = peer_id(0)
WRITER = KeyedHashSigner(peer_id(1))


def node(**config: float) -> Kademlia:
    return Kademlia(
        KeyedHashSigner(OWN),
        lambda: ("/memory/0",),
        random.Random(1),
        config=KademliaConfig(**config),  # type: ignore[arg-type]  # numbers only
    )


def record(*, sequence: int = 1, lives_s: int = 60):
    return sign_record(WRITER, KEY, b"v", sequence=sequence, expires_unix_s=int(WALL_S) + lives_s)


def store(to: Kademlia, one) -> StoreVerdict:
    reply = to.handle_request(peer_id(9), Store((), one), 0.0, WALL_S)
    assert isinstance(reply, Stored)
    return reply.verdict


def asks(of: Kademlia, now_s: float) -> list[Contact]:
    return [query.contact for query in of.lookup(KEY, now_s).start(now_s)]


def test_ping_is_answered_with_our_addresses() -> None:
    assert node().handle_request(peer_id(9), Ping(()), 0.0, WALL_S) == Pong(("/memory/0",))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, StoreVerdict.STORED),
        ({"value": b"forged"}, StoreVerdict.REFUSED),
        ({"writer": peer_id(2)}, StoreVerdict.REFUSED),
        ({"expires_unix_s": int(WALL_S)}, StoreVerdict.REFUSED),
        ({"sequence": 0}, StoreVerdict.REFUSED),
    ],
)
def test_only_what_its_writer_signed_is_stored(changes, expected: StoreVerdict) -> None:
    assert store(node(), replace(record(), **changes)) is expected


def test_older_record_does_not_replace_and_forged_newer_one_does_not_either() -> None:
    keeper = node()
    new = record(sequence=5)
    assert store(keeper, new) is StoreVerdict.STORED
    assert store(keeper, record(sequence=4)) is StoreVerdict.SUPERSEDED
    assert store(keeper, replace(new, sequence=6)) is StoreVerdict.REFUSED
    reply = keeper.handle_request(peer_id(9), FindValue((), KEY, 8, b""), 0.0, WALL_S)
    assert isinstance(reply, Values)
    assert reply.records == (new,)


def test_signature_is_checked_once_and_time_and_every_other_record_again(monkeypatch) -> None:
    keeper, checked = node(), []
    verify = keeper._signer.verify

    def counted(*arguments) -> bool:
        checked.append(arguments)
        return verify(*arguments)

    monkeypatch.setattr(type(keeper._signer), "verify", lambda _, *rest: counted(*rest))
    one = record(lives_s=60)
    assert [keeper._verdict(one, WALL_S) for _ in range(3)] == [Verdict.VALID] * 3
    assert len(checked) == 1
    assert keeper._verdict(one, WALL_S + 60) is Verdict.UNTIMELY
    for forged in (replace(one, value=b"forged"), replace(one, signature=bytes(64))):
        assert [keeper._verdict(forged, WALL_S) for _ in range(2)] == [Verdict.FORGED] * 2
    assert len(checked) == 5


def test_checked_signatures_that_are_remembered_are_bounded() -> None:
    keeper = node()
    for number in range(1100):
        assert keeper._verdict(record(sequence=number), WALL_S) is Verdict.VALID
    assert len(keeper._believed) == 1024


def test_expired_record_is_not_in_a_reply() -> None:
    keeper = node()
    store(keeper, record(lives_s=10))
    reply = keeper.handle_request(peer_id(9), FindValue((), KEY, 8, b""), 0.0, WALL_S + 10)
    assert isinstance(reply, Values)
    assert reply.records == ()


def test_reply_names_as_many_as_asked_for_and_never_the_asker() -> None:
    keeper = node()
    for number in range(1, 30):
        keeper.answered(peer_id(number), contact(number).addresses, 0.0)
    asker = keeper.table.closest(KEY, 1)[0].peer
    reply = keeper.handle_request(asker, FindNode((), KEY, 8), 0.0, WALL_S)
    assert isinstance(reply, Nodes)
    assert len(reply.contacts) == 8
    assert asker not in {c.peer for c in reply.contacts}


def test_asker_is_pinged_before_it_is_a_contact() -> None:
    keeper = node()
    keeper.handle_request(peer_id(5), Ping(("/memory/5",)), 0.0, WALL_S)
    assert len(keeper.table) == 0
    assert keeper.take_pings() == [contact(5)]
    assert not keeper.has_pings
    keeper.answered(peer_id(5), ("/memory/5",), 0.0)
    keeper.handle_request(peer_id(5), Ping(("/memory/5",)), 0.0, WALL_S)
    assert keeper.take_pings() == []
    assert keeper.table.contacts() == (contact(5),)


def test_flood_of_askers_fills_a_bounded_list() -> None:
    keeper = node()
    for number in range(1, 1000):
        keeper.handle_request(peer_id(number), Ping(("/memory/1",)), 0.0, WALL_S)
    assert len(keeper.take_pings()) == limits.DHT_PINGS_MAX


def test_known_peer_that_asks_may_move_and_may_leave() -> None:
    keeper = node()
    keeper.answered(peer_id(5), ("/memory/5",), 0.0)
    keeper.handle_request(peer_id(5), Ping(("/memory/55",)), 0.0, WALL_S)
    assert keeper.table.get(peer_id(5)) == Contact(peer_id(5), ("/memory/55",))
    keeper.handle_request(peer_id(5), Ping(()), 0.0, WALL_S)
    assert keeper.table.get(peer_id(5)) is None


def test_pause_of_a_failing_peer_doubles_up_to_a_limit_and_ends_with_an_answer() -> None:
    asker = node(avoid_first_s=2.0, avoid_max_s=5.0)
    pauses = []
    now_s = 0.0
    for _ in range(4):
        asker.failed(peer_id(1), now_s)
        asker.table.seen(contact(1), now_s, stale_after_s=60.0)
        started_s = now_s
        while not asks(asker, now_s):
            now_s += 0.5
        pauses.append(now_s - started_s)
    assert pauses == [2.0, 4.0, 5.0, 5.0]
    asker.failed(peer_id(1), now_s)
    asker.answered(peer_id(1), ("/memory/1",), now_s)
    assert asks(asker, now_s) == [contact(1)]


def test_suspect_is_left_alone_for_a_moment_and_keeps_its_place() -> None:
    asker = node(avoid_first_s=2.0)
    asker.answered(peer_id(1), ("/memory/1",), 0.0)
    asker.suspect(peer_id(1), 0.0)
    assert asks(asker, 1.9) == []
    assert asks(asker, 2.0) == [contact(1)]
    assert peer_id(1) in asker.table


def test_peer_that_asks_us_is_no_longer_avoided() -> None:
    asker = node()
    asker.answered(peer_id(1), ("/memory/1",), 0.0)
    asker.suspect(peer_id(1), 0.0)
    asker.handle_request(peer_id(1), Ping(("/memory/1",)), 0.5, WALL_S)
    assert asks(asker, 0.5) == [contact(1)]


def test_only_the_first_usable_addresses_are_stated() -> None:
    many = ("/" + "a" * limits.ADDRESS_BYTES_MAX, *(f"/memory/{n}" for n in range(20)))
    keeper = Kademlia(KeyedHashSigner(OWN), lambda: many, random.Random(1))
    assert keeper.own_addresses() == tuple(f"/memory/{n}" for n in range(8))
