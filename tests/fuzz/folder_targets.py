"""Decoders of what lies in a state folder, after whatever happened to the disk."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from blake3 import blake3

from node.holdings.journal import CHAIN_FILE, RECEIPTS_FILE, RESULTS_FOLDER, SLOTS_FILE, FileJournal
from node.holdings.record_log import RECORD_BYTES_MAX, pack_record, read_records
from node.holdings.shard_store import Item
from node.plane.gathered import FETCH_FILE, PartialCells
from node.settings.run_store import read_founded
from node.settings.sections import run_file_text
from node.state.folder import (
    FOUNDED_FILE,
    MANIFEST_FILE,
    PORT_FILE,
    RUN_FILE,
    read_port,
    run_folder,
)
from node.state.keystore import load_or_create_identity
from node.state.known_peers import KnownPeer, KnownPeers, decode_known_peers, read_known_peers
from node.state.stored_manifest import read_signed_manifest, stored_manifest
from node.status.client import find_api
from node.using.ledger import export_ledger, verify_ledger
from node.using.run_on_disk import find_run
from protocol import limits
from protocol.errors import (
    ConfigError,
    CorpusError,
    DecodeError,
    LedgerError,
)
from protocol.grid import cell_root
from protocol.messages import Kind
from protocol.wire import encode
from tests.fuzz.file_targets import disk
from tests.fuzz.mutations import json_bytes
from tests.fuzz.protocol_targets import ADDRESSES, FOLDED
from tests.fuzz.target import (
    FILE_BYTES,
    JSON_FACTOR,
    MANIFEST_BYTES,
    PACKER_BYTES,
    Read,
    Target,
    from_bytes,
    from_file,
)
from tests.node.ledger_run import state_of
from tests.node.state_run import FOUNDER, founded
from tests.protocol.vectors import CERTIFICATE, PEERS, SIGNED
from training.data.packing import PackOptions, pack
from training.data.sources import SourceSpec
from training.data.store import read_facts
from training.data.tokenizers import ByteTokenizer


def _record(body: bytes) -> bytes:
    """A record of a log, its digest sound, behind a good one and before another."""

    def packed(record: bytes) -> bytes:
        return len(record).to_bytes(4, "big") + blake3(record).digest(length=8) + record

    return packed(SLOT_RECORDS[0]) + packed(body) + packed(SLOT_RECORDS[1])


def _receipt(body: bytes) -> bytes:
    """A ledger with that record in it."""
    return pack_record(encode(FOLDED)) + pack_record(body) + pack_record(SLOT_RECORDS[0])


def _store_facts() -> tuple[object, ...]:
    """What the corpus.json of a small store says."""
    with TemporaryDirectory() as folder:
        for index in range(4):
            (Path(folder) / f"{index}.txt").write_text(f"a text of number {index}")
        options = PackOptions(sources=(SourceSpec(folder),), out=Path(folder) / "store")
        return (json.loads(pack(options, ByteTokenizer()).as_json()),)


def _exported_ledger() -> tuple[bytes, ...]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        export_ledger(state_of("a", Path(folder)), path)
        return (path.read_bytes(),)


def _tell_nobody(done: int, total: int) -> None:
    del done, total


SLOT_RECORDS = tuple(message.encoded for message in SIGNED.values())


def _known_peers() -> tuple[object, ...]:
    known = (KnownPeer(PEERS[0], ADDRESSES, 1_700_000_000), KnownPeer(PEERS[1], ADDRESSES, 5))
    return (json.loads(KnownPeers({}).seen(bytes(32), known).encode()),)


def _read_known(data: bytes) -> None:
    known = decode_known_peers(data)
    assert decode_known_peers(known.encode()) == known


def _journal(name: str) -> Read:
    """A journal with one file of it replaced: it opens, whatever is in there."""

    def read(data: bytes, folder: Path) -> None:
        shutil.rmtree(folder / "journal", ignore_errors=True)
        path = folder / "journal" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        for _ in range(2):  # The first opening may cut a torn tail off.
            journal = FileJournal(folder / "journal")
            messages, chain = journal.messages(), journal.chain()
            assert all(a.value.round == i + 1 for i, a in enumerate(chain))
            assert list(journal.read_chain(1, 1000)) == list(chain)
            folded, commits = journal.read_receipts()
            assert folded is not None or not commits
            assert all(message.encoded in data for message in commits)
            assert all(message.encoded in data for message in messages)
            assert all(_is_written_in(data, body) for body in journal.results(1).values())
            journal.close()

    return read


RESULT_FILE = f"{RESULTS_FOLDER}/round-000001-{'ab' * 32}.bin"
RESULT_LINE_BYTES, RESULT_COUNT_BYTES = 36, 4


def _result(body: bytes) -> bytes:
    """With the digest over what would follow the cells: sizes, roots, and how many."""
    lines = min(int.from_bytes(body[-RESULT_COUNT_BYTES:], "big"), len(body) // RESULT_LINE_BYTES)
    start = max(0, len(body) - RESULT_COUNT_BYTES - RESULT_LINE_BYTES * lines)
    return body + blake3(body[start:]).digest()


def _is_written_in(data: bytes, body: bytes) -> bool:
    """Whether a file begins with those cells, and names the size and root of each behind them."""
    lines, start = data[len(body) : -RESULT_COUNT_BYTES - 32], 0
    for at in range(0, len(lines), RESULT_LINE_BYTES):
        size, root = int.from_bytes(lines[at : at + 4], "big"), lines[at + 4 : at + 36]
        if cell_root(body[start : start + size]) != root:
            return False
        start += size
    return data.startswith(body) and start == len(body)


def _results() -> tuple[bytes, ...]:
    """Whole ones, without that digest."""
    found = []
    for cells in ([bytes(500)], [b"one", b"", b"three" * 30]):
        lines = [len(cell).to_bytes(4, "big") + cell_root(cell) for cell in cells]
        found.append(b"".join((*cells, *lines, len(cells).to_bytes(4, "big"))))
    return tuple(found)


def _partial_cells(data: bytes, folder: Path) -> None:
    """Whatever is in there: cells of bounded size, and a file that goes on behind the good ones."""
    (folder / FETCH_FILE).write_bytes(data)
    partial = PartialCells(folder)
    items = list(partial.read(64))
    assert len(items) <= 64
    assert all(len(item.payload) <= limits.CHUNK_BYTES for item in items)
    assert all(item.payload in data for item in items)
    if partial.root:
        num_kept = len(items) // 2
        value = replace(CERTIFICATE.value, root=partial.root)
        partial.begin(replace(CERTIFICATE, value=value), num_kept=num_kept)
        partial.keep(Item(7, b"payload", (bytes(32),)))
        partial.close()
        again = list(PartialCells(folder).read(64))
        assert again == [*items[:num_kept], Item(7, b"payload", (bytes(32),))]
        partial.clear()


def _fetched_cells() -> tuple[bytes, ...]:
    with TemporaryDirectory() as name:
        partial = PartialCells(Path(name))
        partial.begin(CERTIFICATE, num_kept=0)
        for index in range(4):
            partial.keep(Item(index, bytes([index]) * 100, (bytes(32),) * 2))
        partial.close()
        return ((Path(name) / FETCH_FILE).read_bytes(),)


def _identity(data: bytes, folder: Path) -> None:
    state = folder / "identity"
    state.mkdir(exist_ok=True)
    (state / "identity.key").write_bytes(data)
    assert load_or_create_identity(state).seed == data


def _stored(data: bytes, folder: Path) -> None:
    manifest = founded()
    path = run_folder(folder / "stored", manifest.digest) / MANIFEST_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    found = stored_manifest(folder / "stored", manifest.digest, FOUNDER)
    assert found is None or found.manifest == manifest
    assert find_run(folder / "stored").signed == data
    assert encode(read_signed_manifest(path, FOUNDER)) == data


def _founded(data: bytes, folder: Path) -> None:
    """A state folder in which a run was founded, with another file about its source."""
    state = folder / "founded"
    home = run_folder(state, disk().manifest.digest)
    if not home.exists():
        home.mkdir(parents=True)
        (home / MANIFEST_FILE).write_bytes(disk().signed)
        (home / RUN_FILE).write_text(run_file_text("run.toml", "a barn"), "utf-8")
    (home / FOUNDED_FILE).write_bytes(data)
    (found,) = read_founded(state, FOUNDER).values()
    if isinstance(found, ConfigError):
        raise found


def _port(data: bytes, folder: Path) -> None:
    (folder / PORT_FILE).write_bytes(data)
    port = read_port(folder)
    assert port == 0 or 1024 <= port <= 65_535
    if port == 0 and data != b"0\n":
        raise DecodeError("no port")


def _api(data: bytes, folder: Path) -> None:
    path = folder / "api" / "runs" / ("ab" * 6) / "api.token"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    # A process that is not ours, or none: both are errors of the user's. Never an exception else.
    find_api(folder / "api", None)


TARGETS = [
    Target(
        name="known peers",
        covers=("node.state.known_peers.decode_known_peers",),
        read=from_bytes(_read_known),
        errors=(DecodeError,),
        trees=_known_peers,
        dump=json_bytes,
        memory_factor=JSON_FACTOR,
    ),
    Target(
        name="known peers on disk",
        covers=("node.state.known_peers.read_known_peers",),
        read=from_file(read_known_peers, "known_peers.json"),
        errors=(),
        trees=_known_peers,
        dump=json_bytes,
        # It reads at most 8 MiB, and a read of at most so many bytes reserves them.
        memory_base=FILE_BYTES + 8 * limits.MIB,
        memory_factor=JSON_FACTOR,
    ),
    Target(
        name="token store",
        covers=("training.data.store.read_facts",),
        read=from_bytes(read_facts),
        errors=(CorpusError,),
        trees=_store_facts,
        dump=json_bytes,
        memory_factor=JSON_FACTOR,
    ),
    Target(
        name="record log",
        covers=("node.holdings.record_log.read_records",),
        read=from_file(read_records, "records.log"),
        errors=(),
        examples=lambda: SLOT_RECORDS,
        wrap=_record,
        memory_base=FILE_BYTES + RECORD_BYTES_MAX,
    ),
    Target(
        name="fetched cells",
        covers=("node.plane.gathered.PartialCells.read",),
        read=_partial_cells,
        errors=(),
        examples=_fetched_cells,
        memory_base=4 * FILE_BYTES,
        memory_factor=20,
    ),
    *(
        Target(
            name=f"journal {name.replace('/', ' ')}",
            covers=(
                "node.holdings.journal.FileJournal",
                "node.holdings.journal.FileJournal.read_chain",
                "node.holdings.journal.FileJournal.read_receipts",
                "node.holdings.journal.ReceiptLog.read",
                "node.holdings.journal.decode_receipts",
                "node.holdings.record_log.RecordLog.read",
            ),
            read=_journal(name),
            errors=(),
            examples=examples,
            wrap=wrap,
            memory_base=2 * FILE_BYTES + PACKER_BYTES,
            memory_factor=20,
            weight=4,
        )
        for name, examples, wrap in (
            (SLOTS_FILE, lambda: SLOT_RECORDS, _record),
            (CHAIN_FILE, lambda: (encode(CERTIFICATE),), _record),
            (RECEIPTS_FILE, lambda: (SIGNED[Kind.COMMIT].encoded,), _receipt),
            (RESULT_FILE, _results, _result),
        )
    ),
    Target(
        name="exported ledger",
        covers=("node.using.ledger.verify_ledger",),
        read=from_file(lambda path: verify_ledger(path, FOUNDER, _tell_nobody), "ledger"),
        errors=(LedgerError, ConfigError),
        examples=_exported_ledger,
        memory_base=FILE_BYTES + PACKER_BYTES + RECORD_BYTES_MAX,
        memory_factor=20,
        weight=4,
    ),
    Target(
        name="identity key",
        covers=("node.state.keystore.load_or_create_identity",),
        read=_identity,
        errors=(ConfigError,),
        examples=lambda: (bytes(range(32)),),
        memory_base=FILE_BYTES,
    ),
    Target(
        name="stored manifest",
        covers=(
            "node.state.stored_manifest.read_signed_manifest",
            "node.using.run_on_disk.find_run",
        ),
        read=_stored,
        errors=(ConfigError,),
        examples=lambda: (disk().signed,),
        memory_base=MANIFEST_BYTES,
        memory_factor=20,
    ),
    Target(
        name="founded.json",
        covers=("node.settings.run_store.read_founded",),
        read=_founded,
        errors=(ConfigError,),
        trees=lambda: ({"source": "/home/somebody/run.toml"},),
        dump=json_bytes,
        memory_base=MANIFEST_BYTES + limits.MIB,
        memory_factor=JSON_FACTOR,
    ),
    Target(
        name="port",
        covers=("node.state.folder.read_port",),
        read=_port,
        errors=(DecodeError,),
        examples=lambda: (b"4001\n",),
        memory_base=FILE_BYTES,
    ),
    Target(
        name="token of the status server",
        covers=("node.status.client.find_api",),
        read=_api,
        errors=(ConfigError,),
        trees=lambda: ({"url": "http://127.0.0.1:4002", "token": "ab12", "pid": 1},),
        dump=json_bytes,
        memory_base=FILE_BYTES,
        memory_factor=JSON_FACTOR,
    ),
]
