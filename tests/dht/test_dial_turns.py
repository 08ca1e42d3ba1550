"""How many dials begin in a second, whatever is said in the DHT, and that nobody else waits."""

import itertools
import random
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from dht.kademlia.messages import Ping
from dht.kademlia.requests import RequestConfig, Requester
from dht.kademlia.routing import Contact
from dht.reaching import dials
from dht.reaching.dials import (
    DIALS_A_SECOND_MAX,
    UPKEEP,
    WINDOW_S,
    DialFor,
    DialMemory,
    DialTurns,
    TurnWish,
)
from protocol.errors import UnreachableError
from protocol.identity import PEER_ID_BYTES, PeerId
from tests.dht.liars import Liars
from tests.dht.nodes import TOPIC, found_values, open_node, open_nodes
from tests.memory_transport import MemoryNetwork, most_a_second

IN_S = 30.0
STRANGE_AT_ONCE = 4


def place(number: int) -> str:
    return f"/ip4/45.{number >> 8}.{number & 255}.7/tcp/4001"


async def take_all(turns: DialTurns, purpose: DialFor, num: int) -> list[float]:
    """When each of so many dials for one purpose begins."""
    begun: list[float] = []

    async def one(number: int) -> None:
        await turns.take(place(number), purpose)
        begun.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for number in range(num):
            nursery.start_soon(one, number)
    return begun


async def test_ten_turns_are_taken_in_a_second(autojump_clock: MockClock) -> None:
    begun = await take_all(DialTurns(), DialFor.SEARCH, 100)
    assert most_a_second([(at_s, "") for at_s in begun]) == DIALS_A_SECOND_MAX
    assert max(begun) - min(begun) == pytest.approx(9 * WINDOW_S)


async def test_turn_of_a_peer_that_answers_is_given_back_at_once(autojump_clock: MockClock) -> None:
    turns = DialTurns()
    await take_all(turns, DialFor.RUN, DIALS_A_SECOND_MAX)
    assert not turns.take_now(place(99), trio.current_time())
    turns.give_back(place(98))  # Nobody was dialled there.
    assert not turns.take_now(place(99), trio.current_time())
    turns.give_back(place(3))
    assert turns.take_now(place(99), trio.current_time())


async def test_run_gets_its_turns_whatever_the_directory_wants(autojump_clock: MockClock) -> None:
    turns, num = DialTurns(), 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_all, turns, DialFor.UPKEEP, 1000)
        nursery.start_soon(take_all, turns, DialFor.SEARCH, 1000)
        await trio.sleep(0.1)
        while trio.current_time() < 20.0:  # As many at a time as strangers have of a run's dials.
            num += len(await take_all(turns, DialFor.RUN, STRANGE_AT_ONCE))
        nursery.cancel_scope.cancel()
    assert num >= 6 * 20


async def test_cancelled_wait_takes_no_turn(autojump_clock: MockClock) -> None:
    turns = DialTurns()
    await take_all(turns, DialFor.RUN, DIALS_A_SECOND_MAX)
    with trio.move_on_after(0.5):
        await turns.take(place(50), DialFor.UPKEEP)
    await trio.sleep(WINDOW_S)
    assert len(await take_all(turns, DialFor.UPKEEP, DIALS_A_SECOND_MAX)) == DIALS_A_SECOND_MAX
    assert trio.current_time() == pytest.approx(0.5 + WINDOW_S, abs=0.01)


def made_up(rng: random.Random, numbers: "itertools.count[int]") -> tuple[Contact, ...]:
    """Sixteen peers that nobody has heard of, at addresses where nobody is."""
    return tuple(
        Contact(PeerId(rng.randbytes(PEER_ID_BYTES)), (place(next(numbers)),)) for _ in range(16)
    )


@pytest.mark.extended
@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("is_paced", [False, True])
async def test_replies_that_name_the_dead_have_ten_a_second_dialled_and_hide_nobody(
    is_paced: bool, is_silent: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_paced:
        monkeypatch.setattr(dials, "DIALS_A_SECOND_MAX", 10_000)
    rng, numbers = random.Random("dead"), itertools.count()
    network = MemoryNetwork()
    if is_silent:
        network.silent = set(map(place, range(65_536)))
    liars = Liars(made_up=lambda: made_up(rng, numbers))
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(open_nodes(network, 6))
        await nodes[1].directory.announce(TOPIC, b"here", ttl_s=600.0)
        await liars.open(stack, network, range(200, 204))
        newcomer = await stack.enter_async_context(open_node(network, 99))
        began_s = trio.current_time()
        await newcomer.directory.join([*liars.contacts, nodes[0].contact])
        assert await found_values(newcomer) == [b"here"]
        took_s = trio.current_time() - began_s
        await trio.sleep(60.0)
    begun = [one for one in newcomer.transport.dials if one[1].startswith("/ip4/")]
    assert len(begun) > 20
    assert (most_a_second(begun) <= DIALS_A_SECOND_MAX) is is_paced
    assert len(set(begun)) == len({address for _, address in begun})
    assert took_s < IN_S


@pytest.mark.extended
async def test_turns_make_no_newcomer_of_a_swarm_wait_whose_peers_are_there(
    autojump_clock: MockClock,
) -> None:
    """Without turns these took 1.5 s, and 1.6 to 1.9 s."""
    network = MemoryNetwork(dial_s=0.3)
    async with open_nodes(network, 50) as nodes:
        await nodes[7].directory.announce(TOPIC, b"here", ttl_s=600.0)
        for number, patience_s in ((98, 1.6), (99, 2.0)):
            async with open_node(network, number) as newcomer:
                began_s = trio.current_time()
                await newcomer.directory.join([nodes[0].contact])
                assert await found_values(newcomer) == [b"here"]
                assert trio.current_time() - began_s < patience_s
            # Before the next one comes, a third of them falls silent.
            for node in nodes[34:]:
                network.silent.update(node.transport.addresses())


# What a wait leaves behind ------------------------------------------------------------------------


async def memory_without_turns() -> DialMemory:
    """Of a node that has just dialled as many as it may."""
    memory = DialMemory()
    await take_all(memory.turns, DialFor.RUN, DIALS_A_SECOND_MAX)
    return memory


async def test_wait_that_ends_without_a_turn_gives_the_dial_its_clock_back(
    autojump_clock: MockClock,
) -> None:
    memory = await memory_without_turns()
    with trio.move_on_after(8.0) as patience:
        pace = memory.pace(patience, TurnWish(DialFor.UPKEEP, until_s=trio.current_time() + 0.5))
        assert not await pace(place(99))
        assert patience.deadline == pytest.approx(trio.current_time() + 8.0)
        await trio.sleep(2 * WINDOW_S)
        assert not await pace(place(98)), "a dial that has no turn by then is none"


async def test_wait_that_is_cancelled_gives_the_dial_its_clock_back(
    autojump_clock: MockClock,
) -> None:
    memory = await memory_without_turns()
    with trio.move_on_after(8.0) as patience:
        with trio.move_on_after(0.5):
            await memory.pace(patience, TurnWish())(place(99))
        assert patience.deadline == pytest.approx(trio.current_time() + 8.0)


async def test_two_waits_of_one_dial_keep_its_clock(autojump_clock: MockClock) -> None:
    memory = await memory_without_turns()
    heard: list[float] = []
    with trio.move_on_after(8.0) as patience:
        pace = memory.pace(patience, TurnWish(waits=heard.append))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pace, place(98))
            nursery.start_soon(pace, place(99))
        assert patience.deadline == pytest.approx(trio.current_time() + 8.0)
    assert heard == [float("inf"), pytest.approx(WINDOW_S)]


async def test_address_that_got_no_turn_was_not_dialled(autojump_clock: MockClock) -> None:
    memory, now_s = await memory_without_turns(), trio.current_time()
    addresses = [f"/ip4/45.7.7.7/tcp/{4000 + number}" for number in range(dials.STRANGE_A_HOST_MAX)]
    for address in addresses:
        memory.note_tried(address, now_s)
    assert not memory.is_due("/ip4/45.7.7.7/tcp/9", now_s)
    with trio.CancelScope() as patience:
        pace = memory.pace(patience, TurnWish(until_s=now_s + 0.5))
        assert [await pace(address) for address in addresses] == [False] * len(addresses)
    memory.note_outcome(addresses, "", (), trio.current_time())
    assert all(memory.is_due(address, trio.current_time()) for address in addresses)


async def test_search_waits_no_longer_for_a_dial_of_others_than_for_its_own(
    autojump_clock: MockClock,
) -> None:
    memory, network = await memory_without_turns(), MemoryNetwork()
    contact = Contact(PeerId(bytes(PEER_ID_BYTES)), (place(99),))
    async with open_node(network, 1) as node:
        requester = Requester(node.transport, RequestConfig(), memory)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_all, memory.turns, DialFor.SEARCH, 300)
            nursery.start_soon(fails, requester, contact, UPKEEP)
            await trio.sleep(0.1)
            wish = TurnWish(DialFor.SEARCH, until_s=trio.current_time() + 4.0)
            began_s = trio.current_time()
            await fails(requester, contact, wish)
            assert trio.current_time() - began_s == pytest.approx(4.0)
            nursery.cancel_scope.cancel()


async def fails(requester: Requester, contact: Contact, wish: TurnWish) -> None:
    with pytest.raises(UnreachableError):
        await requester.ask(contact, Ping(()), wish)
