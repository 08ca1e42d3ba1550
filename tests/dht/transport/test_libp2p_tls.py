"""TLS: where it is used, who is let in by it, and what hostile bytes do to it."""

import datetime
import os
from traceback import walk_tb
from types import SimpleNamespace

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.tls.certificate import LIBP2P_EXTENSION_OID, encode_signed_key
from libp2p.security.tls.transport import TLSTransport
from OpenSSL import SSL

from dht.transport.libp2p_host import securities
from dht.transport.libp2p_inbound import encode_line
from dht.transport.libp2p_link import Link
from dht.transport.libp2p_security import TunedTls
from dht.transport.libp2p_session import SEND_BYTES_MAX
from dht.transport.libp2p_transport import TransportConfig
from protocol.errors import ConfigError, StreamClosedError
from tests.dht.loopback import DEADLINE_S, ECHO, MIB, ask, echo, only_link, open_loopback, until


def security_of(transport):
    return only_link(transport).muxed.secured_conn.security


def test_tls_is_preferred_unless_it_is_not_wanted():
    assert securities(TransportConfig()) == ("tls", "noise")
    assert securities(TransportConfig(security="noise")) == ("noise",)


def test_security_of_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="security: 'rot13'"):
        TransportConfig(security="rot13")


@pytest.mark.net
@pytest.mark.parametrize(
    ("one", "other", "agreed"),
    [("tls", "tls", "tls"), ("tls", "noise", "noise"), ("noise", "tls", "noise")],
)
async def test_peers_agree_on_what_both_have(one, other, agreed):
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo}, security=one) as server,
            open_loopback(security=other) as client,
        ):
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            data = os.urandom(MIB)
            assert await ask(stream, data) == data
            await until(lambda: only_link(client).muxed is not None)
            assert security_of(client) == agreed


HELLO = encode_line("/multistream/1.0.0") + encode_line("/tls/1.0.0")
GARBAGE = {
    "noise": bytes(range(256)) * 10,
    "alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "long record": b"\x16\x03\x01\xff\xff" + bytes(70_000),
    "nothing": b"",
}


@pytest.mark.net
@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_instead_of_a_handshake_costs_only_its_sender(sent):
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            port = int(server.addresses()[0].rpartition("/")[2])
            async with await trio.open_tcp_stream("127.0.0.1", port) as hostile:
                await hostile.send_all(HELLO + sent)
                await hostile.send_eof()
                async for _ in hostile:
                    pass
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await ask(stream, b"alive") == b"alive"
            assert server.connected() == (client.peer_id,)


@pytest.mark.net
async def test_flipped_bit_ends_the_connection():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            await ask(stream, b"here")
            session = only_link(client).muxed.secured_conn
            write = session.link.write

            async def spoil(data):
                spoilt = bytearray(data)
                spoilt[-1] ^= 1
                await write(spoilt)

            session.link.write = spoil
            with pytest.raises(StreamClosedError):
                await ask(stream, b"hello")
            await until(lambda: not server.connected())


def held_by_frames(error):
    """What cffi has of our memory, in the frames that an error brings along: together with that
    memory in a cycle it would end the process."""
    frames = [f for e in (error, error.__cause__) if e for f, _ in walk_tb(e.__traceback__)]
    held = (value for frame in frames for value in frame.f_locals.values())
    return [value for value in held if type(value).__name__ == "__CDataFromBuf"]


@pytest.mark.net
async def test_goodbye_of_tls_is_the_end():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            await until(lambda: server.connected() and only_link(server).muxed is not None)
            session = only_link(client).muxed.secured_conn
            assert not session.connection.shutdown(), "the other end has not said it yet"
            await session.link.write(session.connection.bio_read(1024))
            await until(lambda: not server.connected())
            with pytest.raises(ConnectionClosedError):
                await session.receive()


@pytest.mark.net
async def test_error_of_a_record_holds_no_memory_of_ours_for_openssl():
    junk = b"\x17\x03\x03\x00\x40" + bytes(64)
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            session = only_link(client).muxed.secured_conn
            link, reasons = session.link, list[str]()

            async def arrived(due):
                return junk

            session.link = SimpleNamespace(arrived=arrived, lose=reasons.append)
            with pytest.raises(ConnectionClosedError) as caught:
                await session.receive()
            session.link = link
            assert "does not decrypt" in reasons[0]
            assert held_by_frames(caught.value) == []


@pytest.mark.net
async def test_every_connection_proves_both_ends_anew():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            for _ in range(2):
                await client.connect(server.peer_id, server.addresses())
                await until(lambda: only_link(client).muxed is not None)
                stream = await client.open_stream(server.peer_id, ECHO)
                assert await ask(stream, b"alive") == b"alive"
                for end in (client, server):
                    connection = only_link(end).muxed.secured_conn.connection
                    assert connection.get_peer_certificate(as_cryptography=True) is not None
                    assert connection.get_protocol_version_name() == "TLSv1.3"
                await client.disconnect(server.peer_id)
                await until(lambda: not server.connected())


class Pipe:
    """What a handshake needs of a connection, over memory."""

    is_initiator = False

    def __init__(self, send, receive):
        self._send, self._receive = send, receive

    async def write(self, data):
        try:
            await self._send.send(bytes(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError("closed", transport="tcp") from error

    async def read(self, n=None):
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return b""

    async def close(self):
        self._send.close()
        self._receive.close()

    def get_remote_address(self):
        return None


def two_ends():
    send, receive = trio.open_memory_channel[bytes](1000)
    back, come = trio.open_memory_channel[bytes](1000)
    return Pipe(send, come), Pipe(back, receive)


async def shake(client, server, peer_id):
    """What either end makes of a handshake: a session or an error."""
    found = {}
    one, other = two_ends()

    async def end(name, pipe, secure):
        try:
            found[name] = await secure(pipe)
        except HandshakeFailure as error:
            found[name] = error
            await pipe.close()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end, "client", one, lambda raw: client.secure_outbound(raw, peer_id))
            nursery.start_soon(end, "server", other, server.secure_inbound)
    return found["client"], found["server"]


async def tls_of(nursery, seed):
    def open_link(raw):
        return Link(raw, spawn=nursery.start_soon, on_lost=lambda _: None)

    return TunedTls(create_new_key_pair(bytes([seed]) * 32), open_link)


async def test_somebody_else_who_answers_is_refused():
    async with trio.open_nursery() as nursery:
        client, server, wanted = [await tls_of(nursery, seed) for seed in (1, 2, 3)]
        mine, _ = await shake(client, server, wanted._local_peer)
        assert isinstance(mine, HandshakeFailure)
        assert "answers, not" in str(mine)
        mine, theirs = await shake(client, server, server._local_peer)
        assert mine.remote_peer == server._local_peer
        assert theirs.remote_peer == client._local_peer
        nursery.cancel_scope.cancel()


def foreign_context(method, *, has_certificate=True, extension=None):
    """Of an end that has no libp2p key: any certificate, with any extension, or none at all."""
    context = SSL.Context(method)
    context.set_alpn_protos([b"libp2p"])
    context.set_alpn_select_callback(lambda _, offered: offered[0])
    if has_certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "libp2p")])
        builder = x509.CertificateBuilder(name, name, key.public_key(), 1)
        builder = builder.not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        builder = builder.not_valid_after(datetime.datetime(4000, 1, 1, tzinfo=datetime.UTC))
        if extension is not None:
            told = x509.UnrecognizedExtension(LIBP2P_EXTENSION_OID, extension)
            builder = builder.add_extension(told, critical=False)
        context.use_certificate(builder.sign(key, hashes.SHA256()))
        context.use_privatekey(key)
    return context


@pytest.mark.parametrize(
    ("has_certificate", "reason"),
    [(False, "peer did not return a certificate"), (True, "key extension")],
)
async def test_who_dials_without_a_proof_is_refused(has_certificate, reason):
    async with trio.open_nursery() as nursery:
        client, server = [await tls_of(nursery, seed) for seed in (1, 2)]
        client._outbound = foreign_context(SSL.TLS_CLIENT_METHOD, has_certificate=has_certificate)
        _, theirs = await shake(client, server, server._local_peer)
        assert isinstance(theirs, HandshakeFailure)
        assert reason in str(theirs)
        nursery.cancel_scope.cancel()


LIES = {
    "nothing": b"",
    "not DER": b"\xff" * 40,
    "cut off": b"\x30\x7f\x04\x7f",
    "no key": encode_signed_key(b"\xff" * 40, b"s"),
    "key of no type": encode_signed_key(b"\x08\x63\x12\x01k", b"s"),
    "short key": encode_signed_key(b"\x08\x01\x12\x01k", b"s"),
    "signed by nobody": encode_signed_key(
        create_new_key_pair(bytes(32)).public_key.serialize(), bytes(64)
    ),
}


@pytest.mark.parametrize("extension", LIES.values(), ids=LIES.keys())
async def test_who_dials_with_a_lie_is_refused(extension):
    async with trio.open_nursery() as nursery:
        client, server = [await tls_of(nursery, seed) for seed in (1, 2)]
        client._outbound = foreign_context(SSL.TLS_CLIENT_METHOD, extension=extension)
        _, theirs = await shake(client, server, server._local_peer)
        assert isinstance(theirs, HandshakeFailure)
        nursery.cancel_scope.cancel()


async def test_who_answers_without_a_proof_is_refused():
    async with trio.open_nursery() as nursery:
        client, server = [await tls_of(nursery, seed) for seed in (1, 2)]
        server._inbound = foreign_context(SSL.TLS_SERVER_METHOD)
        mine, _ = await shake(client, server, server._local_peer)
        assert isinstance(mine, HandshakeFailure)
        assert "key extension" in str(mine)
        nursery.cancel_scope.cancel()


async def test_older_versions_of_tls_are_refused():
    async with trio.open_nursery() as nursery:
        client, server = [await tls_of(nursery, seed) for seed in (1, 2)]
        client._outbound = foreign_context(SSL.TLS_CLIENT_METHOD)
        client._outbound.set_max_proto_version(SSL.TLS1_2_VERSION)
        _, theirs = await shake(client, server, server._local_peer)
        assert isinstance(theirs, HandshakeFailure)
        assert "unsupported protocol" in str(theirs)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_stock", ["client", "server"])
async def test_stock_peer_is_understood(is_stock):
    async with trio.open_nursery() as nursery:
        keys = {"client": bytes([1]) * 32, "server": bytes([2]) * 32}
        ends = {"client": await tls_of(nursery, 1), "server": await tls_of(nursery, 2)}
        ends[is_stock] = TLSTransport(create_new_key_pair(keys[is_stock]))
        wanted = (await tls_of(nursery, 2))._local_peer
        mine, theirs = await shake(ends["client"], ends["server"], wanted)
        assert mine.get_remote_peer() == wanted
        data = os.urandom(3 * MIB)

        async def say(end):
            for start in range(0, len(data), 200_000):
                await end.write(data[start : start + 200_000])

        async def hear(end):
            found = b""
            while len(found) < len(data):
                found += await end.read(1 << 20)
            assert found == data

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as talk:
                talk.start_soon(say, mine)
                talk.start_soon(hear, theirs)
            async with trio.open_nursery() as talk:
                talk.start_soon(say, theirs)
                talk.start_soon(hear, mine)
        nursery.cancel_scope.cancel()


async def test_records_that_come_with_the_last_of_a_handshake_are_read():
    """The client is through first: what it says at once lies behind its last words."""
    async with trio.open_nursery() as nursery:
        client, server = [await tls_of(nursery, seed) for seed in (1, 2)]
        one, other = two_ends()
        found = []

        async def listen():
            found.append(await server.secure_inbound(other))

        plain = one.write
        held = []

        async def hold(data):
            held.append(bytes(data))

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as talk:
                talk.start_soon(listen)
                shake_hands = client.secure_outbound
                one.write = _second_held(plain, hold)
                session = await shake_hands(one, server._local_peer)
                await session.write(b"hello")
                await plain(b"".join(held))
            assert await found[0].read(5) == b"hello"
        nursery.cancel_scope.cancel()


def _second_held(plain, hold):
    """The first write goes out, those behind it are held."""
    writes = []

    async def write(data):
        writes.append(data)
        await (plain if len(writes) == 1 else hold)(data)

    return write


async def test_what_lies_encrypted_before_a_send_goes_with_it():
    async with trio.open_nursery() as nursery:
        client, server = [await tls_of(nursery, seed) for seed in (1, 2)]
        mine, theirs = await shake(client, server, server._local_peer)
        before = os.urandom(3 * SEND_BYTES_MAX)
        mine.connection.send(before)
        with trio.fail_after(DEADLINE_S):
            await mine.send((b"hello",))
            found = b""
            while len(found) < len(before) + 5:
                found += await theirs.read()
        assert found == before + b"hello"
        nursery.cancel_scope.cancel()
