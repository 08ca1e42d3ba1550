"""What becomes of a peer that does wrong too often: for a while it gets no link."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from node.peers.links import HELLOS_MAX
from protocol import events as ev
from protocol.core.budgets import PAUSE_S, STRIKES_MAX
from protocol.errors import BarnraiseError, DecodeError
from protocol.frames import Hello, Refusal, encode_frame
from protocol.identity import PeerId
from protocol.manifest import WIRE_VERSION
from tests.memory_transport import MemoryNetwork, MemoryStream, stream_pair
from tests.node.edge import toy_manifest
from tests.node.peers.test_links import Party, party, start

HELLO = encode_frame(Hello(wire=WIRE_VERSION, run=toy_manifest().digest, addresses=()))


@dataclass
class Pair:
    """An honest node's links, and a peer that talks to them."""

    ours: Party
    theirs: Party
    nursery: trio.Nursery

    @property
    def liar(self) -> PeerId:
        return self.theirs.peer

    async def says(self, *frames: bytes) -> MemoryStream:
        """The liar's end of a control stream that it opens, after these frames."""
        far, near = stream_pair(self.theirs.transport, self.ours.transport)

        async def accept() -> None:
            with suppress(BarnraiseError):
                await self.ours.links.accept(near)
            await near.aclose()

        self.nursery.start_soon(accept)
        for frame in frames:
            with suppress(BarnraiseError):
                await far.send_frame(frame)
        await trio.testing.wait_all_tasks_blocked()
        return far

    def is_linked(self) -> bool:
        return self.liar in self.ours.links.linked()

    def faults(self) -> list[str]:
        return [event.reason for event in self.ours.told if isinstance(event, ev.Fault)]


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        ours, theirs = await party(stack, network, "a"), await party(stack, network, "b")
        async with trio.open_nursery() as nursery:
            yield Pair(ours, theirs, nursery)
            nursery.cancel_scope.cancel()


async def test_peer_with_too_many_faults_is_unlinked_and_linked_again_after_its_pause(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with pair() as two:
        await two.says(HELLO)
        for _ in range(STRIKES_MAX - 1):
            two.ours.links.strike(two.liar)
        assert two.is_linked()
        two.ours.links.strike(two.liar)
        await trio.testing.wait_all_tasks_blocked()
        assert not two.is_linked()
        assert two.ours.told == [ev.Linked(two.liar), ev.Unlinked(two.liar)]
        await two.says(HELLO)
        assert not two.is_linked()
        await trio.sleep(PAUSE_S)
        await two.says(HELLO)
        assert two.is_linked()


async def test_paused_peer_is_unlinked_even_while_a_frame_waits_for_it_to_read(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with pair() as two:
        await two.says(HELLO)
        long_frame = Refusal(reason="", manifest=bytes(60_000))
        for _ in range(100):
            two.ours.links.send(two.liar, long_frame)
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        for _ in range(STRIKES_MAX):
            two.ours.links.strike(two.liar)
        await trio.testing.wait_all_tasks_blocked()
        assert not two.is_linked()
        assert trio.current_time() == began_s


async def test_peer_that_comes_and_goes_is_paused_whatever_it_says() -> None:
    async with pair() as two:
        links = 0
        for _ in range(3 * STRIKES_MAX):
            stream = await two.says(HELLO)
            links += two.is_linked()
            await stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
        assert links == STRIKES_MAX
        assert two.faults() == []


async def test_peer_whose_links_last_is_never_paused(autojump_clock: trio.abc.Clock) -> None:
    async with pair() as two:
        for _ in range(10 * STRIKES_MAX):
            stream = await two.says(HELLO)
            assert two.is_linked()
            await trio.sleep(2.0)
            await stream.aclose()
            await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("frame", [b"", b"\xffgarbage", b"\x01\x93\x00"])
async def test_hello_that_is_none_is_a_fault_of_that_peer(frame: bytes) -> None:
    async with pair() as two:
        await two.says(frame)
        (fault,) = [event for event in two.ours.told if isinstance(event, ev.Fault)]
        assert fault.peer == two.liar
        assert fault.reason.startswith("hello: ")


async def test_refusal_is_no_fault(autojump_clock: trio.abc.Clock) -> None:
    async with pair() as two:
        await two.says(encode_frame(Refusal(reason="no", manifest=b"")))
        assert two.faults() == []
        assert str(two.ours.links.refusal(two.liar)) == "no"


async def test_only_so_many_conversations_of_one_peer_are_at_their_hello(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with pair() as two:
        streams = [await two.says() for _ in range(HELLOS_MAX + 5)]
        heard = 0
        for stream in streams:
            # The others are closed without a word.
            with suppress(BarnraiseError), trio.move_on_after(0.1):
                await stream.receive_frame(10_000)
                heard += 1
        assert heard == HELLOS_MAX
        await trio.sleep(10.0)
        await two.says(HELLO)
        assert two.is_linked()


async def test_node_neither_dials_nor_opens_a_link_to_a_paused_peer(
    autojump_clock: trio.abc.Clock,
) -> None:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        one, other = await party(stack, network, "a"), await party(stack, network, "b")
        async with trio.open_nursery() as nursery:
            await start(nursery, one, None)
            for _ in range(STRIKES_MAX):
                one.links.strike(other.peer)
            await start(nursery, other, one)
            await trio.sleep(PAUSE_S - 1.0)
            assert one.links.linked() == ()
            assert not [event for event in one.told if isinstance(event, ev.Linked)]
            await trio.sleep(10.0)
            assert one.links.linked() == (other.peer,)
            nursery.cancel_scope.cancel()


async def test_error_of_a_hello_reaches_whoever_serves_the_stream() -> None:
    async with pair() as two:
        far, near = stream_pair(two.theirs.transport, two.ours.transport)
        await far.send_frame(b"\xff")
        with pytest.raises(DecodeError):
            await two.ours.links.accept(near)
