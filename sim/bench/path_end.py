"""One end of `barnraise bench link --shape`, a process: `python -P -m sim.bench.path_end WORDS`.

Links, core and bulk streams are those of a node, and so is all that happens when a connection
breaks. There is no trainer and no round. The giver holds a state that it has sealed; the taker
joins, checks the seal, and fetches the state.
"""

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import trio
from blake3 import blake3

from dht.directory import KademliaDirectory
from dht.transport.libp2p_transport import Libp2pTransport, TransportConfig, open_transport
from node.holdings.journal import FileJournal, WriteAhead
from node.holdings.shard_store import ShardStore, State, Vector
from node.holdings.states import round_config
from node.peers.links import CONTROL_PROTOCOL, Links
from node.plane.bulk_streams import BULK_PROTOCOL, BulkStreams
from node.plane.gathered import Gathered, PartialCells
from node.plane.hooks import NodeHooks
from node.plane.served import Served
from node.plane.state_streams import StateParts
from node.state.config import PeerAddress
from node.status.board import EventLog
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.grid import ShardSpec, TensorSpec
from protocol.identity import Ed25519Signer, PeerId, parse_peer_id, peer_id_text
from protocol.manifest import RunManifest, TimingSpec, sign_manifest
from protocol.messages import Kind, Seal, SealCertificate, Slot, sign_message
from protocol.rounds.chain import certify, genesis
from sim.world.toy_run import toy_run

CELL_ELEMENTS = 1 << 18
"""A MiB of a state: a chunk."""

MARKED_ELEMENTS, MARK_EVERY = 64, 1 << 14
"""So many numbers in each 64 KiB differ from those of all other places, the rest is zero: what lies
elsewhere than it should is noticed, and the giver of gigabytes needs no memory for zeros."""

_FOUNDER_SEED = blake3(b"bench link/giver").digest()
_TIMING = TimingSpec(deadline_floor_s=3600.0, deadline_cap_s=3600.0, heartbeat_s=0.5, suspect_s=5.0)
"""No round comes to anything here, and none is to be given up while a state is fetched."""

T = TypeVar("T")


def path_run(mib: int) -> RunManifest:
    """A run whose state has so many MiB; whoever gives it is the founder."""
    founder = Ed25519Signer(_FOUNDER_SEED).peer_id
    base = toy_run(founder, rounds=9, cells=1, timing=_TIMING)
    shard = ShardSpec("model", (TensorSpec("w", (mib * CELL_ELEMENTS,)),), ((0,),))
    outer = replace(base.outer, optimizer="sgd", codec="none", momentum=0.0)
    return replace(base, shards=(shard,), cell_elements=CELL_ELEMENTS, outer=outer)


def marked(mib: int) -> Vector:
    """The state's anchor."""
    anchor_N = np.zeros(mib * CELL_ELEMENTS, dtype=np.float32)
    marks = anchor_N.reshape(-1, MARK_EVERY)[:, :MARKED_ELEMENTS]
    marks[:] = np.arange(1, marks.size + 1).reshape(marks.shape)
    return anchor_N


def sealed(manifest: RunManifest, root: bytes) -> SealCertificate:
    """The founder's seal of round 1 on a state."""
    founder = Ed25519Signer(_FOUNDER_SEED)
    start = genesis(manifest, 0, bytes(32)).value
    value = replace(start, round=1, before=start.digest, basis=start.digest, root=root)
    value = replace(value, commits=(bytes(32),))
    body = Seal(value=value.digest, list_digest=value.list_digest, root=root)
    slot = Slot(
        run=value.run,
        shard=0,
        round=1,
        basis=value.basis,
        attempt=0,
        kind=Kind.SEAL,
        subject=value.before,
    )
    return certify(value, (sign_message(founder, slot, body),))


class PathNode:
    """Stands where a node's driver stands (`node.daemon.driver`)."""

    def __init__(self, task: dict[str, Any], folder: Path, nursery: trio.Nursery) -> None:
        self.is_giver = task["is_giver"]
        self.manifest = path_run(task["mib"])
        self.signer = Ed25519Signer(_FOUNDER_SEED if self.is_giver else os.urandom(32))
        numel = task["mib"] * CELL_ELEMENTS
        anchor_N = marked(task["mib"]) if self.is_giver else np.zeros(numel, dtype=np.float32)
        self.store = ShardStore(self.manifest, 0, anchor_N)
        head = genesis(self.manifest, 0, bytes(32))
        if self.is_giver:
            head = sealed(self.manifest, self.store.state.root)
        config = round_config(self.manifest)
        self.core = NodeCore(self.manifest, config, self.signer, head, now_s=trio.current_time())
        self.core.wants_seat = False
        # Not by the result of round 1, which nobody has: by the state that is sealed.
        self.core.catchup.is_forced = not self.is_giver
        journal = FileJournal(folder)
        self.ahead = WriteAhead(journal)
        self.parts = StateParts(
            gathered=Gathered(self.store, journal, PartialCells(folder)),
            served=Served(self.store, journal, lambda _: None),
        )
        self.faults: list[str] = []
        self.began_s = self.moved_s = 0.0
        self.arrived = trio.Event()
        self._nursery = nursery
        self._send, self._events = trio.open_memory_channel[ev.CoreEvent | ev.Fault](64)
        self._limiter = trio.CapacityLimiter(1)
        self._changed = trio.Event()

    def connect(self, transport: Libp2pTransport) -> KademliaDirectory:
        """Make what speaks to the network."""
        directory = KademliaDirectory(transport, self.signer, time.time)
        founder = Ed25519Signer(_FOUNDER_SEED)
        self.links = Links(
            transport=transport,
            directory=directory,
            signed=sign_manifest(self.manifest, founder),
            signer=self.signer,
            tell=self.tell,
            finds_nobody=True,
        )
        log = EventLog(None, 0.0)
        self.bulk = BulkStreams(self, transport, NodeHooks(), log, self.parts)
        transport.serve(CONTROL_PROTOCOL, self.links.accept)
        transport.serve(BULK_PROTOCOL, self.bulk.accept)
        return directory

    async def run(self) -> None:
        """Handle events until cancelled."""
        self._act(self.core.start(trio.current_time()))
        while True:
            event: ev.CoreEvent | ev.Fault = ev.Tick()
            with trio.move_on_at(self.core.wakeup_s(trio.current_time())):
                event = await self._events.receive()
            if isinstance(event, ev.Fault):
                self.faults.append(event.reason)
                continue
            if isinstance(event, ev.CellsFetched):
                self.moved_s = trio.current_time()
            self._act(self.core.handle(event, trio.current_time()))
            self._changed.set()
            self._changed = trio.Event()

    def _act(self, actions: list[ev.CoreAction]) -> None:
        for action in actions:
            match action:
                case ev.Send(peer=peer, frame=frame):
                    self.links.send(peer, frame)
                case ev.SendAll(peers=peers, frame=frame):
                    self.links.send_all(peers, frame)
                case ev.Push():
                    self._nursery.start_soon(self.bulk.push, action)
                case ev.FetchState():
                    self.began_s = self.began_s or trio.current_time()
                    self.bulk.fetching.order(action)
                    self._nursery.start_soon(self.bulk.fetching.carry_out)
                case ev.Fault(reason=reason):
                    self.faults.append(reason)
                case _:
                    pass  # Of rounds, which are not played here.

    # What bulk streams and links ask of a driver -------------------------------------------------

    def is_linked(self, peer: PeerId) -> bool:
        """Whether a peer's hello is checked and its control stream is open."""
        return peer in self.links.linked()

    async def tell(self, event: ev.CoreEvent | ev.Fault) -> None:
        """Queue an event."""
        await self._send.send(event)

    async def changed(self) -> None:
        """Until the core has handled another event."""
        await self._changed.wait()

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work in a worker thread."""
        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    async def state_arrived(self, certificate: SealCertificate, state: State) -> None:
        """All of it is here, and has the sealed root: else it would not come here."""
        assert state.root == certificate.value.root
        self.arrived.set()


async def _watch(transport: Libp2pTransport, links: Links) -> None:
    async for _ in transport.connection_events():
        links.connection_changed()


async def _run(task: dict[str, Any], folder: Path) -> None:
    config = TransportConfig(
        listen_host="127.0.0.1",
        listen_port=task.get("listen", 0),
        announce=tuple(task.get("announce", ())),
        security=task["security"],
        bulk_protocols=frozenset({BULK_PROTOCOL}),
    )
    async with trio.open_nursery() as nursery:
        node = PathNode(task, folder, nursery)
        async with open_transport(config, signer_seed=node.signer.seed) as transport:
            directory = node.connect(transport)
            await nursery.start(directory.run)
            for work in (_watching(transport, node), node.links.run, node.run):
                nursery.start_soon(work)
            _say({"peer": peer_id_text(transport.peer_id)})
            if not node.is_giver:
                node.links.know(PeerAddress(parse_peer_id(task["peer"]), task["address"]))
                nursery.start_soon(_tell_arrival, node)
            # Also the taker's: a parent that was killed closes it, too.
            await _until_told()
            nursery.cancel_scope.cancel()


async def _tell_arrival(node: PathNode) -> None:
    await node.arrived.wait()
    _say(_told(node))


def _watching(transport: Libp2pTransport, node: PathNode) -> Callable[[], Awaitable[None]]:
    async def watching() -> None:
        await _watch(transport, node.links)

    return watching


def _told(node: PathNode) -> dict[str, object]:
    return {
        "wall_s": node.moved_s - node.began_s,
        "faults": node.faults,
    }


async def _until_told() -> None:
    """Until the parent closes our input."""
    with suppress(OSError):
        await trio.wrap_file(sys.stdin).readline()


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with TemporaryDirectory(prefix="barnraise-path-") as folder:
        trio.run(_run, json.loads(sys.argv[1]), Path(folder))
