"""Tokens and credentials: who may come in by which, and whose is of no use to another."""

from dataclasses import replace

import pytest

from protocol.errors import ProofError
from protocol.identity import Ed25519Signer
from protocol.invitations import (
    CREDENTIAL_BYTES_MAX,
    Credential,
    Offer,
    Role,
    Token,
    check_credential,
    decode_credential,
    sign_token,
)
from protocol.manifest import AccessSpec
from protocol.wire import encode
from tests.protocol.vectors import MANIFEST

FOUNDER = Ed25519Signer(bytes(range(32)))
FRIEND, GUEST, LATE, STRANGER = (Ed25519Signer(bytes([n]) * 32) for n in range(1, 5))
RUN = replace(MANIFEST, access=AccessSpec(mode="invited"))


def offer(issuer, *, above=(), run=RUN, **changes):
    """An invitation by `issuer`, whom the admissions `above` let in."""
    key = Ed25519Signer(bytes([200 + len(above)]) * 32)
    terms = {"role": Role.MEMBER, "uses": 3, "delegations": 0, "not_after_unix_s": 2_000_000_000}
    token = Token(
        run=run.digest,
        issuer=issuer.peer_id,
        key=key.peer_id,
        signature=bytes(64),
        **{**terms, **changes},
    )
    return Offer(sign_token(token, issuer), key.seed, above)


def check(credential, peer, run=RUN):
    check_credential(credential, run, peer.peer_id, STRANGER)


def test_founders_invitation_lets_its_bearer_in_and_nobody_else():
    credential = offer(FOUNDER).taken_by(FRIEND.peer_id)
    check(credential, FRIEND)
    assert decode_credential(encode(credential)) == credential
    with pytest.raises(ProofError, match="taken up by another peer"):
        check(credential, STRANGER)


def test_shown_credential_cannot_be_turned_to_another_bearer():
    (one,) = offer(FOUNDER).taken_by(FRIEND.peer_id).admissions
    with pytest.raises(ProofError, match="not signed"):
        check(Credential((replace(one, bearer=STRANGER.peer_id),)), STRANGER)


@pytest.mark.parametrize(
    "changes",
    [{"uses": 1000}, {"not_after_unix_s": 2**40}, {"delegations": 2}, {"key": STRANGER.peer_id}],
    ids=lambda changes: next(iter(changes)),
)
def test_changed_token_is_refused(changes):
    made = offer(FOUNDER)
    forged = replace(made, token=replace(made.token, **changes))
    if "key" in changes:
        forged = replace(forged, seed=STRANGER.seed)
    with pytest.raises(ProofError, match="not signed"):
        check(forged.taken_by(FRIEND.peer_id), FRIEND)


def test_invitation_by_a_stranger_or_to_another_run_is_refused():
    with pytest.raises(ProofError, match="may not invite"):
        check(offer(STRANGER).taken_by(GUEST.peer_id), GUEST)
    with pytest.raises(ProofError, match="another run"):
        check(offer(FOUNDER, run=MANIFEST).taken_by(GUEST.peer_id), GUEST)


def test_allowed_peer_invites_as_the_founder_does():
    run = replace(RUN, access=AccessSpec(mode="invited", allow=(FRIEND.peer_id,)))
    check(offer(FRIEND, run=run).taken_by(GUEST.peer_id), GUEST, run)
    with pytest.raises(ProofError, match="may not invite"):
        check(offer(GUEST, run=run).taken_by(LATE.peer_id), LATE, run)


def test_right_to_invite_is_handed_on_as_often_as_the_token_says():
    first = offer(FOUNDER, delegations=2).taken_by(FRIEND.peer_id).admissions
    second = offer(FRIEND, above=first, delegations=1).taken_by(GUEST.peer_id).admissions
    third = offer(GUEST, above=second).taken_by(LATE.peer_id)
    check(third, LATE)
    assert len(encode(third)) <= CREDENTIAL_BYTES_MAX


@pytest.mark.parametrize(
    "above",
    [{"delegations": 0}, {"delegations": 1, "role": Role.OBSERVER}],
    ids=["may not", "observer"],
)
def test_nobody_gives_more_than_it_has(above):
    first = offer(FOUNDER, **above).taken_by(FRIEND.peer_id).admissions
    with pytest.raises(ProofError, match="may not invite"):
        check(offer(FRIEND, above=first).taken_by(GUEST.peer_id), GUEST)


def test_chain_with_another_issuer_in_its_middle_is_refused():
    first = offer(FOUNDER, delegations=2).taken_by(FRIEND.peer_id).admissions
    with pytest.raises(ProofError, match="may not invite"):
        check(offer(STRANGER, above=first).taken_by(GUEST.peer_id), GUEST)


def test_offer_with_the_key_of_another_token_is_refused():
    with pytest.raises(ProofError, match="not its token's"):
        replace(offer(FOUNDER), seed=bytes(32)).taken_by(FRIEND.peer_id)


def test_allow_list_out_of_order_is_no_manifest():
    peers = sorted((FRIEND.peer_id, GUEST.peer_id), reverse=True)
    with pytest.raises(ValueError, match="ascend"):
        AccessSpec(allow=tuple(peers))
