"""One node's machines and edges, made and connected. Nothing runs yet."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from dht.directory import KademliaDirectory
from dht.libp2p_transport import Libp2pTransport
from node.attached_trainer import Attachment
from node.chain import genesis
from node.checkpoints import Checkpoints, stored_states
from node.config import NodeConfig
from node.core import NodeCore
from node.exchange import Driver, DriverParts
from node.hooks import NodeHooks
from node.journal import FileJournal
from node.links import Links
from node.model_file import kept_model_file
from node.recovery import recover
from node.round_view import RoundConfig
from node.shard_store import ShardStore
from node.state.folder import (
    CHECKPOINTS_FOLDER,
    has_begun,
    is_unsigned,
    run_folder,
    unmark_unsigned,
)
from node.status.board import EventLog
from node.trace_file import NodeTrace
from node.trainer_channel import OpenTrainer, TrainerConfig, open_trainer
from node.work import TrainerWork, WorkParts
from protocol.identity import Ed25519Signer
from protocol.manifest import SignedManifest
from training.durable import make_folder_durably
from training.genesis import genesis_weights

SHARD = 0
INNER_FOLDER = "inner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Everything that one node is made of."""

    config: NodeConfig
    signed: SignedManifest
    signer: Ed25519Signer
    hooks: NodeHooks
    log: EventLog
    is_new_peer: bool = True
    """Whether its key was made at this start, so that it cannot have signed anything before."""

    attached: Attachment | None = None
    """The user's process whose child this is, and which is the trainer; None starts one."""

    trainer_command: tuple[str, ...] = ()
    """Another program in the place of our trainer, for tests."""

    trace: NodeTrace | None = None
    """Gets the records of what the node does."""


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
    make_folder_durably(folder)
    model_file = None
    if node.attached is None:
        model_file = kept_model_file(manifest, config.model_file, folder)
    journal = _open_journal(node, folder)
    (anchor_N,) = genesis_weights(manifest, SHARD)
    store = ShardStore(manifest, SHARD, anchor_N)
    rounds = replace(RoundConfig.from_manifest(manifest, SHARD), wait_seats=config.wait_seats)
    start = genesis(manifest, SHARD, store.state.root)
    core = NodeCore(manifest, rounds, node.signer, start, now_s=trio.current_time())
    core.wants_seat = False  # Until the trainer is up.
    stored = stored_states(
        folder / CHECKPOINTS_FOLDER,
        manifest,
        SHARD,
        store.slot_names,
        tell=lambda text: node.log.emit("warning", key="checkpoint", text=text),
    )
    restart = recover(start, store, journal, stored)
    checkpoints = Checkpoints(
        folder / CHECKPOINTS_FOLDER, manifest, SHARD, on_saved=journal.saved_up_to
    )
    parts = DriverParts(
        core=core,
        store=store,
        transport=transport,
        log=node.log,
        journal=journal,
        restart=restart,
        checkpoints=checkpoints,
        hooks=node.hooks,
        trace=node.trace,
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
            opens_trainer=_opens_trainer(node),
        ),
        TrainerConfig(
            folder=folder,
            manifest=manifest,
            manifest_path=config.manifest,
            shard=SHARD,
            threads=config.threads,
            device=config.device,
            model_file=model_file,
            inner_folder=folder / INNER_FOLDER,
        ),
    )
    driver.connect(links, work)
    return Machinery(driver=driver, links=links, work=work, checkpoints=checkpoints)


def _opens_trainer(node: Node) -> OpenTrainer:
    if node.attached is not None:
        return node.attached.open_trainer
    if node.trainer_command:
        return partial(open_trainer, command=node.trainer_command)
    return open_trainer


def _open_journal(node: Node, folder: Path) -> FileJournal:
    is_new = node.is_new_peer or has_begun(folder) or is_unsigned(folder)
    journal = FileJournal(folder, is_wiped=not is_new)
    unmark_unsigned(folder)
    return journal
