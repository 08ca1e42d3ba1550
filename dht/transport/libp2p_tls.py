"""TLS 1.3 where it is safe: at a third less processor time than Noise, for AES has instructions.

The library's server side writes into CPython's private `SSL_CTX` by way of the system's libssl, or
it could not ask for a certificate that no authority signed. Where the interpreter has an OpenSSL of
its own, that would write into one library what belongs to another. So TLS is offered only where
this process has exactly one libssl, and CPython is one whose layout is known; Noise always is.
"""

import contextlib
import datetime
import ssl
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.secure_session import SecureSession
from libp2p.security.tls.io import TLSReadWriter
from libp2p.security.tls.openssl_verify import install_skip_pkix_peer_verification
from libp2p.security.tls.transport import IdentityConfig, TLSTransport

from dht.transport.libp2p_link import Link, OpenLink
from dht.transport.libp2p_security import bind
from dht.transport.libp2p_session import Bytes, Session, room_for, shown
from protocol import limits

_KNOWN_LAYOUTS = ((3, 11), (3, 12), (3, 13))
_RECORD_BYTES_MAX = 16 * limits.KIB
_MAPS = Path("/proc/self/maps")

_BAD_HANDSHAKE = (
    *(BaseLibp2pError, RuntimeError, ValueError, TypeError, LookupError, AttributeError),
    *(OSError, EOFError, InvalidSignature, UnsupportedAlgorithm, AssertionError),
)
"""What the library raises on a handshake or certificate that it did not expect; ssl's are OSErrors.
One of them reaching the library's task manager would stop the host."""


def tls_is_safe() -> bool:
    """Whether the library's TLS may be used in this process. Loads libssl to find out."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in _KNOWN_LAYOUTS:
        return False
    if sysconfig.get_config_var("Py_DEBUG") or sysconfig.get_config_var("Py_TRACE_REFS"):
        return False
    if len(_libssls()) != 1:
        return False  # Built into the interpreter, or not to be found out.
    # On a context of the client's kind nothing was asked for before, so the change shows.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(RuntimeError, OSError, AttributeError):
        install_skip_pkix_peer_verification(context)
        # It may have loaded another one than the interpreter has.
        return len(_libssls()) == 1 and context.verify_mode is not ssl.CERT_NONE
    return False


def _libssls() -> set[str]:
    """The files of libssl in this process; empty where the system does not say."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    return {path for path in paths if Path(path).name.startswith("libssl")}


class TunedTls(TLSTransport):
    """The library's handshake over a `Link`, our records after it; for Ed25519 keys."""

    def __init__(self, key_pair: KeyPair, open_link: OpenLink) -> None:
        super().__init__(key_pair, identity_config=IdentityConfig(cert_template=_template()))
        self._open_link = open_link
        self._contexts: dict[bool, ssl.SSLContext] = {}

    def create_ssl_context(self, server_side: bool = False) -> ssl.SSLContext:
        """One for all connections of a side, by the library's rules.

        The library makes one for each, which is two thirds of a handshake's processor time, and
        writes the key to a file each time. Nothing is carried from one connection to another: no
        ticket is handed out, so that each of them proves both ends anew.
        """
        context = self._contexts.get(server_side)
        if context is None:
            context = self._contexts[server_side] = super().create_ssl_context(server_side)
            context.options |= ssl.OP_NO_TICKET
            if server_side:
                context.num_tickets = 0
        return context

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """Prove who we are to whoever dialled us, and have them prove it."""
        link = self._open_link(conn)
        try:
            return bind(link, await super().secure_inbound(link), TlsSession)
        except _BAD_HANDSHAKE as error:
            raise HandshakeFailure(f"TLS: {error}") from error

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """Prove who we are to `peer_id`; raises HandshakeFailure if somebody else answers."""
        link = self._open_link(conn)
        try:
            return bind(link, await super().secure_outbound(link, peer_id), TlsSession)
        except _BAD_HANDSHAKE as error:
            raise HandshakeFailure(f"TLS: {error}") from error


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


class TlsSession(Session):
    """TLS 1.3 after the library's handshake."""

    security = "tls"

    def __init__(self, agreed: SecureSession, link: Link) -> None:
        """Raises HandshakeFailure for anything but the library's TLS."""
        super().__init__(agreed, link)
        lines = agreed.conn
        if not isinstance(lines, TLSReadWriter):
            raise HandshakeFailure("no TLS")
        self._ssl = lines.stream_writer._ssl_socket
        self._in = lines.stream_writer._in_bio
        self._out = lines.stream_writer._out_bio

    async def send(self, parts: Sequence[Bytes]) -> None:
        """Send up to `SEND_BYTES_MAX` bytes; see `Session.send`."""
        try:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[self._ssl.write(rest) :]
        except ssl.SSLError as error:
            self._lose(f"encryption failed: {error.reason}", error)
        await self.link.write(self._out.read())

    async def receive(self) -> list[Bytes]:
        """What arrives next, in plain; see `Session.receive`."""
        while True:
            if self._in.pending:
                plain = self._decrypted()
                if plain:
                    return [plain]
            self._in.write(await self.link.arrived())

    def _decrypted(self) -> Bytes:
        """All that is complete. A record at a time would be a step per 16 KiB."""
        # OpenSSL may keep the begin of a record that has now come whole.
        view, stop = room_for(self._in.pending + _RECORD_BYTES_MAX), 0
        size, read = len(view), self._ssl.read
        try:
            # Sixty-four times for a MiB.
            while num_bytes := read(size - stop, view[stop:]):
                stop += num_bytes  # type: ignore[operator]
            if not stop:
                self._lose("closed by the other end", None)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._lose(f"a record that does not decrypt: {error.reason}", error)
        return shown(view, stop)

    def _lose(self, reason: str, error: ssl.SSLError | None) -> None:
        self.link.lose(reason)
        raise ConnectionClosedError(reason, transport="tcp") from error
