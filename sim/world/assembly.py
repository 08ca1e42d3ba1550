"""One simulated process, made of what its peer owns. Nothing runs yet; as
`node.daemon.assembly`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from node.holdings.shard_store import ShardStore
from protocol.core.node_core import NodeCore
from protocol.identity import PeerId, Signer, short_id
from protocol.manifest import RunManifest
from protocol.messages import Roster, SealCertificate, SeatRecord
from protocol.rounds.chain import genesis
from protocol.rounds.rare import Rare, never
from protocol.rounds.round_config import as_it_is
from protocol.rounds.round_view import RoundConfig
from sim.world.devices import Clock, Device
from sim.world.disk import Disk
from sim.world.nodes import Around, NodeParts
from sim.world.sharing import SharedStore
from sim.world.traced_work import MOMENTS
from sim.world.trainer import SimTrainer

DEVICE_CLASS = "simulated"
"""All machines of a world compute equal bits."""

CLOCK_START_S = (1e3, 1e6)
"""Where a machine's monotonic clock may stand: it counts from its boot, and nobody knows when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What stays of a peer from one process to the next."""

    signer: Signer
    config: RoundConfig
    device: Device
    disk: Disk
    trainer: SimTrainer


def assemble(world: Around, peer: PeerId, owned: Owned) -> tuple[NodeParts, SealCertificate]:
    """The machines of a process, and the genesis that they start from."""
    manifest, path = world.manifest, short_id(peer)
    clock = Clock(world.luck(f"clock/{path}").uniform(*CLOCK_START_S), owned.device.clock_rate)
    anchor_N = np.zeros(manifest.layout(0).numel, dtype=np.float32)
    shared = world.shared
    store = (
        ShardStore(manifest, 0, anchor_N)
        if shared is None
        else SharedStore(manifest, 0, anchor_N, shared)
    )
    store.find_file = lambda index, digest: owned.disk.journal.find_result(index, digest)
    start = genesis_of(manifest, store.state.root, world.settings.seated)
    liar = world.settings.liars.get(peer)
    config = replace(
        owned.config,
        rare=_rare(world, path),
        device=DEVICE_CLASS,
        moments=MOMENTS,
        derived=shared,
        tail=0,
        bend=as_it_is if liar is None else liar.said,
    )
    core = NodeCore(manifest, config, owned.signer, start, now_s=clock.own_s(world.now_s))
    parts = NodeParts(
        core=core,
        store=store,
        trainer=owned.trainer,
        disk=owned.disk,
        device=owned.device,
        clock=clock,
    )
    return parts, start


def genesis_of(manifest: RunManifest, root: bytes, seated: Sequence[PeerId]) -> SealCertificate:
    """Genesis; with `seated` all of them vote from the start, and are equally old."""
    start = genesis(manifest, 0, root)
    if not seated:
        return start
    seats = tuple(
        SeatRecord(peer=peer, seated=0, voter_since=0, proved=0, absent=0)
        for peer in sorted(seated)
    )
    roster = Roster(seats=seats, window=(0,))
    return SealCertificate(value=replace(start.value, roster=roster), seals=())


def _rare(world: Around, path: str) -> Rare:
    chance = world.settings.rare
    if not chance:
        return never
    stream = world.luck(f"rare/{path}")

    def rare(name: str) -> bool:
        del name
        return stream.random() < chance

    return rare
