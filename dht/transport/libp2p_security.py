"""The handshakes: Noise, which all have, Noise with a private swarm's key, and TLS 1.3.

The library shakes hands over a `Link` for Noise; the records after that are ours.

A private swarm's is XXpsk0 of the Noise specification, revision 34, section 9: the PSK is mixed
into the keys before the first message, so who lacks it cannot read a first message, nor write one
that is answered. It learns neither who listens nor what it serves. The proof is bound to this
channel's own keys, so it can neither be played again nor passed on to a third. It is offered under
a name of its own and nothing else is: between a private swarm and any other network no connection
comes up, and their DHTs cannot mix.

TLS as libp2p prescribes it (https://github.com/libp2p/specs/blob/master/tls/tls.md) takes less
processor time where AES has instructions. It is by pyOpenSSL, because CPython's own `ssl` cannot
ask a client for a certificate that no authority signed: the library writes into its private
structures for that, which is not safe where an interpreter has an OpenSSL of its own. This one is
the OpenSSL that `cryptography` brings along, the same and as new on every system.
"""

import datetime
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from google.protobuf.message import DecodeError as ProtobufError
from libp2p.abc import IRawConnection, ISecureConn, ISecureTransport
from libp2p.crypto.keys import KeyPair, PublicKey
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.patterns import IPattern, PatternXX
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.secure_session import SecureSession
from libp2p.security.tls.certificate import (
    ALPN_PROTOCOL,
    generate_certificate,
    verify_certificate_chain,
)
from noise import exceptions as noise_errors
from noise.connection import NoiseConnection
from OpenSSL import SSL

from dht.transport.libp2p_link import Link, OpenLink
from dht.transport.libp2p_session import Agreed, Bytes, NoiseSession, Session, room_for, shown
from protocol import limits
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


# Private swarms ---------------------------------------------------------------------------------

PSK_PROTOCOL = TProtocol("/barnraise/noise-psk/1")
PSK_BYTES = 32

NOT_PRIVATE = "it is not in our private swarm: it takes no PSK"
PRIVATE = "it takes neither TLS nor Noise: a private swarm has a PSK, which its members give you"
OTHER_PSK = "it is in another private swarm: its PSK is not ours"
WRONG_KEY = frozenset({NOT_PRIVATE, PRIVATE, OTHER_PSK})
"""Why a handshake failed with a peer that is there."""


class _PatternXXpsk0(PatternXX):
    """The library's XX, which takes the order of the messages; the state adds the PSK."""

    psk = b""

    def create_noise_state(self, prologue: bytes | None = None) -> NoiseConnection:
        state: NoiseConnection = super().create_noise_state(prologue)
        state.set_psks(psk=self.psk)
        return state


class PskNoise(TunedNoise):
    """Noise for the members of one private swarm. `psk` has PSK_BYTES."""

    def __init__(self, key_pair: KeyPair, open_link: OpenLink, psk: bytes) -> None:
        super().__init__(key_pair, open_link)
        self._psk = psk

    def get_pattern(self) -> IPattern:
        """The handshake of one connection."""
        pattern = _PatternXXpsk0(self.local_peer, self.libp2p_privkey, self.noise_privkey)
        pattern.protocol_name = b"Noise_XXpsk0_25519_ChaChaPoly_SHA256"
        pattern.psk = self._psk
        return pattern

    def _why(self, error: Exception, *, is_ours: bool) -> str:
        """Most likely the other end has another PSK: nothing it says decrypts."""
        return OTHER_PSK if is_ours else f"no handshake with our PSK: {type(error).__name__}"


# TLS --------------------------------------------------------------------------------------------

_RECORD_BYTES_MAX = 16 * limits.KIB
_HANDSHAKE_READ_BYTES = 4 * limits.KIB
_HANDSHAKE_BYTES_MAX = 64 * limits.KIB
"""Of ours, at once: a certificate takes less than one."""

_PARTIAL_WRITE = 0x1
"""OpenSSL's SSL_MODE_ENABLE_PARTIAL_WRITE, which pyOpenSSL sets and does not name: each record of a
write would be a call."""

_UNSENT_BYTES_MAX = 64 * limits.KIB
"""That OpenSSL may have to say to what came, 27 bytes to each wish for new keys, until we send
something: honest peers wish it once in some hundred GiB."""

_lib, _ffi = SSL._lib, SSL._ffi  # type: ignore[attr-defined]
_ALPN = ALPN_PROTOCOL.encode()


class TunedTls(ISecureTransport):
    """Certificates as the library makes and checks them, and records over a `Link`."""

    def __init__(self, key_pair: KeyPair, open_link: OpenLink) -> None:
        self._private_key = key_pair.private_key
        self._local_peer = ID.from_pubkey(key_pair.public_key)
        self._open_link = open_link
        # A context for all connections of a side: making one is most of a handshake's time.
        cert_pem, key_pem = generate_certificate(key_pair.private_key, _template())
        self._inbound = _context(SSL.TLS_SERVER_METHOD, cert_pem.encode(), key_pem.encode())
        self._inbound.set_alpn_select_callback(
            lambda _, offered: _ALPN if _ALPN in offered else SSL.NO_OVERLAPPING_PROTOCOLS
        )
        self._outbound = _context(SSL.TLS_CLIENT_METHOD, cert_pem.encode(), key_pem.encode())
        self._outbound.set_alpn_protos([_ALPN])

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """Prove who we are to whoever dialled us, and have them prove it."""
        return await self._secure(conn, None)

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """Prove who we are to `peer_id`; raises HandshakeFailure if somebody else answers."""
        return await self._secure(conn, peer_id)

    async def _secure(self, conn: IRawConnection, wanted: ID | None) -> "TlsSession":
        link = self._open_link(conn)
        try:
            return await self._agree(link, wanted)
        except (*BAD_HANDSHAKE, SSL.Error) as error:
            raise HandshakeFailure(f"TLS: {_reason(error)}") from error

    async def _agree(self, link: Link, wanted: ID | None) -> "TlsSession":
        connection = SSL.Connection(self._inbound if wanted is None else self._outbound, None)
        if wanted is None:
            connection.set_accept_state()
        else:
            connection.set_connect_state()
        await _shake_hands(link, connection)
        key = _proved_key(connection)
        remote = ID.from_pubkey(key)
        if wanted is not None and remote != wanted:
            raise HandshakeFailure(f"{remote} answers, not {wanted}")
        name_peer(link, remote)
        agreed = Agreed(
            local_peer=self._local_peer,
            local_private_key=self._private_key,
            remote_peer=remote,
            remote_permanent_pubkey=key,
            is_initiator=wanted is not None,
        )
        return TlsSession(agreed, link, connection)


def _context(method: int, cert_pem: bytes, key_pem: bytes) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.clear_mode(_PARTIAL_WRITE)
    context.use_certificate(x509.load_pem_x509_certificate(cert_pem))
    context.use_privatekey(load_pem_private_key(key_pem, None))  # type: ignore[arg-type]
    # Each end must show one, and no authority signs it: who it is of is looked at afterwards.
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *_: True)
    # Nothing is carried from one connection to another: what tickets still go out lead to nothing,
    # and each connection proves both ends anew.
    context.set_options(SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    return context


def _template() -> x509.CertificateBuilder:
    """Valid whatever the clocks of both ends say: the key is as old as the process."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "libp2p")])
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1975, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(4096, 1, 1, tzinfo=datetime.UTC))
        .subject_name(name)
        .issuer_name(name)
    )


async def _shake_hands(link: Link, connection: SSL.Connection) -> None:
    """Until both ends have keys. Raises SSL.Error, ConnectionClosedError."""
    is_done = False
    while not is_done:
        try:
            with suppress(SSL.WantReadError):
                connection.do_handshake()
                is_done = True
        finally:
            await _flush(link, connection)  # Also what it did not like.
        if not is_done:
            connection.bio_write(await link.read(_HANDSHAKE_READ_BYTES))


async def _flush(link: Link, connection: SSL.Connection) -> None:
    with suppress(SSL.WantReadError):  # There may be nothing to say.
        await link.write(connection.bio_read(_HANDSHAKE_BYTES_MAX))


def _proved_key(connection: SSL.Connection) -> PublicKey:
    """Whose certificate it is; raises ValueError and others for one that is not as prescribed."""
    cert = connection.get_peer_certificate(as_cryptography=True)
    if cert is None:
        raise HandshakeFailure("no certificate")
    return verify_certificate_chain([cert])


class TlsSession(Session):
    """TLS 1.3 after the handshake."""

    security = "tls"

    def __init__(self, agreed: Agreed, link: Link, connection: SSL.Connection) -> None:
        super().__init__(agreed, link)
        self.connection = connection
        self._is_fresh = True
        self._spot = _ffi.new("char **")

    async def send(self, parts: Sequence[Bytes]) -> None:
        """Send up to `SEND_BYTES_MAX` bytes; see `Session.send`."""
        # By the binding itself, here and below: what pyOpenSSL does around each call takes longer
        # than a small call, and `bio_read` makes two copies, in new memory.
        ssl = self.connection._ssl
        for part in parts:
            size = len(part)
            # The memory behind it takes all; of nothing there is no record.
            if size and (taken := _lib.SSL_write(ssl, _ffi.from_buffer(part), size)) != size:
                self._lose_for("encryption failed", taken)
        is_all = False
        while not is_all:  # Once, unless OpenSSL had much to say for itself.
            buffer = self.spare_buffer()
            room = len(buffer)
            num_bytes = _lib.BIO_read(self.connection._from_ssl, _ffi.from_buffer(buffer), room)
            is_all = num_bytes < room
            await self.write_out(buffer, max(0, num_bytes))

    async def receive(self, due: int = 0) -> list[Bytes]:
        """What arrives next, in plain; see `Session.receive`."""
        # Records may have come with the last words of the handshake.
        is_fresh, self._is_fresh = self._is_fresh, False
        plain = self._decrypted(0) if is_fresh else b""
        while not plain:
            # Of the record that is due, some may be here already.
            data = await self.link.arrived(due - _RECORD_BYTES_MAX)
            _offer(self.connection, data)
            plain = self._decrypted(len(data))
        return [plain]

    def _decrypted(self, num_arrived: int) -> Bytes:
        """All that is complete. A record at a time would be a step per 16 KiB."""
        # OpenSSL may keep the begin of a record that has now come whole.
        view, ssl = room_for(num_arrived + _RECORD_BYTES_MAX), self.connection._ssl
        stop, num_bytes = _read_records(ssl, view)
        if _lib.BIO_get_mem_data(self.connection._from_ssl, self._spot) > _UNSENT_BYTES_MAX:
            self._lose("it wishes for new keys all the time", None)
        why = _lib.SSL_get_error(ssl, num_bytes)
        if why == _lib.SSL_ERROR_WANT_READ:  # The usual end: no further record is whole.
            return shown(view, stop)
        if why != _lib.SSL_ERROR_ZERO_RETURN:
            self._lose_for("a record that does not decrypt", num_bytes)
        if not stop:
            self._lose_for("closed by the other end", num_bytes)
        return shown(view, stop)

    def _lose_for(self, reason: str, result: int) -> NoReturn:
        """Cut the connection for what a call of OpenSSL gave. Raises ConnectionClosedError."""
        try:
            self.connection._raise_ssl_error(self.connection._ssl, result)
        except SSL.ZeroReturnError as error:
            self._lose(reason, error)
        except SSL.Error as error:
            self._lose(f"{reason}: {_reason(error)}", error)
        raise AssertionError(f"OpenSSL gives {result} for no reason")

    def _lose(self, reason: str, error: SSL.Error | None) -> NoReturn:
        self.link.lose(reason)
        raise ConnectionClosedError(reason, transport="tcp") from error


def _offer(connection: SSL.Connection, data: memoryview) -> None:
    """Let OpenSSL read this next, from where it lies until all is read: what is written into its
    own memory is zeroed, and copied, before it is read.

    It keeps what it needs of a record that is not whole.
    """
    memory = _lib.BIO_new_mem_buf(_ffi.from_buffer(data), len(data))
    assert memory != _ffi.NULL, "no memory"
    _lib.BIO_set_mem_eof_return(memory, -1)  # Of its end: more comes later.
    _lib.SSL_set_bio(connection._ssl, memory, connection._from_ssl)  # Frees the one before.
    connection._into_ssl = None  # That of the handshake is gone.


def _read_records(ssl: object, view: memoryview) -> tuple[int, int]:
    """How many bytes were read, and what the last call gave.

    In a frame of its own, which no traceback holds: a memoryview and what cffi has of it, thrown
    away in one cycle, end the process (Python 3.11, cffi 2.0).
    """
    place, room, stop, read = _ffi.from_buffer(view), len(view), 0, _lib.SSL_read
    # Sixty-four times for a MiB.
    while (num_bytes := read(ssl, place + stop, room - stop)) > 0:
        stop += num_bytes
    return stop, num_bytes


def _reason(error: Exception) -> str:
    """What is wrong; OpenSSL's errors hold a list of library, function and reason."""
    found = error.args[0] if error.args else ""
    if isinstance(found, list):
        return str(found[0][-1]) if found else "it was broken before"
    return str(error)
