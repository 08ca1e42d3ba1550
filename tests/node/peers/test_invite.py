"""Invite links: what goes in comes out, and nothing else does."""

import base64
from dataclasses import dataclass

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from node.peers.invite import (
    ADDRESSES_MAX,
    LINK_PREFIX,
    PEERS_MAX,
    Invite,
    InvitePeer,
    InviteSeal,
    invite_link,
    invite_to,
    parse_invite,
)
from node.peers.joining import parse_target
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer, PeerId
from protocol.invitations import Offer
from protocol.wire import Digest, encode
from tests.node.edge import toy_manifest

PEER = Ed25519Signer(b"p" * 32).peer_id
ADDRESS = "/ip4/203.0.113.1/tcp/4001"
MANIFEST = toy_manifest()
LINK = invite_link(invite_to(MANIFEST, PEER, [ADDRESS]))


def pack(body: bytes, version: int = 2) -> str:
    packed = bytes([version]) + blake3(body).digest(length=4) + body
    return LINK_PREFIX + base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def test_link_names_run_title_and_addresses() -> None:
    invite = parse_invite(f"  {LINK}\n")
    assert (invite.run, invite.title) == (MANIFEST.digest, MANIFEST.title)
    assert [(one.peer, one.address) for one in invite.addresses()] == [(PEER, ADDRESS)]
    assert len(LINK) < 300


def test_link_names_the_newest_seal_of_the_inviter() -> None:
    seal = InviteSeal(41, b"s" * 32)
    link = invite_link(invite_to(MANIFEST, PEER, [ADDRESS], seal=seal))
    assert parse_invite(link).seals == (seal,)
    assert len(link) < 350
    told = parse_target(link).told
    assert told is not None
    assert (told.round, told.digest) == (41, b"s" * 32)
    assert parse_target(LINK).told is None


@dataclass(frozen=True)
class OldInvite:
    """What links said before they named a seal; this shape is fixed for good."""

    run: Digest
    title: str
    peers: tuple[InvitePeer, ...]
    offers: tuple[Offer, ...] = ()


def test_link_of_the_first_version_is_still_good_and_names_no_seal() -> None:
    old = OldInvite(MANIFEST.digest, "an old one", (InvitePeer(PEER, (ADDRESS,)),))
    link = pack(encode(old), version=1)
    assert parse_invite(link) == Invite(old.run, old.title, old.peers)
    with pytest.raises(ConfigError, match="no good"):
        parse_invite(pack(encode(old), version=2))


def test_of_many_addresses_the_ones_on_this_machine_only_go_first() -> None:
    near = ["/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1"]
    far = [f"/ip4/10.0.0.{number}/tcp/1" for number in range(ADDRESSES_MAX - 1)]
    (peer,) = invite_to(MANIFEST, PEER, [*near, *far]).peers
    assert peer.addresses == (*far, near[0])


@given(st.integers(0, len(LINK) - 1), st.characters(codec="ascii"))
def test_any_changed_character_is_refused(position: int, character: str) -> None:
    changed = LINK[:position] + character + LINK[position + 1 :]
    if changed.strip() == LINK:
        return
    with pytest.raises(ConfigError, match=r"barnraise://join/|version"):
        parse_invite(changed)


@pytest.mark.parametrize("end", range(0, len(LINK), 7))
def test_any_cut_link_is_refused(end: int) -> None:
    with pytest.raises(ConfigError, match=r"barnraise://join/"):
        parse_invite(LINK[:end])


@pytest.mark.parametrize("text", ["", "x", "https://example.org", LINK + "=", LINK * 300, "ä" * 9])
def test_what_is_no_link_is_told_how_one_looks(text: str) -> None:
    with pytest.raises(ConfigError, match=r"looks like barnraise://join/"):
        parse_invite(text)


@pytest.mark.parametrize(("version", "cure"), [(3, "upgrade it"), (0, "a new link")])
def test_link_of_another_version_says_so(version: int, cure: str) -> None:
    with pytest.raises(ConfigError, match=f"version {version}, .* reads 2: .*{cure}"):
        parse_invite(pack(b"whatever", version=version))


@pytest.mark.parametrize("rubbish", ["aGVsbG8gd29ybGQh", "AQ", "aaaaaaaaaaaaaaaaaaaaaaaa", "a"])
def test_rubbish_is_a_damaged_link_and_of_no_version(rubbish: str) -> None:
    with pytest.raises(ConfigError, match="link is damaged: copy it whole") as raised:
        parse_invite(LINK_PREFIX + rubbish)
    assert "version" not in str(raised.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93",
        encode(Invite(b"r" * 32, "t", (InvitePeer(PEER, (ADDRESS,)),))) + b"\x00",
        # A weak key, which signs whatever anybody wants.
        encode(Invite(b"r" * 32, "t", (InvitePeer(PeerId(bytes(32)), (ADDRESS,)),))),
    ],
)
def test_link_with_sound_checksum_and_bad_content_is_refused(body: bytes) -> None:
    with pytest.raises(ConfigError, match="no good"):
        parse_invite(pack(body))


@pytest.mark.parametrize(
    "address",
    ["junk", f"{ADDRESS}\x1b[31m", "/ip4/203.0.113.1/tcp/\u0664", f"{ADDRESS} x", f"{ADDRESS}\n"],
)
def test_link_with_an_address_that_is_none_is_refused_before_anybody_is_dialled(
    address: str,
) -> None:
    """One good peer beside it, and the node would have come to it when it entered."""
    other = Ed25519Signer(b"o" * 32).peer_id
    peers = (InvitePeer(other, (ADDRESS,)), InvitePeer(PEER, (ADDRESS, address)))
    with pytest.raises(ConfigError, match=r"no good: .* is no address like") as caught:
        parse_invite(invite_link(Invite(b"r" * 32, "t", peers)))
    assert str(caught.value).isprintable()


def test_largest_invite_fits_a_link() -> None:
    addresses = tuple("/" + "a" * 254 + str(n) for n in range(ADDRESSES_MAX))
    peers = tuple(
        InvitePeer(Ed25519Signer(bytes([n]) * 32).peer_id, addresses) for n in range(PEERS_MAX)
    )
    invite = Invite(b"r" * 32, "t" * 128, peers)
    assert parse_invite(invite_link(invite)) == invite
