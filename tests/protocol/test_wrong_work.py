"""Evidence of audits: what more voters than may lie found of work convicts its owner, or whoever
said otherwise; nothing less does."""

from dataclasses import replace
from typing import Any

import pytest

from protocol import limits
from protocol.entry_kinds import Accusation
from protocol.errors import PeerError
from protocol.evidence import Evidence, Word, WorkFinding, decode_evidence
from protocol.identity import Ed25519Signer
from protocol.messages import Outcome, SignedMessage, Verdict, decode_body, sign_message
from protocol.wire import decode, encode
from tests.protocol.entry_vectors import (
    BASIS,
    EVIDENCE,
    JUDGES,
    RIGHT,
    RUN,
    SIGNER,
    WORK,
    WRONG,
    retract_of,
    verdict_of,
)

READER = Ed25519Signer(bytes(32))
JOINER = Ed25519Signer(bytes([9]) * 32)
OTHER_END = replace(WRONG, found=bytes([1]) * 32)
ELSEWHERE = replace(WRONG, segment=3)
UNOPENED = replace(WRONG, outcome=Outcome.UNOPENED, found=b"")


def made(
    accusation: Accusation,
    verdict: Verdict,
    others: list[SignedMessage],
    second: bytes = b"",
    **changes: Any,
) -> bytes:
    """The encoded evidence that these words make, whether they prove anything or not."""
    words = tuple(Word(voter=m.sender, signature=m.signature) for m in others)
    finding = WorkFinding(basis=BASIS, verdict=verdict, words=words)
    example = EVIDENCE[accusation]
    return encode(
        replace(example, first=encode(finding), second=second or example.second, **changes)
    )


def words(verdict: Verdict, *signers: Ed25519Signer) -> list[SignedMessage]:
    return [verdict_of(signer, verdict) for signer in signers or JUDGES[:2]]


WORKED, SAID = Accusation.WRONG_WORK, Accusation.WRONG_VERDICT


@pytest.mark.parametrize("accusation", [WORKED, SAID, Accusation.TWO_RETRACTS])
def test_example_convicts_whom_it_names(accusation):
    data = EVIDENCE[accusation].encoded
    assert decode_evidence(data, RUN, READER).subject == SIGNER.peer_id
    assert len(data) < 4 * limits.KIB


def moved(data: bytes, **changes: Any) -> bytes:
    return encode(replace(decode(Evidence, data), **changes))


FALSE = {
    "one voter, who may lie": made(WORKED, WRONG, words(WRONG, JUDGES[0])),
    "more words than are needed": made(WORKED, WRONG, words(WRONG, *JUDGES)),
    "one voter twice": made(WORKED, WRONG, words(WRONG, JUDGES[0], JUDGES[0])),
    "a voter and a stranger": made(
        WORKED, WRONG, sorted(words(WRONG, JUDGES[0], JOINER), key=lambda m: m.sender)
    ),
    "voters who found another end each": made(
        WORKED, WRONG, [*words(WRONG, JUDGES[0]), *words(OTHER_END, JUDGES[1])]
    ),
    "words for another segment": made(WORKED, WRONG, words(ELSEWHERE)),
    "words that it is right": made(WORKED, RIGHT, words(RIGHT)),
    "words that nobody opened it": made(WORKED, UNOPENED, words(UNOPENED)),
    "work of another COMMIT": made(
        WORKED,
        WRONG,
        words(WRONG),
        encode(sign_message(SIGNER, replace(WORK.slot, round=42), decode_body(WORK)).filled),
    ),
    "the COMMIT of somebody else in that round": made(
        WORKED,
        WRONG,
        words(WRONG),
        encode(sign_message(JUDGES[2], WORK.slot, decode_body(WORK)).filled),
        subject=JUDGES[2].peer_id,
    ),
    "a COMMIT that its sender did not sign": made(
        WORKED, WRONG, words(WRONG), encode(replace(WORK.filled, signature=bytes(64)))
    ),
    "another subject": moved(EVIDENCE[WORKED].encoded, subject=JOINER.peer_id),
    "another run": moved(EVIDENCE[WORKED].encoded, run=bytes(32)),
    "who said the same": made(SAID, RIGHT, words(RIGHT), verdict_of(SIGNER, RIGHT).encoded),
    "who could not open it": made(SAID, RIGHT, words(RIGHT), verdict_of(SIGNER, UNOPENED).encoded),
    "who spoke of another segment": made(
        SAID, RIGHT, words(RIGHT), verdict_of(SIGNER, ELSEWHERE).encoded
    ),
    "who said nothing of any work": made(SAID, RIGHT, words(RIGHT), WORK.encoded),
    "words that call it wrong, too": made(
        SAID, OTHER_END, words(OTHER_END), verdict_of(SIGNER, WRONG).encoded
    ),
    "a VERDICT that nobody signed": made(
        SAID, RIGHT, words(RIGHT), replace(verdict_of(SIGNER, WRONG), signature=bytes(64)).encoded
    ),
}


@pytest.mark.parametrize("data", FALSE.values(), ids=FALSE)
def test_what_may_be_said_of_somebody_honest_convicts_nobody(data):
    with pytest.raises(PeerError):
        decode_evidence(data, RUN, READER)


def test_two_retracts_far_apart_convict_nobody():
    far = retract_of(SIGNER, 41 + limits.RETRACT_ROUNDS + 1)
    first, second = sorted(encode(message.filled) for message in (retract_of(SIGNER, 41), far))
    made_of = replace(EVIDENCE[Accusation.TWO_RETRACTS], first=first, second=second)
    with pytest.raises(PeerError, match="far apart"):
        decode_evidence(encode(made_of), RUN, READER)


def test_other_messages_are_no_retracts():
    votes = EVIDENCE[Accusation.TWO_MESSAGES]
    with pytest.raises(PeerError):
        decode_evidence(encode(replace(votes, accusation=Accusation.TWO_RETRACTS)), RUN, READER)
