"""Whatever the fields of an entry allow at worst fits its kind, and what carries it."""

from dataclasses import replace

import pytest

from protocol import limits
from protocol.entries import Entry, SignedHeader
from protocol.entry_kinds import RULES, EntryKind
from protocol.evidence import Evidence, Finding, Word, words_needed
from protocol.identity import PeerId
from protocol.messages import FilledSlot, Interval, Roster, Seal, SeatRecord, Vote
from protocol.wire import encode
from tests.protocol.entry_vectors import BASIS
from tests.protocol.test_limits import BIN, head_bytes, largest, signed_bytes

AROUND = largest(Entry) - limits.ENTRY_BODY_BYTES_MAX
"""Of an entry beside its body, with the longest key."""


def test_an_entry_takes_so_much_beside_its_body():
    assert AROUND <= limits.ENTRY_BYTES_MAX - limits.ENTRY_BODY_BYTES_MAX
    assert AROUND <= 305
    assert largest(SignedHeader) <= 350


@pytest.mark.parametrize("kind", EntryKind, ids=lambda kind: kind.name)
def test_every_entry_at_its_longest_fits_its_kind(kind):
    rule = RULES[kind]
    body = largest(rule.body)
    assert AROUND + head_bytes(body, BIN) + body <= rule.entry_bytes


def test_any_fork_and_the_usual_double_signatures_fit_evidence():
    first, second = limits.EVIDENCE_BYTES_MAX - limits.KIB, limits.STATEMENT_BYTES_MAX
    around = largest(Evidence) - first - second
    assert 2 * largest(SignedHeader) + around <= 800 < 2 * limits.STATEMENT_BYTES_MAX
    for statement in (signed_bytes(Vote, subject=0), signed_bytes(Seal, subject=32)):
        assert statement <= limits.STATEMENT_BYTES_MAX
    # What is beside the finding of a wrong sum: the accused's own word.
    assert largest(FilledSlot) + around <= limits.KIB


def test_finding_of_a_full_roster_fits_evidence_whatever_its_numbers_are():
    seat = SeatRecord(
        peer=PeerId(bytes(32)),
        seated=2**22,
        voter_since=2**22,
        proved=2**22,
        absent=2**22,
        rate=254,
    )
    peers = [PeerId(bytes([n]) * 32) for n in range(limits.SEATS_MAX)]
    roster = Roster(
        seats=tuple(replace(seat, peer=peer) for peer in peers),
        window=(2**22,) * limits.SEAL_WINDOW,
        banned=tuple(peers),
    )
    gaps = tuple(Interval(first=2**33 + 2 * n, stop=2**33 + 2 * n + 1) for n in range(128))
    clock = replace(BASIS.clock, unused=gaps, step=2**53, tokens=2**62, cursor=2**62)
    digests = (bytes(32),) * limits.SEATS_MAX
    value = replace(BASIS, roster=roster, commits=digests, clock=clock)
    words = tuple(
        Word(voter=peer, signature=bytes(64)) for peer in peers[: words_needed(limits.SEATS_MAX)]
    )
    finding = Finding(basis=value, body=bytes(32), words=words)
    assert len(encode(finding)) <= limits.EVIDENCE_BYTES_MAX - limits.KIB


def test_three_entries_fit_a_control_frame():
    assert 3 * (limits.ENTRY_BYTES_MAX + 3) + 4 <= limits.CONTROL_FRAME_BYTES_MAX
