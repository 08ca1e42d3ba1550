"""Streams that others open: what of them is told, and how often."""

import logging

import pytest
import trio

from dht.transport.libp2p_inbound import BAD_SHOWN_MAX
from protocol.errors import DecodeError
from tests.dht.loopback import DEADLINE_S, open_loopback, until

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
