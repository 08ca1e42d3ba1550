"""The store is bounded in every direction and gives nothing back that has expired."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.kademlia.keyspace import Key, distance
from dht.kademlia.records import (
    RECORD_OVERHEAD_BYTES,
    RecordStore,
    SignedRecord,
    StoreBounds,
    StoreVerdict,
    merge,
)
from tests.dht.network import WALL_S, peer_id

OWN_KEY = Key(bytes(32))
SALT = bytes(32)
KEY = Key(b"\x05" + bytes(31))
COURIER = peer_id(50)
STORED, FULL = StoreVerdict.STORED, StoreVerdict.FULL


def record(
    writer: int = 1, *, key: Key = KEY, sequence: int = 1, lives_s: int = 60, value: bytes = b"v"
) -> SignedRecord:
    expires = int(WALL_S) + lives_s
    return SignedRecord(key, peer_id(writer), sequence, expires, value, bytes(64))


def key_at(distance_byte: int) -> Key:
    return Key(bytes((distance_byte,)) + bytes(31))


def test_records_of_different_writers_stand_side_by_side_in_order_of_writer() -> None:
    store = RecordStore(OWN_KEY, salt=SALT)
    records = [record(number) for number in range(5)]
    assert [store.put(r, WALL_S) for r in records] == [STORED] * 5
    assert store.get(KEY, WALL_S) == sorted(records, key=lambda r: r.writer)
    assert store.num_keys == 1


def test_get_goes_on_after_a_writer() -> None:
    store = RecordStore(OWN_KEY, salt=SALT)
    for number in range(5):
        store.put(record(number), WALL_S)
    everything = store.get(KEY, WALL_S)
    assert store.get(KEY, WALL_S, after=everything[1].writer) == everything[2:]


def test_newer_record_replaces_and_older_is_superseded() -> None:
    store = RecordStore(OWN_KEY, salt=SALT)
    old, new = record(sequence=1), record(sequence=2, value=b"longer")
    assert store.put(old, WALL_S) is STORED
    assert store.put(new, WALL_S) is STORED
    assert store.put(old, WALL_S) is StoreVerdict.SUPERSEDED
    assert store.put(new, WALL_S) is STORED
    assert store.get(KEY, WALL_S) == [new]
    assert (store.num_records, store.num_bytes) == (1, 6 + RECORD_OVERHEAD_BYTES)


def test_expired_record_is_never_returned_even_before_the_purge() -> None:
    store = RecordStore(OWN_KEY, salt=SALT)
    store.put(record(lives_s=10), WALL_S)
    assert store.get(KEY, WALL_S + 9.9)
    assert store.get(KEY, WALL_S + 10) == []
    assert store.num_records == 1
    assert store.purge(WALL_S + 10) == 1
    assert (store.num_records, store.num_bytes, store.num_keys) == (0, 0, 0)


def test_renewed_record_survives_the_expiry_of_what_it_replaced() -> None:
    store = RecordStore(OWN_KEY, salt=SALT)
    store.put(record(lives_s=10), WALL_S)
    renewed = record(sequence=2, lives_s=30)
    store.put(renewed, WALL_S)
    assert store.purge(WALL_S + 20) == 0
    assert store.get(KEY, WALL_S + 20) == [renewed]


@pytest.mark.parametrize("lives_s", [0, -5, 10**6])
def test_expired_and_far_future_records_are_refused(lives_s: int) -> None:
    store = RecordStore(OWN_KEY, salt=SALT)
    assert store.put(record(lives_s=lives_s), WALL_S) is StoreVerdict.REFUSED
    assert store.num_records == 0


def test_crowded_key_keeps_the_same_writers_whatever_the_order_of_arrival() -> None:
    writers = list(range(100))
    kept = []
    for seed in range(3):
        store = RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(writers_per_key_max=10))
        random.Random(seed).shuffle(writers)
        for number in writers:
            store.put(record(number), WALL_S)
        kept.append([r.writer for r in store.get(KEY, WALL_S)])
    assert len(kept[0]) == 10
    assert kept[0] == kept[1] == kept[2]


def test_crowded_key_keeps_other_writers_under_another_salt() -> None:
    kept = []
    for salt in (SALT, b"\x01" * 32):
        store = RecordStore(OWN_KEY, salt=salt, bounds=StoreBounds(writers_per_key_max=10))
        for number in range(100):
            store.put(record(number), WALL_S)
        kept.append([r.writer for r in store.get(KEY, WALL_S)])
    assert kept[0] != kept[1]


def test_writer_over_its_quota_is_refused_but_may_renew() -> None:
    store = RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(keys_per_writer_max=2))
    assert store.put(record(key=key_at(1)), WALL_S) is STORED
    assert store.put(record(key=key_at(2)), WALL_S) is STORED
    assert store.put(record(key=key_at(3)), WALL_S) is FULL
    assert store.put(record(key=key_at(2), sequence=2), WALL_S) is STORED
    assert store.put(record(2, key=key_at(3)), WALL_S) is STORED
    store._drop(key_at(1), peer_id(1))
    assert store.put(record(key=key_at(3)), WALL_S) is STORED


@pytest.mark.parametrize("renewals", [0, 1, 3])
def test_courier_keeps_no_more_by_renewing_what_it_brought(renewals: int) -> None:
    """Keys of writers cost nothing to make, nor does a second record of each."""
    store = RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(records_per_courier_max=2))
    for number in range(10):
        for sequence in range(1 + renewals):
            store.put(record(number, sequence=sequence), WALL_S, courier=COURIER)
    assert store.num_records == 2
    assert store.put(record(20), WALL_S, courier=peer_id(51)) is STORED


def test_what_a_courier_brought_is_off_its_quota_once_it_is_gone_or_its_writer_comes() -> None:
    store = RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(records_per_courier_max=2))
    for number in (1, 2):
        assert store.put(record(number), WALL_S, courier=COURIER) is STORED
    assert store.put(record(3), WALL_S, courier=COURIER) is FULL
    store._drop(KEY, peer_id(1))
    assert store.put(record(3), WALL_S, courier=COURIER) is STORED
    assert store.put(record(4), WALL_S, courier=COURIER) is FULL
    # With the very record that was brought before it came, or with a newer one.
    assert store.put(record(2), WALL_S, courier=peer_id(2)) is STORED
    assert store.put(record(3, sequence=2), WALL_S, courier=peer_id(3)) is STORED
    for number in (4, 5):
        assert store.put(record(number), WALL_S, courier=COURIER) is STORED
    assert store.put(record(6), WALL_S, courier=COURIER) is FULL
    # Who came itself stays so, whoever passes a later record on.
    assert store.put(record(2, sequence=2), WALL_S, courier=COURIER) is STORED
    store._drop(KEY, peer_id(2))
    assert store.put(record(6), WALL_S, courier=COURIER) is FULL


@pytest.mark.parametrize("renewed", [False, True])
def test_crowded_key_gives_up_what_couriers_brought_before_those_who_came(renewed: bool) -> None:
    store = RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(writers_per_key_max=4))
    for number in range(4):
        store.put(record(number), WALL_S, courier=COURIER)
        if renewed:
            store.put(record(number, sequence=2), WALL_S, courier=COURIER)
    came = [record(number) for number in range(10, 14)]
    assert [store.put(one, WALL_S, courier=one.writer) for one in came] == [STORED] * 4
    assert [store.put(record(n), WALL_S, courier=COURIER) for n in range(20, 40)] == [FULL] * 20
    assert store.get(KEY, WALL_S) == sorted(came, key=lambda r: r.writer)


def test_full_store_gives_up_its_farthest_key_for_a_nearer_one_only() -> None:
    store = RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(keys_max=2))
    for far in (10, 20):
        assert store.put(record(key=key_at(far)), WALL_S) is STORED
    assert store.put(record(key=key_at(30)), WALL_S) is FULL
    assert store.put(record(key=key_at(5)), WALL_S) is STORED
    assert store.get(key_at(20), WALL_S) == []
    assert store.get(key_at(10), WALL_S)
    assert store.get(key_at(5), WALL_S)


def test_expired_records_make_room_before_anything_is_given_up() -> None:
    store = RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(keys_max=1))
    store.put(record(key=key_at(1), lives_s=5), WALL_S)
    assert store.put(record(key=key_at(9)), WALL_S + 6) is STORED


@pytest.mark.parametrize("name", ["keys_max", "writers_per_key_max", "keys_per_writer_max"])
def test_store_that_can_keep_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0"):
        StoreBounds(**{name: 0})
    RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(**{name: 1})).put(record(), WALL_S)


def test_bytes_are_bounded() -> None:
    size = 100 + RECORD_OVERHEAD_BYTES
    store = RecordStore(OWN_KEY, salt=SALT, bounds=StoreBounds(bytes_max=3 * size))
    value = bytes(100)
    for far in (40, 30, 20):
        assert store.put(record(key=key_at(far), value=value), WALL_S) is STORED
    assert store.put(record(key=key_at(10), value=value), WALL_S) is STORED
    assert store.get(key_at(40), WALL_S) == []
    assert store.num_bytes == 3 * size


def test_full_store_gives_up_nothing_of_its_farthest_key_for_more_of_it() -> None:
    size = 1 + RECORD_OVERHEAD_BYTES
    bounds = StoreBounds(bytes_max=3 * size, writers_per_key_max=3)
    store = RecordStore(OWN_KEY, salt=SALT, bounds=bounds)
    held = [record(number) for number in range(2)]
    for one in (*held, record(key=key_at(1))):
        assert store.put(one, WALL_S) is STORED
    assert store.put(record(2), WALL_S) is FULL
    assert store.get(KEY, WALL_S) == sorted(held, key=lambda r: r.writer)
    assert store.num_bytes == 3 * size


def test_full_store_takes_what_is_no_longer_than_what_leaves_for_it() -> None:
    """Or a writer could not renew what it has here, and it would expire."""
    bounds = StoreBounds(bytes_max=2 * (5 + RECORD_OVERHEAD_BYTES))
    store = RecordStore(OWN_KEY, salt=SALT, bounds=bounds)
    for number in (1, 2):
        assert store.put(record(number, value=b"value"), WALL_S) is STORED
    renewed = [record(number, sequence=2, lives_s=90, value=b"VALUE") for number in (1, 2)]
    assert [store.put(one, WALL_S) for one in renewed] == [STORED] * 2
    assert store.put(record(1, sequence=3, value=b"longer"), WALL_S) is FULL
    assert store.get(KEY, WALL_S) == sorted(renewed, key=lambda r: r.writer)
    assert store.num_bytes == bounds.bytes_max


def test_nothing_is_kept_of_writers_and_couriers_whose_records_are_gone() -> None:
    store = RecordStore(OWN_KEY, salt=SALT)
    for number in range(10):
        store.put(record(number), WALL_S, courier=peer_id(50 + number))
        store.put(record(number, sequence=2), WALL_S, courier=peer_id(number % 2))
    assert store.purge(WALL_S + 60) == 10
    assert not any((store._keys_of, store._courier_of, store._carried, store._expiries))


def test_renewal_again_and_again_keeps_the_memory_of_expiries_bounded() -> None:
    store = RecordStore(OWN_KEY, salt=SALT)
    for sequence in range(2000):
        store.put(record(sequence=sequence), WALL_S)
    assert len(store._expiries) <= 2 + 64


PUTS = st.lists(
    st.builds(
        record,
        st.integers(0, 6),
        key=st.integers(1, 6).map(key_at),
        sequence=st.integers(0, 3),
        lives_s=st.integers(1, 50),
        value=st.binary(max_size=40),
    ),
    max_size=30,
)


@given(PUTS, st.lists(st.integers(0, 60), min_size=30, max_size=30))
def test_bounds_and_counters_hold_after_any_puts(puts: list[SignedRecord], ages) -> None:
    bounds = StoreBounds(
        keys_max=4,
        writers_per_key_max=3,
        keys_per_writer_max=3,
        bytes_max=8 * RECORD_OVERHEAD_BYTES,
    )
    store = RecordStore(OWN_KEY, salt=SALT, bounds=bounds)
    for put, age_s in zip(puts, sorted(ages), strict=False):
        wall_s = WALL_S + age_s
        verdict = store.put(put, wall_s)
        held = [r for far in range(1, 7) for r in store.get(key_at(far), wall_s)]
        assert (put in held) == (verdict is STORED)
        assert all(r.expires_unix_s > wall_s for r in held)
        assert len(held) == store.num_records
        assert sum(len(r.value) + RECORD_OVERHEAD_BYTES for r in held) == store.num_bytes
        assert store.num_bytes <= bounds.bytes_max
        assert store.num_keys == len({r.key for r in held}) <= 4
        assert [d for d, _ in store._by_distance] == sorted(
            {distance(OWN_KEY, r.key) for r in held}
        )
        for writer in {r.writer for r in held}:
            assert sum(r.writer == writer for r in held) <= 3


@given(PUTS, st.integers(0, 99))
def test_unbounded_store_ends_with_the_winners_whatever_the_order(
    puts: list[SignedRecord], seed: int
) -> None:
    random.Random(seed).shuffle(puts)
    store = RecordStore(OWN_KEY, salt=SALT)
    for put in puts:
        store.put(put, WALL_S)
    held = [r for far in range(1, 7) for r in store.get(key_at(far), WALL_S)]
    assert {(r.key, r.writer): r for r in held} == merge(puts)
