"""One identity on two machines: the later start is found, told, and stops; nobody else pays."""

from contextlib import AsyncExitStack

import pytest
import trio

from node.peers.handshake import shake_hands
from node.peers.links import CONTROL_PROTOCOL, PEERS_MAX, TOLD_S, TWIN, Twins
from node.state.config import PeerAddress
from protocol import events as ev
from protocol.errors import RefusedError
from protocol.frames import Refusal
from protocol.identity import Ed25519Signer, PeerId
from protocol.wire import encode
from tests.memory_transport import MemoryNetwork
from tests.node.peers.test_links import Party, party, start

PEER = Ed25519Signer(b"p" * 32).peer_id
OTHERS = tuple(Ed25519Signer(bytes([number]) * 32).peer_id for number in range(1, 6))


def heard(*starts: int) -> list[bool]:
    twins = Twins()
    return [twins.hear(PEER, start, float(number)) for number, start in enumerate(starts)]


def test_start_that_comes_back_after_another_shows_that_both_run() -> None:
    assert heard(10, 20, 10, 20, 10, 20) == [False, False, False, True, False, True]
    # Whichever was heard first: by its clock the later one is to go.
    assert heard(20, 10, 20, 10, 20) == [False, False, True, False, True]


def test_node_that_starts_anew_however_often_is_nobodys_twin() -> None:
    assert not any(heard(10, 10, 20, 20, 30, 40, 40))
    # Nor is one whose clock was set back, or whose connections come and go.
    assert not any(heard(40, 30, 20, 10, 10))


def test_third_start_beside_the_first_is_found_as_well() -> None:
    assert heard(10, 20, 10, 30, 10, 30) == [False, False, False, False, False, True]


def test_later_one_may_come_when_the_other_has_long_gone() -> None:
    twins = Twins()
    for begun in (10, 20, 10):
        twins.hear(PEER, begun, 0.0)
    assert twins.hear(PEER, 20, TOLD_S - 1.0)
    twins = Twins()
    for begun in (10, 20, 10):
        twins.hear(PEER, begun, 0.0)
    assert not twins.hear(PEER, 30, TOLD_S + 1.0)


def test_peers_of_whom_starts_are_known_are_bounded() -> None:
    twins = Twins()
    for number in range(PEERS_MAX + 10):
        twins.hear(PeerId(number.to_bytes(32, "big")), 1, 0.0)
    assert len(twins._heard) == PEERS_MAX


def test_word_of_half_the_peers_is_not_enough() -> None:
    twins = Twins()
    assert not twins.told_by(OTHERS[0], OTHERS[1:3], 0.0)
    assert not twins.told_by(OTHERS[0], OTHERS[1:2], 1.0)
    assert twins.told_by(OTHERS[1], OTHERS[2:3], 2.0)
    assert not twins.told_by(OTHERS[1], OTHERS[2:3], 1.0 + TOLD_S)
    assert Twins().told_by(OTHERS[0], (), 0.0)


def test_words_fit_a_refusal_and_say_what_to_do() -> None:
    encode(Refusal(reason=TWIN, manifest=b""))
    assert "--state" in TWIN
    assert "stop the other" in TWIN


@pytest.mark.parametrize("is_first_earlier", [True, False])
async def test_later_of_two_with_one_key_stops_with_advice_and_nobody_is_at_fault(
    autojump_clock: trio.abc.Clock, is_first_earlier: bool
) -> None:
    """They take turns at a peer, as their connections cut each other."""
    network = MemoryNetwork()
    ends: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        peer = await party(stack, network, "p", finds_nobody=True)
        async with trio.open_nursery() as nursery:
            await start(nursery, peer, None)
            for turn in range(6):
                name = ("here", "there")[turn % 2]
                began_ms = 10 if (name == "here") == is_first_earlier else 20
                if name not in ends:
                    said = await one_turn(autojump_clock, network, peer, began_ms)
                    if said:
                        ends[name] = said
            nursery.cancel_scope.cancel()
        faults = [event for event in peer.told if isinstance(event, ev.Fault)]
    assert ends == {"there" if is_first_earlier else "here": TWIN}
    assert faults == []


async def test_link_of_an_earlier_start_ends_for_a_new_one_and_not_for_its_own(
    autojump_clock: trio.abc.Clock,
) -> None:
    """A twin that holds the link would shut the other out, and never be found."""
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        peer = await party(stack, network, "p", finds_nobody=True)
        node = await party(stack, network, "k", finds_nobody=True)
        node.links.started_ms = 10
        async with trio.open_nursery() as nursery:
            await start(nursery, peer, None)
            await start(nursery, node, peer)
            await trio.sleep(2.0)
            assert peer.links.linked() == (node.peer,)
            changes = [type(event) for event in peer.told]

            async def again(started_ms: int) -> None:
                stream = await node.transport.open_stream(peer.peer, CONTROL_PROTOCOL)
                signer = Ed25519Signer(b"k" * 32)
                await shake_hands(stream, node.links.signed, (), signer, None, started_ms)

            await again(10)
            await trio.sleep(0.2)
            assert [type(event) for event in peer.told] == changes
            await again(20)
            await trio.sleep(0.2)
            since = [type(event) for event in peer.told][len(changes) :]
            # And the first one comes back at once, which shows that both run.
            assert since == [ev.Unlinked, ev.Linked] * 2
            assert peer.links.linked() == (node.peer,)
            nursery.cancel_scope.cancel()


async def one_turn(
    autojump_clock: trio.abc.Clock, network: MemoryNetwork, peer: Party, began_ms: int
) -> str:
    """A node with the key is linked for a while; why it stopped, if it did."""
    async with AsyncExitStack() as stack:
        node = await party(stack, network, "k", finds_nobody=True)
        node.links.started_ms = began_ms
        said: list[str] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(node.directory.run)
            node.links.know(PeerAddress(peer.peer, peer.transport.addresses()[0]))

            async def run() -> None:
                try:
                    await node.links.run()
                except* RefusedError as group:
                    said.append(str(group.exceptions[0]))

            nursery.start_soon(run)
            await trio.sleep(4.0)
            nursery.cancel_scope.cancel()
        assert not [event for event in node.told if isinstance(event, ev.Fault)]
        return said[0] if said else ""
