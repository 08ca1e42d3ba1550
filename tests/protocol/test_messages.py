"""Signed messages: slot, sender and body are all bound; seals and lists say what they say."""

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Agg,
    Body,
    Have,
    Held,
    Interval,
    Kind,
    List,
    Outcome,
    Roster,
    SealClock,
    SignedMessage,
    Slot,
    Verdict,
    Vote,
    decode_body,
    decode_message,
    is_signed,
    list_digest,
    segment_subject,
    sign_message,
    slice_subject,
)
from protocol.wire import decode, encode
from tests.protocol.strategies import WITH_SUBJECT, WITHOUT_ATTEMPT
from tests.protocol.vectors import (
    BODIES,
    CERTIFICATE,
    OTHER,
    SEAL_VALUE,
    SIGNED,
    SIGNER,
    digest,
    slot,
)

SPOKEN = pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.name)
FIRST, LAST = SEAL_VALUE.roster.seats


# What a signature binds


@SPOKEN
def test_message_is_signed_by_its_sender(kind):
    assert is_signed(SIGNED[kind], OTHER)
    message, body = decode_message(SIGNED[kind].encoded)
    assert message == SIGNED[kind]
    assert body == BODIES[kind][1]
    # What its signer knows of it already, others find out from the wire.
    assert message.digest == SIGNED[kind].digest
    assert is_signed(message, OTHER)


def other_slots(place: Slot) -> list[Slot]:
    """Slots that differ from this one in one field each."""
    kinds = [kind for kind in Kind if (kind in WITH_SUBJECT) == (place.kind in WITH_SUBJECT)]
    if place.attempt:
        kinds = [kind for kind in kinds if kind not in WITHOUT_ATTEMPT]
    found = [replace(place, kind=kind) for kind in kinds if kind is not place.kind]
    found += [
        replace(place, run=digest(1)),
        replace(place, shard=place.shard + 1),
        replace(place, round=place.round + 1),
        replace(place, basis=digest(1)),
    ]
    if place.kind not in WITHOUT_ATTEMPT:
        found.append(replace(place, attempt=place.attempt - 1 if place.attempt else 1))
    if place.kind in WITH_SUBJECT:
        found.append(replace(place, subject=digest(1)))
    return found


@SPOKEN
def test_slot_sender_and_body_are_bound_by_signature_and_digest(kind):
    message = SIGNED[kind]
    forged = [replace(message, slot=place) for place in other_slots(message.slot)]
    forged += [
        replace(message, sender=OTHER.peer_id),
        replace(message, body=message.body + b"\x00"),
        replace(message, body=message.body[:-1] + bytes([message.body[-1] ^ 1])),
        replace(message, body=b""),
    ]
    assert len(forged) > 8
    assert not any(is_signed(other, SIGNER) for other in forged)
    assert len({message.digest, *(other.digest for other in forged)}) == len(forged) + 1


def test_every_field_of_a_slot_is_varied():
    """The test above is only as good as `other_slots`."""
    place = BODIES[Kind.SEAL][0]
    varied = {
        name
        for other in other_slots(place)
        for name in Slot.__slots__
        if getattr(other, name) != getattr(place, name)
    }
    assert varied == set(Slot.__slots__)


@SPOKEN
def test_digest_does_not_cover_the_signature(kind):
    other = replace(SIGNED[kind], signature=bytes(64))
    assert other.digest == SIGNED[kind].digest
    assert not is_signed(other, SIGNER)


def test_bytes_moved_from_body_to_sender_or_slot_make_another_message():
    """Lengths are bound: no two messages have one preimage."""
    place = slot(Kind.VOTE)
    bodies = [b"", b"\x00", b"\x00\x00", SIGNER.peer_id, SIGNER.peer_id + b"\x00"]
    messages = [
        SignedMessage(slot=s, sender=PeerId(sender), body=body, signature=bytes(64))
        for s in (place, replace(place, round=127), replace(place, round=128))
        for sender in (SIGNER.peer_id, SIGNER.peer_id[1:] + b"\x00")
        for body in bodies
    ]
    assert len({message.digest for message in messages}) == len(messages)


# One place for one statement


@pytest.mark.parametrize("kind", Kind)
def test_attempt_and_subject_belong_to_some_kinds_only(kind):
    """A second slot for one statement would let its sender contradict itself unconvicted."""
    allowed = []
    for attempt in (0, 1):
        for size in (0, 1, 31, 32):
            try:
                slot(kind, attempt=attempt, subject=bytes(size))
            except ValueError:
                continue
            allowed.append((attempt, size))
    size = 32 if kind in WITH_SUBJECT else 0
    attempts = (0,) if kind in WITHOUT_ATTEMPT else (0, 1)
    assert allowed == [(attempt, size) for attempt in attempts]


def test_commit_in_an_attempt_is_no_message():
    data = encode(SIGNED[Kind.COMMIT])
    place = BODIES[Kind.COMMIT][0]
    head = encode(place)
    # ... attempt, kind, subject
    assert head.endswith(b"\x00\x02\xc4\x00")
    forged = data.replace(head, head[:-4] + b"\x01\x02\xc4\x00")
    with pytest.raises(DecodeError, match="belongs to no attempt"):
        decode_message(forged)


@pytest.mark.parametrize("change", [{"first": 2}, {"stop": 10}, {"list_digest": digest(1)}])
@pytest.mark.parametrize("kind", [Kind.AGG, Kind.GRAM])
def test_statement_about_a_slice_stands_in_the_slot_of_that_slice(kind, change):
    place, body = BODIES[kind]
    other: Body = replace(body, **change)
    with pytest.raises(AssertionError, match="another slot"):
        sign_message(SIGNER, place, other)
    forged = replace(SIGNED[kind], body=encode(other))
    with pytest.raises(DecodeError, match="another slot"):
        decode_message(encode(forged))


def test_seal_has_the_seal_before_as_subject():
    place = BODIES[Kind.SEAL][0]
    assert place.subject == SEAL_VALUE.before
    other = sign_message(SIGNER, replace(place, subject=digest(2)), BODIES[Kind.SEAL][1])
    assert other.digest != SIGNED[Kind.SEAL].digest


def test_body_of_another_kind_is_neither_signed_nor_read():
    with pytest.raises(AssertionError):
        sign_message(SIGNER, slot(Kind.LEAVE), Vote(list_digest=digest(1)))
    with pytest.raises(DecodeError):
        decode_body(replace(SIGNED[Kind.VOTE], slot=slot(Kind.LEAVE)))


def test_verdict_in_the_slot_of_another_segment_is_refused():
    message = SIGNED[Kind.VERDICT]
    other = replace(message.slot, subject=segment_subject(digest(0xA3), 7))
    with pytest.raises(DecodeError, match="another slot"):
        decode_message(encode(replace(message, slot=other)))


@pytest.mark.parametrize("outcome", Outcome)
def test_verdict_names_an_end_where_there_is_one(outcome):
    verdict = partial(Verdict, commit=digest(1), segment=0, outcome=outcome)
    size = 0 if outcome is Outcome.UNOPENED else 32
    assert verdict(found=bytes(size)).found == bytes(size)
    with pytest.raises(ValueError, match=outcome.name):
        verdict(found=bytes(32 - size))


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", SIGNED, ids=lambda kind: kind.name)
def test_flipped_byte_of_a_message_is_malformed_or_unsigned(kind, seed):
    rng = random.Random(f"{seed}/flips/{kind.name}")
    message = SIGNED[kind]
    for index in range(len(message.encoded)):
        flipped = bytearray(message.encoded)
        flipped[index] ^= 1 << rng.randrange(8)
        try:
            other, _ = decode_message(bytes(flipped))
        except DecodeError:
            continue
        assert not is_signed(other, SIGNER), index


# Lists and slices


COMMITS, DRIFTS = (digest(1), digest(2)), (digest(3),)


def test_list_is_named_by_what_it_lists():
    digests = {
        list_digest(digest(0), 0, 1, COMMITS, DRIFTS),
        list_digest(digest(1), 0, 1, COMMITS, DRIFTS),
        list_digest(digest(0), 1, 1, COMMITS, DRIFTS),
        list_digest(digest(0), 0, 2, COMMITS, DRIFTS),
        list_digest(digest(0), 0, 1, COMMITS[::-1], DRIFTS),
        list_digest(digest(0), 0, 1, COMMITS[:1], DRIFTS),
        list_digest(digest(0), 0, 1, COMMITS[:1], (COMMITS[1], *DRIFTS)),
        list_digest(digest(0), 0, 1, (*COMMITS, *DRIFTS), ()),
        list_digest(digest(0), 0, 1, (), ()),
    }
    assert len(digests) == 9


def test_list_digest_is_independent_of_attempt_and_proposer():
    """The same LIST of two closers in two attempts: two messages, one list."""
    place, body = BODIES[Kind.LIST]
    one = sign_message(SIGNER, place, body)
    two = sign_message(OTHER, replace(place, attempt=place.attempt + 1), body)
    assert one.digest != two.digest
    names = set()
    for message in (one, two):
        listed = decode_body(message)
        assert listed == body
        names.add(list_digest(place.basis, place.shard, place.round, COMMITS, DRIFTS))
    assert len(names) == 1


def test_certificate_of_a_list_does_not_change_its_name():
    place, body = BODIES[Kind.LIST]
    assert isinstance(body, List)
    bare = sign_message(SIGNER, place, replace(body, certificate=()))
    assert bare.digest != SIGNED[Kind.LIST].digest
    assert SEAL_VALUE.list_digest == list_digest(
        SEAL_VALUE.basis, 2, 41, SEAL_VALUE.commits, SEAL_VALUE.drifts
    )


@given(
    one=st.tuples(st.integers(0, 4096), st.integers(0, 4096)),
    two=st.tuples(st.integers(0, 4096), st.integers(0, 4096)),
)
def test_slices_of_a_list_have_different_subjects(one, two):
    same = slice_subject(digest(0), *one) == slice_subject(digest(0), *two)
    assert same == (one == two)
    assert slice_subject(digest(0), *one) != slice_subject(digest(1), *one)


# Seals


def test_every_field_of_a_seal_changes_its_digest():
    clock, roster = SEAL_VALUE.clock, SEAL_VALUE.roster
    others = [
        replace(SEAL_VALUE, run=digest(1)),
        replace(SEAL_VALUE, shard=3),
        replace(SEAL_VALUE, round=42),
        replace(SEAL_VALUE, before=digest(1)),
        replace(SEAL_VALUE, basis=digest(1)),
        replace(SEAL_VALUE, commits=()),
        replace(SEAL_VALUE, drifts=()),
        replace(SEAL_VALUE, root=digest(1)),
        replace(SEAL_VALUE, roster=replace(roster, window=())),
        replace(SEAL_VALUE, roster=replace(roster, seats=(FIRST,))),
        replace(SEAL_VALUE, roster=replace(roster, seats=(FIRST, replace(LAST, absent=0)))),
        replace(SEAL_VALUE, clock=replace(clock, step=1)),
        replace(SEAL_VALUE, clock=replace(clock, tokens=1)),
        replace(SEAL_VALUE, clock=replace(clock, cursor=1)),
        replace(SEAL_VALUE, clock=replace(clock, unused=())),
    ]
    assert len({SEAL_VALUE.digest, *(other.digest for other in others)}) == len(others) + 1


def test_certificate_does_not_change_the_seal():
    data = encode(replace(CERTIFICATE, seals=()))
    assert decode(type(CERTIFICATE), data).value.digest == SEAL_VALUE.digest


@pytest.mark.parametrize("seats", [(LAST, FIRST), (FIRST, FIRST)], ids=["descending", "twice"])
def test_roster_is_sorted_and_names_each_peer_once(seats):
    with pytest.raises(ValueError, match="sorted"):
        Roster(seats=seats, window=())


def test_members_of_a_roster_ascend():
    assert SEAL_VALUE.roster.members == tuple(sorted((SIGNER.peer_id, OTHER.peer_id)))


def test_roster_without_a_seat_is_no_roster():
    with pytest.raises(DecodeError):
        encode(Roster(seats=(), window=()))


def gaps(*bounds: tuple[int, int]) -> SealClock:
    unused = tuple(Interval(first=first, stop=stop) for first, stop in bounds)
    return SealClock(step=0, tokens=0, cursor=0, unused=unused, ends_run=False)


def test_unused_samples_have_one_form():
    assert gaps((0, 5), (6, 9)).unused
    for wrong in ([(5, 5)], [(5, 4)], [(6, 9), (0, 5)], [(0, 5), (4, 9)], [(0, 5), (5, 9)]):
        with pytest.raises(ValueError, match="ascend"):
            gaps(*wrong)


def runs(*bounds: tuple[int, int]) -> Have:
    return Have(held=tuple(Held(first=a, stop=b, senders=b"\x01") for a, b in bounds))


def test_runs_of_cells_ascend_and_do_not_overlap():
    """Else 3072 runs over all cells would be read in 12 million steps."""
    assert runs((0, 5), (5, 9), (20, limits.CELLS_MAX)).held
    for wrong in ([(5, 5)], [(5, 4)], [(6, 9), (0, 5)], [(0, 5), (4, 9)], [(0, 9), (0, 9)]):
        with pytest.raises(ValueError, match="ascend"):
            runs(*wrong)


def test_slice_from_an_agg_is_the_one_of_its_slot():
    body = BODIES[Kind.AGG][1]
    assert isinstance(body, Agg)
    subject = slice_subject(body.list_digest, body.first, body.stop)
    assert SIGNED[Kind.AGG].slot.subject == subject


def test_good_answer_about_one_signature_says_nothing_of_another():
    keyed = KeyedHashSigner(OTHER.peer_id)
    message = sign_message(keyed, slot(Kind.VOTE), Vote(list_digest=digest(1)))
    assert is_signed(message, keyed)
    assert is_signed(message, keyed), "asked again"
    assert not is_signed(replace(message, signature=bytes(64)), keyed)
    # What the simulator's signer takes does not count for the real one.
    assert not is_signed(message, SIGNER)
