"""Dials by address and host: no name that somebody makes up has an address dialled more often."""

import pytest

from dht.reaching.addresses import circuit_address
from dht.reaching.dials import (
    AGAIN_MAX_S,
    REMEMBERED_MAX,
    STRANGE_A_HOST_MAX,
    STRANGE_A_NEAR_HOST_MAX,
    STRANGE_S,
    DialMemory,
)
from protocol.identity import Ed25519Signer

FAR = "/ip4/203.0.113.1/tcp/4001"


def test_address_that_never_answered_waits_a_minute() -> None:
    memory = DialMemory()
    assert memory.is_due(FAR, 0.0)
    memory.note_tried(FAR, 0.0)
    assert not memory.is_due(FAR, STRANGE_S - 0.1)
    assert memory.is_due(FAR, STRANGE_S)


def test_address_that_answered_is_due_at_once_then_later_and_later_within_a_minute() -> None:
    memory, now_s, waits = DialMemory(), 0.0, []
    memory.note_answered(FAR, 0.0)
    for _ in range(8):
        wait_s = next(
            s for s in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0) if memory.is_due(FAR, now_s + s)
        )
        waits.append(wait_s)
        now_s += wait_s
        memory.note_tried(FAR, now_s)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert max(waits) == AGAIN_MAX_S


def test_what_a_member_named_is_not_held_up_by_what_strangers_said_of_it() -> None:
    memory = DialMemory()
    memory.note_tried(FAR, 0.0)
    assert memory.is_due(FAR, 1.0, is_trusted=True)
    assert not memory.is_due(FAR, 1.0)


@pytest.mark.parametrize(
    ("host", "most"),
    [
        ("/ip4/203.0.113.1", STRANGE_A_HOST_MAX),
        ("/ip6/2001:db8::1", STRANGE_A_HOST_MAX),
        ("/dns4/example.org", STRANGE_A_HOST_MAX),
        ("/ip4/192.168.1.9", STRANGE_A_NEAR_HOST_MAX),
        ("/ip4/127.0.0.1", 3 * STRANGE_A_NEAR_HOST_MAX),
    ],
)
def test_ports_of_one_host_are_dialled_within_a_number_a_minute(host: str, most: int) -> None:
    memory, num = DialMemory(), 0
    for port in range(2000, 2000 + 3 * STRANGE_A_NEAR_HOST_MAX):
        address = f"{host}/tcp/{port}"
        if memory.is_due(address, 0.0):
            memory.note_tried(address, 0.0)
            num += 1
    assert num == most
    assert memory.is_due(f"{host}/tcp/9", STRANGE_S)


def test_a_host_of_which_strangers_said_much_is_still_dialled_for_a_member() -> None:
    memory = DialMemory()
    for port in range(STRANGE_A_HOST_MAX):
        memory.note_tried(f"/ip4/203.0.113.1/tcp/{port + 2000}", 0.0)
    assert not memory.is_due(FAR, 0.0)
    assert memory.is_due(FAR, 0.0, is_trusted=True)


def test_circuits_count_for_where_the_relay_is_and_a_relay_that_is_there_has_answered() -> None:
    relays = [Ed25519Signer(bytes([number]) * 32).peer_id for number in (1, 2)]
    made_up, other = (circuit_address(relay, FAR) for relay in relays)
    memory = DialMemory()
    memory.note_tried(made_up, 0.0)
    assert not memory.is_due(other, 1.0)
    memory.note_outcome((made_up,), "", (), 1.0)
    assert not memory.is_due(other, 2.0)
    # Whoever is behind the relay was away. The relay was there: others behind it are dialled.
    memory.note_outcome((made_up,), "", (relays[0],), 2.0)
    assert memory.is_due(other, 3.0)


def test_only_the_address_that_answered_is_one_that_answered() -> None:
    memory, near = DialMemory(), "/ip4/192.168.1.9/tcp/4001"
    for one in (FAR, near):
        memory.note_tried(one, 0.0)
    memory.note_outcome((FAR, near), near, (), 0.0)
    assert memory.is_strange(FAR)
    assert not memory.is_strange(near)


def test_memory_is_bounded() -> None:
    memory = DialMemory()
    for number in range(REMEMBERED_MAX + 100):
        memory.note_tried(
            f"/ip4/10.{number >> 16}.{number >> 8 & 255}.{number & 255}/tcp/4001", 0.0
        )
    assert len(memory) == REMEMBERED_MAX
