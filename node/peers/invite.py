"""The invite link: which run, and where its first peers are. It carries no code.

It names a recent seal of the run, so that whoever takes it knows the history that the inviter lives
in from one that somebody with an old key wrote anew.
In runs for the invited it carries an offer, which whoever has the link may take up; else no secret.

barnraise://join/<base64url of: version, checksum of 4 bytes, canonical bytes of an Invite>
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

from blake3 import blake3

from dht.reaching.addresses import is_circuit, is_public
from node.state.config import PeerAddress, parse_peer_address
from node.state.ownership import read_secret
from node.text.shown import as_word
from protocol import limits
from protocol.errors import ConfigError, DecodeError
from protocol.identity import PeerId
from protocol.invitations import Offer
from protocol.manifest import RunManifest
from protocol.transport import Address
from protocol.wire import Digest, Range, Size, decode, encode

LINK_PREFIX = "barnraise://join/"
LINK_EXAMPLE = f"{LINK_PREFIX}AZ3f..."
PEERS_MAX = 8
ADDRESSES_MAX = 4
"""Of each peer. A link with one peer of two addresses has some 250 characters."""

TITLE_BYTES_MAX = 128
_VERSION = 2
_OLD_VERSION = 1
"""Of links that name no seal: they are good, and show nothing of the run's history."""

_CHECKSUM_BYTES = 4
_BODY_BYTES_MAX = 16 * limits.KIB
CHARACTERS_MAX = len(LINK_PREFIX) + 2 * _BODY_BYTES_MAX
"""Of a whole link."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class InvitePeer:
    """A peer, and where it may be dialled."""

    peer: Annotated[PeerId, Size(32, 32)]
    addresses: Annotated[tuple[Address, ...], Size(1, ADDRESSES_MAX)]


@dataclass(frozen=True, slots=True)
class InviteSeal:
    """A final seal that the inviter has: its round, and its digest, which covers all before it."""

    round: Annotated[int, Range(1, limits.ROUNDS_MAX)]
    digest: Digest


@dataclass(frozen=True, slots=True)
class _OldInvite:
    """What a link of version 1 says."""

    run: Digest
    title: Annotated[str, Size(1, TITLE_BYTES_MAX)]
    peers: Annotated[tuple[InvitePeer, ...], Size(1, PEERS_MAX)]
    offers: Annotated[tuple[Offer, ...], Size(0, 1)] = ()


@dataclass(frozen=True, slots=True)
class Invite:
    """What a link says. The title is the sender's word until the manifest is here."""

    run: Digest
    title: Annotated[str, Size(1, TITLE_BYTES_MAX)]
    peers: Annotated[tuple[InvitePeer, ...], Size(1, PEERS_MAX)]
    offers: Annotated[tuple[Offer, ...], Size(0, 1)] = ()
    seals: Annotated[tuple[InviteSeal, ...], Size(0, 1)] = ()

    def addresses(self) -> tuple[PeerAddress, ...]:
        """Every address of every peer."""
        return tuple(PeerAddress(one.peer, text) for one in self.peers for text in one.addresses)


def invite_to(
    manifest: RunManifest,
    peer: PeerId,
    addresses: Sequence[str],
    offer: Offer | None = None,
    *,
    seal: InviteSeal | None = None,
) -> Invite:
    """The invite of one peer to the run; of many addresses those that reach furthest. `seal` is
    the newest final one that it has, None before the first."""
    chosen = sorted(addresses, key=_nearness)[:ADDRESSES_MAX]
    offers = () if offer is None else (offer,)
    seals = () if seal is None else (seal,)
    peers = (InvitePeer(peer, tuple(chosen)),)
    return Invite(manifest.digest, manifest.title, peers, offers, seals)


def invite_link(invite: Invite) -> str:
    """The link to paste into a message."""
    body = encode(invite)
    packed = bytes([_VERSION]) + _checksum(body) + body
    return LINK_PREFIX + base64.urlsafe_b64encode(packed).rstrip(b"=").decode("ascii")


def parse_invite(link: str) -> Invite:
    """What a link says. Raises ConfigError for one that is cut, changed, or of another version."""
    link = link.strip()
    text = link.removeprefix(LINK_PREFIX)
    if text == link or len(link) > CHARACTERS_MAX or _BASE64URL.fullmatch(text) is None:
        raise ConfigError(f"that is no invite link; one looks like {LINK_EXAMPLE}")
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise _damaged() from error
    # The last character has bits that decode to nothing; one invite has one link.
    if base64.urlsafe_b64encode(packed).rstrip(b"=").decode("ascii") != text:
        raise _damaged()
    checksum, body = packed[1 : 1 + _CHECKSUM_BYTES], packed[1 + _CHECKSUM_BYTES :]
    # Before the version: the first byte of rubbish is no version of anything.
    if checksum != _checksum(body):
        raise _damaged()
    if packed[0] not in (_OLD_VERSION, _VERSION):
        cure = "upgrade it" if packed[0] > _VERSION else "ask the founder for a new link"
        raise ConfigError(
            f"the invite link is of version {packed[0]}, this barnraise reads {_VERSION}: {cure}"
        )
    try:
        invite = _decoded(body, packed[0])
        for one in invite.addresses():
            # As a user's own: whoever made the link may have put anything there.
            parse_peer_address(str(one))
    except (DecodeError, ConfigError) as error:
        raise ConfigError(f"the invite link is no good: {error}") from error
    return invite


def _decoded(body: bytes, version: int) -> Invite:
    if version == _VERSION:
        return decode(Invite, body, max_bytes=_BODY_BYTES_MAX)
    old = decode(_OldInvite, body, max_bytes=_BODY_BYTES_MAX)
    return Invite(old.run, old.title, old.peers, old.offers)


def _damaged() -> ConfigError:
    return ConfigError(f"the invite link is damaged: copy it whole; one looks like {LINK_EXAMPLE}")


def _checksum(body: bytes) -> bytes:
    """Against slips of copying, not against anybody: the manifest's digest does that."""
    return blake3(body).digest(length=_CHECKSUM_BYTES)


def _nearness(address: str) -> int:
    """Addresses that mean something everywhere, in one home, on one machine."""
    if address.startswith(("/ip4/127.", "/ip6/::1/")):
        return 2
    return 0 if is_circuit(address) or is_public(address) or address.startswith("/dns") else 1


# Where a link comes from --------------------------------------------------------------------------
#
# The command line, standard input, or a file. A link into a run for the invited holds a key, and
# what stands on a command line is shown to every user of the machine for as long as the command
# runs.

STANDARD_INPUT = "-"

SHOWN_LINK = (
    "the link holds a key, and other users of this machine can read it in the list of processes: "
    "next time give it with --link-file FILE, or as - on standard input"
)


def read_target(target: str | None, link_file: Path | None, stdin: BinaryIO) -> str:
    """The link or address that a command was given: as an argument, in a file, or, where the
    argument is -, on `stdin`. Raises ConfigError unless it is exactly one of these.
    """
    if (target is None) == (link_file is None):
        raise ConfigError(
            "barnraise join takes one of: a link or an address, - to read it from standard input, "
            f"or --link-file FILE; a link looks like {LINK_EXAMPLE}"
        )
    if link_file is not None:
        try:
            data = read_secret(link_file, CHARACTERS_MAX, "the invite link in")
        except OSError as error:
            raise ConfigError(f"cannot read {link_file}: {error.strerror or error}") from error
        return _text_of(data, as_word(str(link_file)))
    assert target is not None
    if target != STANDARD_INPUT:
        return target
    # One line and not all there is: whoever pastes it ends it with Enter.
    return _text_of(stdin.readline(CHARACTERS_MAX + 1), "standard input")


def _text_of(data: bytes, where: str) -> str:
    if len(data) > CHARACTERS_MAX:
        raise ConfigError(f"what is in {where} is too long for an invite link")
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise ConfigError(f"{where} holds no invite link; one looks like {LINK_EXAMPLE}")
    return text
