"""Invitations on the disk, in the folder of a run: what this node issued, and what lets it in.

    invitations/<key>.token    a token that was issued here; its private half is in the link alone
    invitations/<key>.revoked  empty, beside it: it lets nobody in any more
    credential                 what this node shows to the members

A command writes them while the node runs; the node looks whenever it needs them.
"""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node.state.folder import write_atomically
from protocol.errors import ConfigError, DecodeError
from protocol.identity import SIGNATURE_BYTES, Ed25519Signer
from protocol.invitations import (
    CREDENTIAL_BYTES_MAX,
    DELEGATIONS_MAX,
    Admission,
    Credential,
    Offer,
    Role,
    Token,
    decode_credential,
    roots,
    sign_token,
)
from protocol.manifest import RunManifest
from protocol.wire import decode, encode
from training.files.durable import make_folder_durably

FOLDER, CREDENTIAL_FILE = "invitations", "credential"
TOKENS_MAX = 32
"""As many as entries tell of."""

_TOKEN_BYTES_MAX = 1024
_TOKEN, _REVOKED = ".token", ".revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What an invitation is to say."""

    role: Role
    uses: int
    delegations: int
    valid_s: float


class IssuedTokens:
    """The tokens in a run's folder; read anew when a file came or went."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER
        self._seen_ns = 0
        self._tokens: tuple[tuple[Token, bool], ...] = ()

    def tokens(self) -> tuple[tuple[Token, bool], ...]:
        """Each with whether it is revoked, by name; without files that are damaged."""
        with suppress(OSError):
            seen_ns = self._folder.stat().st_mtime_ns
            # A file may come within the same tick of the file system's clock.
            if seen_ns != self._seen_ns or time.time_ns() - seen_ns < 2_000_000_000:
                self._tokens, self._seen_ns = tuple(self._read()), seen_ns
        return self._tokens

    def _read(self) -> Iterator[tuple[Token, bool]]:
        names = sorted(os.listdir(self._folder))
        for name in [name for name in names if name.endswith(_TOKEN)][:TOKENS_MAX]:
            with suppress(OSError, DecodeError):
                token = _token_in(self._folder / name)
                yield token, name.removesuffix(_TOKEN) + _REVOKED in names

    def issue(
        self, manifest: RunManifest, signer: Ed25519Signer, terms: Terms, *, unix_s: float
    ) -> Offer:
        """A new token, kept here; the offer goes into a link and nowhere else.

        Raises ConfigError where this node may not invite, or not on such terms.
        """
        above = self._above(manifest, signer, terms)
        if len(self.tokens()) >= TOKENS_MAX:
            raise ConfigError(f"this node has issued {TOKENS_MAX} invitations, the most there are")
        key = Ed25519Signer(secrets.token_bytes(32))
        draft = Token(
            run=manifest.digest,
            issuer=signer.peer_id,
            key=key.peer_id,
            role=terms.role,
            uses=terms.uses,
            delegations=terms.delegations,
            not_after_unix_s=int(unix_s + terms.valid_s),
            signature=bytes(SIGNATURE_BYTES),
        )
        token = sign_token(draft, signer)
        make_folder_durably(self._folder)
        write_atomically(self._folder / (token.key.hex() + _TOKEN), encode(token))
        return Offer(token, key.seed, above)

    def _above(
        self, manifest: RunManifest, signer: Ed25519Signer, terms: Terms
    ) -> tuple[Admission, ...]:
        if signer.peer_id in roots(manifest):
            return ()
        shown = read_credential(self._folder.parent)
        if not shown:
            raise ConfigError("this node was not invited to the run, and may not invite others")
        admissions = decode_credential(shown).admissions
        token = admissions[-1].token
        if token.delegations < 1 or len(admissions) > DELEGATIONS_MAX:
            raise ConfigError("this node's invitation does not let it invite others")
        if terms.delegations >= token.delegations or terms.role > token.role:
            raise ConfigError("nobody gives more than it was given: lower --delegations")
        return admissions

    def revoke(self, name: str) -> Token:
        """Take back the token whose key begins so. Raises ConfigError if there is not one such."""
        found = [token for token, _ in self.tokens() if name and token.key.hex().startswith(name)]
        if len(found) != 1:
            raise ConfigError(f"{len(found)} invitations of this node begin with {name!r}")
        write_atomically(self._folder / (found[0].key.hex() + _REVOKED), b"")
        return found[0]


def read_credential(run_folder: Path) -> bytes:
    """What this node shows of itself, encoded; nothing where there is none that is whole."""
    try:
        with (run_folder / CREDENTIAL_FILE).open("rb") as file:
            data = file.read(CREDENTIAL_BYTES_MAX + 1)
        decode_credential(data)
    except (OSError, DecodeError):
        return b""
    return data


def keep_credential(run_folder: Path, credential: Credential) -> None:
    """Show this from now on."""
    write_atomically(run_folder / CREDENTIAL_FILE, encode(credential))


def _token_in(path: Path) -> Token:
    """The token in a file. Raises OSError and DecodeError."""
    with path.open("rb") as file:
        return decode(Token, file.read(_TOKEN_BYTES_MAX + 1), max_bytes=_TOKEN_BYTES_MAX)
