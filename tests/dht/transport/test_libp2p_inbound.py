"""Streams that others open: what of them is told, and how often."""

import logging

import pytest
import trio

from dht.transport.libp2p_inbound import BAD_SHOWN_MAX, encode_line
from dht.transport.libp2p_yamux import DATA, HEADER, INBOUND_STREAMS_MAX, RST, SYN, WINDOW_UPDATE
from protocol.errors import DecodeError
from tests.dht.loopback import DEADLINE_S, SILENCE, only_link, open_loopback, until

pytestmark = pytest.mark.net

BAD = "/test/bad/1"


async def test_bad_streams_without_end_are_warnings_only_so_often(caplog):
    caplog.set_level(logging.DEBUG, "dht.transport.libp2p_inbound")
    served = 0

    async def refuse(stream):
        nonlocal served
        served += 1
        raise DecodeError(f"garbage of {stream.peer.hex()}")

    def levels():
        told = [record for record in caplog.records if "bad stream" in record.message]
        return [record.levelno for record in told]

    with trio.fail_after(DEADLINE_S):
        async with open_loopback({BAD: refuse}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            for _ in range(3 * BAD_SHOWN_MAX):
                stream = await client.open_stream(server.peer_id, BAD)
                await stream.aclose()
            await until(lambda: len(levels()) == 3 * BAD_SHOWN_MAX)
    assert levels()[:BAD_SHOWN_MAX] == [logging.WARNING] * BAD_SHOWN_MAX
    assert levels()[BAD_SHOWN_MAX:] == [logging.DEBUG] * (2 * BAD_SHOWN_MAX)


async def test_streams_that_are_opened_and_reset_without_end_keep_so_many_handlers_busy():
    """A handler that waits for something else hears of the reset later."""
    num_running = num_served = 0

    async def busy(_stream):
        nonlocal num_running, num_served
        num_running, num_served = num_running + 1, num_served + 1
        try:
            await trio.sleep_forever()
        finally:
            num_running -= 1

    with trio.fail_after(DEADLINE_S):
        async with open_loopback({SILENCE: busy}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            await until(lambda: server.connected() and only_link(server).muxed is not None)
            send = only_link(client).muxed.secured_conn.send
            line = encode_line("/multistream/1.0.0") + encode_line(SILENCE)
            for number in range(2 * INBOUND_STREAMS_MAX):
                stream_id, before = 10_001 + 2 * number, num_served
                await send((HEADER.pack(0, DATA, SYN, stream_id, len(line)), line))
                if number < INBOUND_STREAMS_MAX:
                    await until(lambda: num_served > before)  # noqa: B023 - it ends in this turn
                    await send((HEADER.pack(0, WINDOW_UPDATE, RST, stream_id, 0),))
            await until(lambda: not only_link(server).muxed.streams)
            assert num_running == num_served == INBOUND_STREAMS_MAX
