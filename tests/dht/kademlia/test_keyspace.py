"""The XOR metric, and where things lie."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.kademlia.keyspace import (
    KEY_BITS,
    Key,
    bucket_index,
    distance,
    node_key,
    random_key_in_bucket,
    topic_key,
)
from protocol.identity import PeerId

KEYS = st.binary(min_size=32, max_size=32).map(Key)
NEAREST = Key(bytes(31) + b"\x01")


@given(KEYS, KEYS, KEYS)
def test_distance_is_a_metric(a: Key, b: Key, c: Key) -> None:
    assert distance(a, b) == distance(b, a)
    assert (distance(a, b) == 0) == (a == b)
    assert distance(a, c) <= distance(a, b) + distance(b, c)


@given(KEYS, KEYS, KEYS)
def test_distance_is_unidirectional_so_that_no_two_keys_tie(a: Key, b: Key, c: Key) -> None:
    assert (distance(a, b) == distance(a, c)) == (b == c)


def test_bucket_index_of_known_keys() -> None:
    own = Key(bytes(32))
    assert bucket_index(own, Key(b"\x80" + bytes(31))) == 255
    assert bucket_index(own, Key(b"\x01" + bytes(31))) == 248
    assert bucket_index(own, Key(bytes(31) + b"\x03")) == 1
    assert bucket_index(own, NEAREST) == 0


def test_bucket_index_of_own_key_is_refused() -> None:
    with pytest.raises(ValueError, match="own key"):
        bucket_index(NEAREST, NEAREST)


@given(KEYS, st.integers(0, KEY_BITS - 1), st.integers(0, 1000))
def test_random_key_in_bucket_falls_into_it(own: Key, index: int, seed: int) -> None:
    assert bucket_index(own, random_key_in_bucket(own, index, random.Random(seed))) == index


def test_random_keys_in_the_far_bucket_differ() -> None:
    rng = random.Random(1)
    assert len({random_key_in_bucket(NEAREST, 255, rng) for _ in range(20)}) == 20


def test_node_and_topic_of_the_same_bytes_lie_apart() -> None:
    assert node_key(PeerId(bytes(32))) != topic_key(bytes(32))
