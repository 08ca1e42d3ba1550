"""One node's machines and edges, made and connected. Nothing runs yet."""

from dataclasses import dataclass, replace
from pathlib import Path

import trio

from dht.directory import KademliaDirectory
from dht.libp2p_transport import Libp2pTransport
from node.chain import genesis
from node.checkpoints import Checkpoints
from node.config import NodeConfig
from node.core import NodeCore
from node.exchange import Driver, DriverParts
from node.hooks import NodeHooks
from node.links import Links
from node.round_view import RoundConfig
from node.shard_store import ShardStore
from node.slot_log import SlotLog, refuse_signed
from node.status import EventLog
from node.trainer_channel import TrainerConfig
from node.work import TrainerWork, WorkParts
from protocol.identity import Ed25519Signer
from protocol.manifest import SignedManifest
from training.genesis import genesis_weights

SHARD = 0
SLOT_LOG = "slots.log"


def run_folder(state: Path, run: bytes) -> Path:
    """Where a state folder keeps a run, named by the first twelve digits of its digest."""
    return state / "runs" / run.hex()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Everything that one node is made of."""

    config: NodeConfig
    signed: SignedManifest
    signer: Ed25519Signer
    hooks: NodeHooks
    log: EventLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What `assemble` connected: the network process runs each part in a task."""

    driver: Driver
    links: Links
    work: TrainerWork
    checkpoints: Checkpoints


def assemble(node: Node, transport: Libp2pTransport, directory: KademliaDirectory) -> Machinery:
    """The machines and edges of one node, connected."""
    config, manifest = node.config, node.signed.manifest
    folder = run_folder(config.state, manifest.digest)
    folder.mkdir(parents=True, exist_ok=True)
    refuse_signed(folder / SLOT_LOG)
    (anchor_N,) = genesis_weights(manifest, SHARD)
    store = ShardStore(manifest, SHARD, anchor_N)
    rounds = replace(RoundConfig.from_manifest(manifest, SHARD), wait_seats=config.wait_seats)
    start = genesis(manifest, SHARD, store.state.root)
    core = NodeCore(manifest, rounds, node.signer, start, now_s=trio.current_time())
    core.wants_seat = False  # Until the trainer is up.
    checkpoints = Checkpoints(folder / "checkpoints", manifest, SHARD)
    parts = DriverParts(
        core=core,
        store=store,
        transport=transport,
        log=node.log,
        slots=SlotLog(folder / SLOT_LOG),
        checkpoints=checkpoints,
        hooks=node.hooks,
    )
    driver = Driver(parts, compute_threads=config.compute_threads)
    links = Links(
        transport=transport,
        directory=directory,
        signed=node.signed,
        signer=node.signer,
        tell=driver.tell,
        finds_nobody=node.hooks.finds_nobody,
    )
    work = TrainerWork(
        WorkParts(
            core=core,
            store=store,
            hooks=node.hooks,
            log=node.log,
            tell=driver.tell,
            validate_every=config.validate_every,
            is_observer=config.is_observer,
        ),
        TrainerConfig(
            folder=folder,
            manifest=manifest,
            manifest_path=config.manifest,
            shard=SHARD,
            threads=config.threads,
        ),
    )
    driver.connect(links, work)
    return Machinery(driver=driver, links=links, work=work, checkpoints=checkpoints)
