"""One node's machines and edges, made and connected. Nothing runs yet."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import NamedTuple

import trio

from dht.directory import KademliaDirectory
from dht.reaching.addresses import told_to_members
from dht.transport.libp2p_transport import Libp2pTransport
from node.daemon.driver import Driver, DriverParts
from node.holdings.checkpoints import Checkpoints, stored_states
from node.holdings.journal import FileJournal
from node.holdings.recovery import recover
from node.holdings.shard_store import ShardStore
from node.holdings.states import round_config
from node.peers.access import Access
from node.peers.bent_links import BentLinks
from node.peers.dialling import KnownProgress
from node.peers.entry_exchange import EntryExchange, EntryParts
from node.peers.links import Links
from node.peers.two_histories import check_history
from node.plane.bulk_queue import LineLimits
from node.plane.gathered import Gathered, PartialCells
from node.plane.hooks import NodeHooks
from node.plane.served import Served, checkpoint_finder
from node.plane.state_streams import StateParts
from node.plane.work_desk import WorkDesk
from node.reporting.trace_file import NodeTrace
from node.settings.corpus_store import kept_store
from node.state.config import NodeConfig
from node.state.folder import (
    CHECKPOINTS_FOLDER,
    has_begun,
    is_unsigned,
    run_folder,
    unmark_unsigned,
)
from node.state.invitations import IssuedTokens, read_credential
from node.status.board import EventLog
from node.trainers.attached_trainer import Attachment
from node.trainers.model_file import kept_model_file
from node.trainers.trainer import OpenTrainer, TrainerConfig, open_trainer
from node.trainers.work import TrainerWork, WorkParts
from protocol.core.node_core import NodeCore
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer
from protocol.join_puzzle import solve
from protocol.manifest import RunManifest, SignedManifest
from protocol.messages import SealCertificate
from protocol.rounds.chain import genesis
from protocol.rounds.restart import Restart
from protocol.rounds.round_view import RoundConfig
from protocol.shared_state.store import Store
from training.audits.traces import TRACES_FOLDER, TraceFolder
from training.files.durable import make_folder_durably
from training.methods.presets import is_paced
from training.models.genesis import genesis_weights
from training.numeric.arithmetic import joined
from training.numeric.memory import give_back_free_memory

SHARD = 0
INNER_FOLDER = "inner"
AUDITS_FOLDER = "audits"
BYTES_PER_MBIT = 1e6 / 8


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

    waits_for_peers: bool = False
    """Whether it goes on where none of the peers that it was told answers: a person is there to
    end it."""

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
    entries: EntryExchange


class OwnFiles(NamedTuple):
    """What the trainer reads besides the manifest, where it is not built in."""

    model_file: Path | None
    corpus: Path | None


def assemble(node: Node, transport: Libp2pTransport, directory: KademliaDirectory) -> Machinery:
    """The machines and edges of one node, connected."""
    config, manifest = node.config, node.signed.manifest
    folder = run_folder(config.state, manifest.digest)
    make_folder_durably(folder)
    is_ours = node.attached is None
    model_file = kept_model_file(manifest, config.model_file, folder) if is_ours else None
    corpus = kept_store(manifest, config.corpus, folder) if is_ours else None
    journal = _open_journal(node, folder)
    store = _make_store(manifest, journal)
    start = genesis(manifest, SHARD, store.state.root)
    core = NodeCore(manifest, _round_config(node), node.signer, start, now_s=trio.current_time())
    core.wants_seat = False  # Until the trainer is up.
    restart = _restart(node, folder, journal, store, start)
    core.catchup.told = check_history(folder, journal)

    def on_saved(oldest: int) -> None:
        journal.saved_up_to(oldest)
        # Behind a state that was made or fetched much of it is free, and wanted by nobody.
        give_back_free_memory()

    checkpoints = Checkpoints(folder / CHECKPOINTS_FOLDER, manifest, SHARD, on_saved=on_saved)
    desk = _work_desk(node, core, store, folder)
    parts = DriverParts(
        core=core,
        store=store,
        transport=transport,
        log=node.log,
        journal=journal,
        restart=replace(restart, begun=(fetched := PartialCells(folder)).begun),
        checkpoints=checkpoints,
        states=replace(_state_parts(node, store, journal, fetched, checkpoints), work=desk),
        hooks=node.hooks,
        folder=folder,
        trace=node.trace,
    )
    driver = Driver(parts, compute_threads=config.compute_threads)
    entries = _entry_exchange(node, folder, driver, parts)
    access = _door(node, folder, core, entries)
    links_of = partial(BentLinks, hooks=node.hooks, core=core) if node.hooks.bends_frames else Links
    node.hooks.began(node.signer)
    node.hooks.runs(core, trio.current_time)
    links = links_of(
        transport=transport,
        directory=directory,
        signed=node.signed,
        signer=node.signer,
        tell=entries.tell,
        finds_nobody=node.hooks.finds_nobody,
        access=access,
        private_addresses=node.config.records_private,
        started_ms=round(time.time() * 1000),
        standing=partial(_known_progress, core),
        work=_solves_puzzle(node),
        memory=directory.memory,
    )
    own = OwnFiles(model_file, corpus)
    work = _trainer_work(node, folder, driver, own, desk, links.met)
    driver.connect(links, work, entries.accuse)
    entries.connect(links)
    return Machinery(
        driver=driver, links=links, work=work, checkpoints=checkpoints, entries=entries
    )


def _door(node: Node, folder: Path, core: NodeCore, entries: EntryExchange) -> Access:
    """Who is let in; and who may have a seat, in a run for the invited."""
    access = Access(
        manifest=node.signed.manifest,
        signer=node.signer,
        book=entries.book,
        members=lambda: core.machine.head.roster.member_set,
        wall_clock=time.time,
        credential=read_credential(folder),
        issued=IssuedTokens(folder),
    )
    entries.access = access
    if not access.is_for_all:
        core.may_sit = access.may_sit
    return access


def _known_progress(core: NodeCore) -> KnownProgress:
    """Where the run stands, for whom to dial."""
    return KnownProgress(core.machine.head.roster.member_set, core.machine.head.round)


def _solves_puzzle(node: Node) -> Callable[[], Awaitable[bytes]] | None:
    """Does the run's join puzzle in a thread; a joiner that has its seat has done it already."""
    manifest = node.signed.manifest
    bits = manifest.admission.puzzle_bits
    if not bits:
        return None
    me = node.signer.peer_id
    return partial(trio.to_thread.run_sync, partial(solve, manifest.digest, me, bits))


def _round_config(node: Node) -> RoundConfig:
    return replace(
        round_config(node.signed.manifest, SHARD),
        wait_seats=node.config.start_with - 1,
        wait_seats_s=node.config.start_within_s or inf,
        without=node.hooks.without,
        bend=node.hooks.said,
    )


def _work_desk(node: Node, core: NodeCore, store: ShardStore, folder: Path) -> WorkDesk | None:
    manifest = node.signed.manifest
    if not manifest.audits.rate:
        return None
    traces = TraceFolder(folder / INNER_FOLDER / TRACES_FOLDER, manifest)
    return WorkDesk(core, store.layout, traces, folder / AUDITS_FOLDER, node.hooks)


def _trainer_work(
    node: Node,
    folder: Path,
    driver: Driver,
    own: OwnFiles,
    desk: WorkDesk | None,
    met: trio.Event,
) -> TrainerWork:
    config = node.config
    return TrainerWork(
        WorkParts(
            core=driver.core,
            store=driver.store,
            hooks=node.hooks,
            log=node.log,
            tell=driver.tell,
            validate_every=config.validate_every,
            is_observer=config.is_observer,
            opens_trainer=_opens_trainer(node),
            uplink_mbit=driver.bulk.uplink.mbit,
            desk=desk,
            met=met,
        ),
        TrainerConfig(
            folder=folder,
            manifest=node.signed.manifest,
            manifest_path=config.manifest,
            shard=SHARD,
            threads=config.threads,
            device=config.device,
            model_file=own.model_file,
            corpus=own.corpus,
            inner_folder=folder / INNER_FOLDER,
            validation_share=config.validation_share if config.validate_every else 0.0,
        ),
    )


def _entry_exchange(node: Node, folder: Path, driver: Driver, parts: DriverParts) -> EntryExchange:
    return EntryExchange(
        EntryParts(
            core=parts.core,
            signer=node.signer,
            store=Store(folder, node.signed.manifest.digest),
            log=node.log,
            tell=driver.tell,
            addresses=lambda: told_to_members(
                parts.transport.addresses(),
                node.signed.manifest.trust,
                node.config.records_private,
            ),
            checkpoint=lambda: parts.checkpoints.latest,
            first_round=parts.restart.chain[-1].value.round,
            folder=folder,
            device=node.config.device,
            dials=not node.hooks.finds_nobody,
        )
    )


def _state_parts(
    node: Node,
    store: ShardStore,
    journal: FileJournal,
    fetched: PartialCells,
    checkpoints: Checkpoints,
) -> StateParts:
    manifest, folder = node.signed.manifest, checkpoints.folder
    return StateParts(
        gathered=Gathered(store, journal, fetched),
        served=Served(store, journal, checkpoint_finder(folder, store, manifest)),
        bytes_per_s=node.config.state_mbit * BYTES_PER_MBIT,
        line=LineLimits(
            node.config.up_mbit * BYTES_PER_MBIT, node.config.down_mbit * BYTES_PER_MBIT
        ),
        on_fetch=checkpoints.fetched,
    )


def _opens_trainer(node: Node) -> OpenTrainer:
    if node.attached is not None:
        return node.attached.open_trainer
    if node.trainer_command:
        return partial(open_trainer, command=node.trainer_command)
    return open_trainer


def _check_able(node: Node) -> None:
    manifest = node.signed.manifest
    if not manifest.audits.rate:
        return
    if node.attached is not None:
        raise ConfigError(
            "the run has audits, so others must be able to run again what is trained here: "
            "`barnraise join` does that, a training loop of one's own cannot"
        )
    if is_paced(manifest.outer.preset):
        raise ConfigError("the run has audits, and rounds of as many steps as each node likes")


def _make_store(manifest: RunManifest, journal: FileJournal) -> ShardStore:
    """At the genesis of the run."""
    store = ShardStore(manifest, SHARD, joined(genesis_weights(manifest, SHARD)))
    store.find_file = journal.find_result
    give_back_free_memory()  # Tensors were drawn one by one.
    return store


def _restart(
    node: Node, folder: Path, journal: FileJournal, store: ShardStore, start: SealCertificate
) -> Restart:
    """What is on the disk; what is damaged of it is told."""

    number = count()

    def tell(text: str) -> None:
        node.log.emit("warning", key=f"disk {next(number)}", text=text)

    if journal.damage:
        tell(journal.damage)
    stored = stored_states(
        folder / CHECKPOINTS_FOLDER, node.signed.manifest, SHARD, store.slot_names, tell=tell
    )
    return recover(start, store, journal, stored, tell=tell)


def _open_journal(node: Node, folder: Path) -> FileJournal:
    _check_able(node)  # Before anything of the run is on the disk.
    is_new = node.is_new_peer or has_begun(folder) or is_unsigned(folder)
    journal = FileJournal(folder, is_wiped=not is_new, me=node.signer.peer_id)
    unmark_unsigned(folder)
    return journal
