"""A run with real signatures, played in a world, and its nodes' folders as state folders."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from node.holdings.journal import RECEIPTS_FILE, ReceiptLog, decode_receipts
from node.holdings.record_log import RECORD_BYTES_MAX, pack_record, stream_records
from node.holdings.states import round_config
from node.state.folder import MANIFEST_FILE, run_folder
from node.state.stored_manifest import ANY_SIGNER
from node.using.ledger import ExportHead, ledger_of, verify_ledger
from node.using.run_on_disk import RunOnDisk, find_run
from protocol.identity import PeerId
from protocol.manifest import RunManifest, sign_manifest
from protocol.messages import (
    Kind,
    Seal,
    SealCertificate,
    SealValue,
    SignedMessage,
    Slot,
    sign_message,
)
from protocol.rounds.chain import genesis
from protocol.rounds.credit import Folded, LedgerStatement
from protocol.wire import decode, encode
from sim.world.nodes import signer_named
from sim.world.world import World, WorldSettings
from tests.node.builders import toy_manifest

FOUNDER, SECOND, LATE = "a", "b", "c"
ROUNDS, JOINED = 7, 3
SIGNERS = {signer_named(name).peer_id: signer_named(name) for name in (FOUNDER, SECOND, LATE)}


def peer(name: str) -> PeerId:
    """The peer id of one of the three nodes."""
    return signer_named(name).peer_id


def manifest() -> RunManifest:
    """The run's."""
    return toy_manifest(peer(FOUNDER), rounds=50, cells=1)


@lru_cache(maxsize=1)
def played() -> World:
    """Three nodes up to round ROUNDS; the third comes when JOINED rounds are sealed."""
    world = World(manifest(), seed=5, settings=WorldSettings(is_signing_for_real=True))
    for name in (FOUNDER, SECOND, LATE):
        world.peer(name)
    config = replace(round_config(manifest()), wait_seats=1)
    world.join(peer(FOUNDER), config=config)
    world.join(peer(SECOND))
    world.run(lambda: world.nodes[peer(FOUNDER)].round >= JOINED, 200.0)
    world.join(peer(LATE))
    world.run(lambda: all(node.round >= ROUNDS for node in world.nodes.values()), 200.0)
    return world


def state_of(name: str, folder: Path) -> RunOnDisk:
    """What a node has on its disk, in a state folder."""
    state = folder / name
    home = run_folder(state, manifest().digest)
    home.mkdir(parents=True)
    (home / MANIFEST_FILE).write_bytes(encode(sign_manifest(manifest(), signer_named(FOUNDER))))
    for path, data in played().nodes[peer(name)].disk.image().items():
        if data is not None and PurePath(path).suffix == ".log":
            (home / PurePath(path).name).write_bytes(data)
    return find_run(state)


def split(records: list[bytes]) -> tuple[Folded, list[SignedMessage]]:
    """What the records of a sound receipts.log are."""
    folded, commits = decode_receipts(records)
    assert folded is not None
    return folded, commits


def records_of(path: Path) -> list[bytes]:
    """The records of a file, whose framing is sound."""
    return list(stream_records(path, size=path.stat().st_size))


def write_records(path: Path, records: list[bytes]) -> None:
    """A file of these records, each with a sound digest."""
    path.write_bytes(b"".join(map(pack_record, records)))


def sealed_by_all(before: SealValue, value: SealValue) -> SealCertificate:
    """A certificate by all voters, who sign whatever it says."""
    slot = Slot(
        run=value.run,
        shard=value.shard,
        round=value.round,
        basis=before.digest,
        attempt=0,
        kind=Kind.SEAL,
        subject=value.before,
    )
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    signed = [sign_message(SIGNERS[voter], slot, body) for voter in before.roster.voters]
    return SealCertificate(value=value, seals=tuple(message.encoded for message in signed))


def verified(path: Path) -> LedgerStatement:
    """What an exported file proves."""
    return verify_ledger(path, ANY_SIGNER, lambda done, total: None)[1]


def home(run: RunOnDisk) -> Path:
    """The folder of the run."""
    return run.checkpoints.parent


def chain_of(run: RunOnDisk) -> list[SealCertificate]:
    """Its chain."""
    return [sealed.certificate for sealed in ledger_of(run).rounds()]


def proven_tokens(statement: LedgerStatement) -> int:
    """Of all peers together."""
    return sum(entry.tokens for entry in statement.credits)


def with_head(exported: Path, **changes: Any) -> None:
    """Change what an exported file begins with, and pack it soundly."""
    records = records_of(exported)
    head = decode(ExportHead, records[0], max_bytes=RECORD_BYTES_MAX)
    folded = replace(head.folded, **{k: v for k, v in changes.items() if k != "manifest"})
    head = replace(head, folded=folded, manifest=changes.get("manifest", head.manifest))
    write_records(exported, [encode(head), *records[1:]])


def reopened(run: RunOnDisk, **options: Any) -> ReceiptLog:
    """The receipts of a folder, as the next process opens them."""
    return ReceiptLog(home(run) / RECEIPTS_FILE, **options)


def tidied(run: RunOnDisk, **options: Any) -> None:
    """Fold what is older than these options let a node keep."""
    chain, source = chain_of(run), ledger_of(run)
    log = reopened(run, **options)
    log.begin(genesis(manifest(), 0, source.folded.genesis_root).value, ())
    log.tidy(len(chain), lambda first, count: chain[first - 1 : first - 1 + count])
    log.close()
