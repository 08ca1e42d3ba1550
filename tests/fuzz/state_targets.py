"""Decoders of the replicated state: entries, evidence, whatever is offered, and its disk."""

from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from node.state.evidence_files import read_evidence
from protocol import limits
from protocol.entries import decode_entry
from protocol.errors import ConfigError, PeerError
from protocol.evidence import decode_evidence
from protocol.gram_wire import from_wire
from protocol.shared_state.book import SharedState
from protocol.shared_state.store import DATABASE, MARK, Store
from protocol.wire import encode
from tests.fuzz.protocol_targets import WIRE_BASE, WIRE_FACTOR
from tests.fuzz.target import FILE_BYTES, STACK_BYTES, Target, from_bytes, from_file
from tests.protocol.entry_vectors import ENTRIES, EVIDENCE, RUN, SIGNER
from training.numeric.gram import gram_stats, wire_form

WALL_S = 1_760_000_100.0


def _entries() -> tuple[bytes, ...]:
    return tuple(encode(entry) for entry in ENTRIES.values())


def _evidence() -> tuple[bytes, ...]:
    return tuple(one.encoded for one in EVIDENCE.values())


def _read_entry(data: bytes) -> None:
    assert encode(decode_entry(data, RUN)) == data


def _offer(data: bytes) -> None:
    """Never raises; what is taken is what was offered."""
    book = SharedState(RUN, SIGNER)
    offered = book.offer(data, wall_s=WALL_S, now_s=0.0)
    if offered.is_new:
        assert book.get(offered.entry_id) == data
    else:
        assert offered.refusal is not None or (offered.reason and offered.fault)
        raise RefusedHere


class RefusedHere(Exception):
    """The book did not take it, and did not raise."""


def _open_store(data: bytes, folder: Path, name: str) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / name).write_bytes(data)
    store = Store(folder, RUN)
    try:
        rows = store.take_rows()
        SharedState(RUN, SIGNER).restore(rows, wall_s=WALL_S)
        assert not store.was_damaged or not rows
    finally:
        store.close()


def _store_file(name: str) -> partial[None]:
    return partial(_in_folder, name=name)


def _in_folder(data: bytes, folder: Path, name: str) -> None:
    inner = folder / "shared_state"
    inner.mkdir(exist_ok=True)
    _open_store(data, inner, name)


@cache
def _stored() -> dict[str, bytes]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        book = SharedState(RUN, SIGNER)
        for data in _entries():
            book.offer(data, wall_s=WALL_S, now_s=0.0)
        store = Store(folder, RUN)
        store.apply(book.take_changes())
        store.close()
        return {file: (folder / file).read_bytes() for file in (DATABASE, MARK)}


def _gram_matrices() -> tuple[bytes, ...]:
    luck = np.random.default_rng(0)
    rows = [luck.normal(size=(count, 40)).astype(np.float32) for count in (1, 2, 5)]
    return tuple(wire_form(gram_stats(rows_PN, 16), len(rows_PN)) for rows_PN in rows)


TARGETS = [
    Target(
        name="Gram matrix of a slice",
        covers=("protocol.gram_wire.from_wire",),
        read=from_bytes(from_wire),
        errors=(ValueError,),
        examples=_gram_matrices,
        memory_base=STACK_BYTES,
        memory_factor=16,
    ),
    Target(
        name="entry",
        covers=("protocol.entries.decode_entry",),
        read=from_bytes(_read_entry),
        errors=(PeerError,),
        examples=_entries,
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="evidence",
        covers=("protocol.evidence.decode_evidence",),
        read=from_bytes(partial(decode_evidence, run=RUN, signer=SIGNER)),
        errors=(PeerError,),
        examples=_evidence,
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="file of evidence",
        covers=("node.state.evidence_files.read_evidence",),
        read=from_file(partial(read_evidence, signer=SIGNER), "x.evidence"),
        errors=(ConfigError,),
        examples=_evidence,
        memory_base=WIRE_BASE + FILE_BYTES,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="what gossip offers",
        covers=("protocol.shared_state.book.SharedState.offer",),
        read=from_bytes(_offer),
        errors=(RefusedHere,),
        examples=lambda: _entries() + _evidence(),
        memory_base=WIRE_BASE + 64 * limits.KIB,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="database of the state",
        covers=("protocol.shared_state.store.Store",),
        read=_store_file(DATABASE),
        errors=(),
        examples=lambda: (_stored()[DATABASE],),
        memory_base=WIRE_BASE + FILE_BYTES,
        memory_factor=WIRE_FACTOR,
        weight=5,
    ),
    Target(
        name="mark of the state",
        covers=("protocol.shared_state.store.Store",),
        read=_store_file(MARK),
        errors=(),
        examples=lambda: (_stored()[MARK],),
        memory_base=WIRE_BASE + FILE_BYTES,
        weight=5,
    ),
]
