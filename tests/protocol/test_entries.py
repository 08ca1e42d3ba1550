"""Entries and evidence: what is signed, what contradicts, what proves itself."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.entries import (
    Entry,
    EntryHeader,
    SignedHeader,
    contradict,
    decode_entry,
    draft_entry,
    era_of,
    sign_entry,
)
from protocol.entry_kinds import RULES, Accusation, Dot, EntryKind, Metrics, Note, Reading
from protocol.errors import DecodeError, LimitError, PeerError
from protocol.evidence import (
    Evidence,
    decode_evidence,
    fork_evidence,
    is_evidence,
    two_messages_evidence,
)
from protocol.hybrid_clock import COUNTER_BITS, Stamp
from protocol.identity import Ed25519Signer
from protocol.messages import Commit, Kind, Slot, Vote, sign_message
from protocol.wire import decode, encode
from tests.protocol import vectors
from tests.protocol.entry_vectors import BODIES, ENTRIES, EVIDENCE, RUN, SIGNER

GOLDEN = json.loads(vectors.PATH.read_text(encoding="utf-8"))
OTHER = Ed25519Signer(bytes(32))
NOTE = ENTRIES[EntryKind.NOTE]
FORK = EVIDENCE[Accusation.FORK]
every_kind = pytest.mark.parametrize("kind", EntryKind, ids=lambda kind: kind.name)
every_accusation = pytest.mark.parametrize("accusation", Accusation, ids=lambda one: one.name)


@every_kind
def test_golden_entry_decodes_to_the_example_and_is_signed(kind):
    golden = GOLDEN["entries"][kind.name]
    entry = decode_entry(bytes.fromhex(golden["entry"]), RUN)
    assert entry.content == BODIES[kind]
    assert entry == ENTRIES[kind]
    assert entry.entry_id.hex() == golden["id"]
    assert entry.is_signed(OTHER)


@every_accusation
def test_golden_evidence_convicts_whoever_reads_it(accusation):
    golden = GOLDEN["evidence"][accusation.name]
    evidence = decode_evidence(bytes.fromhex(golden["evidence"]), RUN, OTHER)
    assert evidence == EVIDENCE[accusation]
    assert evidence.entry_id.hex() == golden["id"]
    assert evidence.subject == SIGNER.peer_id
    assert evidence.cut == (NOTE.stamp if accusation is Accusation.FORK else 0)


@pytest.mark.parametrize(
    "field", [name for name in Entry.__dataclass_fields__ if name != "signature"]
)
def test_every_field_is_signed_and_named(field):
    """A field that the signature leaves out could be changed by whoever passes the entry on."""
    values: dict[str, Any] = {
        "version": None,
        "kind": EntryKind.NOTE,
        "body": encode(Note(text="changed", removes=())),
        "previous": bytes(32),
        "sequence": NOTE.sequence - 1,
        "stamp": Stamp(NOTE.stamp + 1),
        "key": bytes(16),
    }
    old = getattr(NOTE, field)
    value = values.get(field, old + 1 if isinstance(old, int) else bytes(32))
    if value is None or value == old:
        # One version and, under this key, one kind: what differs there does not decode.
        broken: Any = 2 if field == "version" else EntryKind.DATA
        with pytest.raises((DecodeError, ValueError)):
            decode_entry(encode(replace(NOTE, **{field: broken})), RUN)
        return
    changed = replace(NOTE, **{field: value})
    assert not changed.is_signed(SIGNER)
    assert changed.entry_id != NOTE.entry_id


def test_signature_is_not_part_of_the_name():
    assert replace(NOTE, signature=bytes(64)).entry_id == NOTE.entry_id


def test_header_without_its_body_proves_as_much():
    half = decode(SignedHeader, encode(NOTE.signed_header))
    assert half.is_signed(OTHER)
    assert half.header.entry_id == NOTE.entry_id
    assert len(encode(half)) < 400


@given(data=st.data())
def test_any_flipped_bit_is_refused_or_unsigned(data):
    encoded = bytearray(encode(NOTE))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        entry = decode_entry(bytes(encoded), RUN)
    except PeerError:
        return
    assert not entry.is_signed(SIGNER)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key": b"short"}, "the key of NOTE has 16 bytes"),
        ({"previous": b"half"}, "an id or nothing"),
        ({"previous": b""}, "a chain begins"),
        ({"sequence": (NOTE.stamp >> COUNTER_BITS) + 1}, "beyond the milliseconds"),
        ({"sequence": 0, "stamp": Stamp(0)}, "not within"),
        ({"version": 2}, "not one of"),
    ],
)
def test_unsound_entry_is_no_entry(changes, reason):
    broken = object.__new__(Entry)
    for name in Entry.__dataclass_fields__:
        object.__setattr__(broken, name, changes.get(name, getattr(NOTE, name)))
    with pytest.raises(DecodeError, match=reason):
        decode_entry(encode(broken), RUN)


def test_body_must_be_of_the_kind_and_canonical():
    for body in (b"", encode(BODIES[EntryKind.LEAVE]), NOTE.body + b"\x00"):
        with pytest.raises(DecodeError):
            decode_entry(encode(replace(NOTE, body=body)), RUN)


def test_readings_and_removals_have_one_order():
    one, two = Reading(name="a", value=1.0), Reading(name="b", value=1.0)
    with pytest.raises(ValueError, match="ascend"):
        Metrics(round=1, readings=(two, one))
    with pytest.raises(ValueError, match="ascend"):
        Note(text="", removes=(Dot(SIGNER.peer_id, 1),) * 2)


def test_entry_that_is_longer_than_its_kind_allows_is_refused_at_both_ends():
    note = replace(RULES[EntryKind.NOTE], entry_bytes=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RULES, EntryKind.NOTE, note)
        with pytest.raises(LimitError, match="at most 200"):
            decode_entry(encode(NOTE), RUN)
        with pytest.raises(LimitError, match="at most 200"):
            draft_entry(NOTE.header, BODIES[EntryKind.NOTE])


def test_nobody_writes_in_the_name_of_another():
    with pytest.raises(AssertionError, match="another's name"):
        sign_entry(NOTE, OTHER)


def next_of(entry: Entry, **changes: object) -> EntryHeader:
    header = replace(entry.header, previous=entry.entry_id, sequence=entry.sequence + 1)
    return replace(header, **changes)  # type: ignore[arg-type]


def test_what_an_honest_writer_signs_never_contradicts():
    later = next_of(NOTE)
    restart = replace(
        NOTE.header,
        previous=b"",
        sequence=(NOTE.stamp >> COUNTER_BITS) + 1,
        stamp=Stamp(((NOTE.stamp >> COUNTER_BITS) + 1) << COUNTER_BITS),
    )
    assert not contradict(NOTE.header, later)
    assert not contradict(NOTE.header, NOTE.header)
    assert not contradict(NOTE.header, restart)
    assert not contradict(later, restart)
    assert not contradict(NOTE.header, replace(NOTE.header, writer=OTHER.peer_id, era=1))
    assert not contradict(NOTE.header, replace(NOTE.header, run=bytes(32), era=1))
    assert not contradict(NOTE.header, ENTRIES[EntryKind.DATA].header)


def test_fork_and_broken_chain_contradict_in_either_order():
    for wrong in (replace(NOTE.header, era=1), next_of(NOTE, previous=bytes(32))):
        assert contradict(NOTE.header, wrong)
        assert contradict(wrong, NOTE.header)


def signed(header: EntryHeader, signer: Ed25519Signer = SIGNER) -> SignedHeader:
    return SignedHeader(header=header, signature=signer.sign(header.signed_bytes))


def test_evidence_is_one_whoever_found_it():
    first, second = NOTE.signed_header, signed(replace(NOTE.header, era=1))
    assert fork_evidence(first, second) == fork_evidence(second, first)
    one = fork_evidence(first, second)
    swapped = _raw(one, first=one.second, second=one.first)
    with pytest.raises(DecodeError, match="must ascend"):
        decode(Evidence, swapped)


def _raw(evidence: Evidence, **changes: object) -> bytes:
    broken = object.__new__(Evidence)
    for name in Evidence.__dataclass_fields__:
        object.__setattr__(broken, name, changes.get(name, getattr(evidence, name)))
    return encode(broken)


def pair(first: SignedHeader, second: SignedHeader, **changes: object) -> bytes:
    low, high = sorted((encode(first), encode(second)))
    return _raw(FORK, first=low, second=high, **changes)


FALSE = {
    "no contradiction": pair(NOTE.signed_header, signed(next_of(NOTE))),
    "one is not signed": pair(NOTE.signed_header, signed(replace(NOTE.header, era=1), OTHER)),
    "other subject": _raw(FORK, subject=OTHER.peer_id),
    "other run within": pair(
        signed(replace(NOTE.header, run=bytes(32))),
        signed(replace(NOTE.header, run=bytes(32), era=1)),
    ),
    "other run": _raw(FORK, run=bytes(32)),
    "other accusation": _raw(FORK, accusation=Accusation.TWO_MESSAGES),
    "messages as a fork": _raw(EVIDENCE[Accusation.TWO_MESSAGES], accusation=Accusation.FORK),
    "noise": _raw(FORK, first=b"\x01"),
}


@pytest.mark.parametrize("data", FALSE.values(), ids=FALSE)
def test_evidence_that_proves_nothing_is_the_fault_of_who_passes_it_on(data):
    with pytest.raises(PeerError):
        decode_evidence(data, RUN, OTHER)


SLOT = Slot(run=RUN, shard=0, round=41, basis=bytes(32), attempt=1, kind=Kind.VOTE)
COMMIT = Commit(
    root=bytes(32),
    cell_norms=(1.0,) * 4096,
    tokens=1,
    samples=1,
    steps=1,
    base=bytes(32),
    residual_before=bytes(32),
    residual_after=bytes(32),
    seal=b"",
    joins=(),
    suspects=(),
    gone=(),
    bans=(),
    is_past_end=False,
)


def messages_evidence(first, second) -> bytes:
    low, high = sorted((encode(first.filled), encode(second.filled)))
    return _raw(EVIDENCE[Accusation.TWO_MESSAGES], first=low, second=high)


def test_messages_that_may_stand_beside_each_other_prove_nothing():
    vote = sign_message(SIGNER, SLOT, Vote(list_digest=bytes(32)))
    elsewhere = sign_message(SIGNER, replace(SLOT, attempt=2), Vote(list_digest=bytes([1]) * 32))
    of_other = sign_message(OTHER, SLOT, Vote(list_digest=bytes([1]) * 32))
    resigned = replace(vote, signature=bytes(64))
    for other in (elsewhere, of_other, resigned):
        with pytest.raises(PeerError):
            decode_evidence(messages_evidence(vote, other), RUN, OTHER)
    forged = replace(vote, body=encode(Vote(list_digest=bytes([1]) * 32)))
    with pytest.raises(PeerError, match="did not sign"):
        decode_evidence(messages_evidence(vote, forged), RUN, OTHER)


def test_messages_of_any_size_convict_in_some_hundred_bytes():
    slot = replace(SLOT, attempt=0, kind=Kind.COMMIT)
    first = sign_message(SIGNER, slot, COMMIT)
    second = sign_message(SIGNER, slot, replace(COMMIT, tokens=2))
    evidence = two_messages_evidence(first, second)
    assert len(first.encoded) > limits.EVIDENCE_BYTES_MAX > 4 * len(evidence.encoded)
    assert decode_evidence(evidence.encoded, RUN, OTHER).subject == SIGNER.peer_id


def test_entries_and_evidence_are_told_apart_by_their_first_byte():
    assert all(is_evidence(one.encoded) for one in EVIDENCE.values())
    assert not any(is_evidence(encode(entry)) for entry in ENTRIES.values())
    assert not is_evidence(b"")


def test_bounds_of_kinds_add_up_to_those_of_writers_and_of_all():
    rules = RULES.values()
    assert set(RULES) == set(EntryKind)
    assert sum(rule.per_writer for rule in rules) <= 256
    bytes_per_writer = sum(rule.per_writer * rule.entry_bytes for rule in rules)
    assert bytes_per_writer <= 112 * limits.KIB
    total = sum(rule.total * rule.entry_bytes for rule in rules)
    small = limits.EVIDENCE_MAX - limits.WRONG_SUMS_MAX
    total += small * 2 * limits.STATEMENT_BYTES_MAX
    total += limits.WRONG_SUMS_MAX * limits.EVIDENCE_BYTES_MAX
    assert total <= 96 * limits.MIB
    rows = sum(rule.total for rule in rules) + limits.EVIDENCE_MAX
    assert rows <= limits.STATE_ROWS_MAX
    assert max(rule.entry_bytes for rule in rules) <= limits.ENTRY_BYTES_MAX
    assert limits.EVIDENCE_BYTES_MAX <= limits.ENTRY_BYTES_MAX
    assert era_of(511) == 1
    # What LEAVE makes void must not come back when it ends.
    leave, identity = RULES[EntryKind.LEAVE], RULES[EntryKind.IDENTITY]
    assert leave.ttl_s >= 1.5 * identity.ttl_s
