"""Messages: one encoding each, no exception but DecodeError for all other bytes, bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.kademlia.keyspace import topic_key
from dht.kademlia.messages import (
    FindNode,
    FindValue,
    Nodes,
    Ping,
    Pong,
    Reply,
    Request,
    Store,
    Stored,
    Values,
    decode_reply,
    decode_request,
    encode_message,
)
from dht.kademlia.records import StoreVerdict, sign_record
from dht.kademlia.routing import Contact
from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import KeyedHashSigner
from tests.dht.network import contact, peer_id

KEY = topic_key(b"a run")
ADDRESSES = ("/ip4/192.0.2.7/tcp/4001", "/ip6/::1/tcp/4001")
SIGNER = KeyedHashSigner(peer_id(1))
RECORD = sign_record(SIGNER, KEY, b"value", sequence=7, expires_unix_s=1_800_000_060)

PAIRS: list[tuple[Request, Reply]] = [
    (Ping(ADDRESSES), Pong(())),
    (FindNode(ADDRESSES, KEY, 16), Nodes((), (contact(1), contact(2)))),
    (FindValue((), KEY, 1, peer_id(1)), Values(ADDRESSES, (contact(1),), (RECORD,), True)),
    (Store(ADDRESSES, RECORD), Stored((), StoreVerdict.FULL)),
]
REQUESTS = [encode_message(request) for request, _ in PAIRS]


@pytest.mark.parametrize(("request_", "reply"), PAIRS)
def test_message_comes_back_as_it_was(request_: Request, reply: Reply) -> None:
    assert decode_request(encode_message(request_)) == request_
    assert decode_reply(encode_message(reply), request_) == reply


@pytest.mark.parametrize(("request_", "reply"), PAIRS)
def test_only_the_reply_to_the_request_is_taken(request_: Request, reply: Reply) -> None:
    for other, _ in PAIRS:
        if other is not request_:
            with pytest.raises(DecodeError):
                decode_reply(encode_message(reply), other)
    with pytest.raises(DecodeError):
        decode_request(encode_message(reply))


def test_bytes_of_the_wire_are_these() -> None:
    assert encode_message(Ping(("/memory/1",))).hex() == "019191a92f6d656d6f72792f31"
    assert encode_message(Stored((), StoreVerdict.STORED)).hex() == "08929001"
    expected = "03" + "93" + "90" + "c420" + KEY.hex() + "10"
    assert encode_message(FindNode((), KEY, 16)).hex() == expected


@given(st.sampled_from(REQUESTS), st.data())
def test_changed_bytes_are_another_message_or_a_decode_error(frame: bytes, data) -> None:
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(frame) - 1))
        changed[position] ^= data.draw(st.integers(1, 255))
    changed = changed[: data.draw(st.integers(0, len(frame)))]
    try:
        message = decode_request(bytes(changed))
    except DecodeError:
        return
    assert encode_message(message) == bytes(changed)


def test_largest_reply_fits_a_frame() -> None:
    address = "/" + "a" * (limits.ADDRESS_BYTES_MAX - 1)
    addresses = (address,) * limits.DHT_ADDRESSES_PER_CONTACT_MAX
    contacts = [
        Contact(peer_id(number), addresses) for number in range(limits.DHT_CONTACTS_PER_REPLY_MAX)
    ]
    value = bytes(limits.DHT_VALUE_BYTES_MAX)
    record = sign_record(SIGNER, KEY, value, sequence=2**62, expires_unix_s=2**40)
    records = (record,) * (limits.DHT_REPLY_RECORDS_BYTES_MAX // limits.DHT_RECORD_BYTES_MAX)
    reply = Values(addresses, tuple(contacts), records, True)
    frame = encode_message(reply)
    assert len(frame) <= limits.DHT_FRAME_BYTES_MAX
    assert decode_reply(frame, FindValue((), KEY, 16, b"")) == reply


@pytest.mark.parametrize(
    "message",
    [
        Ping(("/memory/1",) * (limits.DHT_ADDRESSES_PER_CONTACT_MAX + 1)),
        Ping(("/" + "a" * limits.ADDRESS_BYTES_MAX,)),
        FindNode((), KEY, limits.DHT_CONTACTS_PER_REPLY_MAX + 1),
        FindNode((), KEY, 0),
        FindValue((), KEY, 1, bytes(33)),
    ],
)
def test_message_over_a_bound_is_not_made(message: Request) -> None:
    with pytest.raises(DecodeError):
        encode_message(message)


@pytest.mark.parametrize("address", ["", "tcp/1", "/ip4/\x00", "/ä"])
def test_what_is_no_multiaddr_is_refused_on_arrival(address: str) -> None:
    text = address.encode()
    frame = b"\x01\x91\x91" + bytes((0xA0 | len(text),)) + text
    with pytest.raises(DecodeError):
        decode_request(frame)
