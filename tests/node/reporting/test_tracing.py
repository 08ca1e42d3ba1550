import pytest

from node.reporting.tracing import (
    Accused,
    Adopted,
    Began,
    Diverged,
    Ended,
    Record,
    Signed,
    Synced,
    Used,
    parse_trace_line,
    trace_line,
)
from protocol.errors import DecodeError
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, Vote, sign_message
from tests.node.builders import head_of, peers_named, view_of

A, B = peers_named(2)
HEAD = head_of([A, B])
MESSAGE = sign_message(
    KeyedHashSigner(A), view_of(A, HEAD).slot(Kind.VOTE), Vote(list_digest=bytes(32))
)
RECORDS: tuple[Record, ...] = (
    Began(at_s=0.5, peer=A, round=1, head=HEAD, is_lost=True),
    Signed(at_s=1.0, peer=A, message=MESSAGE),
    Adopted(at_s=1e9 + 0.25, peer=A, certificate=HEAD, root=b"r" * 32, was_listed=False),
    Synced(at_s=2.0, peer=B, certificate=HEAD, root=b"r" * 32),
    Accused(at_s=3.0, peer=A, of=B, reason='two "different" VOTE'),
    Diverged(at_s=3.0, peer=A, reason="other bits"),
    Used(at_s=4.0, peer=A, memory_bytes=10**9, files=24, tasks=50, messages=3),
    Ended(at_s=5.0, peer=A, reason="finished"),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record_survives_its_line(record):
    line = trace_line(record)
    assert "\n" not in line
    assert parse_trace_line(line) == record


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        '{"kind":"ended","at_s":1.0,"peer":"00","reason":"x"}',
        '{"kind":"ended","at_s":1.0,"reason":"x"}',
        trace_line(RECORDS[-1]).replace('"finished"', "7"),
        trace_line(RECORDS[-1]).replace("5.0", "NaN"),
        trace_line(RECORDS[-1]).replace("5.0", "true"),
        trace_line(RECORDS[-1]).replace("{", '{"more":1,'),
        trace_line(RECORDS[0]).replace("true", "1"),
        trace_line(RECORDS[1])[:-12] + '"}',
        "x" * 10_000_000,
    ],
    ids=lambda line: line[:40],
)
def test_other_text_is_a_decode_error(line):
    with pytest.raises(DecodeError):
        parse_trace_line(line)
