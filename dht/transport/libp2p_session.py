"""What was agreed in a handshake, used for many records at once.

The library encrypts and decrypts record by record, each with a few copies and two reads of what is
below it. Here everything that one read of the socket brought is decrypted in one go, and what is
sent is encrypted from where it lies into the buffer that the socket takes. The bytes on the wire
stay standard: a stock peer sees records like any other.
"""

import struct
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from libp2p.connection_types import ConnectionType
from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.base_session import BaseSession
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from libp2p.security.secure_session import SecureSession
from multiaddr import Multiaddr

from dht.transport.libp2p_link import Link
from protocol import limits
from protocol.transport import taken

Bytes = bytes | bytearray | memoryview

SEND_BYTES_MAX = 516 * limits.KIB
"""Plain bytes that are encrypted and handed to the socket together: half a cell and what is said of
it. More leaves a core's cache on its way, and what is encrypted cannot be overtaken."""

JOINED_BYTES_MAX = 4096
"""Parts of a frame up to so long travel in one record with what goes before them; above, a second
record costs less than the copy."""

_BUFFER_BYTES = SEND_BYTES_MAX + 4 * limits.KIB
"""For the largest send: 18 bytes for each record of Noise, 22 for each of TLS, which are 16 KiB."""

_SPARE_BUFFERS_MAX = 8
_RECORD_BYTES_MAX = 64 * limits.KIB
"""Of Noise. So much of what is due may be here, and not be decrypted."""

_TAG_BYTES = 16
_LENGTH = struct.Struct("!H")
_NONCE = struct.Struct("<4xQ")
_NOISE_NAMES = (b"Noise_XX_25519_ChaChaPoly_SHA256", b"Noise_XXpsk0_25519_ChaChaPoly_SHA256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What a handshake has proved: who is at both ends. Part of the library's `SecureSession`."""

    local_peer: ID
    local_private_key: PrivateKey
    remote_peer: ID
    remote_permanent_pubkey: PublicKey
    is_initiator: bool


class Session(BaseSession):
    """A secured connection. `send` and `receive` are for one task each at a time."""

    security = ""
    """What it is secured with, in a word."""

    _spare: list[bytearray] = []  # noqa: RUF012 - shared, because few connections send at a time

    def __init__(self, agreed: Agreed | SecureSession, link: Link) -> None:
        super().__init__(
            local_peer=agreed.local_peer,
            local_private_key=agreed.local_private_key,
            remote_peer=agreed.remote_peer,
            remote_permanent_pubkey=agreed.remote_permanent_pubkey,
            is_initiator=agreed.is_initiator,
        )
        self.link = link
        self._plain = b""

    @abstractmethod
    async def send(self, parts: Sequence[Bytes]) -> None:
        """Send up to `SEND_BYTES_MAX` bytes. Cancelled, all of them are sent in the background.

        Raises ConnectionClosedError.
        """

    @abstractmethod
    async def receive(self, due: int = 0) -> list[Bytes]:
        """What arrives next, decrypted; never nothing. Raises ConnectionClosedError.

        `due` plain bytes are on their way at least: it may wait for more than the first of them.
        """

    def spare_buffer(self) -> bytearray:
        """Memory to encrypt a send into; for `write_out`."""
        return self._spare.pop() if self._spare else bytearray(_BUFFER_BYTES)

    async def write_out(self, buffer: bytearray, stop: int) -> None:
        """Send the encrypted bytes at the begin of a buffer, which then is spare again."""
        # Cancelled, the link still holds the buffer: it is not spare then.
        await self.link.write(memoryview(buffer)[:stop])
        if len(self._spare) < _SPARE_BUFFERS_MAX:
            self._spare.append(buffer)

    async def read(self, n: int | None = None) -> bytes:
        """At most `n` bytes, for the library; raises ConnectionClosedError at the end."""
        if not self._plain:
            self._plain = b"".join(await self.receive())
        stop = len(self._plain) if n is None else n
        data, self._plain = self._plain[:stop], self._plain[stop:]
        return data

    def unread(self) -> bytes:
        """What `read` left of the records that it took, once."""
        data, self._plain = self._plain, b""
        return data

    async def write(self, data: bytes) -> None:
        """Send every byte, for the library."""
        view = memoryview(data)
        for start in range(0, len(view), SEND_BYTES_MAX):
            await self.send((view[start : start + SEND_BYTES_MAX],))

    async def close(self) -> None:
        """Close the connection."""
        await self.link.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        """IP address and port of the other end."""
        return self.link.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The other end as a multiaddr."""
        return self.link.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Direct or relayed."""
        return self.link.get_connection_type()


def room_for(size: int) -> memoryview:
    """Memory for so many bytes. Not zeroed first, as a bytearray is: that costs as much as another
    copy of what is decrypted into it."""
    return np.empty(size, dtype=np.uint8).data


def shown(place: memoryview, stop: int) -> Bytes:
    """The first bytes of a place. What is kept of a few should not hold all of it."""
    return place[:stop] if 2 * stop >= len(place) else bytes(place[:stop])


def gathered(head: bytearray, waiting: deque[memoryview], num_bytes: int) -> list[Bytes]:
    """`head` and so many of the bytes that wait, of which few are copied."""
    found: list[Bytes] = [head]
    for part in taken(waiting, num_bytes):
        if len(part) > JOINED_BYTES_MAX:
            found.append(part)
            continue
        last = found[-1]
        if isinstance(last, bytearray):
            last += part
        else:
            found.append(bytearray(part))
    return found


class NoiseSession(Session):
    """Noise after the library's handshake: ChaCha20-Poly1305 over records of up to 65 535 bytes."""

    security = "noise"

    def __init__(self, agreed: SecureSession, link: Link) -> None:
        """Raises HandshakeFailure for anything but the Noise that libp2p prescribes."""
        super().__init__(agreed, link)
        lines = agreed.conn
        if not isinstance(lines, NoiseTransportReadWriter):
            raise HandshakeFailure("no Noise")
        noise = lines.noise_state.noise_protocol
        if noise.name not in _NOISE_NAMES:
            raise HandshakeFailure(f"Noise of another kind: {noise.name!r}")
        sending, receiving = noise.cipher_state_encrypt, noise.cipher_state_decrypt
        self._encrypt = ChaCha20Poly1305(sending.k).encrypt_into
        self._decrypt = ChaCha20Poly1305(receiving.k).decrypt_into
        self._num_sent, self._num_received = sending.n, receiving.n
        self._half = bytearray()

    async def send(self, parts: Sequence[Bytes]) -> None:
        """Send up to `SEND_BYTES_MAX` bytes; see `Session.send`."""
        buffer = self.spare_buffer()
        view = memoryview(buffer)
        stop = 0
        for plain in _records(parts):
            start, stop = stop + _LENGTH.size, stop + _LENGTH.size + len(plain) + _TAG_BYTES
            _LENGTH.pack_into(buffer, start - _LENGTH.size, stop - start)
            self._encrypt(_NONCE.pack(self._num_sent), plain, None, view[start:stop])
            self._num_sent += 1
        await self.write_out(buffer, stop)

    async def receive(self, due: int = 0) -> list[Bytes]:
        """The next records in plain; see `Session.receive`."""
        while True:
            data = await self.link.arrived(due - _RECORD_BYTES_MAX)
            try:
                found = self._decrypted(data)
            except InvalidTag as error:
                self.link.lose("a record that does not decrypt")
                raise ConnectionClosedError(self.link.lost_reason, transport="tcp") from error
            if found:
                return [found]

    def _decrypted(self, data: Bytes) -> Bytes:
        """All that is complete. Raises InvalidTag."""
        view, half = memoryview(data), self._half
        plain, stop = room_for(len(half) + len(data)), 0
        if half:
            # Only the record that was cut is put together, not all that came behind it.
            head = half + view[: max(0, _LENGTH.size - len(half))]
            missing = _record_bytes(head) - len(half)
            if len(view) < missing:
                half += view
                return b""
            half += view[:missing]
            stop = self._plain_into(plain, memoryview(half)[_LENGTH.size :])
            view = view[missing:]
        start = 0
        while (end := start + _record_bytes(view[start : start + _LENGTH.size])) <= len(view):
            stop += self._plain_into(plain[stop:], view[start + _LENGTH.size : end])
            start = end
        self._half = bytearray(view[start:])
        return shown(plain, stop)

    def _plain_into(self, place: memoryview, record: memoryview) -> int:
        num_bytes = len(record) - _TAG_BYTES
        if num_bytes < 0:
            raise InvalidTag
        self._decrypt(_NONCE.pack(self._num_received), record, None, place[:num_bytes])
        self._num_received += 1
        return num_bytes


def _record_bytes(head: Bytes) -> int:
    """The size of a record with its length; of a length that is cut, more than there is."""
    if len(head) < _LENGTH.size:
        return 1 << 20
    length: int = _LENGTH.unpack_from(head)[0]
    return _LENGTH.size + length


def _records(parts: Sequence[Bytes]) -> Iterator[Bytes]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), MAX_PLAINTEXT_LENGTH):
            yield view[start : start + MAX_PLAINTEXT_LENGTH]
