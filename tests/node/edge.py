"""Builders for tests of the edges: a toy run, and nodes' pieces over the memory transport."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import trio

from node.holdings.journal import FileJournal, WriteAhead
from node.holdings.shard_store import ShardStore, State
from node.holdings.states import round_config
from node.plane.bulk_streams import BulkStreams
from node.plane.gathered import Gathered, PartialCells
from node.plane.hooks import NodeHooks
from node.plane.served import Served
from node.plane.state_streams import StateParts
from node.status.board import EventLog
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import RunManifest, SignedManifest, sign_manifest
from protocol.messages import SealCertificate
from protocol.rounds.chain import genesis
from sim.world.files import SimFiles
from tests.memory_transport import MemoryTransport
from tests.node import builders

FOUNDER_SEED = b"f" * 32
NUMEL = 4 * 1024 - 100


def toy_manifest(**changes: object) -> RunManifest:
    """The toy run of the pure machines' tests, founded by FOUNDER_SEED."""
    founder = Ed25519Signer(FOUNDER_SEED).peer_id
    return replace(builders.toy_manifest(founder), **changes)  # type: ignore[arg-type]  # test values


def signed(manifest: RunManifest) -> SignedManifest:
    """Signed by the founder of all toy runs."""
    return sign_manifest(manifest, Ed25519Signer(FOUNDER_SEED))


class Desk:
    """Stands where the driver stands: keeps what the streams tell it."""

    def __init__(self, seed: bytes, manifest: RunManifest) -> None:
        self.signer = Ed25519Signer(seed)
        self.store = ShardStore(manifest, 0, np.zeros(NUMEL, dtype=np.float32))
        start = genesis(manifest, 0, self.store.state.root)
        config = round_config(manifest)
        self.core = NodeCore(manifest, config, self.signer, start, now_s=0.0)
        self.told: list[ev.CoreEvent | ev.Fault] = []
        self.states: list[tuple[SealCertificate, State]] = []
        self.files = SimFiles(random.Random(0))
        folder = Path("/run")
        self.journal = FileJournal(folder, files=self.files)
        self.ahead = WriteAhead(self.journal)
        self.state_parts = StateParts(
            gathered=Gathered(self.store, self.journal, PartialCells(folder, self.files)),
            served=Served(self.store, self.journal, lambda _: None),
        )
        self._changed = trio.Event()
        self.linked = {Ed25519Signer(FOUNDER_SEED).peer_id, Ed25519Signer(b"t" * 32).peer_id}

    def is_linked(self, peer: PeerId) -> bool:
        return peer in self.linked

    async def tell(self, event: ev.CoreEvent | ev.Fault) -> None:
        self.told.append(event)
        if not isinstance(event, ev.Fault):
            self.core.handle(event, trio.current_time())
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    async def compute(self, work):
        await trio.lowlevel.checkpoint()
        return work()

    async def state_arrived(self, certificate: SealCertificate, state: State) -> None:
        self.states.append((certificate, state))

    def faults(self) -> list[str]:
        """Reasons of the faults told so far."""
        return [event.reason for event in self.told if isinstance(event, ev.Fault)]

    def streams(self, transport: MemoryTransport, hooks: NodeHooks | None = None) -> BulkStreams:
        """Bulk streams of this desk."""
        log = EventLog(None, 0.0)
        return BulkStreams(self, transport, hooks or NodeHooks(), log, self.state_parts)
