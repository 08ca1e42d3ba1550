"""Disjoint paths, corners of the internet, origins: whom a liar leads astray, who notices."""

import pytest

from dht.directory import Origins, doubts
from dht.kademlia.keyspace import Key, node_key, topic_key
from dht.kademlia.lookup import LookupConfig, Search
from dht.kademlia.messages import Nodes, Values
from dht.kademlia.records import SignedRecord, Verdict
from dht.kademlia.routing import Contact, RoutingTable, distance_to
from dht.reaching.addresses import NARROW_BITS, subnets
from tests.dht.network import contact, peer_id

KEY = topic_key(b"a run")
MANY = 4000


def nearest_made_up(count: int) -> list[Contact]:
    """Peers of an attacker who has made many keys, and keeps those that lie near."""
    made = (contact(number) for number in range(10_000, 10_000 + MANY))
    return sorted(made, key=lambda one: distance_to(one, KEY))[:count]


def drive(search: Search, answer) -> None:
    queries, now_s = search.start(0.0), 0.0
    while not search.is_done:
        query = queries.pop(0)
        now_s += 0.01
        queries += search.replied(
            query.contact.peer, Nodes((), tuple(answer(query.contact))), now_s
        )


def test_paths_never_ask_the_same_peer() -> None:
    known = [contact(number) for number in range(40)]
    asked = []
    search = Search(KEY, LookupConfig(), known=known[:9], avoid=set())

    def answer(one: Contact):
        asked.append(one.peer)
        return known[:16]

    drive(search, answer)
    assert len(asked) == len(set(asked)) >= 8


@pytest.mark.parametrize(("paths", "is_found"), [(1, False), (3, True)])
def test_liar_on_one_path_hides_honest_peers_only_where_there_is_no_other(paths, is_found) -> None:
    honest = sorted(map(contact, range(30)), key=lambda one: distance_to(one, KEY))
    liars = nearest_made_up(30)
    # The honest know each other; the nearest of them turns out to be the attacker's.
    lying = {liar.peer for liar in liars} | {honest[0].peer}

    def answer(one: Contact):
        return liars[:16] if one.peer in lying else honest[:16]

    config = LookupConfig(paths=paths)
    search = Search(KEY, config, known=honest[:9], avoid=set())
    drive(search, answer)
    true = {one.peer for one in honest[1:]}
    assert bool(true & {one.peer for one in search.result().replicas}) is is_found


def one_holder_search(holders: int) -> tuple[Search, list[Contact]]:
    known = sorted(map(contact, range(12)), key=lambda one: distance_to(one, KEY))
    config = LookupConfig(holders_enough=holders)
    search = Search(
        KEY,
        config,
        known=known,
        avoid=set(),
        judge=lambda _: Verdict.VALID,
        patience=lambda _: 0.02,
    )
    return search, known


def says(*sequences: int) -> Values:
    records = tuple(
        SignedRecord(KEY, peer_id(70), sequence, 2**31, b"v", bytes(64)) for sequence in sequences
    )
    return Values((), (), records, False)


@pytest.mark.parametrize("holders", [1, 2])
def test_no_more_are_asked_than_holders_are_wanted_nearest_first(holders: int) -> None:
    search, known = one_holder_search(holders)
    asked = search.start(0.0)
    assert [query.contact for query in asked] == known[:holders]
    for query in asked:
        assert not search.is_done
        assert search.replied(query.contact.peer, says(1), 0.001) == []
    assert search.is_done
    assert search.result().num_queries == holders


def test_who_holds_nothing_fails_or_is_slow_is_stood_in_for() -> None:
    search, known = one_holder_search(1)
    (first,) = search.start(0.0)
    (second,) = search.replied(first.contact.peer, says(), 0.001)
    (third,) = search.failed(second.contact.peer, 0.002)
    # Another path each time, so that no liar leads to the next.
    assert [one.contact for one in (first, second, third)] == known[:3]
    assert search.tick(0.01) == []
    (fourth,) = search.tick(0.03)
    # The slow one may still answer, and be the one.
    assert search.replied(third.contact.peer, says(3), 0.04) == []
    assert search.is_done
    assert fourth.contact.peer not in {one.contact.peer for one in (first, second, third)}
    assert [record.sequence for record in search.result().records] == [3]


def test_search_for_a_holder_ends_when_nobody_holds_anything() -> None:
    search, _ = one_holder_search(2)
    queries, now_s = search.start(0.0), 0.0
    while not search.is_done:
        now_s += 0.001
        query = queries.pop(0)
        queries += search.replied(query.contact.peer, says(), now_s)
        assert len(queries) <= 2
    # All eight nearest were asked, as in a search that wants to hear everybody.
    assert search.result().num_queries >= 8
    assert search.result().records == ()


def test_subnets_are_of_public_addresses_only() -> None:
    addresses = ["/ip4/8.8.4.4/tcp/1", "/ip4/10.1.2.3/tcp/1", "/ip4/127.0.0.1/tcp/1", "/memory/1"]
    assert subnets(addresses, NARROW_BITS) == {"8.8.4.0/24"}
    assert subnets(["/ip6/2a00:1450:1:2::3/tcp/1"], NARROW_BITS) == {"2a00:1450:1::/48"}
    assert subnets(["/ip6/fe80::1/tcp/1", "/ip4/1.2.3/tcp/1"], NARROW_BITS) == frozenset()


@pytest.mark.parametrize(
    ("address", "share"),
    [("/ip4/8.8.4.{}/tcp/1", 4), ("/ip4/8.8.{}.4/tcp/1", 8), ("/ip4/192.168.1.{}/tcp/1", 16)],
)
def test_bucket_takes_a_share_from_one_corner_and_all_from_a_home(address: str, share: int) -> None:
    table = RoutingTable(peer_id(0))
    far = [n for n in range(1, 200) if (node_key(peer_id(n))[0] ^ table.own_key[0]) & 0x80]
    for number in far[:60]:
        table.seen(Contact(peer_id(number), (address.format(number % 250),)), 0.0, stale_after_s=60)
    assert len(table.contacts()) == share
    elsewhere = far[61:90]
    for number in elsewhere:
        table.seen(Contact(peer_id(number), (f"/ip4/{number}.1.1.1/tcp/1",)), 0.0, stale_after_s=60)
    assert len(table.contacts()) == 16


def test_table_is_sure_of_the_closest_only_after_a_search_and_with_fresh_contacts() -> None:
    table, key = RoutingTable(peer_id(0)), Key(node_key(peer_id(5)))

    def sure(now_s: float):
        return table.surely_closest(key, 3, now_s, searched_s=600, heard_s=60)

    for number in range(1, 12):
        table.seen(contact(number), 0.0, stale_after_s=60)
    assert sure(1.0) == ()
    table.refreshed(key, 1.0)
    assert sure(2.0) == table.closest(key, 3)
    assert sure(61.0) == ()
    for number in range(1, 200):
        table.seen(contact(number), 2.0, stale_after_s=60)
    assert sure(3.0) == ()


def test_origins_that_show_the_same_peers_raise_no_doubt_and_others_do() -> None:
    a, b, c = (peer_id(number) for number in (1, 2, 3))
    near = {peer_id(number) for number in range(10, 18)}
    other = {peer_id(number) for number in range(20, 28)}
    assert doubts({a: near | {b}, b: near | {a}}) == ()
    # Some have come and gone between two searches.
    assert doubts({a: near, b: set(list(near)[:5]) | set(list(other)[:3])}) == ()
    assert doubts({a: near, b: other, c: near}) == tuple(
        sorted([tuple(sorted((a, b))), tuple(sorted((b, c)))])
    )
    # The first two of a network, and an origin that knows nobody yet but the other.
    assert doubts({a: {a, b}, b: {b, a}}) == ()
    assert doubts({a: near, b: {a}}) == ()


def test_doubt_is_looked_into_again_later_and_later_until_it_is_gone() -> None:
    origins, a, b = Origins(), peer_id(1), peer_id(2)
    views = {a: {peer_id(n) for n in range(10, 18)}, b: {peer_id(n) for n in range(20, 28)}}
    assert origins.compared(views, 0.0)
    assert not origins.is_due(9.0)
    assert origins.is_due(10.0)
    assert not origins.compared(views, 10.0)
    assert not origins.is_due(29.0)
    assert origins.is_due(30.0)
    origins.compared({a: views[a], b: views[a]}, 30.0)
    assert not origins.is_due(10_000.0)
    assert origins.doubts == ()
