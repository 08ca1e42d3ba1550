"""Entering a run: who is asked, who is given up on, and when a node waits for ever."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dht.reaching.dials import DIALS_A_SECOND_MAX
from node.daemon.assembly import Node
from node.daemon.entry import ALONE_S, FirstPeers
from node.peers.listening import full_addresses
from node.plane.hooks import NodeHooks
from node.state.config import NodeConfig
from node.state.known_peers import KnownPeer, KnownPeers
from node.status.board import EventLog, Field
from protocol.errors import ManifestMismatch, UnreachableError
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import RunManifest
from tests.memory_transport import MemoryNetwork, most_a_second
from tests.node.edge import signed, toy_manifest
from tests.node.peers.test_links import Party, party, start

RUN = toy_manifest()
NEW_SEED = b"n" * 32
GONE = Ed25519Signer(b"g" * 32).peer_id


class Town:
    """A newcomer with a state folder of its own, and peers of this run or of another."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self.network = MemoryNetwork()
        self.folder = folder
        self.parties: list[Party] = []
        self.warnings: list[str] = []
        self._stack = stack

    def emit(self, event: str, **fields: Field) -> None:
        """See EventSink."""
        if event == "warning":
            self.warnings.append(str(fields["text"]))

    async def settle(self, name: str, manifest: RunManifest = RUN) -> Party:
        one = await party(self._stack, self.network, name, manifest=manifest)
        self.parties.append(one)
        return one

    async def entry(self, *bootstrap: str, waits: bool = False) -> tuple[FirstPeers, Party]:
        newcomer = await self.settle("n")
        config = NodeConfig(state=self.folder, manifest=Path(), bootstrap=bootstrap)
        node = Node(
            config=config,
            signed=signed(RUN),
            signer=Ed25519Signer(NEW_SEED),
            hooks=NodeHooks(),
            log=EventLog(None, 0.0, also=(self,)),
            waits_for_peers=waits,
        )
        return FirstPeers(node, newcomer.transport, newcomer.directory, newcomer.links), newcomer

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """All of them run."""
        async with trio.open_nursery() as nursery:
            for one in self.parties:
                await start(nursery, one, None)
            yield
            nursery.cancel_scope.cancel()

    def remember(self, *peers: PeerId) -> None:
        known = [KnownPeer(peer, (f"/memory/{peer.hex()}",), 5) for peer in peers]
        data = KnownPeers({}).seen(RUN.digest, known).encode()
        (self.folder / "known_peers.json").write_bytes(data)


def address(peer: PeerId) -> str:
    return full_addresses(peer, [f"/memory/{peer.hex()}"])[0]


async def test_newcomer_that_reaches_nobody_is_told_which_addresses_failed_and_why(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, tmp_path)
        entry, _ = await town.entry(address(GONE))
        async with town.living():
            with pytest.raises(UnreachableError) as caught:
                await entry.enter()
    assert address(GONE) in str(caught.value)
    assert "nobody listens" in str(caught.value)


async def test_one_peer_in_reach_is_enough(tmp_path: Path, autojump_clock: trio.abc.Clock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, tmp_path)
        there = await town.settle("a")
        entry, newcomer = await town.entry(address(GONE), address(there.peer))
        async with town.living():
            await entry.enter()
            await trio.sleep(5.0)
            assert newcomer.links.linked() == (there.peer,)


async def test_known_peers_are_asked_besides_those_that_are_named(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, tmp_path)
        there = await town.settle("a")
        town.remember(there.peer, Ed25519Signer(NEW_SEED).peer_id)
        entry, newcomer = await town.entry(address(GONE))
        async with town.living():
            assert await entry.knock() == []
            await trio.sleep(5.0)
            assert newcomer.links.linked() == (there.peer,)


async def test_node_that_was_told_nobody_waits_for_known_peers(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, tmp_path)
        town.remember(GONE)
        entry, newcomer = await town.entry()
        async with town.living():
            await entry.enter()
            async with town.network.open(signer_seed=b"g" * 32) as late:
                await trio.sleep(70.0)
                assert late.peer_id in newcomer.transport.connected()


async def refusal_after(
    folder: Path, *, others: int, friends: int, known: bool = False, told: bool = True
) -> ManifestMismatch | None:
    """What ends a newcomer that is told peers of another run, and some of its own."""
    async with AsyncExitStack() as stack:
        town = Town(stack, folder)
        other = replace(RUN, rounds=RUN.rounds + 1)
        peers = [(await town.settle(name, other)).peer for name in "xyz"[:others]]
        peers += [(await town.settle(name)).peer for name in "abc"[:friends]]
        if known or not told:
            town.remember(*([GONE] if known else peers))
        entry, _ = await town.entry(*(map(address, peers) if told else ()))
        async with town.living():
            await entry.knock()
            try:
                with trio.move_on_after(20.0):
                    await entry.watch_refusals()
            except ManifestMismatch as mismatch:
                return mismatch
            return None


async def test_newcomer_that_all_refuse_ends_with_the_first_differing_field(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    mismatch = await refusal_after(tmp_path, others=2, friends=0)
    assert mismatch is not None
    assert mismatch.field == "rounds"


async def test_one_peer_of_the_run_outweighs_all_refusals(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    assert await refusal_after(tmp_path, others=2, friends=1) is None


async def test_a_known_peer_that_has_not_answered_yet_may_still_be_of_the_run(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    assert await refusal_after(tmp_path, others=1, friends=0, known=True) is None


async def test_node_that_was_told_nobody_goes_on_whatever_its_known_peers_train_now(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    assert await refusal_after(tmp_path, others=2, friends=0, told=False) is None


@pytest.mark.parametrize("friends", [0, 1])
async def test_newcomer_whose_peers_are_none_of_its_run_is_told_so_after_half_a_minute(
    tmp_path: Path, autojump_clock: trio.abc.Clock, friends: int
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, tmp_path)
        # They answer as the DHT does, and have nothing to do with any run.
        stage = [
            await stack.enter_async_context(town.network.open(signer_seed=bytes([n]) * 32))
            for n in range(3)
        ]
        named = [address(one.peer_id) for one in stage]
        named += [address((await town.settle("a")).peer) for _ in range(friends)]
        entry, newcomer = await town.entry(*named)
        late = await party(stack, town.network, "l", manifest=RUN)
        async with town.living(), trio.open_nursery() as nursery:
            nursery.start_soon(entry.watch_company)
            await entry.knock()
            await trio.sleep(ALONE_S - 5.0)
            assert town.warnings == []
            assert newcomer.links.met.is_set() == (friends > 0)
            await trio.sleep(10.0)
            assert len(town.warnings) == 1 - friends
            if friends:
                return
            (text,) = town.warnings
            for words in (
                "none of the 3 peers",
                "(3 of 3 answer)",
                "another link",
                "trains nothing",
            ):
                assert words in text
            # Whom it should have been told of comes after all: that is told once, and it goes on.
            await start(nursery, late, newcomer)
            await trio.sleep(10.0)
            assert newcomer.links.met.is_set()
            assert town.warnings[1:] == [""]
            nursery.cancel_scope.cancel()


async def test_node_with_a_person_in_front_of_it_waits_for_peers_that_are_away(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, tmp_path)
        entry, newcomer = await town.entry(address(GONE), waits=True)
        async with town.living():
            await entry.enter()
            (text,) = town.warnings
            assert address(GONE) in text
            assert "until Ctrl+C" in text
            async with town.network.open(signer_seed=b"g" * 32) as late:
                await trio.sleep(70.0)
                assert late.peer_id in newcomer.transport.connected()


async def test_peers_of_earlier_starts_are_not_all_dialled_at_once(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, tmp_path)
        seeds = [bytes([number]) * 32 for number in range(150, 200)]
        town.remember(*(Ed25519Signer(seed).peer_id for seed in seeds))
        entry, newcomer = await town.entry()
        async with town.living():
            await entry.knock()
            await trio.sleep(60.0)
        dials = newcomer.transport.dials
        assert most_a_second(dials) == DIALS_A_SECOND_MAX
        assert len({address for _, address in dials}) == len(seeds)  # All get their turn.
