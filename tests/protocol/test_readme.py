"""The format's page names every field in the order in which it travels."""

import dataclasses
import re
from pathlib import Path

import pytest

from protocol import entries, evidence, frames, invitations, limits, manifest, messages
from protocol import messages as slots
from protocol.entries import Entry, EntryHeader, SignedHeader
from protocol.entry_kinds import RULES, Accusation, EntryKind
from protocol.evidence import Evidence
from protocol.frames import BlockHeader, BulkHeader, BulkItem, BulkItems, WantBlocks
from protocol.gossiping import gossiped
from protocol.manifest import RunManifest, SignedManifest
from protocol.messages import (
    Held,
    Kind,
    Roster,
    SealCertificate,
    SealClock,
    SealValue,
    SeatRecord,
    SignedMessage,
    Slot,
)
from tests.protocol.strategies import WITH_SUBJECT, WITHOUT_ATTEMPT
from tests.protocol.vectors import BODIES

TEXT = (Path(manifest.__file__).parent / "README.md").read_text(encoding="utf-8")


def fields(kind: type) -> str:
    return ", ".join(field.name for field in dataclasses.fields(kind))


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.name)
def test_message_stands_in_the_table_with_its_slot_and_fields(kind):
    parts = [] if kind in WITHOUT_ATTEMPT else ["attempt"]
    if kind in WITH_SUBJECT:
        of = "slice" if kind in (Kind.GRAM, Kind.AGG) else "seal before"
        of = "segment" if kind is Kind.VERDICT else of
        parts.append(f"subject: {of}")
    place = f" {', '.join(parts)} " if parts else " "
    row = f"| {kind:d} {kind.name} |{place}| {fields(messages._BODIES[kind])} |"
    assert row in TEXT


@pytest.mark.parametrize("number", frames._TYPES)
def test_frame_stands_in_the_table_with_its_fields(number):
    kind = frames._TYPES[number]
    assert f"| {number} {kind.__name__} | {fields(kind)} |" in TEXT


@pytest.mark.parametrize(
    "kind",
    [
        *(Slot, SignedMessage, BulkHeader, BulkItems, BulkItem, RunManifest, SignedManifest),
        *(SealValue, SealCertificate, Roster, SeatRecord, SealClock, Held, WantBlocks, BlockHeader),
        *(Entry, Evidence, SignedHeader),
    ],
)
def test_struct_is_spelled_out(kind):
    assert f"`{fields(kind)}`" in re.sub(r"\s+", " ", TEXT)


def test_domains_are_those_of_the_code():
    domains = {
        value.decode()
        for module in (messages, manifest, slots, entries, evidence, gossiped, invitations)
        for name, value in vars(module).items()
        if name.endswith("_DOMAIN")
    }
    assert domains == set(re.findall(r"\| `(barnraise/[a-z]+/1)` \|", TEXT))


@pytest.mark.parametrize("kind", EntryKind, ids=lambda kind: kind.name)
def test_kind_of_entry_stands_in_the_table_with_its_fields_and_bounds(kind):
    rule = RULES[kind]
    minutes = round(rule.ttl_s / 60)
    life = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h"
    key = f"{rule.key_bytes} " if rule.key_bytes else ""
    row = f"| {kind:d} {kind.name} | {fields(rule.body)} | {key}| {life} |"
    assert f"{row} {rule.entry_bytes} | {rule.per_writer} |" in TEXT


def test_entries_and_evidence_are_told_apart_as_the_page_says():
    assert all(f"{accusation:d} {accusation.name}" in TEXT for accusation in Accusation)
    assert (len(dataclasses.fields(Entry)), len(dataclasses.fields(Evidence))) == (0xC, 0x6)
    assert "starts with `9c`, evidence with `96`" in TEXT
    assert fields(Entry) == f"{fields(EntryHeader)}, signature"


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("| control frame | 64 KiB |", limits.CONTROL_FRAME_BYTES_MAX == 64 * limits.KIB),
        ("3072 runs x 17 bytes", limits.HAVE_RUNS_MAX == 3072),
        ("| message in a message | 512 bytes |", limits.NESTED_MESSAGE_BYTES_MAX == 512),
        ("| Chain | 1 seal |", limits.CHAIN_SEALS_PER_FRAME_MAX == 1),
        ("| 12 288 cells |", limits.WANT_CELLS_MAX == 12_288),
        ("| item | 1 MiB |", limits.CHUNK_BYTES == limits.MIB),
        ("| items' header | 17 KiB |", limits.BULK_ITEMS_HEADER_BYTES_MAX == 17 * limits.KIB),
        ("| items together | 16, of 4352 KiB |", limits.PIECE_BYTES_MAX == 4352 * limits.KIB),
        ("| blocks of a text | 2^20, of 1 MiB |", limits.TEXT_BLOCKS_MAX == 2**20),
        ("| blocks asked for together | 16 |", limits.TEXT_BLOCKS_ASKED_MAX == 16),
        ("| manifest | 256 KiB |", limits.MANIFEST_BYTES_MAX == 256 * limits.KIB),
        ("| entry | 16 KiB |", limits.ENTRY_BYTES_MAX == 16 * limits.KIB),
        ("| evidence | 16 KiB |", limits.EVIDENCE_BYTES_MAX == 16 * limits.KIB),
        ("| statement in it | 2 KiB |", limits.STATEMENT_BYTES_MAX == 2 * limits.KIB),
        ("104 KiB", sum(r.per_writer * r.entry_bytes for r in RULES.values()) <= 104 * limits.KIB),
        ("206 entries", sum(r.per_writer for r in RULES.values()) == 206),
        ("| 2^34, 2^31 |", limits.TOKENS_PER_ROUND_MAX == 2**34),
        ("2^22 rounds", limits.ROUNDS_MAX == 2**22),
        ("| messages kept per round | 4096 |", limits.MESSAGES_PER_ROUND_MAX == 4096),
        ("| 1024, 512 of them SEATs |", limits.MESSAGES_SHARED_MAX == 2 * 512),
        ("512 of them SEATs", limits.SEATS_ASKED_MAX == 512),
        ("round opens | 128 KiB |", limits.EARLY_BYTES_MAX == 128 * limits.KIB),
    ],
)
def test_limits_are_those_of_the_code(row, value):
    assert row in TEXT
    assert value
