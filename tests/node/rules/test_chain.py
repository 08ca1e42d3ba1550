"""R1, R2, R11: a chain of seals proves itself, link by link, from genesis."""

from dataclasses import replace

import pytest

from protocol.errors import ProofError
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, Seal, SealCertificate, Slot, sign_message
from protocol.rounds.chain import certify, check_seal, genesis, is_own_seal, seal_value
from protocol.rounds.roster import voters
from tests.node.builders import (
    CONFIG,
    ROOT,
    Voice,
    digest_of,
    head_of,
    peers_named,
    roster_of,
    state_after,
    toy_manifest,
    view_of,
)

A, B, C, D = peers_named(4)
HEAD = head_of((A, B, C), (D,))
a, b, c, d = (Voice(peer, HEAD.value) for peer in (A, B, C, D))
SIGNER = KeyedHashSigner(D)
OTHER = bytes(range(32))
VALUE = replace(
    HEAD.value, round=5, before=HEAD.value.digest, basis=HEAD.value.digest, root=state_after(b"x")
)


def certificate(*heard, value=VALUE) -> SealCertificate:
    return certify(value, tuple(event.message for event in heard))


def refused(found: SealCertificate, because: str) -> None:
    with pytest.raises(ProofError, match=because):
        check_seal(HEAD.value, found, SIGNER, trust="friends")


def test_seal_signed_by_a_quorum_in_one_attempt_is_accepted():
    check_seal(HEAD.value, certificate(a.seal(VALUE, 3), c.seal(VALUE, 3)), SIGNER, trust="friends")


def test_seal_without_a_quorum_of_voters_is_refused():
    refused(certificate(), "quorum")
    refused(certificate(a.seal(VALUE)), "quorum")
    refused(certificate(a.seal(VALUE), a.seal(VALUE)), "quorum")
    refused(certificate(a.seal(VALUE), d.seal(VALUE)), "quorum")


def test_seals_of_two_attempts_are_no_quorum():
    refused(certificate(a.seal(VALUE, 0), b.seal(VALUE, 1)), "quorum of one attempt")


def test_seal_of_another_value_does_not_count():
    other = replace(VALUE, root=OTHER)
    refused(certificate(a.seal(VALUE), b.seal(other)), "another value")
    # The same digest with another root in the SEAL is no agreement either.
    body = Seal(value=VALUE.digest, list_digest=VALUE.list_digest, root=OTHER)
    lied = b.say(Kind.SEAL, body, subject=HEAD.value.digest)
    refused(certificate(a.seal(VALUE), lied), "another value")


def test_seal_that_does_not_follow_is_refused():
    refused(certificate(a.seal(VALUE), value=replace(VALUE, round=6)), "follow")
    refused(certificate(a.seal(VALUE), value=replace(VALUE, before=OTHER)), "follow")
    refused(certificate(a.seal(VALUE), value=replace(VALUE, basis=OTHER)), "named the roster")
    refused(certificate(a.seal(VALUE), value=replace(VALUE, run=OTHER)), "another run")
    refused(certificate(a.seal(VALUE), value=replace(VALUE, shard=1)), "another run")


def test_seal_with_a_forged_signature_is_refused():
    good = b.seal(VALUE).message
    forged = replace(good, signature=bytes(64))
    refused(certify(VALUE, (a.seal(VALUE).message, forged)), "not signed")


def test_seal_that_was_signed_in_another_place_is_refused():
    body = a.seal(VALUE).body
    elsewhere = [
        b.say(Kind.SEAL, body, subject=OTHER),
        Voice(B, replace(HEAD.value, round=9)).say(Kind.SEAL, body, subject=HEAD.value.digest),
        Voice(B, replace(HEAD.value, root=OTHER)).say(Kind.SEAL, body, subject=HEAD.value.digest),
        b.say(Kind.PSEAL, body, subject=HEAD.value.digest),
        b.vote([]),
    ]
    for heard in elsewhere:
        refused(certificate(a.seal(VALUE), heard), "something else")


def test_garbage_in_a_certificate_is_the_senders_fault():
    refused(SealCertificate(value=VALUE, seals=(b"\x93garbage",)), "malformed")


def test_genesis_names_the_founder_alone_and_nothing_else_decides_it():
    manifest = toy_manifest(A)
    value = genesis(manifest, 0, ROOT).value
    assert voters(value.roster) == value.roster.members == (A,)
    assert value.before == manifest.digest
    assert genesis(manifest, 0, bytes(32)).value.digest != value.digest


# The own SEAL in a COMMIT -----------------------------------------------------------------------


def test_own_seal_of_whatever_attempt_proves_its_sender():
    old = replace(HEAD.value, round=3)
    head = replace(HEAD.value, before=old.digest, basis=old.digest)
    for attempt in (0, 7):
        data = Voice(A, old).seal(head, attempt).message.encoded
        assert is_own_seal(data, A, head, SIGNER)
        assert not is_own_seal(data, B, head, SIGNER)
        assert not is_own_seal(data, A, replace(head, root=OTHER), SIGNER)


def test_what_is_no_seal_of_the_head_proves_nothing():
    old = replace(HEAD.value, round=3)
    head = replace(HEAD.value, before=old.digest, basis=old.digest)
    voice = Voice(A, old)
    good = voice.seal(head).message
    assert not is_own_seal(b"", A, head, SIGNER)
    assert not is_own_seal(b"\x93garbage", A, head, SIGNER)
    assert not is_own_seal(replace(good, signature=bytes(64)).encoded, A, head, SIGNER)
    body = voice.seal(head).body
    elsewhere = voice.say(Kind.SEAL, body, subject=OTHER)
    assert not is_own_seal(elsewhere.message.encoded, A, head, SIGNER)
    voted = voice.vote([])
    assert not is_own_seal(voted.message.encoded, A, head, SIGNER)


def test_provisional_seal_of_the_head_proves_like_a_seal():
    old = replace(HEAD.value, round=3)
    head = replace(HEAD.value, before=old.digest, basis=old.digest)
    voice = Voice(A, old)
    body = voice.seal(head).body
    psealed = voice.say(Kind.PSEAL, body, subject=old.digest)
    assert is_own_seal(psealed.message.encoded, A, head, SIGNER)
    elsewhere = voice.say(Kind.PSEAL, body, subject=OTHER)
    assert not is_own_seal(elsewhere.message.encoded, A, head, SIGNER)


# The value that a list gives --------------------------------------------------------------------


def test_seal_value_is_the_same_on_every_peer_and_whatever_came_first():
    commits = [voice.commit() for voice in (a, b, c)]
    digest = digest_of(HEAD.value, commits)
    values = set()
    for me, order in ((A, commits), (D, commits[::-1])):
        view = view_of(me, HEAD, [*order, a.propose(commits)])
        view.outcome.applied[digest] = state_after(digest)
        view.suspect(frozenset({B}))
        value = seal_value(view, digest, KeyedHashSigner(me), CONFIG.clock)
        assert value is not None
        values.add(value.digest)
        assert (value.round, value.before) == (5, HEAD.value.digest)
        assert value.root == state_after(digest)
        assert value.list_digest == digest
    assert len(values) == 1


def test_seal_value_waits_for_the_list_its_commits_and_the_state():
    commits = [voice.commit() for voice in (a, b)]
    digest = digest_of(HEAD.value, commits)
    whole = [*commits, a.propose(commits)]
    for heard, has_state in ((whole, False), (whole[:2], True), (whole[1:], True)):
        view = view_of(D, HEAD, heard)
        if has_state:
            view.outcome.applied[digest] = ROOT
        assert seal_value(view, digest, SIGNER, CONFIG.clock) is None


def test_voter_whose_commit_proves_its_seal_is_proved_and_others_are_not():
    old = replace(HEAD.value, round=3)
    head = SealCertificate(value=replace(HEAD.value, before=old.digest, basis=old.digest), seals=())
    speakers = [Voice(peer, head.value) for peer in (A, B, D)]
    proofs = [Voice(peer, old).seal(head.value).message.encoded for peer in (A, B, D)]
    commits = [
        speakers[0].commit(seal=proofs[0]),
        speakers[1].commit(seal=proofs[0]),
        speakers[2].commit(seal=proofs[2]),
    ]
    view = view_of(A, head, [*commits, speakers[0].propose(commits)])
    digest = digest_of(head.value, commits)
    view.outcome.applied[digest] = ROOT
    value = seal_value(view, digest, KeyedHashSigner(A), CONFIG.clock)
    assert value is not None
    proved = {seat.peer: seat.proved for seat in value.roster.seats}
    assert proved == {A: 5, B: 4, C: 4, D: 5}
    assert set(voters(value.roster)) == {A, B, C, D}


def test_seal_of_two_rounds_in_flight_is_checked_by_the_seal_before_the_one_before():
    """R5: slots and voters are those that the seal two before it names."""
    named = HEAD.value
    before = replace(
        named, round=5, before=named.digest, basis=named.before, roster=roster_of((A,))
    )
    value = replace(before, round=6, before=before.digest, basis=named.digest)
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)

    def seals(*peers):
        for peer in peers:
            slot = Slot(
                run=value.run,
                shard=0,
                round=6,
                basis=named.digest,
                attempt=0,
                kind=Kind.SEAL,
                subject=before.digest,
            )
            yield sign_message(KeyedHashSigner(peer), slot, body)

    good = certify(value, tuple(seals(A, B)))
    check_seal(before, good, SIGNER, trust="friends", named=named)
    with pytest.raises(ProofError, match="lacks a quorum"):  # Of the newer roster it would be one.
        check_seal(before, certify(value, tuple(seals(A))), SIGNER, trust="friends", named=named)
    with pytest.raises(ProofError, match="named the roster"):
        check_seal(before, good, SIGNER, trust="friends")
