"""Evidence of a wrong sum: what more voters than may lie found, and nothing less, convicts."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.entry_kinds import Accusation
from protocol.errors import PeerError
from protocol.evidence import (
    Evidence,
    Finding,
    Word,
    decode_evidence,
    may_be_accused,
    words_needed,
    wrong_sum_evidence,
)
from protocol.identity import Ed25519Signer, Signer
from protocol.messages import (
    Agg,
    FilledSlot,
    Gram,
    Kind,
    Roster,
    SealValue,
    SeatRecord,
    SignedMessage,
    Vote,
    decode_body,
    sign_message,
)
from protocol.wire import decode, encode
from tests.protocol.entry_vectors import BASIS, EVIDENCE, JUDGES, RUN, SIGNER, agg_of

FOUND = EVIDENCE[Accusation.WRONG_SUM]
READER = Ed25519Signer(bytes(32))
JOINER = Ed25519Signer(bytes([9]) * 32)


def judged(
    said: SignedMessage,
    others: list[SignedMessage],
    basis: SealValue = BASIS,
    **changes: Any,
) -> bytes:
    """The encoded evidence that these messages make, whether they prove anything or not."""
    words = tuple(Word(voter=m.sender, signature=m.signature) for m in others)
    finding = Finding(basis=basis, body=others[0].filled.body, words=words)
    second = encode(said.filled)
    made = replace(FOUND, subject=said.sender, first=encode(finding), second=second)
    return encode(replace(made, **changes))


def seated(*voters: Signer, others: tuple[Signer, ...] = ()) -> SealValue:
    """The seal with those seats."""
    seats = [
        SeatRecord(
            peer=s.peer_id, seated=0, voter_since=-1 if s in others else 0, proved=1, absent=0
        )
        for s in sorted((*voters, *others), key=lambda s: s.peer_id)
    ]
    return replace(BASIS, roster=Roster(seats=tuple(seats), window=(40,)))


def test_two_voters_of_four_convict_one_who_said_another_sum():
    said, others = agg_of(SIGNER, 1), [agg_of(judge, 2) for judge in JUDGES[:2]]
    data = judged(said, others)
    assert decode_evidence(data, RUN, READER).subject == SIGNER.peer_id
    assert decode(Evidence, data) == wrong_sum_evidence(BASIS, said, tuple(others))


def test_it_takes_more_voters_than_may_lie_whatever_their_number_is():
    needed = {1: 1, 3: 1, 4: 2, 6: 2, 7: 3, 9: 3, 10: 4, 16: 6, 64: 22}
    assert {count: words_needed(count) for count in needed} == needed


SAID = agg_of(SIGNER, 1)
ONE, TWO, THREE = (agg_of(judge, 2) for judge in JUDGES)
LIARS_OWN = seated(*JUDGES[:2], JOINER, READER, others=(SIGNER,))

FALSE = {
    "one voter, who may lie": judged(SAID, [ONE]),
    "more words than are needed": judged(SAID, [ONE, TWO, THREE]),
    "one voter twice": judged(SAID, [ONE, ONE]),
    "voters in another order": judged(SAID, [TWO, ONE]),
    "a voter and a stranger": judged(
        SAID, sorted([ONE, agg_of(JOINER, 2)], key=lambda message: message.sender)
    ),
    "words for the same sum": judged(SAID, [agg_of(judge, 1) for judge in JUDGES[:2]]),
    "voters who differ": judged(SAID, [ONE, agg_of(JUDGES[1], 3)]),
    "the accused among its judges": judged(
        SAID, sorted([ONE, agg_of(SIGNER, 2)], key=lambda message: message.sender)
    ),
    "an accused who said nothing": judged(replace(SAID, signature=bytes(64)), [ONE, TWO]),
    "another subject": judged(SAID, [ONE, TWO], subject=JOINER.peer_id),
    "another run": judged(SAID, [ONE, TWO], run=bytes(32)),
    "voters of a seal that the accused did not work on": judged(
        SAID, [agg_of(judge, 2, LIARS_OWN) for judge in JUDGES[:2]], LIARS_OWN
    ),
    "a stranger accused": judged(agg_of(JOINER, 1), [ONE, TWO]),
    "a finding of another accusation": judged(SAID, [ONE, TWO], accusation=Accusation.TWO_MESSAGES),
    "another accusation as a finding": encode(
        replace(EVIDENCE[Accusation.TWO_MESSAGES], accusation=Accusation.WRONG_SUM)
    ),
}


@pytest.mark.parametrize("data", FALSE.values(), ids=FALSE)
def test_what_may_be_said_of_somebody_honest_convicts_nobody(data):
    with pytest.raises(PeerError):
        decode_evidence(data, RUN, READER)


def test_votes_that_differ_are_no_wrong_sums():
    slot = replace(SAID.slot, kind=Kind.VOTE, subject=b"")
    said = sign_message(SIGNER, slot, Vote(list_digest=bytes([1]) * 32))
    others = [sign_message(judge, slot, Vote(list_digest=bytes(32))) for judge in JUDGES[:2]]
    with pytest.raises(PeerError, match="no sum"):
        decode_evidence(judged(said, others), RUN, READER)


def test_every_bit_of_it_counts(seed):
    data = bytearray(FOUND.encoded)
    data[seed % len(data)] ^= 1 << seed % 8
    with pytest.raises(PeerError):
        decode_evidence(bytes(data), RUN, READER)


def test_of_fewer_than_four_voters_none_is_judged_but_members_without_a_vote_are():
    few = seated(*JUDGES, others=(SIGNER,))
    assert may_be_accused(few, SIGNER.peer_id)
    assert not may_be_accused(few, JUDGES[0].peer_id)
    assert not may_be_accused(few, JOINER.peer_id)
    (judge,) = JUDGES[:1]
    said, word = agg_of(SIGNER, 1, few), agg_of(judge, 2, few)
    assert decode_evidence(judged(said, [word], few), RUN, READER).subject == SIGNER.peer_id
    turned = judged(agg_of(JUDGES[1], 1, few), [word], few)
    with pytest.raises(PeerError, match="nothing of that peer"):
        decode_evidence(turned, RUN, READER)


def test_a_gram_matrix_convicts_as_a_sum_does():
    agg = decode_body(SAID)
    assert isinstance(agg, Agg)
    slot = replace(SAID.slot, kind=Kind.GRAM)
    said, *others = (
        sign_message(
            signer,
            slot,
            Gram(
                list_digest=agg.list_digest, first=agg.first, stop=agg.stop, stats=bytes([mark]) * 8
            ),
        )
        for signer, mark in ((SIGNER, 1), (JUDGES[0], 2), (JUDGES[1], 2))
    )
    found = decode_evidence(judged(said, others), RUN, READER)
    assert decode(FilledSlot, found.second).slot.kind is Kind.GRAM
