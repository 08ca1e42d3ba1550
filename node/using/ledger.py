"""`barnraise credit`: the ledger of a run in a state folder, and files of it that prove themselves.

    file = records (`node/holdings/record_log.py`): an ExportHead, then per round
           S seal, then C commit for each that it lists      or      U seal: its COMMITs are gone

Everything in a file is checked from the founder's signature on the manifest: seal by seal, and each
COMMIT by its signature and its place in a seal. Only the credits that the exporter had folded are
its word; that they are no more than what was sealed is checked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from node.holdings.journal import CHAIN_FILE, RECEIPTS_FILE, decode_receipts
from node.holdings.record_log import RECORD_BYTES_MAX, pack_record, read_records, stream_records
from node.holdings.shard_store import ShardStore
from node.using.run_on_disk import RunOnDisk, refuse_taken
from protocol import limits
from protocol.errors import ConfigError, DecodeError, LedgerError, PeerError
from protocol.identity import Signer
from protocol.manifest import RunManifest, open_manifest
from protocol.messages import Round, SealCertificate, SealValue, SignedMessage, decode_message
from protocol.rounds.chain import genesis
from protocol.rounds.credit import (
    ChainRound,
    Folded,
    Ledger,
    LedgerStatement,
    nothing_folded,
    prove,
)
from protocol.wire import OneOf, Size, decode, encode
from training.files.durable import replace_durably
from training.models.genesis import genesis_weights
from training.numeric.arithmetic import joined

SHARD = 0
FORMAT = "barnraise-credit-1"

_PROVEN, _UNPROVEN, _COMMIT = b"S", b"U", b"C"

Tell = Callable[[int, int], None]
"""So many rounds of so many are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportHead:
    """What an exported ledger begins with. `manifest` is the signed one, `rounds` follow."""

    format: Annotated[str, OneOf((FORMAT,))]
    manifest: Annotated[bytes, Size(0, limits.MANIFEST_BYTES_MAX)]
    folded: Folded
    rounds: Round


class RunLedger:
    """The ledger in a run's folder, as it was when this was made. Reads only: a node may run."""

    def __init__(self, manifest: RunManifest, folder: Path) -> None:
        """Raises ConfigError where a file cannot be read."""
        self._manifest, self._chain = manifest, folder / CHAIN_FILE
        try:
            # The chain's end first: receipts are written before their seal.
            self._size = self._chain.stat().st_size if self._chain.exists() else 0
            records = read_records(folder / RECEIPTS_FILE)[0] if self._has_receipts(folder) else []
        except OSError as error:
            raise _unreadable(folder, error) from error
        folded, commits = decode_receipts(records)
        self._commits = commits
        self.folded = folded or nothing_folded(_genesis(manifest))

    def _has_receipts(self, folder: Path) -> bool:
        return (folder / RECEIPTS_FILE).exists()

    def rounds(self) -> Iterator[ChainRound]:
        """The sealed rounds, the first one first. Raises ConfigError for an unreadable file."""
        return prove(self._certificates(), self.folded, self._commits)

    def _certificates(self) -> Iterator[SealCertificate]:
        try:
            for record in stream_records(self._chain, size=self._size) if self._size else ():
                limit = limits.CONTROL_FRAME_BYTES_MAX
                yield decode(SealCertificate, record, max_bytes=limit)
        except OSError as error:
            raise _unreadable(self._chain, error) from error
        except DecodeError:
            return  # What stands behind a record that is no seal is no part of the chain.

    def statement(self) -> LedgerStatement:
        """What the rounds add up to. Raises LedgerError where the files contradict each other."""
        ledger = Ledger(self._manifest, self.folded)
        for sealed in self.rounds():
            ledger.add(sealed.certificate, sealed.commits)
        return ledger.statement()


def ledger_of(run: RunOnDisk) -> RunLedger:
    """The ledger of a run of a state folder. Raises ConfigError where it cannot be read."""
    return RunLedger(run.manifest, run.checkpoints.parent)


def export_ledger(run: RunOnDisk, out: Path, *, force: bool = False) -> tuple[LedgerStatement, int]:
    """Write the ledger of a run as a file for others; what it says, and its bytes.

    Two exports of one state are equal to the bit. Raises ConfigError where `out` exists and not
    `force`, or cannot be written, and LedgerError as `RunLedger.statement` does.
    """
    refuse_taken(out, force=force)
    source = ledger_of(run)
    statement = source.statement()
    head = ExportHead(
        format=FORMAT, manifest=run.signed, folded=source.folded, rounds=statement.round
    )
    try:
        replace_durably(out, _export_records(head, source))
        return statement, out.stat().st_size
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from error


def _export_records(head: ExportHead, source: RunLedger) -> Iterator[bytes]:
    yield pack_record(encode(head))
    for sealed in source.rounds():
        is_proven = sealed.commits is not None
        yield pack_record((_PROVEN if is_proven else _UNPROVEN) + encode(sealed.certificate))
        for message in sealed.commits or ():
            yield pack_record(_COMMIT + message.encoded)


def verify_ledger(path: Path, signer: Signer, tell: Tell) -> tuple[RunManifest, LedgerStatement]:
    """What an exported file proves; `signer` only checks signatures.

    Raises ConfigError for a file that cannot be read or is none of ours, and LedgerError naming the
    round where it does not hold.
    """
    try:
        size = path.stat().st_size
        records = stream_records(path, size=size, is_plain=True)
        head = _export_head(next(records, b""), path)
        manifest = _manifest(head, signer)
        ledger = Ledger(manifest, head.folded, signer=signer)
        read = _Reader(records)
        for index in range(1, head.rounds + 1):
            sealed = read.round(index, is_folded=index <= head.folded.round)
            ledger.add(sealed.certificate, sealed.commits)
            tell(index, head.rounds)
    except OSError as error:
        raise _unreadable(path, error) from error
    if read.num_bytes + len(pack_record(encode(head))) != size:
        raise LedgerError.at(head.rounds, "something stands behind it")
    return manifest, ledger.statement()


class _Reader:
    """Rounds from the records of a file."""

    def __init__(self, records: Iterator[bytes]) -> None:
        self._records = records
        self.num_bytes = 0

    def round(self, index: int, *, is_folded: bool) -> ChainRound:
        """The next round. Raises LedgerError where it is damaged, cut off or not as written."""
        tag, body = self._next(index)
        if tag not in (_PROVEN, _UNPROVEN):
            raise LedgerError.at(index, "a COMMIT is where its seal should be")
        try:
            certificate = decode(SealCertificate, body, max_bytes=limits.CONTROL_FRAME_BYTES_MAX)
            if tag == _UNPROVEN:
                if not (is_folded or certificate.value.commits):
                    raise LedgerError.at(
                        index, "it lists nobody, and says that somebody is missing"
                    )
                return ChainRound(certificate, None)
            if is_folded:
                raise LedgerError.at(index, "it has COMMITs and is folded as well")
            commits = [self._commit(index) for _ in certificate.value.commits]
        except DecodeError as error:
            raise LedgerError.at(index, str(error)) from error
        return ChainRound(certificate, tuple(commits))

    def _commit(self, index: int) -> SignedMessage:
        tag, body = self._next(index)
        if tag != _COMMIT:
            raise LedgerError.at(index, "a COMMIT that it lists is missing")
        return decode_message(body)[0]

    def _next(self, index: int) -> tuple[bytes, bytes]:
        record = next(self._records, b"")
        if not record:
            raise LedgerError.at(index, "the file is damaged or cut off here")
        self.num_bytes += len(pack_record(record))
        return record[:1], record[1:]


def _export_head(record: bytes, path: Path) -> ExportHead:
    try:
        return decode(ExportHead, record, max_bytes=RECORD_BYTES_MAX)
    except DecodeError as error:
        raise ConfigError(
            f"{path} is no ledger that barnraise credit export wrote, or is damaged at its "
            f"beginning: {error}"
        ) from error


def _manifest(head: ExportHead, signer: Signer) -> RunManifest:
    try:
        return open_manifest(head.manifest, signer)
    except PeerError as error:
        raise LedgerError.at(0, f"the manifest: {error}") from error


def _genesis(manifest: RunManifest) -> SealValue:
    """Genesis computed anew, for a folder that lost the file that names its root."""
    anchor_N = joined(genesis_weights(manifest, SHARD))
    store = ShardStore(manifest, SHARD, anchor_N)
    return genesis(manifest, SHARD, store.state.root).value


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read {path}: {error.strerror or error}")
