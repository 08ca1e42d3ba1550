"""When what we say is due again, and that what we say later wins."""

import pytest

from dht.directory import Announcement, Announcements
from dht.kademlia.keyspace import distance, node_key
from dht.kademlia.records import SignedRecord, Verdict, rank, verdict
from protocol.identity import KeyedHashSigner
from tests.dht.network import WALL_S, peer_id

SIGNER = KeyedHashSigner(peer_id(1))
REPLICAS = 8


def announcements() -> Announcements:
    return Announcements(SIGNER, replicas=REPLICAS)


def publish(said: Announcements, one: Announcement, num_stored: int, now_s: float) -> SignedRecord:
    """Say it once, to so many who answer in time; the record that was said."""
    record = said.sign(one, WALL_S + now_s)
    for number in range(num_stored):
        said.stored(record, peer_id(100 + number), now_s)
    said.published(one, now_s)
    return record


def test_nothing_said_is_never_due() -> None:
    assert announcements().next_due_s() == float("inf")
    assert announcements().due(1e9) == []


def test_fully_stored_announcement_is_renewed_at_a_third_of_its_life() -> None:
    said = announcements()
    one = said.add(b"topic", b"v", ttl_s=90.0, now_s=0.0)
    publish(said, one, REPLICAS, 10.0)
    assert said.next_due_s() == 40.0
    assert said.due(39.9) == []
    assert said.due(40.0) == [one]


def test_announcement_with_too_few_replicas_is_repeated_soon_then_less_often() -> None:
    said = announcements()
    one = said.add(b"topic", b"v", ttl_s=90.0, now_s=0.0)
    waits = []
    for _ in range(7):
        publish(said, one, REPLICAS - 1, 0.0)
        waits.append(said.next_due_s())
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_late_answers_count_and_those_to_an_older_record_do_not() -> None:
    said = announcements()
    one = said.add(b"topic", b"v", ttl_s=90.0, now_s=0.0)
    older = publish(said, one, REPLICAS - 1, 0.0)
    record = publish(said, one, REPLICAS - 2, 1.0)
    assert said.next_due_s() == 3.0
    for late in (older, older, record):
        said.stored(late, peer_id(98), 1.5)
    # The same peer twice is one replica.
    said.stored(record, peer_id(98), 1.6)
    assert said.next_due_s() == 3.0
    said.stored(record, peer_id(99), 1.7)
    assert said.next_due_s() == 31.7


def test_newcomer_is_told_what_it_lies_nearer_to_than_a_replica() -> None:
    said = announcements()
    one = said.add(b"topic", b"v", ttl_s=90.0, now_s=0.0)
    assert said.for_newcomer(peer_id(1)) == []
    record = said.sign(one, WALL_S)
    peers = sorted(map(peer_id, range(100)), key=lambda peer: distance(node_key(peer), one.key))
    # Fewer than enough hold it: whoever comes is welcome.
    assert said.for_newcomer(peers[99]) == [record]
    for peer in peers[10 : 10 + REPLICAS]:
        said.stored(record, peer, 1.0)
    said.published(one, 1.0)
    assert said.for_newcomer(peers[99]) == []
    assert said.for_newcomer(peers[0]) == [record]
    assert said.for_newcomer(peers[10]) == []  # It holds it.
    # Once eight nearer ones hold it, the others were the wrong ones.
    for peer in peers[:REPLICAS]:
        said.stored(record, peer, 2.0)
    assert said.for_newcomer(peers[8]) == said.for_newcomer(peers[9]) == []
    # Nor is it kept without bound who they are, or the renewal put off by whoever comes.
    assert set(one.holders) == set(peers[:REPLICAS])
    assert said.next_due_s() == 31.0


def test_announcement_that_was_never_published_is_due_soon() -> None:
    said = announcements()
    one = said.add(b"topic", b"v", ttl_s=90.0, now_s=5.0)
    assert said.due(6.0) == [one]


def test_later_records_win_also_over_those_of_the_run_before() -> None:
    before, after = announcements(), announcements()
    one = before.add(b"topic", b"v", ttl_s=90.0, now_s=0.0)
    first, second = (before.sign(one, WALL_S) for _ in range(2))
    again = after.sign(after.add(b"topic", b"v", ttl_s=90.0, now_s=0.0), WALL_S + 0.01)
    assert rank(first) < rank(second) < rank(again)


@pytest.mark.parametrize("ttl_s", [1.0, 30.0, 24 * 3600.0])
def test_record_is_valid_for_its_lifetime(ttl_s: float) -> None:
    said = announcements()
    one = said.add(b"topic", b"v", ttl_s=ttl_s, now_s=0.0)
    record = said.sign(one, WALL_S)
    assert verdict(record, SIGNER, WALL_S + ttl_s - 0.01) is Verdict.VALID
    assert verdict(record, SIGNER, WALL_S + ttl_s + 1.0) is Verdict.UNTIMELY


def test_replaced_announcement_is_no_longer_current() -> None:
    said = announcements()
    old = said.add(b"topic", b"old", ttl_s=90.0, now_s=0.0)
    new = said.add(b"topic", b"new", ttl_s=90.0, now_s=0.0)
    assert not said.is_current(old)
    assert said.is_current(new)
