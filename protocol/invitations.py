"""Invitations: tokens that let their bearer into a run, and the proof that a peer bears one. Pure.

A token names a public key, and the invite link carries the private one. Whoever has the link signs
its own peer id with it: an *admission*, which is of use to that peer alone, so that it can be shown
to anybody. A token's issuer is the founder, somebody on the manifest's allow list, or a bearer
whose own token lets it invite; so a *credential* is the admissions from one of those down to the
peer, and whoever has the manifest can check it.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Annotated

from blake3 import blake3

from protocol.errors import ProofError
from protocol.identity import SIGNATURE_BYTES, Ed25519Signer, PeerId, Signer
from protocol.manifest import RunManifest
from protocol.wire import Digest, Peer, Range, Signature, Size, decode, encode

USES_MAX = 1024
DELEGATIONS_MAX = 2
CREDENTIAL_BYTES_MAX = 1280
"""Three admissions of some 330 bytes each."""

_TOKEN_DOMAIN = b"barnraise/token/1"
_ADMISSION_DOMAIN = b"barnraise/admission/1"
"""The public half of a token's key pair, which names the token."""


class Role(IntEnum):
    """What an invitation makes of its bearer."""

    OBSERVER = 1
    MEMBER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An invitation to a run, signed by its issuer.

    `uses` is how many peers it lets in, `delegations` how often the right to invite may be handed
    on. After `not_after_unix_s` it lets nobody in who is not in by then.
    """

    run: Digest
    issuer: Peer
    key: Peer
    role: Role
    uses: Annotated[int, Range(1, USES_MAX)]
    delegations: Annotated[int, Range(0, DELEGATIONS_MAX)]
    not_after_unix_s: Annotated[int, Range(0, 2**40)]
    signature: Signature

    @property
    def signed_bytes(self) -> bytes:
        """What the issuer signs."""
        return _TOKEN_DOMAIN + encode(replace(self, signature=bytes(SIGNATURE_BYTES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A token in the hands of one peer: `signature` is by the token's own key."""

    token: Token
    bearer: Peer
    signature: Signature

    @property
    def signed_bytes(self) -> bytes:
        """What the token's key signs: the run and the bearer, and through the key the token."""
        return _ADMISSION_DOMAIN + self.token.run + self.token.key + self.bearer

    @property
    def name(self) -> bytes:
        """The same for all admissions of one bearer by one token: 32 bytes."""
        return blake3(self.token.key + self.bearer).digest()

    def is_sound(self, run: bytes, signer: Signer) -> bool:
        """Whether token and admission are of this run and signed; not whether the issuer may."""
        token = self.token
        return (
            token.run == run
            and signer.verify(token.issuer, token.signed_bytes, token.signature)
            and signer.verify(token.key, self.signed_bytes, self.signature)
        )


@dataclass(frozen=True, slots=True)
class Credential:
    """Admissions from a root's token down to a peer: each bearer issued the next token."""

    admissions: Annotated[tuple[Admission, ...], Size(1, DELEGATIONS_MAX + 1)]


@dataclass(frozen=True, slots=True)
class Offer:
    """What an invite link carries: a token, its private key, and what lets its issuer invite."""

    token: Token
    seed: Annotated[bytes, Size(32, 32)]
    above: Annotated[tuple[Admission, ...], Size(0, DELEGATIONS_MAX)]

    def taken_by(self, bearer: PeerId) -> Credential:
        """The credential of whoever takes it up. Raises ProofError where seed and token differ."""
        key = Ed25519Signer(self.seed)
        if key.peer_id != self.token.key:
            raise ProofError("the invitation's key is not its token's")
        bare = Admission(token=self.token, bearer=bearer, signature=bytes(SIGNATURE_BYTES))
        signed = replace(bare, signature=key.sign(bare.signed_bytes))
        return Credential((*self.above, signed))


def sign_token(token: Token, signer: Signer) -> Token:
    """The token, signed by its issuer."""
    assert signer.peer_id == token.issuer, "only its issuer signs a token"
    return replace(token, signature=signer.sign(token.signed_bytes))


def roots(manifest: RunManifest) -> frozenset[PeerId]:
    """Who needs no invitation, and may invite: the founder, and the manifest's allow list."""
    return frozenset((manifest.founder, *manifest.access.allow))


def decode_credential(data: bytes) -> Credential:
    """Of what a peer shows. Raises DecodeError."""
    return decode(Credential, data, max_bytes=CREDENTIAL_BYTES_MAX)


def check_credential(
    credential: Credential, manifest: RunManifest, peer: PeerId, signer: Signer
) -> None:
    """Raise ProofError, saying why, unless the credential lets `peer` into the run.

    It is about signatures alone: time, uses and revocation are the reader's to know.
    """
    above: Admission | None = None
    for one in credential.admissions:
        token = one.token
        if token.run != manifest.digest:
            raise ProofError("the invitation is to another run")
        may_issue = (
            token.issuer in roots(manifest)
            if above is None
            else token.issuer == above.bearer
            and token.delegations < above.token.delegations
            and token.role <= above.token.role
        )
        if not may_issue:
            raise ProofError("the invitation is by somebody who may not invite")
        if not one.is_sound(manifest.digest, signer):
            raise ProofError("the invitation is not signed by those whom it names")
        above = one
    if above is None or above.bearer != peer:
        raise ProofError("the invitation was taken up by another peer")
