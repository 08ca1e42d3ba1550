"""Whatever the fields of an entry allow at worst fits its kind, and what carries it."""

import pytest

from protocol import limits
from protocol.entries import Entry, SignedHeader
from protocol.entry_kinds import RULES, EntryKind
from protocol.evidence import Evidence
from protocol.messages import Seal, Vote
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
    around = largest(Evidence) - 2 * (limits.EVIDENCE_BYTES_MAX // 2)
    assert 2 * largest(SignedHeader) + around <= 800 < limits.EVIDENCE_BYTES_MAX
    for statement in (signed_bytes(Vote, subject=0), signed_bytes(Seal, subject=32)):
        assert statement <= limits.EVIDENCE_BYTES_MAX // 2
        assert 2 * statement + around <= limits.EVIDENCE_BYTES_MAX


def test_three_entries_fit_a_control_frame():
    assert 3 * (limits.ENTRY_BYTES_MAX + 3) + 4 <= limits.CONTROL_FRAME_BYTES_MAX
