"""Noise, which all have: the library's handshake over a `Link`, our records after it."""

from typing import Any

from libp2p.abc import IRawConnection, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.secure_session import SecureSession

from dht.transport.libp2p_link import Link, OpenLink
from dht.transport.libp2p_session import NoiseSession, Session
from protocol.errors import DecodeError
from protocol.identity import parse_peer_id


class TunedNoise(NoiseTransport):
    """For peers with an Ed25519 key and no others."""

    def __init__(self, key_pair: KeyPair, open_link: OpenLink) -> None:
        super().__init__(key_pair, noise_privkey=create_noise_key_pair().private_key)
        self._open_link = open_link

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """Prove who we are to whoever dialled us, and have them prove it."""
        link = self._open_link(conn)
        return _bind(link, await super().secure_inbound(link))

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """Prove who we are to `peer_id`; raises HandshakeFailure if somebody else answers."""
        link = self._open_link(conn)
        return _bind(link, await super().secure_outbound(link, peer_id))


def _bind(link: Link, agreed: ISecureConn) -> Session:
    """Our session of what the library agreed, for a peer with an Ed25519 key; HandshakeFailure."""
    name_peer(link, agreed.get_remote_peer())
    if not isinstance(agreed, SecureSession):
        raise HandshakeFailure("the library's handshake made something else than a session")
    return NoiseSession(agreed, link)


def name_peer(link: Link, proved: ID) -> None:
    """Say who is at the other end; HandshakeFailure for a peer with another kind of key."""
    try:
        link.peer = parse_peer_id(proved.to_base58())
    except DecodeError as error:
        raise HandshakeFailure(str(error)) from error


def link_of(muxed: Any) -> Link | None:  # noqa: ANN401 - the library's interfaces hide the layers
    """The link below a muxed connection; None for one whose session is not ours."""
    session = getattr(muxed, "secured_conn", None)
    return session.link if isinstance(session, Session) else None
