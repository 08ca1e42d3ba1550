"""TLS between our own: where it is used, and what hostile bytes do to it."""

import contextlib
import os
import ssl

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.exceptions import ConnectionClosedError

from dht.transport import libp2p_tls
from dht.transport.libp2p_host import securities
from dht.transport.libp2p_negotiate import encode_line
from dht.transport.libp2p_tls import TunedTls, tls_is_safe
from dht.transport.libp2p_transport import TransportConfig
from protocol.errors import ConfigError, StreamClosedError
from tests.dht.loopback import DEADLINE_S, ECHO, MIB, ask, echo, only_link, open_loopback, until

safe_here = pytest.mark.skipif(not tls_is_safe(), reason="this interpreter has its own OpenSSL")


def security_of(transport):
    return only_link(transport).muxed.secured_conn.security


@pytest.mark.parametrize(
    "found", [set(), {"/usr/lib/libssl.so.3", "/opt/python/lib/libssl.so.3"}], ids=["none", "two"]
)
def test_tls_is_not_offered_where_the_library_is_in_doubt(monkeypatch, found):
    monkeypatch.setattr(libp2p_tls, "_libssls", lambda: found)
    assert securities(TransportConfig()) == ("noise",)


def test_tls_is_not_offered_by_an_interpreter_of_unknown_layout(monkeypatch):
    monkeypatch.setattr(libp2p_tls, "_KNOWN_LAYOUTS", ())
    assert not tls_is_safe()


def test_security_of_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="security: 'rot13'"):
        TransportConfig(security="rot13")


@safe_here
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


@safe_here
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


@safe_here
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


@safe_here
@pytest.mark.net
async def test_goodbye_of_tls_is_the_end():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            await until(lambda: server.connected() and only_link(server).muxed is not None)
            session = only_link(client).muxed.secured_conn
            with contextlib.suppress(OSError):  # It would wait for the other end's goodbye.
                session._ssl.unwrap()
            await session.link.write(session._out.read())
            await until(lambda: not server.connected())
            with pytest.raises(ConnectionClosedError):
                await session.receive()


@safe_here
def test_connections_of_a_side_share_a_context_that_resumes_nothing():
    keys = create_new_key_pair(bytes(32))
    security = TunedTls(keys, lambda raw: pytest.fail("no connection here"))
    inbound, outbound = (security.create_ssl_context(server_side=side) for side in (True, False))
    assert security.create_ssl_context(server_side=True) is inbound is not outbound
    assert security.create_ssl_context(server_side=False) is outbound
    assert inbound.num_tickets == 0
    assert inbound.options & outbound.options & ssl.OP_NO_TICKET


@safe_here
@pytest.mark.net
async def test_every_connection_proves_both_ends_anew():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            for _ in range(2):
                await client.connect(server.peer_id, server.addresses())
                await until(lambda: only_link(client).muxed is not None)
                agreed = only_link(client).muxed.secured_conn
                assert not agreed._ssl.session_reused
                assert agreed._ssl.getpeercert(binary_form=True)
                await client.disconnect(server.peer_id)
                await until(lambda: not server.connected())
