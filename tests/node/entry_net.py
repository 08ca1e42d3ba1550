"""Nodes' links and exchanges of state over a memory transport, to come and go in a test."""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from dht.directory import KademliaDirectory
from node.peers.entry_exchange import EntryExchange, EntryParts
from node.peers.links import CONTROL_PROTOCOL, Links
from node.state.config import PeerAddress
from node.status.board import EventLog, Field, StatusBoard
from protocol import events as ev
from protocol.entry_kinds import EntryKind
from protocol.identity import Ed25519Signer, PeerId
from protocol.shared_state.store import Store
from tests.memory_transport import MemoryNetwork, MemoryTransport
from tests.node.edge import Desk, signed, toy_manifest

if TYPE_CHECKING:
    from trio_typing import TaskStatus

MANIFEST = toy_manifest()
WALL_S = 1.7e9
FOUNDER = "f"
"""Its seed is that of the founder of toy runs: it alone has a seat."""


@dataclass
class Heard:
    """A sink that keeps warnings."""

    warnings: list[str] = field(default_factory=list)

    def emit(self, event: str, **fields: Field) -> None:
        if event == "warning":
            self.warnings.append(str(fields["text"]))


@dataclass
class Party:
    """One node's links and exchange, and what the driver would have heard."""

    transport: MemoryTransport
    directory: KademliaDirectory
    links: Links
    entries: EntryExchange
    folder: Path
    heard: Heard
    told: list[ev.CoreEvent | ev.Fault]

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id

    @property
    def faults(self) -> list[ev.Fault]:
        return [event for event in self.told if isinstance(event, ev.Fault)]

    def sequence(self, kind: EntryKind = EntryKind.IDENTITY, of: PeerId | None = None) -> int:
        entry = self.entries.book.entry(of or self.peer, kind)
        return 0 if entry is None else entry.sequence


class Net:
    """Nodes that come and go while the block lasts."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.folder = folder
        self.nursery = nursery
        self.network = MemoryNetwork()
        self.parties: dict[str, Party] = {}
        self.lives: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def start(
        self, name: str, *knows: str, folder: str = "", is_alone: bool = False
    ) -> Party:
        """A node over the folder of its name, which is told of some others."""
        live = partial(self._live, name, knows, folder or name, is_alone=is_alone)
        party: Party = await self.nursery.start(live)
        self.parties[name] = party
        return party

    async def stop(self, name: str) -> None:
        """Its tasks and streams end; the file is given back."""
        scope, done = self.lives.pop(name)
        scope.cancel()
        await done.wait()

    async def _live(
        self,
        name: str,
        knows: tuple[str, ...],
        folder: str,
        *,
        is_alone: bool,
        task_status: "TaskStatus[Party]" = trio.TASK_STATUS_IGNORED,
    ) -> None:
        done = trio.Event()
        seed = name.encode() * 32
        place = self.folder / folder
        place.mkdir(exist_ok=True)
        try:
            async with self.network.open(signer_seed=seed) as transport:
                party = self._made(seed, transport, place, is_alone=is_alone)
                transport.serve(CONTROL_PROTOCOL, party.links.accept)
                for other in knows:
                    where = self.parties[other].transport
                    party.links.know(PeerAddress(where.peer_id, where.addresses()[0]))
                async with trio.open_nursery() as nursery:
                    self.lives[name] = nursery.cancel_scope, done
                    await nursery.start(party.directory.run)
                    nursery.start_soon(party.links.run)
                    nursery.start_soon(party.entries.run, StatusBoard())
                    task_status.started(party)
            party.entries.close()
        finally:
            done.set()

    def _made(
        self, seed: bytes, transport: MemoryTransport, folder: Path, *, is_alone: bool
    ) -> Party:
        signer, desk, heard = Ed25519Signer(seed), Desk(seed, MANIFEST), Heard()
        told: list[ev.CoreEvent | ev.Fault] = []

        async def tell(event: ev.CoreEvent | ev.Fault) -> None:
            told.append(event)

        entries = EntryExchange(
            EntryParts(
                core=desk.core,
                signer=signer,
                store=Store(folder, MANIFEST.digest),
                log=EventLog(None, 0.0, also=(heard,)),
                tell=tell,
                addresses=transport.addresses,
                device="abacus",
                dials=not is_alone,
                wall_clock=lambda: WALL_S + trio.current_time(),
                rng=random.Random(seed.hex()),
            )
        )
        directory = KademliaDirectory(transport, signer, lambda: 1e9, rng=random.Random(seed.hex()))
        links = Links(
            transport=transport,
            directory=directory,
            signed=signed(MANIFEST),
            signer=signer,
            tell=entries.tell,
            finds_nobody=True,
        )
        entries.connect(links)
        return Party(transport, directory, links, entries, folder, heard, told)


@asynccontextmanager
async def net_in(folder: Path) -> AsyncIterator[Net]:
    async with trio.open_nursery() as nursery:
        net = Net(folder, nursery)
        yield net
        for name in list(net.lives):
            await net.stop(name)


REAL_S = 20.0


async def until(
    autojump_clock: trio.abc.Clock, holds: Callable[[], bool], *, within_s: float = 300.0
) -> None:
    """Virtual time passes until it holds. The clock jumps while a worker thread takes real time: so
    bounds are wide, and a slow disk has some real seconds besides."""
    ends_s, gives_up_s = trio.current_time() + within_s, time.monotonic() + REAL_S
    while not holds():
        if trio.current_time() > ends_s and time.monotonic() > gives_up_s:
            raise AssertionError(f"not within {within_s} s")
        await trio.sleep(0.1)
