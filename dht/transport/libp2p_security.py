"""Noise, which all have: the library's handshake over a `Link`, our records after it."""

from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from google.protobuf.message import DecodeError as ProtobufError
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.exceptions import BaseLibp2pError
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.secure_session import SecureSession
from noise import exceptions as noise_errors

from dht.transport.libp2p_link import Link, OpenLink
from dht.transport.libp2p_session import NoiseSession, Session
from protocol.errors import DecodeError
from protocol.identity import parse_peer_id

BAD_HANDSHAKE = (
    *(BaseLibp2pError, ProtobufError, ValueError, TypeError, LookupError, AttributeError),
    *(OSError, EOFError, AssertionError, InvalidSignature, InvalidTag, UnsupportedAlgorithm),
    *(noise_errors.NoiseInvalidMessage, noise_errors.NoiseHandshakeError),
    *(noise_errors.NoiseValueError, noise_errors.NoiseMaxNonceError),
)
"""What a handshake raises on bytes that it did not expect, which the other end chooses, or a relay
between. One of them reaching the library's task manager would stop the host. Noise's own errors and
those of the ciphers have no base that tells them."""


class TunedNoise(NoiseTransport):
    """For peers with an Ed25519 key and no others."""

    def __init__(self, key_pair: KeyPair, open_link: OpenLink) -> None:
        super().__init__(key_pair, noise_privkey=create_noise_key_pair().private_key)
        self._open_link = open_link

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """Prove who we are to whoever dialled us, and have them prove it; HandshakeFailure."""
        link = self._open_link(conn)
        try:
            agreed = await super().secure_inbound(link)
        except HandshakeFailure:
            raise
        except BAD_HANDSHAKE as error:
            raise HandshakeFailure(self._why(error, is_ours=False)) from None
        return _bind(link, agreed)

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """Prove who we are to `peer_id`; raises HandshakeFailure if somebody else answers."""
        link = self._open_link(conn)
        try:
            agreed = await super().secure_outbound(link, peer_id)
        except HandshakeFailure:
            raise
        except BAD_HANDSHAKE as error:
            raise HandshakeFailure(self._why(error, is_ours=True)) from None
        return _bind(link, agreed)

    def _why(self, error: Exception, *, is_ours: bool) -> str:
        """What to say of a handshake, one that we began or not, that `error` ended."""
        return f"Noise: {str(error) or type(error).__name__}"


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
