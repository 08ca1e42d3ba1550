"""One simulated process, made of what its peer owns. Nothing runs yet; as `node.assembly`."""

from dataclasses import dataclass, replace

import numpy as np

from node.chain import genesis
from node.core import NodeCore
from node.rare import Rare, never
from node.round_view import RoundConfig
from node.shard_store import ShardStore
from protocol.identity import PeerId, Signer, short_id
from protocol.messages import SealCertificate
from sim.devices import Clock, Device
from sim.disk import Disk
from sim.nodes import Around, NodeParts
from sim.trainer import SimTrainer

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
    anchor_N = np.zeros(manifest.layout(0).fragment_numels[0], dtype=np.float32)
    store = ShardStore(manifest, 0, anchor_N)
    start = genesis(manifest, 0, store.state.root)
    config = replace(owned.config, rare=_rare(world, path))
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


def _rare(world: Around, path: str) -> Rare:
    chance = world.settings.rare
    if not chance:
        return never
    stream = world.luck(f"rare/{path}")

    def rare(name: str) -> bool:
        del name
        return stream.random() < chance

    return rare
