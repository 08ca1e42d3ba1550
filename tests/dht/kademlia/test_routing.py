"""Buckets keep whom they know, bounded; newcomers wait for a place."""

import random

import pytest

from dht.kademlia.keyspace import Key, bucket_index, distance, node_key
from dht.kademlia.routing import BUCKET_SIZE, Contact, RoutingTable
from protocol.identity import PeerId
from tests.dht.network import contact, peer_id

OWN = peer_id(0)


def far_contacts(count: int) -> list[Contact]:
    """Contacts that all fall into the farthest bucket."""
    contacts = (contact(number) for number in range(1, 100_000))
    own_key = node_key(OWN)
    far = (c for c in contacts if bucket_index(own_key, node_key(c.peer)) == 255)
    return [next(far) for _ in range(count)]


def see(table: RoutingTable, seen: Contact, now_s: float = 0.0) -> Contact | None:
    return table.seen(seen, now_s, stale_after_s=60.0)


def test_closest_matches_a_sort_of_everyone() -> None:
    table = RoutingTable(OWN, bucket_size=1000)
    contacts = [contact(number) for number in range(1, 300)]
    for known in contacts:
        see(table, known)
    rng = random.Random(3)
    for _ in range(20):
        key = Key(rng.randbytes(32))
        expected = sorted(contacts, key=lambda c: distance(node_key(c.peer), key))
        assert table.closest(key, 16) == tuple(expected[:16])


def test_full_bucket_keeps_its_contacts_and_newcomer_waits() -> None:
    table = RoutingTable(OWN)
    *old, newcomer = far_contacts(BUCKET_SIZE + 1)
    for known in old:
        see(table, known)
    assert see(table, newcomer, 1.0) is None
    assert newcomer.peer not in table
    assert all(known.peer in table for known in old)


def test_full_bucket_names_its_least_recently_seen_contact_once_it_is_stale() -> None:
    table = RoutingTable(OWN)
    *old, newcomer = far_contacts(BUCKET_SIZE + 1)
    for known in old:
        see(table, known)
    see(table, old[0], 50.0)
    assert see(table, newcomer, 60.0) is None
    assert see(table, newcomer, 61.0) == old[1]


def test_replacement_moves_up_when_a_contact_fails() -> None:
    table = RoutingTable(OWN)
    *old, first, second = far_contacts(BUCKET_SIZE + 2)
    for known in (*old, first, second):
        see(table, known)
    table.failed(old[5].peer)
    assert old[5].peer not in table
    assert second.peer in table
    assert first.peer not in table
    assert len(table) == BUCKET_SIZE
    # It has not been heard of lately, so it is the first to be doubted.
    assert see(table, far_contacts(BUCKET_SIZE + 3)[-1], 100.0) == second


def test_flood_of_newcomers_is_bounded_and_displaces_nobody() -> None:
    table = RoutingTable(OWN)
    contacts = far_contacts(300)
    for known in contacts:
        see(table, known)
    assert len(table) == BUCKET_SIZE
    for known in contacts[:BUCKET_SIZE]:
        table.failed(known.peer)
    # Only the replacements are left to move up: the last sixteen of the flood.
    assert {c.peer for c in table.contacts()} == {c.peer for c in contacts[-BUCKET_SIZE:]}
    for known in contacts[-BUCKET_SIZE:]:
        table.failed(known.peer)
    assert len(table) == 0, "nobody else was kept"


def test_part_of_the_internet_has_its_share_of_a_bucket_and_who_moves_there_goes() -> None:
    table = RoutingTable(OWN)
    peers = [known.peer for known in far_contacts(BUCKET_SIZE + 1)]
    for number in range(6):
        see(table, Contact(peers[number], (f"/ip4/8.8.4.{number}/tcp/1",)))
    assert len(table) == BUCKET_SIZE // 4
    for number in range(6, BUCKET_SIZE):
        see(table, Contact(peers[number], (f"/ip4/8.8.{number}.1/tcp/1",)))
    assert len(table) == BUCKET_SIZE // 2
    elsewhere = Contact(peers[-1], ("/ip4/9.9.9.9/tcp/1",))
    see(table, elsewhere)
    assert table.get(elsewhere.peer) == elsewhere
    see(table, Contact(elsewhere.peer, ("/ip4/8.8.200.1/tcp/1",)))
    assert elsewhere.peer not in table
    assert len(table) == BUCKET_SIZE // 2


def test_new_addresses_of_a_known_peer_replace_the_old() -> None:
    table = RoutingTable(OWN)
    see(table, contact(1))
    moved = Contact(peer_id(1), ("/ip4/192.0.2.1/tcp/4001",))
    see(table, moved)
    assert table.get(peer_id(1)) == moved
    assert len(table) == 1


def test_own_id_is_never_a_contact() -> None:
    table = RoutingTable(OWN)
    see(table, Contact(OWN, ("/memory/0",)))
    table.failed(OWN)
    assert OWN not in table
    assert len(table) == 0


def test_failure_of_an_unknown_peer_changes_nothing() -> None:
    table = RoutingTable(OWN)
    see(table, contact(1))
    table.failed(peer_id(2))
    table.failed(PeerId(bytes(32)))
    assert table.contacts() == (contact(1),)


def test_refresh_is_due_for_buckets_from_the_nearest_contact_outwards() -> None:
    table = RoutingTable(OWN)
    for number in range(1, 40):
        see(table, contact(number))
    rng = random.Random(1)
    nearest = min(bucket_index(table.own_key, node_key(c.peer)) for c in table.contacts())
    due = table.due_for_refresh(0.0, interval_s=600.0, rng=rng)
    assert [bucket_index(table.own_key, key) for key in due] == list(range(255, nearest - 1, -1))
    for key in due:
        table.refreshed(key, 10.0)
    assert table.due_for_refresh(609.0, interval_s=600.0, rng=rng) == []
    assert len(table.due_for_refresh(610.0, interval_s=600.0, rng=rng)) == len(due)


def test_bucket_in_which_nobody_was_yet_is_due_as_well() -> None:
    table = RoutingTable(OWN)
    index, near = min((bucket_index(table.own_key, node_key(peer_id(n))), n) for n in range(1, 100))
    see(table, contact(near))
    due = table.due_for_refresh(0.0, interval_s=600.0, rng=random.Random(1))
    assert [bucket_index(table.own_key, key) for key in due] == list(range(255, index - 1, -1))


def test_contacts_are_surely_the_closest_where_no_search_could_find_nearer_ones() -> None:
    table, known = RoutingTable(OWN), far_contacts(BUCKET_SIZE)
    key = node_key(known[0].peer)

    def surely(now_s: float, count: int = 5) -> tuple[Contact, ...]:
        return table.surely_closest(key, count, now_s, searched_s=60.0, heard_s=100.0)

    for one in known[:-2]:
        see(table, one)
    assert surely(0.0) == (), "nobody has searched yet"
    table.refreshed(key, 10.0)
    assert surely(10.0) == table.closest(key, 5)
    assert surely(10.0, BUCKET_SIZE - 2) == table.closest(key, BUCKET_SIZE)
    assert surely(10.0, BUCKET_SIZE - 1) == (), "there are not so many"
    assert surely(70.0) == table.closest(key, 5)
    assert surely(70.1) == (), "that was long ago"
    table.refreshed(key, 100.0)
    assert surely(100.0) == table.closest(key, 5)
    assert surely(100.1) == (), "they may be gone"
    for one in known:
        see(table, one, 100.1)
    assert surely(100.1) == (), "a full bucket leaves some out"


def test_empty_table_has_nothing_to_refresh() -> None:
    assert RoutingTable(OWN).due_for_refresh(0.0, interval_s=1.0, rng=random.Random(1)) == []


@pytest.mark.parametrize("address", ["192.0.2.1:4001", "/ip4/\n", "/dns/böse"])
def test_contact_with_what_is_no_multiaddr_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not a multiaddr"):
        Contact(peer_id(1), (address,))
