"""What plain sockets do, to compare with: blocking, one thread per end, TCP or TLS 1.3."""

import datetime
import socket
import ssl
import struct
import tempfile
import threading
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protocol.limits import MIB

_HOST = "127.0.0.1"


def _server_context() -> ssl.SSLContext:
    """For TLS 1.3, with a certificate that nobody has signed but itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "both.pem"
        path.write_bytes(pem)
        context.load_cert_chain(path)
    return context


def serve_raw(*, is_tls: bool) -> int:
    """Take transfers in threads of their own until the process ends; the port it listens on."""
    context = _server_context() if is_tls else None
    listener = socket.create_server((_HOST, 0))

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                _take(connection)

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def _take(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(MIB))
    head = b""
    while len(head) < 8:
        head += connection.recv(8 - len(head))
    left = int.from_bytes(head, "big")
    began_s = time.process_time()
    while left:
        received = connection.recv_into(buffer[: min(left, MIB)])
        if not received:
            return
        left -= received
    connection.sendall(struct.pack("!d", time.process_time() - began_s))


def send_raw(port: int, num_bytes: int, *, is_tls: bool) -> tuple[float, float, float]:
    """Send so many bytes; wall seconds, own CPU seconds, the taker's CPU seconds."""
    connection = socket.create_connection((_HOST, port))
    if is_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = context.wrap_socket(connection)
    with connection:
        data = memoryview(bytes(MIB))
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        connection.sendall(num_bytes.to_bytes(8, "big"))
        for start in range(0, num_bytes, MIB):
            connection.sendall(data[: min(MIB, num_bytes - start)])
        answer = b""
        while len(answer) < 8:
            answer += connection.recv(8 - len(answer))
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return wall_s, cpu_s, float(struct.unpack("!d", answer)[0])
