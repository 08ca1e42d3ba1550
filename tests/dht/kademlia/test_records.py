"""Records: whom to believe, and who wins."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.kademlia.keyspace import topic_key
from dht.kademlia.records import SignedRecord, Verdict, merge, rank, sign_record, verdict
from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import Ed25519Signer, KeyedHashSigner
from protocol.wire import decode, encode
from tests.dht.network import WALL_S, peer_id

SIGNER = Ed25519Signer(bytes(range(32)))
KEY = topic_key(b"a run")
RECORD = sign_record(SIGNER, KEY, b"value", sequence=7, expires_unix_s=int(WALL_S) + 60)
BYTES = encode(RECORD)

# Unsigned bytes are enough here: the order looks at fields, never at validity.
RIVALS = st.builds(
    SignedRecord,
    key=st.just(KEY),
    writer=st.sampled_from([peer_id(1), peer_id(2)]),
    sequence=st.integers(0, 2),
    expires_unix_s=st.integers(0, 2),
    value=st.binary(max_size=1),
    signature=st.sampled_from([bytes(64), b"\x01" * 64]),
)


def test_record_of_its_writer_is_valid() -> None:
    assert verdict(RECORD, SIGNER, WALL_S) is Verdict.VALID
    assert decode(SignedRecord, BYTES) == RECORD


@given(st.integers(0, len(BYTES) - 1), st.integers(1, 255))
def test_any_changed_byte_of_a_record_is_refused(position: int, flip: int) -> None:
    changed = bytearray(BYTES)
    changed[position] ^= flip
    try:
        record = decode(SignedRecord, bytes(changed))
    except DecodeError:
        return
    assert verdict(record, SIGNER, WALL_S) is not Verdict.VALID


@given(st.sampled_from(["key", "writer", "sequence", "expires_unix_s", "value"]))
def test_every_field_is_signed(name: str) -> None:
    other = sign_record(
        Ed25519Signer(bytes(32)),
        topic_key(b"b"),
        b"other",
        sequence=8,
        expires_unix_s=int(WALL_S) + 61,
    )
    forged = replace(RECORD, **{name: getattr(other, name)})
    assert verdict(forged, SIGNER, WALL_S) is Verdict.FORGED


def test_record_lives_until_its_expiry_and_no_longer() -> None:
    assert verdict(RECORD, SIGNER, RECORD.expires_unix_s - 0.1) is Verdict.VALID
    assert verdict(RECORD, SIGNER, RECORD.expires_unix_s) is Verdict.UNTIMELY


def test_record_that_would_live_too_long_is_refused() -> None:
    latest = int(WALL_S + limits.DHT_RECORD_LIFETIME_S_MAX + limits.DHT_CLOCK_SKEW_S)
    at_cap = sign_record(SIGNER, KEY, b"v", sequence=1, expires_unix_s=latest)
    above = sign_record(SIGNER, KEY, b"v", sequence=1, expires_unix_s=latest + 1)
    assert verdict(at_cap, SIGNER, WALL_S) is Verdict.VALID
    assert verdict(above, SIGNER, WALL_S) is Verdict.UNTIMELY


def test_value_over_the_limit_is_not_signed_and_the_largest_fits_a_record() -> None:
    largest = bytes(limits.DHT_VALUE_BYTES_MAX)
    with pytest.raises(ValueError, match="at most"):
        sign_record(SIGNER, KEY, largest + b"x", sequence=1, expires_unix_s=1)
    record = sign_record(SIGNER, KEY, largest, sequence=2**62, expires_unix_s=2**40)
    assert len(encode(record)) <= limits.DHT_RECORD_BYTES_MAX


@pytest.mark.parametrize(
    ("loser", "winner"),
    [
        ((1, 9, b"\xff"), (2, 0, b"")),
        ((1, 1, b"\xff"), (1, 2, b"")),
        ((1, 1, b"a"), (1, 1, b"b")),
    ],
)
def test_winner_is_by_sequence_then_expiry_then_bytes(loser, winner) -> None:
    signer = KeyedHashSigner(peer_id(1))
    lost, won = (
        sign_record(signer, KEY, value, sequence=sequence, expires_unix_s=expires)
        for sequence, expires, value in (loser, winner)
    )
    assert merge([lost, won]) == merge([won, lost]) == {(KEY, signer.peer_id): won}


@given(RIVALS, RIVALS)
def test_rank_is_a_total_order_of_one_writers_records(a: SignedRecord, b: SignedRecord) -> None:
    if a.writer == b.writer:
        assert (rank(a) == rank(b)) == (a == b)


@given(st.lists(RIVALS, max_size=8), st.lists(RIVALS, max_size=8), st.integers(0, 999))
def test_merge_commutes_associates_and_repeats(
    a: list[SignedRecord], b: list[SignedRecord], seed: int
) -> None:
    together = merge([*a, *b])
    shuffled = [*a, *b, *b]
    random.Random(seed).shuffle(shuffled)
    assert merge(shuffled) == together
    assert merge([*merge(b).values(), *merge(a).values()]) == together
